"""What the CARL agent learns from: jobs played through the past of the grid, and their values.

CARL (Carbon Aware Reinforcement Learning, of the Eco-Orchestrator paper) tells states, actions and
a reward in words. The learner is ours. The value of an action is what the next hour earns with it,
and the value of what is then left; the latter is linear in a few features, and fitted by least
squares to what the agent earned in jobs of random begin, size and slack. In each round it plays
them by the values of the round before.

All quantities are relative, so that what is learned holds for jobs of any size: work is told in
hours at full speed, and intensities as multiples of their mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ecorl.controllers.horizon.levels import DAY_H
from ecorl.controllers.problem.table import FloatArray

OUTLOOK_H = 6
"""How far the paper's agent sees ahead, h."""

PROFILE_DAYS = 7
"""How many days the next hours are expected to be like, where no forecast tells them."""

MEAN_DAYS = 28
"""How many days the intensity is compared with. Invented: four weeks follow the season."""


def recent_mean(hours: FloatArray) -> FloatArray:
    """Mean of the newest weeks at each hour, that hour included, ``[hours] float64``.

    Args:
        hours: ``[hours] float64``, intensities, g/kWh.
    """
    sums = np.concatenate(([0.0], np.cumsum(hours)))
    ends = np.arange(1, len(hours) + 1)
    begins = np.maximum(0, ends - MEAN_DAYS * DAY_H)
    return np.maximum((sums[ends] - sums[begins]) / (ends - begins), 1e-9)


def outlook_by_profile(hours: FloatArray) -> FloatArray:
    """Mean intensity of the next six hours, if they are as those of the last days were.

    Args:
        hours: ``[hours] float64``, intensities, g/kWh.

    Returns:
        ``[hours] float64``; each is of earlier hours alone. Where not even one day is known it is
        the intensity of the hour itself.
    """
    n = len(hours)
    if n <= DAY_H:
        return hours
    sums = np.concatenate(([0.0], np.cumsum(hours)))
    later = (sums[OUTLOOK_H + 1 :] - sums[1:-OUTLOOK_H]) / OUTLOOK_H
    total, count = np.zeros(n), np.zeros(n)
    for first in range(DAY_H, min(n, PROFILE_DAYS * DAY_H + 1), DAY_H):
        total[first:] += later[: n - first]
        count[first:] += 1.0
    return np.asarray(np.where(count > 0.0, total / np.maximum(count, 1.0), hours))


SHORTEST_DAYS = 3
"""Days below which nothing is learned. Invented: one has to come before the jobs."""

THROTTLE_CLOCK = 0.85
"""Share of the highest clock that throttling asks for: the paper lowers it by 15 to 30 %."""

THROTTLE_POWER = 0.8
"""Power at that clock, as a share. Invented; the paper reports 22 % less energy."""

IntArray = NDArray[np.int64]

_NODES = np.array([0.0, 0.2, 0.4, 0.6, THROTTLE_CLOCK, 1.0])
"""Shares of the time until the deadline that the work needs, between which values are
interpolated. Invented; from the last but one on busy workers may not throttle all the time."""


class CarlAction(IntEnum):
    """The paper's three actions."""

    PASS = 0  # full speed
    THROTTLE = 1  # full width at a lower clock
    DEFER = 2  # a pause


class CarlState(NamedTuple):
    """What the agent goes by; all ``[N] float64``.

    The paper's remaining steps and our slack are both in the first two.

    Attributes:
        left_h: the work that is left, in hours at full speed.
        time_h: time until the deadline, h.
        utilisation: share of their time that the workers compute, 0 to 1.
        intensity: of the grid now, as a multiple of the mean.
        outlook: mean intensity of the next six hours, likewise.
    """

    left_h: FloatArray
    time_h: FloatArray
    utilisation: FloatArray
    intensity: FloatArray
    outlook: FloatArray


class Effects(NamedTuple):
    """What each action does in an hour; ``[3, N] float64``.

    Attributes:
        left_h: the work that is left after it, in hours at full speed.
        earned: what it earns, in emissions of an hour at full speed and at the mean intensity.
    """

    left_h: FloatArray
    earned: FloatArray


