"""One attempt at a run through TRL: prepare, evaluate, train, account."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from transformers import TrainerCallback

from ecorl.config import Config, FpgaEngineConfig, NullSourceConfig
from ecorl.control import Command
from ecorl.edi import EdiMatrix
from ecorl.engines.fpga.engine import FpgaEngine as Int8Engine
from ecorl.errors import EcorlError, RunError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import EvaluationPhase, EventKind, Stage, step_of_phase
from ecorl.report.sharing.files import write_footprint
from ecorl.runtime.checkpoints import (
    newest_checkpoint,
    read_gears,
    read_state,
    remove_checkpoints_after,
    step_of,
)
from ecorl.runtime.energy.run_energy import recorded_totals
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.progress import ProgressTask, progress
from ecorl.runtime.protocol import NoRecord, RecordWriter
from ecorl.runtime.runs.record import (
    RunRecord,
    check_unused,
    check_writable,
    create_run,
    ending_by,
    run_facts,
)
from roll_adapters.trl.attach import PACKAGES, attach_to_record
from roll_adapters.trl.attachment import TrlAttachment
from roll_adapters.trl.callbacks import EvaluateAlong
from roll_adapters.trl.evaluate import evaluate, rank_check
from roll_adapters.trl.inputs.quiet import quiet
from roll_adapters.trl.inputs.rows import PAIR_KEYS, PROMPT_KEYS, read_rows
from roll_adapters.trl.inputs.start import check_algorithm
from roll_adapters.trl.launch.boundary import StepBoundary, StepStopSignals, lost_cluster, unchanged
from roll_adapters.trl.launch.crew import CHECKPOINTS, NEXT_WIDTH, AttemptOutcome, Crew
from roll_adapters.trl.launch.messages import Go
from roll_adapters.trl.processes import TrainerProcesses
from roll_adapters.trl.task import TaskFiles, prepare_task, resolve_task
from roll_adapters.trl.trainer import build_trainer, skip_epochs

MODEL = "model"

_FIRST_READING_S = 3.0
"""Longest wait for a first power reading. Invented: the sampler starts in under a second."""


def start(
    config: Config, run_dir: Path, console: Console, crew: Crew | None = None
) -> AttemptOutcome:
    """Start a run in a fresh folder.

    Args:
        config: the resolved configuration.
        run_dir: folder of the run; must not hold one yet.
        console: where progress is shown.
        crew: the processes that train together; None for this one alone.

    Returns:
        How it ended.

    Raises:
        UserError: for anything in the configuration or its files that cannot be used.
    """
    crew = crew or Crew()
    check_algorithm(config)  # before anything is written
    # The trainer makes folders below it; one that was made for this run is empty so far.
    was_there = run_dir.exists() and any(run_dir.iterdir())
    if crew.is_head:
        check_unused(run_dir)
        check_writable(run_dir)
    with quiet():
        files = crew.first(lambda: prepare_task(config, console))
        trainer = build_trainer(config, files, run_dir / CHECKPOINTS, crew.width)
        crew.meet()
        ledger = None
        if crew.is_head:
            ledger = create_run(config, run_dir, run_facts(files.policy, files.reward, PACKAGES))
        attempt = _Run(_Task(config, run_dir, files), trainer, ledger, console, crew)
        try:
            return _published(attempt.go(_From()), run_dir, crew)
        except EcorlError:
            # Refused before anything ran (an engine that cannot load the model): leave no half run.
            if not attempt.attached and not was_there and crew.is_head:
                shutil.rmtree(run_dir, ignore_errors=True)
            raise


def resume(
    config: Config, run_dir: Path, console: Console, crew: Crew | None = None
) -> AttemptOutcome:
    """Go on with a run that was stopped or killed, from its newest complete checkpoint.

    Args:
        config: the run's.
        run_dir: folder of the run.
        console: where progress is shown.
        crew: the processes that train together; None for this one alone.

    Returns:
        How it ended.

    Raises:
        RunError: when another process is at the run.
    """
    crew = crew or Crew()
    with quiet():
        files = crew.first(lambda: resolve_task(config, console))
        task = _Task(config, run_dir, files)
        with _reopened(task, crew) as (ledger, point):
            trainer = build_trainer(config, files, run_dir / CHECKPOINTS, crew.width)
            crew.meet()
            return _go_on(task, trainer, ledger, point, console, crew)


def stand_by(config: Config, run_dir: Path, console: Console, crew: Crew) -> AttemptOutcome:
    """Load all that training needs, and go on with a run when others have left it.

    Args:
        config: the run's.
        run_dir: folder of the run.
        console: where progress is shown from then on.
        crew: the processes that train together.

    Returns:
        How it ended.

    Raises:
        RunError: when the checkpoint that it was to go on from is not the newest complete one.
    """
    with quiet():
        task = _Task(config, run_dir, resolve_task(config, console))
        trainer = build_trainer(config, task.files, run_dir / CHECKPOINTS, crew.width)
        crew.meet()
        go = crew.stand_by()
        with _reopened(task, crew, go) as (ledger, point):
            return _go_on(task, trainer, ledger, point, console, crew)


@dataclass(frozen=True, slots=True)
class _Task:
    """What a run trains, and where its record is."""

    config: Config
    run_dir: Path
    files: TaskFiles


@dataclass(frozen=True, slots=True)
class _From:
    """Where an attempt begins.

    Attributes:
        checkpoint: the checkpoint to go on from, or None for a fresh run.
        edi: the EDI matrix of that checkpoint, or None.
        spent: what earlier attempts have drawn; None for a fresh run.
        go: what other processes have left; None where none did.
    """

    checkpoint: Path | None = None
    edi: EdiMatrix | None = None
    spent: RunTotals | None = None
    go: Go | None = None


@contextlib.contextmanager
def _reopened(
    task: _Task, crew: Crew, go: Go | None = None
) -> Iterator[tuple[Ledger | None, _From]]:
    """Open the record to go on with, on rank 0, and find out where from; it is closed at the end.

    The others are told by `_go_on`.
    """
    if not crew.is_head:
        yield None, _From(go=go)
        return
    run_dir = task.run_dir
    checkpoint = newest_checkpoint(run_dir / CHECKPOINTS)
    step, edi = read_state(checkpoint) if checkpoint else (0, None)
    if go is not None and step != go.left.step:
        raise RunError(f"{run_dir}: was left after step {go.left.step}, and holds step {step}")
    spent = recorded_totals(run_dir)
    # Opened before anything is touched: it refuses while another process is at this run.
    with Ledger.open_for_resume(
        run_dir / LEDGER_FILE, from_step=step, raw_samples=task.config.ledger.raw_samples
    ) as ledger:
        remove_checkpoints_after(run_dir / CHECKPOINTS, step)
        yield ledger, _From(checkpoint, edi, spent, go)


def _go_on(
    task: _Task, trainer: Any, ledger: Ledger | None, point: _From, console: Console, crew: Crew
) -> AttemptOutcome:
    """Train from where the record goes on; rank 0 knows where that is."""
    checkpoint = crew.told(point.checkpoint)
    point = replace(point, checkpoint=checkpoint)
    step = step_of(checkpoint)
    skip_epochs(trainer, task.config, step)
    steps = task.config.trainer.steps
    others = "" if len(task.config.trainer.widths) == 1 else f", processes: {crew.width}"
    words = f"going on from step {step} of {steps}{others}"
    if checkpoint is None:
        words = (
            f"there is no checkpoint: beginning again from step 0 of {steps}{others}; what was "
            "recorded before counts as superseded"
        )
    console.print(words, highlight=False, soft_wrap=True)
    attempt = _Run(task, trainer, ledger, console, crew)
    return _published(attempt.go(point), task.run_dir, crew)


def _published(outcome: AttemptOutcome, run_dir: Path, crew: Crew) -> AttemptOutcome:
    """Write what a complete run has drawn and emitted beside its record and its weights."""
    if outcome is AttemptOutcome.COMPLETE and crew.is_head:
        write_footprint(run_dir, [run_dir / MODEL])
    return outcome


class _Run:
    """One attempt at a run: evaluation, training and evaluation, from the start or a checkpoint."""

    def __init__(
        self, task: _Task, trainer: Any, ledger: Ledger | None, console: Console, crew: Crew
    ) -> None:
        self.config, self.run_dir, self.files = task.config, task.run_dir, task.files
        self.trainer, self.ledger, self.console, self.crew = trainer, ledger, console, crew
        self.record: RecordWriter = NoRecord() if ledger is None else ledger
        self.attached = False
        self._stop = StepStopSignals(console)

    def go(self, point: _From) -> AttemptOutcome:
        """Evaluate, train and evaluate; the ledger is closed at the end, whatever happens.

        Args:
            point: where the attempt begins.

        Returns:
            How it ended.
        """
        attachment: TrlAttachment | None = None
        kind = EventKind.RESUME if point.checkpoint else EventKind.START
        step = step_of(point.checkpoint)
        try:
            attachment = attach_to_record(
                self.trainer,
                self.config,
                self.run_dir,
                RunRecord(
                    self.ledger,
                    step,
                    point.edi,
                    before=point.spent,
                    gears=read_gears(point.checkpoint),
                ),
                TrainerProcesses(self.trainer, self.config),
            )
            self.attached = True
            # All saves are this program's, and a disk that is full for a while ends no run.
            attachment.guards_saves = True
            if len(self.config.trainer.widths) > 1:
                attachment.widths = self.config.trainer.widths
            # On a cluster another process keeps the record from here on.
            self.record = attachment.runtime.record
            self.record.event(kind, f"{self.config.algorithm} by TRL")
            if point.go is not None:
                self._note_change(point.go)
            if self.crew.lost:
                self.record.fault(lost_cluster(step, self.crew.lost))
            try:
                outcome = self._phases(attachment, point)
            finally:
                # Before the last event: detaching writes the executions that still wait for power
                # readings.
                attachment.detach()
            if outcome is AttemptOutcome.COMPLETE:
                self.record.event(EventKind.FINISH, "the run is complete")
            elif outcome is AttemptOutcome.STOPPED:
                by = "by a signal" if self._stop.asked else "at the budget of emissions"
                self.record.event(EventKind.STOP, f"stopped {by}")
            return outcome
        except BaseException as error:
            if attachment is None or not attachment.has_failed:
                self.record.event(*ending_by(error))
            raise
        finally:
            self.record.close()

    def _note_change(self, go: Go) -> None:
        """Record with how many processes training goes on, and why not with others."""
        step, width = go.left.step, self.crew.width
        if go.dropped is None:
            processes = "1 process" if width == 1 else f"{width} processes"
            words = f"training goes on with {processes} after step {step}"
            self.record.event(EventKind.WIDTH, words)
            return
        self.record.fault(unchanged(step, go.dropped.width, go.dropped.reason))
        self.record.metric(step, NEXT_WIDTH, float(width))

    def _phases(self, attachment: TrlAttachment, point: _From) -> AttemptOutcome:
        seed = _new_seed(self.config, point.checkpoint, self.crew)
        boundary = StepBoundary(self.crew, self._stop, attachment, point.go, seed)
        # What comes before the first step waits for the clean window too.
        attachment.is_stopping = boundary.is_stopping
        with self._stop.listening():
            choice = attachment.stand()
        if self.crew.told(self._stop.asked) or choice.command is Command.STOP:
            return AttemptOutcome.STOPPED
        if self.crew.told(self.crew.is_head and not self._evaluated(EvaluationPhase.BEFORE)):
            self._evaluate(attachment, EvaluationPhase.BEFORE)
        every = self.config.trainer.evaluate_every
        along = EvaluateAlong(every, lambda phase: self._evaluate(attachment, phase))
        outcome = self._train(point.checkpoint, boundary, *([along] if every else []))
        if outcome is not AttemptOutcome.COMPLETE:
            return outcome
        self.trainer.save_model(str(self.run_dir / MODEL))
        self._evaluate(attachment, EvaluationPhase.AFTER)
        attachment.runtime.settle()
        if self.crew.is_head:
            self._rank_flips(attachment)
        self.crew.wait()
        return outcome

    def _evaluated(self, phase: EvaluationPhase) -> bool:
        """Whether an earlier attempt has recorded this evaluation already."""
        self.record.flush()
        with contextlib.closing(LedgerReader(self.run_dir)) as reader:
            return any(row.phase == phase for row in reader.evaluations())

    def _evaluate(self, attachment: TrlAttachment, phase: str) -> None:
        """Evaluate on held-out prompts, on rank 0; the others wait, with their devices held."""
        if self.files.eval_prompts is None:
            return
        if self.crew.is_head:
            self._await_power(attachment)
        with attachment.evaluating() as rows:
            if self.crew.is_head:
                result = evaluate(self.trainer, read_rows(self.files.eval_prompts, PROMPT_KEYS))
                rows.prompts += result.prompts
                rows.completions += result.completions
            self.crew.wait()
        if not self.crew.is_head:
            return
        self.record.evaluation("reward", phase, result.reward)
        step = step_of_phase(phase)
        when = f"{phase} training" if step is None else f"after step {step}"
        words = f"held-out {when}: reward {statistics.fmean(result.reward):+.2f}"
        if result.correct is not None:
            self.record.evaluation("correct", phase, result.correct)
            words += f", {100 * statistics.fmean(result.correct):.0f} % right"
        self.console.print(words, highlight=False)

    def _await_power(self, attachment: TrlAttachment) -> None:
        """Wait for the first power reading: what comes before it has no energy figure."""
        if isinstance(self.config.telemetry.gpu, NullSourceConfig):
            return  # there will be none
        until = time.monotonic() + _FIRST_READING_S
        while attachment.runtime.totals().gpu_power_w is None and time.monotonic() < until:
            time.sleep(0.02)

    def _train(
        self, checkpoint: Path | None, boundary: StepBoundary, *more: TrainerCallback
    ) -> AttemptOutcome:
        done, steps = step_of(checkpoint), self.config.trainer.steps
        if checkpoint is not None and done >= steps:
            # Cut off after the last step: the trainer would take one more before it stops.
            self._load_weights(checkpoint)
            return AttemptOutcome.COMPLETE
        title = f"{self.config.algorithm.upper()} training"
        with self._stop.listening(), progress(title, steps, self.console, done=done) as bar:
            for callback in (_ProgressToBar(bar), boundary, *more):
                self.trainer.add_callback(callback)
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        outcome = AttemptOutcome.STOPPED
        if not self._stop.asked and boundary.has_left:
            outcome = AttemptOutcome.LEFT
        elif not self._stop.asked and int(self.trainer.state.global_step) >= steps:
            outcome = AttemptOutcome.COMPLETE
        return self.crew.told(outcome)

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
            folder, Stage.REWARD, self.config.devices.accelerator, offload.build, offload.threads
        )
        try:
            check = rank_check(
                engine,
                self.trainer.reward_funcs[0],
                self.trainer.reward_processing_classes[0],
                read_rows(self.files.pairs, PAIR_KEYS),
            )
        finally:
            engine.close()
        self.record.evaluation("rank_flip", "held_out", check.flips)
        self.record.evaluation("score_shift", "held_out", check.score_shifts)


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


def _new_seed(config: Config, checkpoint: Path | None, crew: Crew) -> int | None:
    """The seed to go on with where a checkpoint holds random states of another number of processes.

    None where it holds this process's own: the framework goes on with that.
    """
    if checkpoint is None or _width_of(checkpoint) == crew.width:
        return None
    # Of seed, step and rank alone, so that a resume draws the same numbers.
    seeds = np.random.SeedSequence((config.seed, step_of(checkpoint), crew.rank))
    return int(seeds.generate_state(1)[0])


def _width_of(checkpoint: Path) -> int:
    """Number of processes that saved a checkpoint: each has left its random state in it."""
    return len(list(checkpoint.glob("rng_state_*.pth"))) or 1
