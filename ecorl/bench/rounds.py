"""Arms measured in turns, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ecorl.bench.stats import Values

MIN_ROUNDS = 6
"""Rounds that are measured however long they take: enough for an interval, and an even number."""


class TimeBox:
    """The time that repetitions may take. The clock starts when the box is made.

    Args:
        limit_s: the time, s; None for no limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._end_s = None if limit_s is None else time.monotonic() + limit_s

    def has_room(self, need_s: float = 0.0) -> bool:
        """Tell whether that much time is left.

        Args:
            need_s: how long the next repetition is going to take, s.
        """
        return self._end_s is None or time.monotonic() + need_s < self._end_s


def balanced_order(
    arms: Sequence[str], n_rounds: int, box: TimeBox | None = None
) -> Iterator[tuple[str, ...]]:
    """Yield the order of the arms in each round: forwards, backwards, and so on (ABBA).

    With an even number of rounds each arm stands as early as late, so that a steady drift of the
    machine cancels. A box that is used ends the rounds, after an even number of them and not
    before `MIN_ROUNDS`.

    Args:
        arms: names of what is measured.
        n_rounds: rounds at most; an even number cancels a steady drift.
        box: the time for all rounds; None for no limit.
    """
    for i in range(n_rounds):
        if box is not None and i >= MIN_ROUNDS and i % 2 == 0 and not box.has_room():
            return
        yield tuple(arms) if i % 2 == 0 else tuple(reversed(arms))


def timed_rounds(
    calls: Mapping[str, Callable[[], object]], n_rounds: int, box_s: float | None = None
) -> dict[str, list[float]]:
    """Wall-clock of each call, s, round by round; each is called once before, untimed.

    Args:
        calls: what to time, by name.
        n_rounds: times that each is called, at most.
        box_s: time for all rounds, s, as of `balanced_order`; the untimed calls are not counted.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for order in balanced_order(list(calls), n_rounds, TimeBox(box_s)):
        for name in order:
            start_s = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - start_s)
    return times


def round_ratios(numerator: Values, denominator: Values) -> list[float]:
    """Divide two arms round by round.

    Args:
        numerator: one arm, round by round.
        denominator: the other.

    Raises:
        ValueError: when the arms have different numbers of rounds.
    """
    return [a / b for a, b in zip(numerator, denominator, strict=True)]
