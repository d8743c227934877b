"""Judges whether a GPU's energy counter counts that GPU, by the GPU's own power.

The counter of Grace Hopper and Grace Blackwell counts the whole module, and one in other units
would be wrong by a thousand. Instantaneous power alone cannot tell: on bursts in step with its own
refresh it is wrong by up to 95 % while the counter is right. The average over the last second is
not (measured on an H100), so what the counter says has to lie between what the two say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_S, LONGEST_S = 2.0, 30.0
"""Shortest and longest stretch of time over which a counter is judged, s; then a new one begins."""

TOLERANCE = 1.25
"""A counter may differ by this factor from all that the power readings say. Invented: on steady
loads the two agree to some per cent."""

UNITS_FACTOR = 100.0
"""Where there is no average only this much is told: a counter in other units. Bursts in step with
the polling explain less: which of the two is wrong is not known then."""

TOLERANCE_W = 5.0
"""And by so much power, W: NVIDIA states power to 5 W."""

LAG_S = 1.0
"""Of a change of load an average over a second comes late by up to so much, s; and for so long a
counter has to contradict the readings."""

SELDOM_S = 1.5
"""Across a longer time without a reading nothing is judged, s: what was drawn there is not seen."""

STILL_S = 2.0
"""Across a counter that was seen to stand still for longer than this nothing is judged, s."""


@dataclass
class _Stretch:
    """What power readings said since the counter moved to ``begin_j`` at ``begin_s``.

    Attributes:
        longest_s: longest time between two readings, s.
        power_j: by the power readings, each held until the next one, J.
        average_j: by the averages, J; None where one was missing.
        low_w, high_w: bounds of all these readings, W.
    """

    begin_s: float
    begin_j: float
    longest_s: float = 0.0
    power_j: float = 0.0
    average_j: float | None = 0.0
    low_w: float = math.inf
    high_w: float = 0.0

    def see(self, power_w: float, average_w: float | None) -> None:
        """Take the figures of a reading into the bounds."""
        figures_w = (power_w, power_w if average_w is None else average_w)
        self.low_w, self.high_w = min(self.low_w, *figures_w), max(self.high_w, *figures_w)

    def hold(self, power_w: float, average_w: float | None, length_s: float) -> None:
        """Let a reading stand for a time."""
        self.longest_s = max(self.longest_s, length_s)
        self.power_j += power_w * length_s
        if self.average_j is None or average_w is None:
            self.average_j = None
        else:
            self.average_j += average_w * length_s
        self.see(power_w, average_w)

    def explains(self, rise_j: float, length_s: float) -> bool:
        """Whether the readings explain a rise of the counter."""
        figures_j = [self.power_j] if self.average_j is None else [self.power_j, self.average_j]
        factor = UNITS_FACTOR if self.average_j is None else TOLERANCE
        # Of a change of load a reading tells late by its own lag and by the wait for it.
        late_s = LAG_S + self.longest_s
        slack_j = late_s * (self.high_w - self.low_w) + TOLERANCE_W * length_s
        return min(figures_j) / factor - slack_j <= rise_j <= max(figures_j) * factor + slack_j


class OwnCounter:
    """Follows the readings of one GPU; once its counter is found foreign that stands.

    Time is cut where the counter moves, so that a slow refresh of it does not matter.
    """

    def __init__(self) -> None:
        self.is_foreign = False
        self.forget()

    def forget(self) -> None:
        """Conclude nothing across this time: readings are missing, or the GPU was lost."""
        self._stretch: _Stretch | None = None
        self._moved: tuple[float, float] | None = None
        self._newest: tuple[float, float, float | None] | None = None
        self._contradicts_since_s: float | None = None
        self._is_still = False

    def add(
        self, t_s: float, power_w: float | None, average_w: float | None, energy_j: float | None
    ) -> None:
        """Take a reading in.

        Args:
            t_s: its time, s.
            power_w: W; None where it is missing.
            average_w: average power over the last second, W, where it can be read.
            energy_j: the counter, J, where it was read.
        """
        if self._newest is not None and t_s - self._newest[0] > SELDOM_S:
            self.forget()
        if self._stretch is not None and self._newest is not None:
            since_s, held_w, held_average_w = self._newest
            self._stretch.hold(held_w, held_average_w, t_s - since_s)
            if power_w is not None:
                # The counter may have seen a load already that only this reading tells of.
                self._stretch.see(power_w, average_w)
        if energy_j is not None:
            self._count(t_s, energy_j)
        if power_w is None:
            self.forget()
        else:
            self._newest = (t_s, power_w, average_w)

    def _count(self, t_s: float, energy_j: float) -> None:
        moved, stretch = self._moved, self._stretch
        if moved is None or energy_j < moved[1]:
            # It may have moved at any time before: the next move begins.
            self._moved, self._stretch = (-math.inf, energy_j), None
            self._contradicts_since_s = None
            return
        if energy_j == moved[1]:
            self._is_still = True
            return
        stood_s = t_s - moved[0] if self._is_still else 0.0
        self._moved, self._is_still = (t_s, energy_j), False
        length_s = 0.0 if stretch is None else t_s - stretch.begin_s
        if stretch is None or stood_s > STILL_S or length_s > LONGEST_S:
            self._stretch, self._contradicts_since_s = _Stretch(t_s, energy_j), None
        elif length_s >= LEAST_S:
            if stretch.explains(energy_j - stretch.begin_j, length_s):
                self._contradicts_since_s = None
            elif self._contradicts_since_s is None:
                self._contradicts_since_s = t_s
            elif t_s - self._contradicts_since_s >= LAG_S:
                self.is_foreign = True
