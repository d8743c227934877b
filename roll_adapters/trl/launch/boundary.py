"""The boundary of two steps: there a training stops, or leaves for other processes."""

from __future__ import annotations

import contextlib
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from transformers import TrainerCallback, set_seed

from ecorl.interrupt import n_interrupts, raise_swallowed_interrupt
from ecorl.records import FaultEvent, FaultKind
from ecorl.runtime.checkpoints import STATE_FILE
from ecorl.runtime.control.governor import WIDTH_CHANGE
from roll_adapters.trl.launch.crew import NEXT_WIDTH, Crew
from roll_adapters.trl.launch.messages import Begun, Go, Left

if TYPE_CHECKING:
    from roll_adapters.trl.attachment import TrlAttachment

_STEPS = 32
"""Newest steps of which the usual time is the median; as for the control path."""


class StepStopSignals:
    """Notes SIGINT and SIGTERM while a training is under way.

    Args:
        console: where the user is told.

    Attributes:
        asked: whether one of them came.
    """

    def __init__(self, console: Console) -> None:
        self.asked, self._console = False, console
        self._n_interrupts = n_interrupts()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the two signals inside the block; a second one ends the process at once.

        Raises:
            KeyboardInterrupt: Ctrl-C came since this object was made, and a library swallowed it.
        """
        raise_swallowed_interrupt(self._n_interrupts)
        previous: dict[int, Any] = {}

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True
            # The next signal finds the handlers of before, which end the process at once.
            restore()
            self._console.print("stopping after this step; once more to stop at once")

        def restore() -> None:
            for one, handler in previous.items():
                signal.signal(one, handler)

        for which in (signal.SIGINT, signal.SIGTERM):
            previous[which] = signal.signal(which, ask)
        try:
            yield
        finally:
            restore()


class _Verdict(StrEnum):
    """What all processes do after a step."""

    ON = "on"
    STOP = "stop"
    LEAVE = "leave"


class StepBoundary(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Ends the training of all processes after the same step, saved, where rank 0 is asked to.

    Args:
        crew: the processes.
        stop: signals of this process; those of rank 0 count.
        attachment: of the trainer.
        go: what this training goes on with after other processes; None where it does not.
        seed: of the random numbers from the first step on; None: those of the checkpoint.

    Attributes:
        has_left: whether it was saved and ended for other processes to go on.
    """

    def __init__(
        self,
        crew: Crew,
        stop: StepStopSignals,
        attachment: TrlAttachment,
        go: Go | None = None,
        seed: int | None = None,
    ) -> None:
        self._crew, self._stop, self._attachment = crew, stop, attachment
        self._go, self._seed = go, seed
        self.has_left = False
        self._leaves = self._is_leaving = self._has_begun = False
        self._n_questions = 0
        self._ended_s: float | None = None
        self._steps_s: deque[float] = deque(maxlen=_STEPS)

    def is_stopping(self) -> bool:
        """Whether a signal asks to stop; the control path asks each time before it answers."""
        self._n_questions += 1
        return self._stop.asked

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for the number of processes that the control path has chosen.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.
        """
        if self._seed is not None:
            set_seed(self._seed)
            self._seed = None
        handover, choice = self._crew.handover, self._attachment.choice
        if handover is None or choice is None:
            return
        self._leaves = handover.wanted(choice.width)
        for dropped in handover.dropped():
            self._note_unchanged(state.global_step + 1, dropped.width, dropped.reason)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop where rank 0 was asked to.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: told to save, and to stop.
            **kwargs: not used.
        """
        self._count_time(int(state.global_step))
        verdict = _Verdict.ON
        if self._stop.asked:
            verdict = _Verdict.STOP
        elif self._leaves and state.global_step < state.max_steps:
            verdict = _Verdict.LEAVE
        verdict = self._crew.told(verdict)
        if verdict is _Verdict.STOP:
            control.should_save = control.should_training_stop = True
        elif verdict is _Verdict.LEAVE and not control.should_training_stop:
            # It ends when the checkpoint is complete: else the step would be lost.
            control.should_save = self._is_leaving = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training for other processes to go on, once its checkpoint is complete.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: told to stop.
            **kwargs: not used.
        """
        if not self._is_leaving:
            return
        self._is_leaving = False
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        is_complete = self._crew.told((checkpoint / STATE_FILE).is_file())
        handover = self._crew.handover
        if is_complete:
            self.has_left = control.should_training_stop = True
            if handover is not None:
                self._leave(int(state.global_step), handover.target)
        elif handover is not None:
            self._leaves = False
            handover.take_back("the checkpoint that they were to go on from is not complete")

    def _leave(self, step: int, width: int) -> None:
        """Note what goes on, and what the supervisor is told when the record is closed."""
        self._attachment.runtime.record.metric(step, NEXT_WIDTH, float(width))
        usual_s = statistics.median(self._steps_s) if self._steps_s else None
        self._crew.left = Left(width, step, self._ended_s or time.monotonic(), usual_s)

    def _count_time(self, step: int) -> None:
        """Time the step that has just ended, unless the training stood still meanwhile."""
        now_s, before_s = time.monotonic(), self._ended_s
        n_questions, self._n_questions = self._n_questions, 0
        self._ended_s = now_s
        if before_s is not None and n_questions <= 1:
            self._steps_s.append(now_s - before_s)
        if self._has_begun:
            return
        self._has_begun = True
        self._crew.tell(Begun(step))
        if self._go is not None:
            left = self._go.left
            # One question before the training and one before its first step: more is a pause.
            known = left.usual_step_s is not None and n_questions <= 2
            # Where it goes on as wide as before, what passed is no price of a change.
            known = known and self._go.dropped is None
            cost_s = now_s - left.ended_s - (left.usual_step_s or 0.0) if known else None
            self._attachment.runtime.record.metric(step, WIDTH_CHANGE, cost_s)

    def _note_unchanged(self, step: int, width: int, reason: str) -> None:
        self._attachment.runtime.record.fault(unchanged(step, width, reason))


def unchanged(step: int, width: int, reason: str) -> FaultEvent:
    """Describe that a number of processes could not be begun with.

    Args:
        step: in which it was noticed.
        width: the number.
        reason: why, in words.
    """
    detail = f"{width} training processes cannot be begun with: {reason}"
    return FaultEvent(step, FaultKind.WIDTH_UNCHANGED, "training processes", detail)


def lost_cluster(step: int, reason: str) -> FaultEvent:
    """Describe that the cluster of the run's own was lost, and that training goes on.

    Args:
        step: after which it goes on.
        reason: what happened, in words.
    """
    return FaultEvent(step, FaultKind.CLUSTER_LOST, "Ray cluster", reason)
