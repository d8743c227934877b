"""How time and power of a GPU follow the clock of its processors, by published figures.

All clocks are relative to the greatest. The natural clock n of a stage is the one at which it runs
while nothing is set: the greatest, or what the board's limit on power leaves. A lock at or above it
changes nothing. At a lock f below it arithmetic takes ``n / f`` times as long. Memory keeps its own
clock, so what waits for it takes no longer down to a knee k, below which the processors ask for too
little at a time, and ``min(k, n) / f`` times as long there; what waits for the host is no slower.
Of the power above idle, that of the processors falls with clock and voltage::

    g(f) = s + (1 - s) f^3        power of processors that run, over that at the greatest clock
    g(f) / g(n)                   over that at the natural clock
    n g(f) / (f g(n))             energy of an operation likewise

s is what does not follow the clock. It is set by what was published of decoding in small batches,
with memory at its full speed: a lock saves up to 32 % there (H200, arXiv 2605.11999), up to 42 % at
the lowest clock (RTX PRO 6000, arXiv 2501.08219). In those measurements a GPU draws 137 to 300 W.

Nothing is published at a rollout's batches, neither of power nor of the knee. Of a clock below that
which a board's limit leaves there are caps of training on smaller boards: BERT took 5 to 11 % less
energy at 7 to 10 % more time (A40, V100; ml-energy/zeus, tests/profile_data), which is more than
this curve saves. So the lower end of the interval saves nothing above the published power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ecorl.devices.gpu_pass import decoding_pass, gpu_limits, pass_cost, pass_parameters
from ecorl.devices.llama import model_shape
from ecorl.devices.profile import DeviceProfile

Number = Any
"""A float, or an array of floats."""

LEAST_CLOCK = 0.5
"""Lowest clock that is considered, over the highest. Invented: below it the little that power still
falls is lost to the time that arithmetic takes."""

EXPONENT = 3.0
"""Power of the processors over the clock: frequency times the square of a voltage that follows it.
Assumed, as for any CMOS circuit; near the lowest voltage it falls less."""

DECODE_SAVED = (0.32, 0.42)
"""Energy of decoding that a low clock was published to save at most: H200, RTX PRO 6000."""

PUBLISHED_SHARE = 300.0 / 700.0
"""Greatest power in these measurements over the board's limit (arXiv 2605.11999: 137 to 300 W of an
H200's 700 W)."""

KNEES = (1.0, 0.71, LEAST_CLOCK)
"""Clock below which memory slows: where a lock saves least, as usual, and where it saves most.
Assumed from the clocks of least energy of small batches: 1,005 to 1,410 of an A100's 1,410 MHz
(arXiv 2509.04827); an H100 at 840 of 1,785 MHz was no slower, but waited for the host."""

CALIBRATED_MODEL, CALIBRATED_ROWS, CALIBRATED_CONTEXT = "8b", 8, 512.0
"""Decoding at which the published saving is taken to hold: a usual model in a small batch."""


class LockedRatios(NamedTuple):
    """What a lock changes, over what it is at the natural clock.

    Attributes:
        compute_time: time of arithmetic, 1 or more.
        memory_time: time of memory traffic, 1 or more.
        power: power of the processors above idle, at most 1.
    """

    compute_time: Number
    memory_time: Number
    power: Number


@dataclass(frozen=True, slots=True)
class ClockCurve:
    """How time and power follow the clock.

    Attributes:
        static_share: share of the processors' power that does not follow the clock, 0 to 1.
        knee: clock below which memory slows; 0: it never does.
        most_share: power over the board's limit above which a lock is taken to save nothing; None:
            there is no such bound.
    """

    static_share: float
    knee: float = 0.0
    most_share: float | None = None

    def power(self, clock: Number) -> Number:
        """Compute the processors' power over that at the greatest clock.

        Args:
            clock: above 0 and at most 1; a float or an array.
        """
        return self.static_share + (1.0 - self.static_share) * clock**EXPONENT

    def locked(self, lock: Number, natural: float = 1.0) -> LockedRatios:
        """Compute what a lock changes; at or above the natural clock all ratios are 1.

        Args:
            lock: clock that is set, above 0 and at most 1; a float or an array.
            natural: clock at which the stage runs while nothing is set.
        """
        clock = np.minimum(lock, natural)
        at_natural = ClockCurve(self.static_share / self.power(natural))
        return LockedRatios(
            compute_time=natural / clock,
            memory_time=np.maximum(1.0, min(self.knee, natural) / clock),
            power=at_natural.power(clock / natural),  # g(f) / g(n), and 1 to the last bit at n
        )

    def under_limit(self, power_share: float) -> float:
        """Find the greatest clock at which the processors draw at most a share of their power.

        Args:
            power_share: of the power at the greatest clock.

        Returns:
            `LEAST_CLOCK` where no clock above it is low enough.
        """
        if power_share <= self.power(LEAST_CLOCK):
            return LEAST_CLOCK
        dynamic = (power_share - self.static_share) / (1.0 - self.static_share)
        return float(min(1.0, dynamic ** (1.0 / EXPONENT)))


@dataclass(frozen=True, slots=True)
class ClockCurves:
    """A curve and the ends of what is known of it.

    Attributes:
        low: saves least.
        usual: as published for the H200.
        high: as published for the GPU on which most was saved.
    """

    low: ClockCurve
    usual: ClockCurve
    high: ClockCurve


def clock_curves(gpu: DeviceProfile) -> ClockCurves | None:
    """Make the curves of a GPU; None where its profile does not say what its power is made up of.

    Args:
        gpu: its profile.
    """
    if pass_parameters(gpu) is None:
        return None
    least, usual, most = KNEES
    share, share_of_most = (_static_share(gpu, saved) for saved in DECODE_SAVED)
    return ClockCurves(
        ClockCurve(share, least, PUBLISHED_SHARE),
        ClockCurve(share, usual),
        ClockCurve(share_of_most, most),
    )


def _static_share(gpu: DeviceProfile, saved: float) -> float:
    """Find the share of the power that does not follow the clock, from a saving in decoding.

    Energy at the lowest clock is linear in the share, so two of its values give it.
    """
    parameters = pass_parameters(gpu)
    assert parameters is not None  # asked for by `clock_curves`
    work = decoding_pass(model_shape(CALIBRATED_MODEL), CALIBRATED_ROWS, CALIBRATED_CONTEXT)
    cost = pass_cost(work, gpu_limits(gpu), parameters)
    idle_w = gpu.value("idle_w")

    def at_lowest(static_share: float) -> float:
        power = ClockCurve(static_share).power(LEAST_CLOCK)
        time_s = cost.fixed_s + cost.memory_s + cost.compute_s / LEAST_CLOCK
        busy_w = idle_w + (parameters.busy_w - idle_w) * power
        ops_j = work.ops * parameters.j_per_op * power / LEAST_CLOCK
        return float(busy_w * time_s + work.memory_bytes * parameters.j_per_byte + ops_j)

    none, all_of_it = at_lowest(1.0), at_lowest(0.0)
    share = (all_of_it - (1.0 - saved) * cost.energy_j) / (all_of_it - none)
    return min(max(share, 0.0), 1.0)