@dataclass(frozen=True, slots=True)
class CarlShape:
    """How the agent is trained; all of it invented.

    Attributes:
        jobs: how many are played side by side.
        rounds: how often, with jobs drawn anew.
        longest_h: longest time until a deadline, h; longer problems are taken to be alike.
        smallest: least share of its time that a job needs at full speed.
        ridge: by how much weights are drawn towards 0, for each job.
        least_gain: by how much a pause has to be better than to run, in the unit of earnings: of
            two ways that emit about the same the earlier one is taken.
        missing: what an hour of work that the deadline finds undone counts as, as a multiple of
            what it would emit in the dirtiest hour of the past.
    """

    jobs: int = 192
    rounds: int = 12
    longest_h: int = 480
    smallest: float = 0.1
    ridge: float = 1e-4
    least_gain: float = 0.02
    missing: float = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class CarlValues:
    """What the agent has learned.

    Attributes:
        weights: ``[F] float64``, of the features.
        scale_h: longest time that it was trained with, h.
        missing_g: what an hour of missing work counts as, in the unit of earnings.
        least_gain: by how much a pause has to be better than to run, likewise.
    """

    weights: FloatArray
    scale_h: float
    missing_g: float
    least_gain: float

    def effects(self, state: CarlState, cost: FloatArray) -> Effects:
        """What the actions do in the next hour.

        All work must be done. So each hour of it earns what it emits at the mean intensity, which
        changes no choice, and makes values small and alike.

        Args:
            state: before.
            cost: ``[N]``, the intensity now, as a multiple of the mean.
        """
        speeds, powers = _modelled(state.utilisation)
        part = np.minimum(1.0, state.left_h / np.maximum(speeds, 1e-9))
        left_h = state.left_h - part * speeds
        earned = part * (speeds - powers * cost)
        return Effects(np.where(left_h < 1e-9, 0.0, left_h), earned)

    def after(self, state: CarlState, effects: Effects) -> tuple[FloatArray, FloatArray]:
        """Value of what is left after each action, and the features that it is made of.

        Args:
            state: before the actions.
            effects: of the actions.

        Returns:
            ``[3, N]`` and ``[3, N, F]``.
        """
        time_h = np.maximum(state.time_h - 1.0, 0.0)
        features = _features(state, effects.left_h, time_h, self.scale_h)
        undone = np.maximum(0.0, effects.left_h - time_h)
        return features @ self.weights - self.missing_g * undone, features

    def best(self, state: CarlState) -> CarlAction:
        """The action with the largest value in one state.

        The mean of the newest weeks stands for that of the past in which it was trained: "clean"
        follows the season.

        Args:
            state: with ``N = 1``.
        """
        effects = self.effects(state, state.intensity)
        return CarlAction(int(self.chosen(effects, self.after(state, effects)[0])[0]))

    def chosen(self, effects: Effects, after: FloatArray) -> IntArray:
        """Numbers of the actions with the largest values, ``[N] int64``.

        Args:
            effects: of the actions.
            after: ``[3, N]``, value of what is left after each.
        """
        values = effects.earned + after
        values[CarlAction.DEFER] -= self.least_gain
        return np.asarray(np.argmax(values, axis=0))


def throttled_speed(utilisation: FloatArray) -> FloatArray:
    """Speed at the lower clock, as a share.

    Invented: computing slows down with the clock, and the rest of the time does not. At half
    utilisation it is 0.925.

    Args:
        utilisation: ``[N]``, share of their time that the workers compute, 0 to 1.
    """
    return 1.0 - (1.0 - THROTTLE_CLOCK) * utilisation


def train(
    hours: FloatArray, span_h: float, seed: int, shape: CarlShape | None = None
) -> CarlValues | None:
    """Learn from the past; None where it is too short.

    Args:
        hours: ``[hours] float64``, intensities up to now, g/kWh, without a hole.
        span_h: time from the begin of the real job to its deadline, h.
        seed: of all that is drawn.
        shape: how to train.
    """
    if len(hours) < SHORTEST_DAYS * DAY_H:
        return None
    s = shape or CarlShape()
    lessons, rng = _Lessons(hours), np.random.default_rng(seed)
    longest = max(1, min(s.longest_h, math.ceil(span_h), len(hours) - DAY_H))
    missing_g = s.missing * max(1.0, float(lessons.cost.max()))
    n_features = len(_NODES) * _N_TERMS
    values = CarlValues(np.zeros(n_features), float(longest), missing_g, s.least_gain)
    for number in range(s.rounds):
        fitted = _fitted(lessons.play(values, rng, s, longest), s.ridge * s.jobs)
        # A mean of the newest few: one round's weights alone swing from too eager to too patient.
        step = 1.0 / min(number + 1, 6)
        weights = values.weights + step * (fitted - values.weights)
        values = CarlValues(weights, float(longest), missing_g, s.least_gain)
    return values


# ---------------------------------------------------------------- the model of an hour

_N_TERMS = 4


