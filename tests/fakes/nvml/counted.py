"""Windows of a GPU of known energy, on a machine that may be late between clock and counter."""

from __future__ import annotations

from benchmarks.gpu.sensing.limiters import Watch
from benchmarks.gpu.sensing.meter import EnergyMeter


class Counted:
    """What was read for each window that is measured from here on.

    Attributes:
        joules: time and counted energy of each reading, by the window's edges.
        limited: the same of the watch's limiters, in the order of `LIMITERS`.
    """

    def __init__(self, monkeypatch):
        self.joules, self.limited = {}, {}
        energy, seen = EnergyMeter.energy, Watch.seen

        def metered(meter, *edges_s):
            found, (start_s, end_s) = energy(meter, *edges_s), edges_s
            readings = meter.sampler.history.readings(meter._id, start_s - 1.0, end_s + 1.0)
            self.joules[edges_s] = [(r.t_s, r.energy_j) for r in readings if r.energy_j is not None]
            return found

        def watched(watch, *edges_s):
            found = seen(watch, *edges_s)
            self.limited[edges_s] = [(r.t_s, r.limited_s) for r in watch.readings]
            return found

        monkeypatch.setattr(EnergyMeter, "energy", metered)
        monkeypatch.setattr(Watch, "seen", watched)

    def late_j(self, edges_s, truth_j):
        """How far off the truth a window's joules may be for readings that were late, J."""
        return lateness(self.joules[edges_s], edges_s, truth_j)


def lateness(points, edges_s, truth):
    """How far off the truth of their time are the readings around a window's edges.

    Args:
        points: time and value of each.
        edges_s: of the window, s.
        truth: the right value at a time.
    """

    def off(edge_s):
        before = max(point for point in points if point[0] <= edge_s)
        after = min(point for point in points if point[0] >= edge_s)
        return max(abs(value - truth(t_s)) for t_s, value in (before, after))

    return sum(map(off, edges_s))
