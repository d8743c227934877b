"""When a job leaves its training for another number of processes, and what that costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from roll_adapters.ray_jobs.widths.handover import Handover, WidthLeft


class Leaving:
    """Follows the steps of a job whose width can be changed.

    Args:
        width: processes that train the policy now.
        widths: to which that can be changed.
        left: what the job before this one has left; None for the first.
        wall: the wall clock, s since 1970; the next job may be on another machine.

    Attributes:
        widths: to which the width can be changed.
    """

    def __init__(
        self,
        width: int,
        widths: Sequence[int],
        left: Handover | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.width, self.widths = width, tuple(widths)
        self._left, self._wall = left, wall
        self._wanted: int | None = None
        self._saved: int | None = None
        self._ended_s: float | None = None
        self._waited_s = 0.0
        self._steps_s: list[float] = []

    def chosen(self, width: int | None, waited_s: float) -> None:
        """Take over what the control path has chosen at the boundary of two steps.

        Args:
            width: processes that are to train; None: as they are.
            waited_s: how long it had the training stand still there, s.
        """
        self._wanted, self._waited_s = width, waited_s

    def ended(self, step: int, *, saved: bool) -> float | None:
        """Take over that a step has ended.

        Args:
            step: its number, 1-based.
            saved: whether a complete checkpoint was saved behind it.

        Returns:
            What the change of the width took, s, at the first step behind it: from the end of the
            step before it to the end of this one, without pauses, less a usual step.
        """
        now_s, before_s = self._wall(), self._ended_s
        self._ended_s = now_s
        if saved:
            self._saved = step
        if before_s is not None:
            self._steps_s.append(now_s - before_s - self._waited_s)
            return None
        left, self._left = self._left, None
        if left is None or left.reason is not None or left.usual_s is None:
            return None
        return now_s - left.ended_s - self._waited_s - left.usual_s

    def leaves(self, step: int, steps_left: int | None) -> WidthLeft | None:
        """What is to be raised where the job leaves its training now; None: it goes on.

        A change waits for a checkpoint of the last step: no step is made twice for it.

        Args:
            step: last one done.
            steps_left: steps that training has before it; None: unknown.
        """
        if self._wanted in (None, self.width) or self._wanted not in self.widths:
            return None
        if self._saved != step or steps_left == 0 or self._ended_s is None:
            return None
        assert self._wanted is not None
        usual_s = statistics.median(self._steps_s) if self._steps_s else None
        return WidthLeft(self._wanted, step, self._ended_s, usual_s)
