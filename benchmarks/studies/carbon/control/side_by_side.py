"""Grids played beside each other, each in a process of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from ecorl.carbon.series import Series
from ecorl.child_process import quiet_worker

Found = TypeVar("Found")


def each_grid(
    recorded: Mapping[str, Series], play: Callable[..., Found], box_s: float
) -> Iterator[tuple[str, Found]]:
    """Play all grids, as many at once as there are cores.

    Args:
        recorded: the recordings by grid.
        play: takes a recording and ``box_s``, about how long it may take, s.
        box_s: about how long all may take, s.

    Yields:
        Each grid with what was found, in their order.
    """
    if not recorded:
        return
    n_workers = min(len(recorded), len(os.sched_getaffinity(0)))
    one = partial(play, box_s=box_s / math.ceil(len(recorded) / n_workers))
    with ProcessPoolExecutor(n_workers, get_context("fork"), initializer=quiet_worker) as pool:
        yield from zip(recorded, pool.map(one, recorded.values()), strict=True)