def _modelled(utilisation: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Speed and power of the actions as shares of those at full speed, ``[3, N]``."""
    ones, zeros = np.ones_like(utilisation), np.zeros_like(utilisation)
    speeds = np.stack((ones, throttled_speed(utilisation), zeros))
    return speeds, np.stack((ones, THROTTLE_POWER * ones, zeros))


def _features(
    state: CarlState, left_h: FloatArray, time_h: FloatArray, scale_h: float
) -> FloatArray:
    """``[3, N, F]``: four terms, each interpolated over the share of the time that is needed.

    Between two shares the value is then linear in the work that is left: an hour of work has a
    price. What the grid does now and soon matters beside that, as far as there is work for it.
    """
    work = np.minimum(left_h, time_h)
    needed = work / np.maximum(time_h, 1e-9)
    ramps = np.clip((needed[..., None] - _NODES[:-1]) / np.diff(_NODES), 0.0, 1.0)
    near = np.diff(ramps, axis=-1, prepend=1.0, append=0.0) * -1.0
    terms = np.empty((*left_h.shape, _N_TERMS))
    terms[..., 0] = time_h / scale_h
    terms[..., 1] = time_h / scale_h * state.utilisation
    soon = np.minimum(work, OUTLOOK_H) / OUTLOOK_H
    terms[..., 2] = soon * (state.intensity - 1.0)
    terms[..., 3] = soon * (state.outlook - 1.0)
    return np.asarray((near[..., :, None] * terms[..., None, :]).reshape(*left_h.shape, -1))


# ---------------------------------------------------------------- jobs of the past


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """Jobs that were played side by side, hour by hour.

    Attributes:
        features: ``[T, N, F]`` of what was left after each hour.
        undone: ``[T, N]``, what of it counts as missing already, in the unit of earnings.
        earned: ``[T, N]``, in the hour.
        has_time: ``[T, N]``, whether the job was under way, and had time left after the hour.
    """

    features: FloatArray
    undone: FloatArray
    earned: FloatArray
    has_time: NDArray[np.bool_]


class _Lessons:
    """The past as jobs see it.

    Args:
        hours: ``[hours] float64``, intensities, g/kWh.

    Attributes:
        cost: of running in each hour, as a multiple of the mean of the whole past.
    """

    def __init__(self, hours: FloatArray) -> None:
        mean = recent_mean(hours)
        self.cost = hours / max(float(hours.mean()), 1e-9)
        self._intensity, self._outlook = hours / mean, outlook_by_profile(hours) / mean

    def play(
        self, values: CarlValues, rng: np.random.Generator, shape: CarlShape, longest: int
    ) -> _Round:
        """Play jobs of random begin, length, size and utilisation by the values so far.

        Args:
            values: by which the agent decides.
            rng: what is drawn from.
            shape: how to train.
            longest: longest time until a deadline, h.
        """
        n, n_hours = shape.jobs, len(self.cost)
        time_h = rng.integers(max(1, longest // 8), longest + 1, n).astype(np.float64)
        begins = DAY_H + (rng.random(n) * (n_hours - DAY_H - time_h + 1)).astype(np.int64)
        left_h = time_h * rng.uniform(shape.smallest, 1.0, n)
        utilisation, jobs = rng.random(n), np.arange(n)
        features = np.zeros((longest, n, len(values.weights)))
        undone, earned = np.zeros((longest, n)), np.zeros((longest, n))
        has_time = np.zeros((longest, n), dtype=np.bool_)
        for hour in range(longest):
            at = np.minimum(begins + hour, n_hours - 1)
            state = CarlState(left_h, time_h, utilisation, self._intensity[at], self._outlook[at])
            effects = values.effects(state, self.cost[at])
            after, found = values.after(state, effects)
            action = values.chosen(effects, after)
            on = (time_h > 0.0) & (left_h > 0.0)
            left_h = np.where(on, effects.left_h[action, jobs], left_h)
            time_h = np.maximum(time_h - 1.0, 0.0)
            features[hour] = found[action, jobs]
            undone[hour] = values.missing_g * np.maximum(0.0, left_h - time_h)
            earned[hour] = np.where(on, effects.earned[action, jobs], 0.0)
            has_time[hour] = on & (time_h > 0.0)
        return _Round(features, undone, earned, has_time)


def _fitted(played: _Round, ridge: float) -> FloatArray:
    """Weights by which features tell what was earned from then on, ``[F] float64``."""
    later = -played.undone[-1]
    targets = np.empty_like(played.earned)
    for hour in range(len(targets) - 1, -1, -1):
        targets[hour] = later + played.undone[hour]
        later = later + played.earned[hour]
    rows, wanted = played.features[played.has_time], targets[played.has_time]
    square = rows.T @ rows + ridge * np.eye(rows.shape[1])
    return np.asarray(np.linalg.solve(square, rows.T @ wanted), dtype=np.float64)
