"""A whole run through TRL, as `ecorl run` starts it: prepare, evaluate, train, account."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from ecorl.config import Config, FpgaEngineConfig
from ecorl.control import Command
from ecorl.edi import EdiMatrix
from ecorl.engines.fpga.csim.build import csim_library
from ecorl.engines.fpga.engine import FpgaEngine as Int8Engine
from ecorl.errors import ConfigError, EcorlError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import EvaluationPhase, EventKind, Stage
from ecorl.report.sharing.files import write_footprint
from ecorl.runtime.checkpoints import (
    newest_checkpoint,
    read_gears,
    read_state,
    remove_checkpoints_after,
    step_of,
)
from ecorl.runtime.energy.recorded_energy import recorded_totals
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.progress import ProgressTask, progress
from ecorl.runtime.protocol import RecordWriter
from ecorl.runtime.run_record import (
    RunRecord,
    check_unused,
    check_writable,
    create_run,
    resumable_config,
    run_facts,
)
from roll_adapters.trl.attach import PACKAGES, attach_to_record
from roll_adapters.trl.attachment import TrlAttachment
from roll_adapters.trl.evaluate import evaluate, rank_check
from roll_adapters.trl.task import TaskFiles, read_rows, resolve_task
from roll_adapters.trl.trainer import build_trainer, check_algorithm, quiet

CHECKPOINTS = "checkpoints"
MODEL = "model"


def run(config: Config, run_dir: Path, console: Console) -> bool:
    """Start a run in a fresh folder.

    Args:
        config: the resolved configuration.
        run_dir: folder of the run; must not hold one yet.
        console: where progress is shown.

    Returns:
        True when the run finished, False when a signal stopped it (resume goes on from there).

    Raises:
        UserError: for anything in the configuration or its files that cannot be used.
    """
    check_algorithm(config)  # before anything is written
    _check_one_process()
    check_unused(run_dir)
    was_there = run_dir.exists()  # the trainer makes folders below it
    check_writable(run_dir)
    with quiet():
        files = resolve_task(config, console)
        _check_data(files)
        _build_kernels(config, console)
        trainer = build_trainer(config, files, run_dir / CHECKPOINTS)
        ledger = create_run(config, run_dir, run_facts(files.policy, files.reward, PACKAGES))
        attempt = _Run(config, run_dir, files, trainer, ledger, console)
        try:
            return _published(attempt.go(None), run_dir)
        except EcorlError:
            # Refused before anything ran (an engine that cannot load the model): leave no half run.
            if not attempt.attached and not was_there:
                shutil.rmtree(run_dir, ignore_errors=True)
            raise


def resume(run_dir: Path, console: Console) -> bool:
    """Go on with a run that was stopped or killed, from its newest complete checkpoint.

    Args:
        run_dir: folder of the run.
        console: where progress is shown.

    Returns:
        True when the run finished, False when a signal stopped it again.

    Raises:
        RunError: when there is no run to resume, it has finished, another process is at it, or a
            script of the user's own has started it.
    """
    config = resumable_config(run_dir)
    checkpoint = newest_checkpoint(run_dir / CHECKPOINTS)
    step, edi = read_state(checkpoint) if checkpoint else (0, None)
    spent = recorded_totals(run_dir)
    with quiet():
        files = resolve_task(config, console)
    # Opened before anything is touched: it refuses while another process is at this run.
    ledger = Ledger.open_for_resume(
        run_dir / LEDGER_FILE, from_step=step, raw_samples=config.ledger.raw_samples
    )
    with quiet(), ledger:
        remove_checkpoints_after(run_dir / CHECKPOINTS, step)
        trainer = build_trainer(config, files, run_dir / CHECKPOINTS)
        console.print(f"going on from step {step} of {config.trainer.steps}", highlight=False)
        attempt = _Run(config, run_dir, files, trainer, ledger, console)
        return _published(attempt.go(checkpoint, edi, spent), run_dir)


def _published(is_complete: bool, run_dir: Path) -> bool:
    """Write what a complete run has drawn and emitted beside its record and its weights."""
    if is_complete:
        write_footprint(run_dir, [run_dir / MODEL])
    return is_complete


def _check_one_process() -> None:
    """Refuse to be one of several processes: each would make a run of its own."""
    n_processes = os.environ.get("WORLD_SIZE", "1")
    if n_processes != "1":
        allowed = "1: start a script that calls attach with torchrun instead"
        raise ConfigError("WORLD_SIZE", n_processes, allowed)


def _build_kernels(config: Config, console: Console) -> None:
    """Compile the C-simulation now: the engine's process, which would do it, shows no progress."""
    offload = config.engine.offload
    if isinstance(offload, FpgaEngineConfig):
        csim_library(
            offload.build,
            progress=lambda line: console.print(
                line, highlight=False, markup=False, soft_wrap=True
            ),
        )


def _check_data(files: TaskFiles) -> None:
    """Read every file before training, so that a mistake in one costs no training time."""
    read_rows(files.prompts, ("prompt",), "task.prompts")
    if files.eval_prompts:
        read_rows(files.eval_prompts, ("prompt",), "task.eval_prompts")
    if files.pairs:
        read_rows(files.pairs, ("prompt", "chosen", "rejected"), "task.pairs")


