"""Arms measured in turns, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ecorl.bench.stats import Values


def balanced_order(arms: Sequence[str], n_rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield the order of the arms in each round: forwards, backwards, and so on (ABBA).

    With an even number of rounds each arm stands as early as late, so that a steady drift of the
    machine cancels.

    Args:
        arms: names of what is measured.
        n_rounds: rounds; an even number cancels a steady drift.
    """
    for i in range(n_rounds):
        yield tuple(arms) if i % 2 == 0 else tuple(reversed(arms))


def timed_rounds(
    calls: Mapping[str, Callable[[], object]], n_rounds: int
) -> dict[str, list[float]]:
    """Wall-clock of each call, s, round by round; each is called once before, untimed.

    Args:
        calls: what to time, by name.
        n_rounds: times that each is called.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for order in balanced_order(list(calls), n_rounds):
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
