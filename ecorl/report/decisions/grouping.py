"""Puts decisions in a row together to stretches, few enough to be read."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.records import Role
from ecorl.report.decisions.model import DecisionKind, DecisionStretch

MOST = 8
"""Stretches of one kind and role that are told, about. Invented: a table that one still reads."""

_LONGEST_REASONS = 2
"""Values whose reasons are told where several took turns; the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision.

    Attributes:
        start_s, end_s: when it counted, s.
        value: what was decided, as it is shown.
        reason: None: none is known.
        n: how many decisions in a row, or steps that followed from it, this stands for.
    """

    start_s: float
    end_s: float
    value: str
    reason: str | None
    n: int = 1


def stretches(
    kind: DecisionKind, role: Role | None, decided: Sequence[Decided]
) -> list[DecisionStretch]:
    """Make stretches of decisions about one thing.

    A value that holds for a while is a stretch. Where values take turns sooner than that, all of
    them together are one; how long a while is depends on how many stretches there would be.

    Args:
        kind: what they are about.
        role: whose placement; None for other kinds.
        decided: in the order of time.
    """
    runs = [list(own) for _, own in itertools.groupby(decided, key=lambda d: d.value)]
    least, longest = 1, max((_n(run) for run in runs), default=0)
    groups = runs
    while len(groups) > MOST and least <= longest:
        least *= 2
        groups = _mixed(runs, least)
    found: list[DecisionStretch] = []
    for own in groups:
        before = tuple(value for value, _ in found[-1].after) if found else ()
        span = (own[0].start_s, own[-1].end_s)
        told = DecisionStretch(kind, role, *span, before, tuple(_counted(own)), _reasons(own))
        found.append(told)
    return found


def _mixed(runs: Sequence[list[Decided]], least: int) -> list[list[Decided]]:
    """Join runs that are shorter than so many decisions to what lies beside them."""
    groups: list[list[Decided]] = []
    was_short = False
    for run in runs:
        is_short = _n(run) < least
        if groups and is_short and was_short:
            groups[-1] = [*groups[-1], *run]
        else:
            groups.append(list(run))
        was_short = is_short
    return groups


def _n(own: Sequence[Decided]) -> int:
    return sum(d.n for d in own)


def _counted(own: Sequence[Decided]) -> list[tuple[str, int]]:
    """Values and how often each was decided, the most frequent first."""
    counts = Counter[str]()
    for one in own:
        counts[one.value] += one.n
    return counts.most_common()


def _reasons(own: Sequence[Decided]) -> str | None:
    """The newest reason of each of the most frequent values."""
    newest = {d.value: d.reason for d in own if d.reason}
    values = [value for value, _ in _counted(own)[:_LONGEST_REASONS]]
    told = dict.fromkeys(newest[value] for value in values if value in newest)
    return "; ".join(reason for reason in told if reason is not None) or None
