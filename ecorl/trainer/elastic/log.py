"""What has happened in an elastic training, as its driver knows it."""

from __future__ import annotations

import logging
import statistics
from collections import Counter, deque

from ecorl.trainer.elastic.records import (
    ElasticFault,
    FaultSeen,
    StepDone,
    TrainingResult,
    WidthChange,
)

logger = logging.getLogger(__name__)

_PACE_STEPS = 8
"""The pace is the median time of as many last steps at one width; invented."""


class TrainingLog:
    """Keeps the committed steps, each once, and what came between.

    Args:
        n_done: steps that were done before.
    """

    def __init__(self, n_done: int = 0) -> None:
        self.n_done = n_done
        self._first = n_done
        self._steps: list[StepDone] = []
        self._changes: list[WidthChange] = []
        self._faults: list[FaultSeen] = []
        # Of the last steps alone, since the pace is asked for at each step; 0 has all widths.
        self._times_s: dict[int, deque[float]] = {}
        self._n_redone = 0
        self._failures = Counter[int]()

    def commit(self, step: StepDone) -> None:
        """Add a committed step."""
        self._steps.append(step)
        for width in (0, step.width):
            self._times_s.setdefault(width, deque(maxlen=_PACE_STEPS)).append(step.time_s)
        self.n_done += 1

    def roll_back(self, n_done: int) -> None:
        """Return to a checkpoint: the steps after it count no more.

        Args:
            n_done: steps that it holds.
        """
        before = len(self._steps)
        self._steps = [step for step in self._steps if step.step < n_done]
        # Of those done here: what lay in a checkpoint that turned out damaged was done before.
        self._n_redone += before - len(self._steps)
        self._first = n_done if not self._steps else self._first
        self.n_done = n_done

    def redo(self, is_failure: bool = True) -> int:
        """Note that the step under way is computed again.

        Args:
            is_failure: whether the step has failed; else it was not given the time it takes.

        Returns:
            How often it has failed.
        """
        self._n_redone += 1
        self._failures[self.n_done] += is_failure
        return self._failures[self.n_done]

    def tell(self, kind: ElasticFault, who: str, message: str) -> None:
        """Note a fault."""
        logger.warning("elastic training, step %d: %s, %s: %s", self.n_done, kind, who, message)
        self._faults.append(FaultSeen(self.n_done, kind, who, message))

    def change(self, change: WidthChange) -> None:
        """Note a change of the width."""
        logger.info(
            "elastic training, step %d: width %d to %d", change.step, change.before, change.after
        )
        self._changes.append(change)

    def pace_s(self, width: int) -> float | None:
        """Time of a step at a width, s; None where none has been done at it.

        Args:
            width: members; 0: any number.
        """
        last = self._times_s.get(width)
        return statistics.median(last) if last else None

    def result(self, n_steps: int) -> TrainingResult:
        """All of it.

        Args:
            n_steps: steps that were asked for.
        """
        return TrainingResult(
            first_step=self._first,
            steps=tuple(self._steps),
            changes=tuple(self._changes),
            faults=tuple(self._faults),
            n_redone=self._n_redone,
            is_complete=self.n_done >= n_steps,
        )
