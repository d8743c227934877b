"""Refuses gears that OpenRLHF's actor cannot be shifted into, before anything of the job starts."""

from __future__ import annotations

from typing import Any

from ecorl.config import Config
from ecorl.control import Gear
from ecorl.errors import ConfigError
from roll_adapters.openrlhf.flags import value_of

POSSIBLE = (Gear.BF16, Gear.FP8)
"""With weights in BF16: what the actor computes in anyway, and FP8 layers over the same weights."""


def check_gears(config: Config, args: Any) -> None:
    """Check ``[gears]`` against OpenRLHF's flags.

    Args:
        config: the run's configuration.
        args: OpenRLHF's flags, nested.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    if not config.gears.is_on:
        return
    _check_formats(config, args)
    _check_whole(config, args)
    if config.gears.noise_budget is not None:
        allowed = "left out: the gradient's noise is not measured inside DeepSpeed"
        raise ConfigError("gears.noise_budget", config.gears.noise_budget, allowed)
    if config.gears.optimizer == "literal":
        allowed = "adaptive or own: DeepSpeed makes its own optimizer, which stays as it is"
        raise ConfigError("gears.optimizer", "literal", allowed)


def _refuse(config: Config, why: str) -> None:
    raise ConfigError("gears.allowed", [str(gear) for gear in config.gears.allowed], why)


def _check_formats(config: Config, args: Any) -> None:
    dtype = str(value_of(args, "ds.param_dtype", "bf16"))
    if dtype != "bf16":
        _refuse(config, f"[] with --ds.param_dtype {dtype}: a shift needs the weights in bf16")
    if any(gear not in POSSIBLE for gear in config.gears.allowed):
        why = (
            "a list of BF16 and FP8: OpenRLHF keeps the actor's weights in BF16, and in FP32 "
            "inside DeepSpeed's optimizer alone"
        )
        _refuse(config, why)


def _check_whole(config: Config, args: Any) -> None:
    """Refuse what gives each process a part of the model, and what changes its layers."""
    zero = int(value_of(args, "ds.zero_stage", 2))
    if zero > 2:
        _refuse(config, f"[] with --ds.zero_stage {zero}: each process has a part of each layer")
    for flag in ("ds.tensor_parallel_size", "ds.ring_attn_size"):
        size = int(value_of(args, flag, 1))
        if size > 1:
            _refuse(config, f"[] with --{flag} {size}: several processes compute one row together")
    for flag, why in (
        ("ds.load_in_4bit", "its layers are no plain ones"),
        ("ds.deepcompile", "each shift would compile the model anew"),
        ("train.enable_ema", "a step that is computed anew would be averaged in twice"),
    ):
        if value_of(args, flag, False):
            _refuse(config, f"[] with --{flag}: {why}")
    accumulates_fp32 = str(value_of(args, "ds.grad_accum_dtype", None)) == "fp32"
    if zero == 1 and accumulates_fp32 and not value_of(args, "ds.adam_offload", False):
        why = (
            "[] with --ds.zero_stage 1 and --ds.grad_accum_dtype fp32: DeepSpeed's optimizer for "
            "these ends the training at a gradient that is not finite"
        )
        _refuse(config, why)
