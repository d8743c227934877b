"""Callbacks of a TRL trainer: where its steps begin and end, its metrics, its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ecorl.errors import RunError
from ecorl.records import EventKind, phase_after_step
from ecorl.report.sharing.files import write_footprint
from ecorl.report.training import EVAL_REWARD
from ecorl.runtime.checkpoints import record_checkpoint
from ecorl.runtime.memory import record_peak_memory

if TYPE_CHECKING:
    from roll_adapters.trl.attachment import TrlAttachment


_METRICS = {
    "loss": "loss",
    "reward": "reward",
    "eval_reward": EVAL_REWARD,
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "clipped_ratio",
    "step_time": "step_time_s",
}
"""TRL's names and the ledger's."""


class StageCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Tells the attachment where a step begins and ends."""

    def __init__(self, attachment: TrlAttachment) -> None:
        self._attachment = attachment
        self._ends_here = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a step of the record, whether or not the step generates.

        Training waits here for a clean window, if the run does so at all.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.
        """
        if not self._attachment.closed:
            self._ends_here = self._attachment.begin_step()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training stage here, so that it holds nothing that other callbacks do later.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.
        """
        if not self._attachment.closed:
            self._attachment.end_training_stage()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step, and record peak memory and executions whose power readings have come in.

        The memory is that of the process which keeps the record.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: told to save and stop, where the control path asked for it.
            **kwargs: not used.
        """
        if self._ends_here:
            # Not before: between the micro-batches of a step the trainer would leave it half done.
            control.should_save = control.should_training_stop = True
            self._attachment.guards_saves = True  # the user has not asked for this one
        if not self._attachment.closed:
            self._attachment.end_training_stage()
            runtime, packing = self._attachment.runtime, self._attachment.packing
            if packing is not None:
                packing.end_step(runtime.record)
            if runtime.is_head:
                with runtime.clock:
                    record_peak_memory(runtime.record, state.global_step)
            runtime.settle()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the training stage that is open when training ends, if any, and account it.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.
        """
        if not self._attachment.closed:
            self._attachment.end_training_stage()
            self._attachment.runtime.settle()


class LedgerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Writes metrics and checkpoints of a trainer into the ledger.

    Args:
        attachment: whose ledger; when it is closed nothing is written any more.
        close_at_end: whether the record ends with the training.
        from_step: step that the record goes on from, 0 for a fresh one.
        run_dir: folder of the run.
    """

    def __init__(
        self, attachment: TrlAttachment, close_at_end: bool, from_step: int, run_dir: Path
    ) -> None:
        self._attachment, self._close_at_end = attachment, close_at_end
        self._from_step, self._run_dir = from_step, run_dir
        self._record = attachment.runtime.record

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record that training starts or goes on.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.

        Raises:
            RunError: before the first step, when training goes on from another step than the
                record: its steps would count twice, or leave a hole.
        """
        if self._attachment.closed:
            return
        if state.global_step != self._from_step:
            raise RunError(
                f"training goes on from step {state.global_step}, its record from step "
                f"{self._from_step}: give attach and train the same resume_from_checkpoint"
            )
        self._attachment.has_begun = True
        kind = EventKind.RESUME if state.global_step else EventKind.START
        self._record.event(kind, f"training from step {state.global_step} of {state.max_steps}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the trainer's metrics; a value that is not finite counts as missing.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            logs: the metrics by TRL's names, or None.
            **kwargs: not used.
        """
        if self._attachment.closed:
            return
        for key, name in _METRICS.items():
            value = (logs or {}).get(key)
            if isinstance(value, int | float):
                finite = float(value) if math.isfinite(value) else None
                self._record.metric(state.global_step, name, finite)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete a checkpoint that the trainer has saved with ecorl's own state.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.
        """
        if self._attachment.closed or self._attachment.missed_save == int(state.global_step):
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        gears = self._attachment.gears
        memory = None if gears is None else gears.memory()
        record_checkpoint(self._attachment.runtime, checkpoint, state.global_step, memory)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record that training has ended, and close a record that ends with it.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.
        """
        if self._attachment.closed:
            return
        self._record.event(
            EventKind.TRAINING_END, f"{state.global_step} of {state.max_steps} steps"
        )
        if self._close_at_end:
            # Fewer steps than planned: another callback or the user ended training early.
            complete = state.global_step >= state.max_steps
            self._record.event(
                EventKind.FINISH if complete else EventKind.STOP,
                f"training ended after {state.global_step} of {state.max_steps} steps",
            )
            self._attachment.end()
            if self._attachment.runtime.is_head:
                write_footprint(self._run_dir, [Path(args.output_dir)])


class EvaluateAlong(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Evaluates on held-out prompts after every so many steps, but after the last one.

    It is the last of the callbacks: when it is asked, a step that ends the training is known.

    Args:
        every: steps between two evaluations, 1 or more.
        evaluate: evaluates, and records it under the phase that it is given.
    """

    def __init__(self, every: int, evaluate: Callable[[str], None]) -> None:
        self._every, self._evaluate = every, evaluate

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate where it is due.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: whether training ends here.
            **kwargs: not used.
        """
        step = int(state.global_step)
        ends = control.should_training_stop or step >= state.max_steps
        if step % self._every == 0 and not ends:
            self._evaluate(phase_after_step(step))
