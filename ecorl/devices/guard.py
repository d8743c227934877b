"""The physical bound: no figure above what the device can do leaves this program as its own.

The bound of a card is ``2 x macs_per_dsp x n_dsp x clock_max_hz`` operations a second, over all
DSPs on the die (with two packed INT8 products a DSP: 4 x DSP x f); of a GPU its largest published
peak; of a CPU its widest vector unit at a clock that no boost exceeds. Memory: the data sheet's
bandwidth. Measured, emulated, replayed and modelled figures above the bound are refused;
published ones are flagged, since what a paper printed is what it printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ecorl.devices.profile import DeviceProfile
from ecorl.errors import PhysicalBoundError
from ecorl.records import Provenance

_ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """How a figure stands against the device's bounds.

    Attributes:
        exceeds: whether it lies above a bound (only ever True for published figures).
        ops_share: operations per second over the bound, or None when unknown.
        memory_share: bytes per second over the bound, or None when unknown.
    """

    exceeds: bool
    ops_share: float | None
    memory_share: float | None


def card_peak_ops(n_dsp: float, clock_hz: float, macs_per_dsp: float = 2) -> float:
    """Peak INT8 operations per second of DSPs: a multiply-accumulate is two operations."""
    return 2.0 * macs_per_dsp * n_dsp * clock_hz


def bound_ops_per_s(profile: DeviceProfile, n_devices: int = 1) -> float | None:
    """The most operations a second that the devices can do, or None when the profile cannot say."""
    if profile.kind == "fpga":
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
    """The most bytes a second that the memory moves, or None when unknown.

    An assumed bandwidth (provenance modelled) is no bound: it cannot refuse anything.
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
    """Hold a figure against the physical bounds of the device that is said to have reached it.

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
    if math.isnan(time_s) or time_s < 0:
        raise PhysicalBoundError(f"{profile.name}: a time of {time_s} s is not a time")
    ops_bound = bound_ops_per_s(profile, n_devices)
    memory_bound = bound_memory_bytes_per_s(profile, n_devices)
    ops_share = _share(ops, time_s, ops_bound)
    memory_share = _share(bytes_moved, time_s, memory_bound)
    over = []
    if ops_share is not None and ops is not None and ops_share > _ROUNDING:
        over.append(f"{ops:.4g} operations in {time_s:.4g} s are {ops_share:.4g} x the peak")
    if memory_share is not None and bytes_moved is not None and memory_share > _ROUNDING:
        over.append(f"{bytes_moved:.4g} B in {time_s:.4g} s are {memory_share:.4g} x the bandwidth")
    if over and provenance is not Provenance.PUBLISHED:
        raise PhysicalBoundError(f"{n_devices} x {profile.name}, {provenance}: {'; '.join(over)}")
    return BoundCheck(bool(over), ops_share, memory_share)


def _share(amount: float | None, time_s: float, bound: float | None) -> float | None:
    if amount is None or bound is None:
        return None
    if amount == 0:
        return 0.0
    return math.inf if time_s == 0 else amount / time_s / bound