class _Run:
    """One attempt at a run: evaluation, training and evaluation, from the start or a checkpoint."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        files: TaskFiles,
        trainer: Any,
        ledger: Ledger,
        console: Console,
    ) -> None:  # fmt: skip
        self.config, self.run_dir, self.files = config, run_dir, files
        self.trainer, self.ledger, self.console = trainer, ledger, console
        self.record: RecordWriter = ledger
        self.attached = False
        self._stop = _StopAtStep(console)

    def go(
        self,
        checkpoint: Path | None,
        edi: EdiMatrix | None = None,
        spent: RunTotals | None = None,
    ) -> bool:
        """Evaluate, train and evaluate; the ledger is closed at the end, whatever happens.

        Args:
            checkpoint: the checkpoint to go on from, or None for a fresh run.
            edi: the EDI matrix of that checkpoint, or None.
            spent: what earlier attempts have drawn; None for a fresh run.

        Returns:
            True when the run finished, False when a signal stopped it.
        """
        kind = EventKind.RESUME if checkpoint else EventKind.START
        step = step_of(checkpoint)
        try:
            attachment = attach_to_record(
                self.trainer,
                self.config,
                self.run_dir,
                RunRecord(self.ledger, step, edi, before=spent, gears=read_gears(checkpoint)),
            )
            self.attached = True
            # On a cluster another process keeps the record from here on.
            self.record = attachment.runtime.record
            self.record.event(kind, f"{self.config.algorithm} by TRL")
            try:
                complete = self._phases(attachment, checkpoint)
            finally:
                # Before the last event: detaching writes the executions that still wait for power
                # readings.
                attachment.detach()
            if complete:
                self.record.event(EventKind.FINISH, "the run is complete")
            else:
                by = "by a signal" if self._stop.asked else "at the budget of emissions"
                self.record.event(EventKind.STOP, f"stopped {by}")
            return complete
        except KeyboardInterrupt:
            self.record.event(EventKind.STOP, "stopped from the keyboard")
            raise
        finally:
            self.record.close()

    def _phases(self, attachment: TrlAttachment, checkpoint: Path | None) -> bool:
        # What comes before the first step waits for the clean window too.
        attachment.is_stopping = lambda: self._stop.asked
        with self._stop.listening():
            choice = attachment.stand()
        if self._stop.asked or choice.command is Command.STOP:
            return False
        if not self._evaluated(EvaluationPhase.BEFORE):
            self._evaluate(EvaluationPhase.BEFORE)
        if not self._train(checkpoint):
            return False
        self.trainer.save_model(str(self.run_dir / MODEL))
        self._evaluate(EvaluationPhase.AFTER)
        self._rank_flips(attachment)
        return True

    def _evaluated(self, phase: EvaluationPhase) -> bool:
        """Whether an earlier attempt has recorded this evaluation already."""
        self.record.flush()
        with contextlib.closing(LedgerReader(self.run_dir)) as reader:
            return any(row.phase == phase for row in reader.evaluations())

    def _evaluate(self, phase: EvaluationPhase) -> None:
        if self.files.eval_prompts is None:
            return
        result = evaluate(self.trainer, read_rows(self.files.eval_prompts, ("prompt",)))
        self.record.evaluation("reward", phase, result.reward)
        words = f"held-out {phase} training: reward {_mean(result.reward):+.2f}"
        if result.correct is not None:
            self.record.evaluation("correct", phase, result.correct)
            words += f", {100 * _mean(result.correct):.0f} % right"
        self.console.print(words, highlight=False)

    def _train(self, checkpoint: Path | None) -> bool:
        done, steps = step_of(checkpoint), self.config.trainer.steps
        if checkpoint is not None and done >= steps:
            # Cut off after the last step: the trainer would take one more before it stops.
            self._load_weights(checkpoint)
            return True
        title = f"{self.config.algorithm.upper()} training"
        with self._stop.listening(), progress(title, steps, self.console, done=done) as bar:
            self.trainer.add_callback(_ProgressToBar(bar))
            self.trainer.add_callback(self._stop)
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return not self._stop.asked and int(self.trainer.state.global_step) >= steps

    def _load_weights(self, checkpoint: Path) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        trained = type(model).from_pretrained(checkpoint, dtype=model.dtype)
        model.load_state_dict(trained.state_dict())

    def _rank_flips(self, attachment: TrlAttachment) -> None:
        """Record which held-out pairs the INT8 and the float reward model order differently."""
        offload = self.config.engine.offload
        if self.files.pairs is None or not isinstance(offload, FpgaEngineConfig):
            return
        folder = attachment.runtime.checkpoint(Stage.REWARD)
        if folder is None:
            return
        # An engine apart from the run's: that one may have been retired, or be given up.
        engine = Int8Engine(
            folder, Stage.REWARD, self.config.devices.fpga, offload.build, offload.threads
        )
        try:
            check = rank_check(
                engine,
                self.trainer.reward_funcs[0],
                self.trainer.reward_processing_classes[0],
                read_rows(self.files.pairs, ("prompt", "chosen", "rejected")),
            )
        finally:
            engine.close()
        self.record.evaluation("rank_flip", "held_out", check.flips)
        self.record.evaluation("score_shift", "held_out", check.score_shifts)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class _ProgressToBar(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Moves the progress bar, whose note shows the newest reward."""

    def __init__(self, bar: ProgressTask) -> None:
        self._bar, self._note = bar, ""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Remember the newest reward."""
        if logs and "reward" in logs:
            self._note = f"reward {float(logs['reward']):+.2f}"

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step."""
        self._bar.advance(1, self._note)


class _StopAtStep(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Ends the run on SIGINT or SIGTERM, with a checkpoint after the step in progress."""

    def __init__(self, console: Console) -> None:
        self.asked, self._console = False, console

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the two signals inside the block; a second one ends the process at once."""
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

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop when a signal came."""
        if self.asked:
            control.should_save = True
            control.should_training_stop = True
