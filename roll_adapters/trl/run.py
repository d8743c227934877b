"""A whole run through TRL, as `ecorl run` starts it: prepare, evaluate, train, account."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from ecorl.config import Config, FpgaEngineConfig, parse_config
from ecorl.edi import EdiMatrix
from ecorl.engines.fpga.csim.build import csim_library
from ecorl.engines.fpga.engine import FpgaEngine as Int8Engine
from ecorl.errors import ConfigError, EcorlError, RunError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.records import Stage
from ecorl.runtime.progress import ProgressTask, progress
from roll_adapters.trl.attachment import TrlAttachment
from roll_adapters.trl.evaluate import evaluate, rank_check
from roll_adapters.trl.record import (
    ATTACH,
    ORIGIN,
    create_run,
    newest_checkpoint,
    read_state,
    run_facts,
)
from roll_adapters.trl.task import TaskFiles, read_rows, resolve_task
from roll_adapters.trl.trainer import build_trainer, quiet
from roll_adapters.trl_hooks import Record, attach_to_record

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
    if (run_dir / LEDGER_FILE).exists():
        raise RunError(
            f"{run_dir} holds a run already: go on with `ecorl run --resume {run_dir}`, "
            "or choose another with --set run_dir=..."
        )
    was_there = run_dir.exists()  # the trainer makes folders below it
    _check_writable(run_dir)
    with quiet():
        files = resolve_task(config, console)
        _check_data(files)
        _build_kernels(config, console)
        trainer = build_trainer(config, files, run_dir / CHECKPOINTS)
        ledger = create_run(config, run_dir, run_facts(files.policy, files.reward))
        attempt = _Run(config, run_dir, files, trainer, ledger, console)
        try:
            return attempt.go(None, None)
        except EcorlError:
            # Refused before anything ran (an engine that cannot load the model): leave no half run.
            if not attempt.attached and not was_there:
                shutil.rmtree(run_dir, ignore_errors=True)
            raise


def resume(run_dir: Path, console: Console) -> bool:
    """Go on with a run that was stopped or killed, from its newest complete checkpoint.

    Raises:
        RunError: when there is no run to resume, it has finished, another process is at it, or a
            script of the user's own has started it.
    """
    if not (run_dir / LEDGER_FILE).is_file():
        raise RunError(f"{run_dir} holds no run to resume")
    config = _recorded_config(run_dir)
    checkpoint = newest_checkpoint(run_dir / CHECKPOINTS)
    step, edi = read_state(checkpoint) if checkpoint else (0, None)
    with quiet():
        files = resolve_task(config, console)
    # Opened before anything is touched: it refuses while another process is at this run.
    ledger = Ledger.open_for_resume(
        run_dir / LEDGER_FILE, from_step=step, raw_samples=config.ledger.raw_samples
    )
    with quiet(), ledger:
        for leftover in (run_dir / CHECKPOINTS).glob("checkpoint-*"):
            number = leftover.name.rsplit("-", 1)[1]
            if number.isdigit() and (checkpoint is None or int(number) > step):
                shutil.rmtree(leftover)  # cut off while it was written
        trainer = build_trainer(config, files, run_dir / CHECKPOINTS)
        console.print(f"going on from step {step} of {config.trainer.steps}", highlight=False)
        return _Run(config, run_dir, files, trainer, ledger, console).go(checkpoint, edi)


def _recorded_config(run_dir: Path) -> Config:
    """The config of a run that can be gone on with, as the ledger holds it.

    Not the file beside it, which may have been edited: one record is of one config.
    """
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        record = reader.run()
        finished = any(event.kind == "finish" for event in reader.events())
    if finished:
        raise RunError(f"{run_dir} has finished; `ecorl report {run_dir}` shows it")
    if record.meta.get(ORIGIN) == ATTACH:
        # Its trainer was made by the user's code; what a config holds is not that trainer.
        raise RunError(
            f"{run_dir} was started by a script: start that again, with the same "
            "resume_from_checkpoint for attach and train"
        )
    return parse_config(record.config_toml, f"the ledger of {run_dir}")


def _check_writable(run_dir: Path) -> None:
    """See that the run's folder can be made, before minutes go into preparation."""
    missing = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run_dir):
            pass
        for path in missing:
            path.rmdir()
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            "run_dir", str(run_dir), f"a folder that can be written ({reason})"
        ) from error


def _build_kernels(config: Config, console: Console) -> None:
    """Compile the C-simulation now, in sight, rather than in the engine's silent process."""
    offload = config.engine.offload
    if isinstance(offload, FpgaEngineConfig):
        csim_library(
            offload.build,
            progress=lambda line: console.print(
                line, highlight=False, markup=False, soft_wrap=True
            ),
        )


