"""The iterations under way: what was decided in each, and how long its barrier may wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ecorl.records import Action, PathCost, Role
from ecorl.runtime.handles import Iteration

_KEPT = 64
"""Iterations whose state is kept. Invented: more than any framework has open at once; a handle that
is older than that finds its iteration anew, with a deadline of its own."""


@dataclass(slots=True)
class IterationState:
    """An iteration under way, as far as placements and its barrier depend on it.

    Attributes:
        handle: number, batch and serial.
        paths: cost of each role on the GPU path and on the card, from earlier iterations.
        decided: action of each role that was placed in it, in the order of the decisions.
        t_barrier_s: when its first wait at the completion barrier began, monotonic s, or None.
    """

    handle: Iteration
    paths: tuple[PathCost, ...] = ()
    decided: dict[Role, Action] = field(default_factory=dict)
    t_barrier_s: float | None = None

    def time_left_s(self, deadline_s: float) -> float:
        """Time left of the iteration's deadline, s, which runs from its first wait.

        Stages that run beside each other are waited for one after the other; two hung engines
        must not cost two deadlines.

        Args:
            deadline_s: longest wait of the whole iteration, s.
        """
        now_s = time.monotonic()
        if self.t_barrier_s is None:
            self.t_barrier_s = now_s
        return max(0.0, self.t_barrier_s + deadline_s - now_s)


class OpenIterations:
    """The states of the newest iterations by their handles. Not thread-safe.

    Attributes:
        newest: the iteration that came last; number 0 before the first.
    """

    def __init__(self) -> None:
        self.newest = Iteration(0, 0, 0)
        self._states: dict[int, IterationState] = {}
        self._batches: dict[int, int] = {}

    def of(self, handle: Iteration, paths: Callable[[int], tuple[PathCost, ...]]) -> IterationState:
        """The state of an iteration, which begins when it is asked for first.

        Args:
            handle: from `new_iteration`, perhaps of another process.
            paths: gives what the roles have cost on both paths, for the number of a batch.
        """
        if handle.serial not in self._states:
            self.newest = handle
            self._states[handle.serial] = IterationState(handle, paths(handle.batch))
            self._batches[handle.number] = handle.batch
            for kept in (self._states, self._batches):
                while len(kept) > _KEPT:
                    del kept[next(iter(kept))]
        return self._states[handle.serial]

    def batch(self, number: int) -> int:
        """Number of an iteration's rollout batch; safe to call beside the other methods.

        Args:
            number: 1-based, of the iteration. Of one that is not kept: one batch an iteration.
        """
        return self._batches.get(number, max(number - 1, 0))


def new_iteration(number: int, batch: int | None) -> Iteration:
    """Make the handle of an iteration.

    Args:
        number: 1-based, as the trainer's step.
        batch: 0-based number of its rollout batch; None: one batch an iteration.
    """
    # A time, so that no two are alike, also of several processes and after a start anew.
    return Iteration(number, number - 1 if batch is None else batch, time.monotonic_ns())
