"""Which gears ROLL's ``actor_train`` can be shifted into, by its settings."""

from __future__ import annotations

from typing import Any

from ecorl.control import Gear
from ecorl.errors import ConfigError
from roll_adapters.roll.config.settings import RollConfig

STRATEGY = "fsdp2_train"
"""ROLL's strategy whose layers are torch's own; Megatron makes others, of which each process has a
part."""

_OWN = {"bf16": Gear.BF16, "bfloat16": Gear.BF16, "fp32": Gear.FP32, "float32": Gear.FP32}
"""What ``strategy_config.param_dtype`` has the training computed in, by ROLL's names."""

_POSSIBLE = {Gear.BF16: (Gear.BF16, Gear.FP8), Gear.FP32: (Gear.FP32, Gear.BF16, Gear.FP8)}
"""Gears by what FSDP2 gathers the weights in: a gear cannot be wider than that."""


def own_gear(strategy_config: Any) -> Gear | None:
    """What ROLL itself computes the training in; None: something else than BF16 and FP32.

    Args:
        strategy_config: of ``actor_train``.
    """
    given = (strategy_config or {}).get("param_dtype", "bfloat16")
    return _OWN.get(str(given).removeprefix("torch.").lower())


def check_gears(read: RollConfig, pipeline_config: Any, *, moves: bool) -> None:
    """Check ``gears`` against ROLL's settings.

    Args:
        read: the config as it was read.
        pipeline_config: ROLL's, made of it.
        moves: whether the pipeline is RLVR, whose steps are followed.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    gears = read.config.gears
    if not gears.is_on:
        return
    why = _why_not(read, pipeline_config) if moves else "[]: in this pipeline nothing is shifted"
    if why is not None:
        raise _error(read, "gears.allowed", [str(gear) for gear in gears.allowed], why)
    if gears.noise_budget is not None:
        allowed = "left out: the gradient's noise is not measured in ROLL's workers"
        raise _error(read, "gears.noise_budget", gears.noise_budget, allowed)
    if gears.optimizer == "literal":
        allowed = "adaptive or own: the optimizer of ROLL's workers stays as it is"
        raise _error(read, "gears.optimizer", "literal", allowed)


def _error(read: RollConfig, key: str, value: object, allowed: str) -> ConfigError:
    return read.error(f"ecorl.{key}", value, allowed)


def _why_not(read: RollConfig, pipeline_config: Any) -> str | None:
    """Why the gears of a config are not possible, as what would be allowed; None: they are."""
    actor = pipeline_config.actor_train
    arguments = actor.strategy_args
    name = getattr(arguments, "strategy_name", None)
    where = "actor_train.strategy_args"
    if name != STRATEGY:
        return f"[] with {where}.strategy_name {name}: only {STRATEGY} has torch's own layers"
    config = getattr(arguments, "strategy_config", None) or {}
    own = own_gear(config)
    if own is None:
        return f"[] with {where}.strategy_config.param_dtype {config.get('param_dtype')}"
    if any(gear not in _POSSIBLE[own] for gear in read.config.gears.allowed):
        names = ", ".join(_POSSIBLE[own])
        return f"a list of {names}: FSDP2 gathers the weights in {own}"
    if int(config.get("ep_size", 1) or 1) > 1:
        return f"[] with {where}.strategy_config.ep_size: each process has other experts"
    for key in ("use_dynamic_batching_in_train", "use_sequence_packing"):
        if getattr(actor, key, False):
            return f"[] with actor_train.{key}: one call trains several steps of the optimizer"
    return None
