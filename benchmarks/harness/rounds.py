"""Arms that take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ecorl.bench.rounds import TimeBox, balanced_order

T = TypeVar("T")


def in_turns(
    arms: Mapping[str, Callable[[], T]], n_rounds: int, box: TimeBox | None = None
) -> dict[str, list[T]]:
    """Call each arm once a round, in the balanced order; returns what it gave, round by round.

    Args:
        arms: what is called, by name.
        n_rounds: rounds at most.
        box: the time for all rounds, as of `ecorl.bench.rounds.balanced_order`.
    """
    found: dict[str, list[T]] = {name: [] for name in arms}
    for order in balanced_order(list(arms), n_rounds, box):
        for name in order:
            found[name].append(arms[name]())
    return found
