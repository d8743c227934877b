"""Earlier times at which a rule is asked what it would have forecast, and what then came.

How far a rule can be trusted depends on how far ahead it looks. Lead times are therefore put into
groups; in each group a few lead times stand for all of them, and what is learnt for the groups is
interpolated over the logarithm of the lead time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.forecasts.history import HOUR_S, History, IntArray
from ecorl.carbon.series import FloatArray

PROBES_H: tuple[tuple[float, ...], ...] = (
    (0.25,),
    (0.5,),
    (1,),
    (2, 3),
    (4, 6),
    (9, 12),
    (18, 24),
    (36, 48),
    (60, 96),
    (132, 168),
    (252, 336),
    (516, 720),
)
"""Lead times that stand for their group, h. Invented: about twice as far from group to group.
Beyond a day one of the two in a group is whole days and one half a day more, because a rule that
knows no hours of the day does well on whole days only."""

ORIGINS_EVERY_H = 7.0
"""Time between two origins, h. Seven has no factor in common with 24, so that a week of origins
meets each hour of the day, at a seventh of the work of hourly ones."""

WINDOW_H = 90 * 24.0
"""How far back errors are looked at, h. Invented: a season, after which a grid is another one."""

CHECKPOINT_H = 7 * 24.0
"""Time between two looks back at what was known then, h. Invented: a week, because less would hold
weekends on one side only."""

HALF_LIFE_H = 40 * 24.0
"""After which time an error counts half at short lead times, h. Tuned on real grids; 20 to 60 days
do nearly as well."""

HALF_LIFE_LEADS = 2.0
"""What each hour of lead time adds to the half-life, h/h. Invented: errors of long lead times
overlap, so that as many independent ones need a longer memory."""


@dataclass(frozen=True, slots=True, eq=False)
class LeadGroups:
    """Groups of lead times, for one length of interval.

    Attributes:
        probes: ``[L] int64``, the lead times that stand for the groups, intervals.
        group: ``[L] int64``, the group of each.
        centres: ``[G] float64``, the middle of each group, intervals.
    """

    probes: IntArray
    group: IntArray
    centres: FloatArray

    def spread_over(self, leads: IntArray, per_group: FloatArray) -> FloatArray:
        """Interpolates what is known for groups to lead times; it stays level beyond both ends.

        Args:
            leads: ``[n] int64``, intervals.
            per_group: ``[..., G] float64``.

        Returns:
            ``[..., n] float64``.
        """
        if len(self.centres) == 1:
            return np.repeat(per_group, len(leads), axis=-1)
        centres = np.log(self.centres)
        place = np.interp(np.log(leads), centres, np.arange(len(centres), dtype=np.float64))
        left = np.minimum(place.astype(np.int64), len(centres) - 2)
        share = place - left
        return per_group[..., left] * (1.0 - share) + per_group[..., left + 1] * share


@lru_cache(maxsize=16)
def lead_groups(step_s: float) -> LeadGroups:
    """The groups of lead times for a length of interval; the first one is the next interval alone.

    Args:
        step_s: length of an interval, s.
    """
    groups: list[list[int]] = [[1]]
    for hours in PROBES_H:
        steps = [round(hour * HOUR_S / step_s) for hour in hours]
        new = sorted({step for step in steps if step > groups[-1][-1]})
        if new:
            groups.append(new)
    probes = np.array([lead for group in groups for lead in group], dtype=np.int64)
    numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    centres = np.array([np.exp(np.mean(np.log(group))) for group in groups])
    return LeadGroups(probes, numbers.astype(np.int64), centres)


@dataclass(frozen=True, slots=True, eq=False)
class Hindcast:
    """Earlier origins, the probed lead times, and what came then, as far as it is known now.

    Checkpoint 0 is now, checkpoint c was c weeks ago.

    Attributes:
        groups: the groups of lead times.
        origins: ``[O] int64``, first unknown intervals, from old to new.
        truth: ``[O, L] float64``, in the series' unit; NaN where it is missing or not known yet.
        known_at: ``[O, L] int64``, the last checkpoint at which it was known; -1 where it is not.
        learnt_at: ``[O] int64``, the newest checkpoint that lies before each origin, at least 1.
        weight: ``[O, L] float64``, how much an error counts; it falls with its age. 0 where truth
            is missing.
        independent: ``[C, G] float64``, about how many errors that have nothing to do with each
            other were known at each checkpoint.
    """

    groups: LeadGroups
    origins: IntArray
    truth: FloatArray
    known_at: IntArray
    learnt_at: IntArray
    weight: FloatArray
    independent: FloatArray

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints, with the one of now."""
        return int(self.independent.shape[0])

    def columns(self, group: int) -> NDArray[np.bool_]:
        """Which of the probed lead times belong to a group: ``[L] bool``.

        Args:
            group: its number.
        """
        return np.asarray(self.groups.group == group)


def hindcast(history: History) -> Hindcast:
    """The earlier times of a history at which rules are tried, as seen from its end.

    Args:
        history: the past; at least one of its values is not missing.
    """
    groups, end = lead_groups(history.step_s), len(history)
    origins = _origins(history)
    targets = origins[:, None] + groups.probes[None, :] - 1
    truth = history.at(targets)
    week = history.steps(CHECKPOINT_H)
    known_at = np.where(np.isnan(truth), -1, (end - 1 - targets) // week)
    learnt_at = (end - origins) // week + 1
    step_h = history.step_s / HOUR_S
    half_life_h = HALF_LIFE_H + HALF_LIFE_LEADS * step_h * groups.probes
    age_h = (end - 1 - targets) * step_h
    weight = np.where(known_at >= 0, 0.5 ** (np.maximum(age_h, 0.0) / half_life_h), 0.0)
    return Hindcast(
        groups,
        origins,
        truth,
        known_at,
        learnt_at,
        weight,
        _independent(groups, known_at, weight, int(learnt_at.max(initial=1)) + 1, step_h),
    )


def _origins(history: History) -> IntArray:
    """Origins on the same times of the calendar, whichever part of a series is given."""
    end = len(history)
    first = int(np.argmax(np.isfinite(history.values))) + 1
    first = max(first, end - history.steps(WINDOW_H))
    numbers = np.unique(history.lattice(ORIGINS_EVERY_H * HOUR_S, end))
    return numbers[numbers >= first]


def _independent(
    groups: LeadGroups, known_at: IntArray, weight: FloatArray, checkpoints: int, step_h: float
) -> FloatArray:
    """Errors nearer than a day, or than their lead time, say nearly the same: they count as one.

    That span is invented; the longest time over which errors of a forecast can be alike is its lead
    time, and that of a grid's weather is about a day.
    """
    found = np.zeros((checkpoints, len(groups.centres)))
    for group, centre in enumerate(groups.centres):
        columns = groups.group == group
        lead_h = float(centre) * step_h
        span_h = max(24.0, lead_h)
        each = ORIGINS_EVERY_H / span_h / int(columns.sum())
        known, counted = known_at[:, columns].ravel(), weight[:, columns].ravel()
        sums = np.bincount(known + 1, counted, minlength=checkpoints + 1)[1 : checkpoints + 1]
        # What was known at a checkpoint is known at all later ones. The weights are those of now;
        # at checkpoint c they were larger by the same factor for all.
        age_h = np.arange(checkpoints) * CHECKPOINT_H
        then = 2.0 ** (age_h / (HALF_LIFE_H + HALF_LIFE_LEADS * lead_h))
        found[:, group] = np.cumsum(sums[::-1])[::-1] * each * then
    return found
