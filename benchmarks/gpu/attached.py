"""The same loop with ecorl around it and without, in turns on one GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.gpu.sensing.tracer import COUNTER, Tracer
from benchmarks.gpu.sensing.traces import TracePoint
from ecorl.bench.rounds import balanced_order

PLAIN, ATTACHED = "plain", "attached"

T = TypeVar("T")


def in_turns(
    block: Callable[[str, int], T],
    uuid: str,
    n_pairs: int,
    interval_s: float,
    has_room: Callable[[], bool] = lambda: True,
) -> tuple[dict[str, list[T]], Sequence[TracePoint]]:
    """Run blocks of both arms in turns (ABBA), while a process beside them reads the counter.

    Args:
        block: runs one of an arm, in a pair of some number.
        uuid: of the GPU.
        n_pairs: blocks of each arm at most; an even number cancels a steady drift.
        interval_s: at which the counter is read in both arms, s.
        has_room: whether there is time for one more pair.

    Returns:
        What the blocks returned, by arm; and the readings of the counter.
    """
    found: dict[str, list[T]] = {PLAIN: [], ATTACHED: []}
    with Tracer(uuid, (), interval_s) as tracer:
        time.sleep(0.3)  # the counter has changed before the first block begins
        for number, order in enumerate(balanced_order((PLAIN, ATTACHED), n_pairs)):
            if not has_room():
                break
            for arm in order:
                found[arm].append(block(arm, number))
        time.sleep(0.3)
    return found, tracer.trace.points.get(COUNTER, [])
