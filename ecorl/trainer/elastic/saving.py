"""Writes checkpoints beside the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ecorl.trainer.elastic.checkpoints import CheckpointFolder
from ecorl.trainer.elastic.crew import first_line, raise_cause, reason_of
from ecorl.trainer.elastic.records import ElasticFault


class Saver:
    """Takes states from members and writes them, one after the other.

    A state that cannot be written is a fault and no error: training goes on, and the checkpoints
    that are there stay.

    Args:
        folder: of the checkpoints.
        patience_s: how long a member's state is waited for, s.
        tell: takes faults.

    Attributes:
        n_saved: steps that the last state on the disk holds; -1 before there is one.
        failure: why the last state was not written, in one line.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        patience_s: float,
        tell: Callable[[ElasticFault, str, str], None],
    ) -> None:
        self._folder, self._patience_s, self._tell = folder, patience_s, tell
        self._pool = ThreadPoolExecutor(1, "checkpoints")
        self._under_way: Future[None] | None = None
        self._n_done = -1
        self.n_saved = -1
        self.failure = ""

    @property
    def is_busy(self) -> bool:
        """Whether a state is being written."""
        return self._under_way is not None and not self._under_way.done()

    def save(self, n_done: int, snapshot: Any, control: Mapping[str, object] | None = None) -> None:
        """Write a state, beside the training.

        Args:
            n_done: steps that it holds.
            snapshot: reference of the member's answer.
            control: what the controller remembers; None: nothing.

        Raises:
            Exception: what the task's own functions raised for the state before it.
        """
        self.settle()
        self._n_done = n_done
        self._under_way = self._pool.submit(self._write, n_done, snapshot, control)

    def settle(self) -> bool:
        """Wait for the state that is being written; returns whether the last one was.

        Raises:
            Exception: what the task's own functions raised, such as those that pickle its state.
        """
        if self._under_way is None:
            return self.n_saved == self._n_done
        under_way, self._under_way = self._under_way, None
        error = under_way.exception()
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            raise_cause(error)
        if isinstance(error, OSError | RayError):
            self.failure = reason_of(error) if isinstance(error, RayError) else first_line(error)
            name = f"step-{self._n_done:08d}.ckpt"
            self._tell(ElasticFault.CHECKPOINT_FAILED, name, self.failure)
            return False
        under_way.result()
        self.n_saved = self._n_done
        return True

    def close(self) -> None:
        """Write what is to be written, and end the thread.

        Raises:
            Exception: what the task's own functions raised.
        """
        try:
            self.settle()
        finally:
            self._pool.shutdown()

    def _write(self, n_done: int, snapshot: Any, control: Mapping[str, object] | None) -> None:
        self._folder.write(n_done, ray.get(snapshot, timeout=self._patience_s), control)
