"""A table of power and throughput from a device's profile, until a run has measured one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ecorl.control import Gear
from ecorl.controllers.planning.defaults import EXPONENT, FP8_GAIN
from ecorl.controllers.problem.table import GearTable, scaled_table
from ecorl.devices.profile import DeviceProfile
from ecorl.devices.roofline import stage_cost
from ecorl.devices.work import resident_bytes
from ecorl.errors import ConfigError
from ecorl.kinds import Provenance, Stage
from ecorl.records import DeviceKind, ModelShape, StageWork

_ROWS, _LENGTH = 256, 1024
"""Batch of a step by which a worker is priced: rows, and tokens of each. Invented; longer rows cost
more for attention, by some percent."""

_MOST_WIDTHS = 8
"""Number of widths of a modelled table. Invented: more of them hardly save more."""

_DTYPE_BYTES = 2


def offered_gears(profile: DeviceProfile) -> tuple[Gear, ...]:
    """The gears that a modelled table has: BF16, and FP8 where the device computes in it.

    Args:
        profile: of the device.

    Raises:
        ConfigError: when it is no GPU.
    """
    if profile.kind is not DeviceKind.GPU:
        raise ConfigError("--gpu", profile.name, "the profile of a GPU")
    return (Gear.BF16,) if profile.get("peak_fp8_flops") is None else (Gear.BF16, Gear.FP8)


def offered_widths(profile: DeviceProfile, n_workers: int, model: ModelShape) -> tuple[int, ...]:
    """Widths up to a number of workers, from the least that holds the training's state on.

    Args:
        profile: of one worker.
        n_workers: largest width.
        model: that is trained.

    Raises:
        ConfigError: when so few workers do not hold the state of the training.
    """
    least = least_width(profile, model)
    if n_workers < least:
        allowed = (
            f"at least {least}: so many {profile.title} hold weights, gradients and moments of "
            f"{model.n_params / 1e9:.3g} billion parameters"
        )
        raise ConfigError("--workers", n_workers, allowed)
    step = math.ceil(n_workers / _MOST_WIDTHS)
    widths = {n_workers - number * step for number in range(_MOST_WIDTHS)}
    return tuple(sorted(width for width in widths if width >= least))


def least_width(profile: DeviceProfile, model: ModelShape) -> int:
    """How many workers hold weights, gradients and moments of a model that is trained.

    Args:
        profile: of one worker.
        model: that is trained.
    """
    state = resident_bytes(_work(model), model, _DTYPE_BYTES)
    return max(1, math.ceil(state / profile.value("memory_bytes")))


def modelled_table(
    profile: DeviceProfile,
    gears: Sequence[Gear],
    widths: Sequence[int],
    *,
    model: ModelShape,
    fp8_gain: float = FP8_GAIN,
    exponent: float = EXPONENT,
) -> GearTable:
    """Model the training stage: BF16 by the roofline, FP8 by a gain, widths by an exponent.

    Power is that of the GPUs alone, and the same in all gears; what else a machine draws is for
    ``carbon.control.base_w`` and ``idle_w``.

    Args:
        profile: of one worker, a GPU.
        gears: of BF16 and FP8.
        widths: numbers of workers, rising.
        model: that is trained.
        fp8_gain: throughput of FP8 over BF16.
        exponent: power of the width with which throughput grows, at most 1.

    Raises:
        ConfigError: for a device that is no GPU, a gear that it does not have, a profile that lacks
            a figure, and a gain or an exponent that cannot be.
    """
    _check(profile, gears, fp8_gain, exponent)
    work, n = _work(model), least_width(profile, model)
    cost = stage_cost(work, profile, n)
    if cost.time_s is None or cost.power_w is None:
        raise ConfigError(
            "--gpu", profile.name, f"a profile by which training is priced: {cost.note}"
        )
    rate = work.n_tokens / cost.time_s / n
    rates = {gear: rate * (fp8_gain if gear is Gear.FP8 else 1.0) for gear in gears}
    gain = f"; FP8 {fp8_gain:g} times BF16 (published: torchao, 8 B, is 1.25)"
    return scaled_table(
        tuple(widths),
        rates,
        dict.fromkeys(gears, cost.power_w / n),
        exponent=exponent,
        overhead=1.0,
        provenance=Provenance.MODELLED,
        source=(
            f"roofline of {profile.title}, {model.n_params / 1e9:.3g} billion parameters"
            f"{gain if Gear.FP8 in gears else ''}; throughput by width to the power of "
            f"{exponent:g} (assumed)"
        ),
    )


def _check(profile: DeviceProfile, gears: Sequence[Gear], fp8_gain: float, exponent: float) -> None:
    """Refuse what cannot be modelled."""
    offered = offered_gears(profile)
    for gear in gears:
        if gear not in offered:
            allowed = f"one of {', '.join(offered)} on {profile.title}"
            raise ConfigError("gears", str(gear), allowed)
    if not (math.isfinite(fp8_gain) and 0.1 <= fp8_gain <= 10.0):
        raise ConfigError("--fp8-gain", fp8_gain, "a factor from 0.1 to 10")
    if not 0.0 < exponent <= 1.0:
        raise ConfigError("--scaling", exponent, "an exponent above 0 and at most 1")


def _work(model: ModelShape) -> StageWork:
    tokens = _ROWS * _LENGTH
    return StageWork(Stage.ACTOR_TRAIN, _ROWS, tokens, tokens, _LENGTH, model)
