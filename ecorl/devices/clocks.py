"""How time and power of a GPU follow the clock of its processors, by published figures.

Memory keeps its own clock, so what waits for memory or for the host takes no longer, and what waits
for arithmetic takes ``1 / f`` times as long at a relative clock f. Of the power above idle, that of
the processors falls with clock and voltage::

    g(f) = s + (1 - s) f^3        power of processors that run, over that at the full clock
    g(f) / f                      energy of an operation likewise

s is what does not follow the clock. It is set by what was published of decoding in small batches:
locking the clock saves up to 32 % there (H200, arXiv 2605.11999), up to 42 % at the lowest clock
(RTX PRO 6000, arXiv 2501.08219). In those measurements a GPU draws 137 to 300 W. A rollout's large
batches draw more, and nobody has published what a low clock does there: the lower end of the
interval saves nothing above that power.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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

PUBLISHED_W = 300.0
"""Greatest power of a GPU in these measurements, W (arXiv 2605.11999: 137 to 300 W)."""

CALIBRATED_MODEL, CALIBRATED_ROWS, CALIBRATED_CONTEXT = "8b", 8, 512.0
"""Decoding at which the published saving is taken to hold: a usual model in a small batch."""


@dataclass(frozen=True, slots=True)
class ClockCurve:
    """How power follows the clock.

    Attributes:
        static_share: share of the processors' power that does not follow the clock, 0 to 1.
        most_w: power of a GPU above which a lower clock of decoding is taken to save nothing, W;
            None: there is no such limit.
    """

    static_share: float
    most_w: float | None = None

    def power(self, clock: Number) -> Number:
        """Compute the processors' power over that at the full clock.

        Args:
            clock: relative clock, above 0 and at most 1; a float or an array.
        """
        return self.static_share + (1.0 - self.static_share) * clock**EXPONENT


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
    usual, high = (ClockCurve(_static_share(gpu, saved)) for saved in DECODE_SAVED)
    return ClockCurves(replace(usual, most_w=PUBLISHED_W), usual, high)


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
