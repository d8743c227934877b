"""Refuses a configuration that cannot work, before anything of the job starts."""

from __future__ import annotations

import http.client
import logging
import re
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import ray

from ecorl.config import (
    Config,
    LearnedPolicyConfig,
    PluginEngineConfig,
    RayRuntimeConfig,
    StaticPolicyConfig,
)
from ecorl.engines.models.text_tokenizer import TOKENIZER_FILE, survives_text
from ecorl.errors import ConfigError
from ecorl.records import Action, Stage
from ecorl.runtime.control.governor import check_budget
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.ray.cluster import check_accelerators
from roll_adapters.openrlhf.description import frozen_models
from roll_adapters.openrlhf.flags import ALGORITHMS, value_of
from roll_adapters.openrlhf.gears.checks import check_gears
from roll_adapters.openrlhf.widths import check_widths
from roll_adapters.ray_jobs.models import local_folder

logger = logging.getLogger(__name__)

ENGINE = "openrlhf"
"""Name of the engine that computes with OpenRLHF's own classes."""

_SERVICE = re.compile(r"(https?://[^/]+)/openrlhf(?:/([^/]+))?")
"""URL of ``ecorl fpga serve`` for OpenRLHF: its base, and the token that may stand in the path."""

_SERVICE_S = 10.0
"""Longest wait for a service at the start, s. Invented: one that is loading its model answers
later, and is not waited for."""

_TOKENIZER_BYTES = 64 << 20
"""Largest tokenizer.json that is read, bytes; those of today's models have up to 20 MB."""


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
    check_budget(config)
    _check_micro_batches(config)
    _check_overlap(config, args)
    _check_exact_engine(config, args)
    _check_tokenizers(config, args)
    check_gears(config, args)
    check_widths(config, args)
    n_engines = len(frozen_models(config, args))
    if n_engines and ray.is_initialized():
        assert isinstance(config.runtime, RayRuntimeConfig)
        check_accelerators(n_engines, config.runtime.patience_s)
    return config.model_copy(update={"adapter": "openrlhf"})


def _check_micro_batches(config: Config) -> None:
    """Refuse to pack rows: OpenRLHF packs them itself."""
    if config.trainer.adaptive_micro_batch:
        allowed = "false: OpenRLHF packs rows itself, with --train.dynamic_batch_enable"
        raise ConfigError("trainer.adaptive_micro_batch", True, allowed)


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


def _check_tokenizers(config: Config, args: Any) -> None:
    """Refuse a reward model that would read other tokens than the policy wrote.

    An engine is given the policy's ids as they are, and a service of ecorl's their text.
    """
    policy = local_folder(str(value_of(args, "actor.model_name_or_path")))
    if policy is None:
        return
    model = value_of(args, "reward.model_name_or_path")
    urls = value_of(args, "reward.remote_url") or ()
    if not urls and model and not stays_on_gpu(config.placement.policy, Stage.REWARD):
        folder = local_folder(str(model))
        # Many a reward model comes without a tokenizer: then nothing can be told.
        if folder is not None and (folder / TOKENIZER_FILE).is_file():
            _refuse("--reward.model_name_or_path", model, survives_text(policy, folder))
    for url in [urls] if isinstance(urls, str) else urls:
        found = _SERVICE.fullmatch(str(url))
        if found is not None:
            _refuse("--reward.remote_url", found[1], _why_not_by_text(policy, found[1], found[2]))


def _refuse(flag: str, value: object, why: str | None) -> None:
    if why is not None:
        allowed = f"a reward model that reads the policy's tokens as they are ({why})"
        raise ConfigError(flag, str(value), allowed)


def _why_not_by_text(policy: Path, base: str, token: str | None) -> str | None:
    """Why the policy's ids do not survive on the way to a service; None where nothing is known."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{base}/v1/tokenizer", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_SERVICE_S) as answer:
            text = answer.read(_TOKENIZER_BYTES)
            if answer.length:
                # A bounded read of an answer that breaks off is short without an error.
                raise http.client.IncompleteRead(text, answer.length)
    except urllib.error.HTTPError as error:
        return f"the service answers {error.code} at /v1/tokenizer"
    except (OSError, http.client.HTTPException) as error:
        # It may be started later; OpenRLHF tries for some seconds too.
        logger.warning("the reward service does not answer yet: %s", error)
        return None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / TOKENIZER_FILE).write_bytes(text)
        return survives_text(policy, Path(folder))
