"""What a TRL trainer computes in, and whether its training stage can be shifted at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ecorl.config import Config
from ecorl.control import Gear
from ecorl.errors import ConfigError
from ecorl.trainer.gears.formats import supported
from ecorl.trainer.gears.gearbox import Gearbox
from ecorl.trainer.gears.geared_model import GearedModel
from roll_adapters.trl.processes import REPLICATED

_PRECISIONS = {"no": Gear.FP32, "bf16": Gear.BF16, "fp16": Gear.FP16}
"""Accelerate's names of mixed precision, and the gears that they are."""


def own_gear(trainer: Any) -> Gear:
    """The gear in which a trainer itself computes its training stage.

    Args:
        trainer: the TRL trainer.

    Raises:
        ConfigError: when its weights are not in float32, or it computes in another format.
    """
    precision = str(trainer.accelerator.mixed_precision)
    dtypes = {p.dtype for p in bare_model(trainer).parameters() if p.requires_grad}
    if dtypes != {torch.float32}:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) or "none"
        allowed = (
            f"[] for this trainer: it trains weights in {names}, and a shift of the gear needs "
            "them in float32 (bf16=True in place of a dtype)"
        )
        raise ConfigError("gears.allowed", "", allowed)
    if precision not in _PRECISIONS:
        allowed = f"[] for this trainer: its mixed precision is {precision}"
        raise ConfigError("gears.allowed", "", allowed)
    return _PRECISIONS[precision]


def bare_model(trainer: Any) -> Any:
    """The model that is trained, without wrappers for several processes.

    Args:
        trainer: the TRL trainer.
    """
    return trainer.accelerator.unwrap_model(trainer.model)


def make_gears(trainer: Any, config: Config) -> tuple[Gearbox, GearedModel]:
    """Make a trainer's gears.

    Args:
        trainer: the TRL trainer, made but not yet training.
        config: the run's; its gears are on.

    Raises:
        ConfigError: when the trainer or its device cannot be shifted as the config asks for.
        MissingToolError: when FP8 is asked for and torchao is not installed.
    """
    _check_whole(trainer, config)
    model, own = bare_model(trainer), own_gear(trainer)
    gears = config.gears
    support = supported(
        gears.allowed, trainer.accelerator.device, may_simulate_fp8=gears.simulate_fp8
    )
    box = Gearbox(gears, support, config.carbon.control.low_share)
    return box, GearedModel(model, own, support, _inner_forward(model))


def _inner_forward(model: Any) -> Callable[..., Any] | None:
    """The forward pass inside accelerate's mixed precision, where it has wrapped the model."""
    found: Callable[..., Any] | None = model.__dict__.get("_original_forward")
    return found


def _check_whole(trainer: Any, config: Config) -> None:
    """Refuse models of which each process has a part, and compiled ones."""
    asked = [str(gear) for gear in config.gears.allowed]
    kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    if kind not in REPLICATED:
        allowed = f"[]: the trainer shards its model ({kind}), whose precision is fixed then"
        raise ConfigError("gears.allowed", asked, allowed)
    if trainer.args.torch_compile:
        allowed = "[] with torch_compile: each shift would compile the model anew"
        raise ConfigError("gears.allowed", asked, allowed)
