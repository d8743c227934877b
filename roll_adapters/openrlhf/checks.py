"""Refuses a configuration that cannot work, before anything of the job starts."""

from __future__ import annotations

import os
from typing import Any

import ray

from ecorl.config import (
    Config,
    LearnedPolicyConfig,
    LocalRuntimeConfig,
    PluginEngineConfig,
    RayRuntimeConfig,
    StaticPolicyConfig,
)
from ecorl.errors import ConfigError
from ecorl.records import Action, Stage
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.ray.cluster import check_accelerators
from roll_adapters.openrlhf.description import frozen_models
from roll_adapters.openrlhf.flags import ALGORITHMS, value_of

ENGINE = "openrlhf"
"""Name of the engine that computes with OpenRLHF's own classes."""


def on_ray(config: Config) -> Config:
    """Put the run on Ray, where OpenRLHF's processes are anyway.

    Args:
        config: as the user wrote it.

    Raises:
        ConfigError: when it asks for a run in one process.
    """
    if isinstance(config.runtime, RayRuntimeConfig):
        return config
    if "runtime" in config.model_fields_set:
        raise ConfigError("runtime.type", config.runtime.type, "ray: OpenRLHF runs on Ray")
    assert isinstance(config.runtime, LocalRuntimeConfig)
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if "://" in address:
        address = "auto"
    return config.model_copy(update={"runtime": RayRuntimeConfig(address=address)})


def fitted(config: Config, args: Any) -> Config:
    """Check a config against OpenRLHF's flags, and take from them what they decide.

    Args:
        config: the run's configuration, on Ray.
        args: OpenRLHF's flags, nested and checked by OpenRLHF.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    estimator = str(value_of(args, "algo.advantage.estimator", "gae"))
    algorithm = ALGORITHMS.get(estimator)
    if algorithm is not None and "algorithm" not in config.model_fields_set:
        config = config.model_copy(update={"algorithm": str(algorithm)})
    elif algorithm is not None and config.algorithm_enum is not algorithm:
        allowed = f"{algorithm}, or left out: --algo.advantage.estimator is {estimator}"
        raise ConfigError("algorithm", config.algorithm, allowed)
    _check_overlap(config, args)
    _check_exact_engine(config, args)
    n_engines = len(frozen_models(config, args))
    if n_engines and ray.is_initialized():
        assert isinstance(config.runtime, RayRuntimeConfig)
        check_accelerators(n_engines, config.runtime.patience_s)
    return config.model_copy(update={"adapter": "openrlhf"})


def _check_overlap(config: Config, args: Any) -> None:
    """Refuse overlap where OpenRLHF runs one stage after the other."""
    for flag, stages in (
        ("train.colocate_all", (Stage.REWARD, Stage.REFERENCE)),
        ("train.colocate_actor_ref", (Stage.REFERENCE,)),
    ):
        if not value_of(args, flag, False):
            continue
        policy = config.placement.policy
        why = f"with --{flag} OpenRLHF runs one model after the other"
        if not isinstance(policy, StaticPolicyConfig):
            kind = "learned" if isinstance(policy, LearnedPolicyConfig) else policy.type
            allowed = f"static, with gpu or fpga for {' and '.join(stages)}: {why}"
            raise ConfigError("placement.policy.type", kind, allowed)
        for stage in stages:
            if getattr(policy, str(stage)) is Action.CONCURRENT:
                allowed = f"gpu or fpga: {why}"
                raise ConfigError(f"placement.policy.{stage}", str(Action.CONCURRENT), allowed)


def _check_exact_engine(config: Config, args: Any) -> None:
    """Refuse OpenRLHF's own classes on a worker where one process alone cannot compute as they."""
    offload = config.engine.offload
    if not isinstance(offload, PluginEngineConfig) or offload.name != ENGINE:
        return
    if all(stays_on_gpu(config.placement.policy, s) for s in (Stage.REWARD, Stage.REFERENCE)):
        return
    for flag in ("ds.ring_attn_size", "ds.tensor_parallel_size"):
        size = int(value_of(args, flag, 1))
        if size > 1:
            allowed = f"1 with engine.offload.name = {ENGINE!r}: a worker is one process"
            raise ConfigError(f"--{flag}", size, allowed)
