"""The physical bound: figures above what a device can do are refused.

The bound of a card is ``2 x macs_per_dsp x n_dsp x clock_max_hz`` operations a second, over all
DSPs on the die (with two packed INT8 products a DSP: 4 x DSP x f); of a GPU its largest published
peak; of a CPU its widest vector unit at a clock that no boost exceeds. Memory: the data sheet's
bandwidth. Power: the board's limit. Measured, emulated, replayed and modelled figures above a
bound are refused; published ones are flagged, since what a paper printed is what it printed.

`check_execution` holds what an engine says of one batch against the least that the batch takes;
`check_throughput` holds operations and bytes that are known otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ecorl.devices.profile import DeviceProfile
from ecorl.devices.work import least_ops, least_products
from ecorl.errors import PhysicalBoundError
from ecorl.records import DeviceKind, Provenance, StageWork

_ROUNDING = 1.0 + 1e-9

_ONCHIP_CEILING_BYTES = 2.56e8
"""Stands for the memory on chip of a device whose profile does not tell it: above that of any card
or GPU with a profile here, so that no figure is refused for weights that may lie there."""


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """A figure compared with the device's bounds.

    Attributes:
        exceeds: whether it lies above a bound (only ever True for published figures).
        ops_share: operations per second over the bound, or None when unknown.
        memory_share: bytes per second over the bound, or None when unknown.
        power_share: mean power over the power limit, or None when unknown.
    """

    exceeds: bool
    ops_share: float | None
    memory_share: float | None
    power_share: float | None = None


def card_peak_ops(n_dsp: float, clock_hz: float, macs_per_dsp: float = 2) -> float:
    """Compute the peak INT8 operations per second of DSPs: a multiply-accumulate is two.

    Args:
        n_dsp: DSP slices at work.
        clock_hz: their clock, Hz.
        macs_per_dsp: multiply-accumulates of one DSP a cycle.
    """
    return 2.0 * macs_per_dsp * n_dsp * clock_hz


def bound_ops_per_s(profile: DeviceProfile, n_devices: int = 1) -> float | None:
    """Compute the most operations a second that devices can do.

    Args:
        profile: the device.
        n_devices: devices that share the work.

    Returns:
        Operations per second; None when the profile cannot say.
    """
    if profile.kind == DeviceKind.FPGA:
        n_dsp, macs = profile.get("n_dsp"), profile.get("macs_per_dsp")
        clock_hz = profile.get("clock_max_hz") or profile.get("clock_hz")
        if n_dsp is None or macs is None or clock_hz is None:
            return None
        return n_devices * card_peak_ops(n_dsp, clock_hz, macs)
    keys = ("peak_fp32_flops", "peak_bf16_flops", "peak_fp8_flops", "peak_int8_ops")
    peaks = [peak for key in keys if (peak := profile.get(key)) is not None]
    if not peaks:
        return None
    nominal, ceiling = profile.get("clock_hz"), profile.get("clock_max_hz")
    boost = ceiling / nominal if nominal and ceiling else 1.0
    return n_devices * max(peaks) * boost


def bound_memory_bytes_per_s(profile: DeviceProfile, n_devices: int = 1) -> float | None:
    """Compute the most bytes a second that the devices' memories move.

    An assumed bandwidth (provenance modelled) is no bound: it cannot refuse anything.

    Args:
        profile: the device.
        n_devices: devices that share the work.

    Returns:
        Bytes per second; None when the profile holds no published bandwidth.
    """
    figure = profile.figures.get("memory_bytes_per_s")
    if figure is None or figure.provenance is Provenance.MODELLED:
        return None
    return n_devices * figure.value


def check_throughput(
    profile: DeviceProfile,
    ops: float | None,
    bytes_moved: float | None,
    time_s: float,
    provenance: Provenance,
    n_devices: int = 1,
) -> BoundCheck:
    """Check a figure against the physical bounds of the device that is said to have reached it.

    Args:
        profile: the device.
        ops: operations done (a multiply-accumulate is two), or None when unknown.
        bytes_moved: bytes that crossed the device's memory (not its caches), or None.
        time_s: the time in which this is said to have happened, s.
        provenance: of the figure; published ones are flagged, all others refused.
        n_devices: devices that shared the work.

    Returns:
        The shares of the bounds; None where the profile or the figure cannot say.

    Raises:
        PhysicalBoundError: when a figure that is not published lies above a bound.
    """
    _check_time(profile, time_s)
    bounds = bound_ops_per_s(profile, n_devices), bound_memory_bytes_per_s(profile, n_devices)
    shares = _share(ops, time_s, bounds[0]), _share(bytes_moved, time_s, bounds[1])
    over = _over("operations", ops, time_s, shares[0], "peak")
    over += _over("B", bytes_moved, time_s, shares[1], "bandwidth")
    _refuse(over, profile, provenance, n_devices)
    return BoundCheck(bool(over), *shares)


def check_execution(
    profile: DeviceProfile,
    work: StageWork,
    time_s: float,
    energy_j: float | None,
    provenance: Provenance,
    n_devices: int = 1,
) -> BoundCheck:
    """Check an engine's figures of one execution against the least that it can have taken.

    Three bounds: the operations that the stage cannot do without (`least_ops`) against the peak;
    the active weights, one byte each, less what stays on chip, against the memory's bandwidth; the
    mean power against the power limit. There is no lower bound of power: how little a board draws
    depends on the board.

    Args:
        profile: the device that is said to have run it.
        work: the stage's work; without a model shape only the energy is held against a bound.
        time_s: the time that it is said to have taken, s.
        energy_j: the energy that it is said to have taken, J, or None when unknown.
        provenance: of both figures; published ones are flagged, all others refused.
        n_devices: devices that shared the work.

    Returns:
        The shares of the bounds; None where the profile or the figures cannot say.

    Raises:
        PhysicalBoundError: in one line, when a figure that is not published cannot be true.
    """
    _check_time(profile, time_s)
    if energy_j is not None and not (math.isfinite(energy_j) and energy_j >= 0):
        raise PhysicalBoundError(f"{profile.name}: {energy_j:g} J is no energy")
    ops = weights = None
    if work.model is not None:
        ops = least_ops(work, work.model)
        weights = _least_streamed_bytes(work, profile, n_devices)
    check = check_throughput(profile, ops, weights, time_s, Provenance.PUBLISHED, n_devices)
    limit_w = profile.get("tdp_w")
    power_share = _share(energy_j, time_s, None if limit_w is None else n_devices * limit_w)
    over = _over("operations at least", ops, time_s, check.ops_share, "peak")
    over += _over("B of weights at least", weights, time_s, check.memory_share, "bandwidth")
    if power_share is not None and energy_j is not None and power_share > _ROUNDING:
        mean = f"{energy_j / time_s:.4g} W" if time_s else f"{energy_j:.4g} J in no time"
        over.append(f"{mean} are {power_share:.4g} x the power limit")
    if energy_j == 0 and time_s > 0:
        over.append(f"0 J for {time_s:.4g} s of work")
    _refuse(over, profile, provenance, n_devices)
    return BoundCheck(bool(over), check.ops_share, check.memory_share, power_share)


def _least_streamed_bytes(work: StageWork, profile: DeviceProfile, n_devices: int) -> float:
    """Weights that must cross the memory at least once, a byte each: INT8 is the narrowest here."""
    if work.model is None or least_products(work, work.model).wanted == 0:
        return 0.0
    onchip_bytes = profile.get("onchip_bytes") or _ONCHIP_CEILING_BYTES
    return max(0.0, work.model.n_params_active - n_devices * onchip_bytes)


def _check_time(profile: DeviceProfile, time_s: float) -> None:
    if not math.isfinite(time_s) or time_s < 0:
        raise PhysicalBoundError(f"{profile.name}: a time of {time_s} s is not a time")


def _over(
    what: str, amount: float | None, time_s: float, share: float | None, bound: str
) -> list[str]:
    """Describe what lies above a bound; empty when nothing does."""
    if amount is None or share is None or share <= _ROUNDING:
        return []
    return [f"{amount:.4g} {what} in {time_s:.4g} s are {share:.4g} x the {bound}"]


def _refuse(
    over: list[str], profile: DeviceProfile, provenance: Provenance, n_devices: int
) -> None:
    if over and provenance is not Provenance.PUBLISHED:
        raise PhysicalBoundError(f"{n_devices} x {profile.name}, {provenance}: {'; '.join(over)}")


def _share(amount: float | None, time_s: float, bound: float | None) -> float | None:
    if amount is None or bound is None:
        return None
    if amount == 0:
        return 0.0
    return math.inf if time_s == 0 else amount / time_s / bound
