"""The time from start to deadline, cut where what a second costs may change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import PAUSE, FloatArray
from ecorl.controllers.problem.training import HOUR_S, Kept, TrainingProblem
from ecorl.errors import ConfigError
from ecorl.units import JOULES_PER_KWH

_SHORTEST_S = 1e-6
"""Times that lie closer together count as one: times since 1970 are rounded to a quarter of it."""


@dataclass(frozen=True, slots=True, eq=False)
class GridSpans:
    """Stretches of time with one intensity each, from the problem's start to its deadline.

    Attributes:
        edges_s: ``[N + 1] float64``, where they begin and end, s after the problem's start.
        g_per_j: ``[N] float64``, what a joule emits, PUE included.
        late_g: ``[N + 1] float64``, what lateness counts as when the last token falls on an edge.
    """

    edges_s: FloatArray
    g_per_j: FloatArray
    late_g: FloatArray

    @property
    def seconds(self) -> FloatArray:
        """``[N]``, length of each, s."""
        return np.diff(self.edges_s)

    def idle_g(self, problem: TrainingProblem) -> FloatArray:
        """``[N]``, what the kept machines emit while nothing trains.

        Args:
            problem: whose machines they are.
        """
        return self.g_per_j * self.seconds * problem.draw_w(PAUSE)

    def tail_g(self, problem: TrainingProblem) -> FloatArray:
        """``[N + 1]``, what is emitted after the last token when it falls on an edge.

        Args:
            problem: whose machines are kept, or not.
        """
        if problem.kept is Kept.DONE:
            return np.zeros(len(self.edges_s))
        left = np.cumsum(self.idle_g(problem)[::-1])[::-1]
        return np.append(left, 0.0)


def interval_spans(problem: TrainingProblem, truth: Series) -> GridSpans:
    """The intervals of a series, cut at the soft deadline.

    An intensity holds for its whole interval, so that nothing distinguishes the epochs of one:
    however short they are, an interval is one stretch. The first and the last may be cut.

    Args:
        problem: gives start and deadline; neither need be a begin of an interval.
        truth: the intensities, g/kWh.

    Raises:
        ConfigError: when the series does not reach from start to deadline, or holds a missing or
            negative value there.
    """
    left_s = problem.deadline_s - problem.start_s
    offset_s = problem.start_s - truth.start_s
    first = math.floor(offset_s / truth.step_s + 1e-9)
    end = math.ceil((offset_s + left_s) / truth.step_s - 1e-9)
    inner_s = np.arange(first + 1, end) * truth.step_s - offset_s
    cuts_s = np.concatenate(([0.0], inner_s, [left_s]))
    if problem.soft_deadline_s is not None:
        soft_s = problem.soft_deadline_s - problem.start_s
        if np.min(np.abs(cuts_s - soft_s)) > _SHORTEST_S and 0.0 < soft_s < left_s:
            cuts_s = np.sort(np.append(cuts_s, soft_s))
    return _spans(problem, truth, cuts_s)


def epoch_spans(problem: TrainingProblem, truth: Series) -> GridSpans:
    """The epochs of a problem; the last one may be shorter.

    Args:
        problem: its epochs divide the intervals of the series.
        truth: the intensities, g/kWh.

    Raises:
        ConfigError: as `interval_spans`.
    """
    left_s = problem.deadline_s - problem.start_s
    n = math.ceil(left_s / problem.epoch_s - 1e-9)
    return _spans(problem, truth, np.append(np.arange(n) * problem.epoch_s, left_s))


def _spans(problem: TrainingProblem, truth: Series, edges_s: FloatArray) -> GridSpans:
    begin_s = problem.start_s - truth.start_s + edges_s[:-1]
    numbers = np.floor(begin_s / truth.step_s + 1e-9).astype(np.int64)
    if numbers[0] < 0 or numbers[-1] >= len(truth.values):
        held_s = truth.end_s - problem.start_s if numbers[0] >= 0 else 0.0
        days = edges_s[-1] / 86400.0
        allowed = (
            f"a trace that reaches from start to deadline, {days:.3g} days; from the start on it "
            f"holds {max(0.0, held_s) / 86400.0:.3g}"
        )
        raise ConfigError(f"{problem.key}.deadline", f"{days:.3g} days on", allowed)
    values = truth.values[numbers]
    is_bad = ~(np.isfinite(values) & (values >= 0.0))
    if is_bad.any():
        allowed = "a trace without missing or negative values between start and deadline"
        raise ConfigError(f"{problem.key}.trace", float(values[is_bad][0]), allowed)
    late_g = np.zeros(len(edges_s))
    if problem.soft_deadline_s is not None:
        late_s = problem.start_s - problem.soft_deadline_s + edges_s
        late_g = np.maximum(late_s, 0.0) / HOUR_S * problem.late_g_per_h
    return GridSpans(edges_s, values * (problem.pue / JOULES_PER_KWH), late_g)