def _check_data(files: TaskFiles) -> None:
    """Read every file first, those that are needed only at the end too: a mistake costs nothing."""
    read_rows(files.prompts, ("prompt",), "task.prompts")
    if files.eval_prompts:
        read_rows(files.eval_prompts, ("prompt",), "task.eval_prompts")
    if files.pairs:
        read_rows(files.pairs, ("prompt", "chosen", "rejected"), "task.pairs")


class _Run:
    """One attempt at a run."""

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
        self.attached = False

    def go(self, checkpoint: Path | None, edi: EdiMatrix | None) -> bool:
        """Evaluate, train, evaluate; the ledger is closed at the end, whatever happens."""
        self.ledger.event("resume" if checkpoint else "start", f"{self.config.algorithm} by TRL")
        step = _step_of(checkpoint)
        try:
            attachment = attach_to_record(
                self.trainer, self.config, self.run_dir, Record(self.ledger, step, edi)
            )
            self.attached = True
            try:
                complete = self._phases(attachment, checkpoint)
            finally:
                attachment.detach()
            if complete:
                self.ledger.event("finish", "the run is complete")
            else:
                self.ledger.event("stop", "stopped by a signal after the step was saved")
            return complete
        except KeyboardInterrupt:
            self.ledger.event("stop", "stopped from the keyboard")
            raise
        finally:
            self.ledger.close()

    def _phases(self, attachment: TrlAttachment, checkpoint: Path | None) -> bool:
        if not self._evaluated("before"):
            self._evaluate("before")
        if not self._train(checkpoint):
            return False
        self.trainer.save_model(str(self.run_dir / MODEL))
        self._evaluate("after")
        self._rank_flips(attachment)
        return True

    def _evaluated(self, phase: str) -> bool:
        self.ledger.flush()
        with contextlib.closing(LedgerReader(self.run_dir)) as reader:
            return any(row.phase == phase for row in reader.evaluations())

    def _evaluate(self, phase: str) -> None:
        if self.files.eval_prompts is None:
            return
        result = evaluate(self.trainer, read_rows(self.files.eval_prompts, ("prompt",)))
        self.ledger.evaluation("reward", phase, result.reward)
        words = f"held-out {phase} training: reward {_mean(result.reward):+.2f}"
        if result.correct is not None:
            self.ledger.evaluation("correct", phase, result.correct)
            words += f", {100 * _mean(result.correct):.0f} % right"
        self.console.print(words, highlight=False)

    def _train(self, checkpoint: Path | None) -> bool:
        done, steps = _step_of(checkpoint), self.config.trainer.steps
        if checkpoint is not None and done >= steps:
            # Cut off after the last step: the trainer would take one more before it stops.
            self._load_weights(checkpoint)
            return True
        stop = _StopAtStep(self.console)
        title = f"{self.config.algorithm.upper()} training"
        with stop.listening(), progress(title, steps, self.console, done=done) as bar:
            self.trainer.add_callback(_ProgressToBar(bar))
            self.trainer.add_callback(stop)
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return not stop.asked

    def _load_weights(self, checkpoint: Path) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        trained = type(model).from_pretrained(checkpoint, dtype=model.dtype)
        model.load_state_dict(trained.state_dict())

    def _rank_flips(self, attachment: TrlAttachment) -> None:
        offload = self.config.engine.offload
        if self.files.pairs is None or not isinstance(offload, FpgaEngineConfig):
            return
        folder = attachment.runtime.checkpoint(Stage.REWARD)
        if folder is None:
            return
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
        self.ledger.evaluation("rank_flip", "held_out", check.flips)
        self.ledger.evaluation("score_shift", "held_out", check.score_shifts)


def _step_of(checkpoint: Path | None) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class _ProgressToBar(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Moves the progress bar; the note shows the newest reward."""

    def __init__(self, bar: ProgressTask) -> None:
        self._bar, self._note = bar, ""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Remember the newest reward."""
        if logs and "reward" in logs:
            self._note = f"reward {float(logs['reward']):+.2f}"

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One step is done."""
        self._bar.advance(1, self._note)


class _StopAtStep(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """SIGINT and SIGTERM end the run after the step in progress, with a checkpoint."""

    def __init__(self, console: Console) -> None:
        self.asked, self._console = False, console

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the two signals inside the block; a second one ends the process at once."""
        previous: dict[int, Any] = {}

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True
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
