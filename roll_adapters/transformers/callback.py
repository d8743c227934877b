"""The callback of a `Trainer`: its steps are those of a measured loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ecorl.config import Config
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError, RunError
from ecorl.loop import LoopPlan, MeasuredLoop
from ecorl.loop.opening import check_one_process, loop_config, loop_facts, told_facts
from ecorl.runtime.runs.folder import with_seed_of_trainer
from ecorl.runtime.runs.notices import ALREADY_ATTACHED
from ecorl.runtime.runs.starts import BeganAgain, Starts
from roll_adapters.transformers.batches import TrainedBatches, calling_trainer

logger = logging.getLogger(__name__)

_GO_ON = "start its script again, with resume_from_checkpoint for train"

_METRICS = ("loss", "grad_norm", "learning_rate", "eval_loss")
"""What of the trainer's own log becomes a metric of the record, under the same name."""


class EcorlCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Measures the training of a `Trainer`, lets it wait for clean windows, and accounts it.

    The record begins with the training and ends with it. A callback is not told of an error that
    ends the training: the record is then open until `close`, or until the trainer trains again
    (`attach` sees to it). A trainer may train several times: what belongs to one run then, and what
    to the next, is said in `ecorl.runtime.runs.starts`.

    Args:
        config: a config, the path of a TOML file, or a preset's name.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        overwrite: whether what ecorl wrote of a run that lies in the folder is removed first,
            whatever its state; otherwise such a run is refused when the first training begins.

    Attributes:
        has_ended: whether a training has ended that it measured, and none has begun since.

    Raises:
        ConfigError: for a mistake in the config.
    """

    def __init__(
        self,
        config: Config | str | Path,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
    ) -> None:
        self._source, self._config = config, loop_config(config, "transformers")
        self._starts = Starts(None if run_dir is None else Path(run_dir))
        self._overwrites = overwrite
        self.has_ended = False
        self._trainer: Any = None
        self._train: Callable[..., Any] | None = None
        self._has_own_train = False
        self._loop: MeasuredLoop | None = None
        self._batches = TrainedBatches()

    def close(self, error: BaseException | None = None) -> None:
        """End the record; safe to call twice.

        Args:
            error: that has ended the training; None when it ended by itself.
        """
        self._close(error)

    def _close(self, error: BaseException | None, *, goes_on: bool = False) -> None:
        loop, self._loop = self._loop, None
        self._batches.leave()
        if loop is not None:
            self.has_ended, self._starts.has_failed = True, error is not None
            loop.close(error, goes_on=goes_on)

    def detach(self) -> None:
        """End the record, and take the callback from the trainer that `attach` gave it to."""
        self.close()
        trainer, self._trainer = self._trainer, None
        if trainer is None:
            return
        trainer.remove_callback(self)
        if self._has_own_train:
            trainer.train = self._train
        else:
            trainer.__dict__.pop("train", None)

    def attach_to(self, trainer: Any) -> None:
        """Become the first callback of a trainer, and be told of errors that end its training.

        Args:
            trainer: of transformers, to which no other callback of ecorl is attached.
        """
        self._trainer, self._train = trainer, trainer.train
        self._has_own_train = "train" in trainer.__dict__
        trainer.callback_handler.callbacks.insert(0, self)
        # A method and no function: a copy of the trainer then calls its own.
        trainer.train = self._trained

    def _trained(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the trainer does; an error ends the record at once."""
        assert self._train is not None
        try:
            return self._train(*args, **kwargs)
        except BaseException as error:
            self.close(error)
            raise

    # ------------------------------------------------------------ what the trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the record: a fresh one, or that of the training that a checkpoint goes on with.

        Args:
            args: the trainer's arguments.
            state: the trainer's state; ``global_step`` counts the finished steps.
            control: not used.
            **kwargs: not used.

        Raises:
            UserError: for a config or a run folder that cannot be used.
        """
        trainer = calling_trainer(self)
        if (
            self._loop is not None
        ):  # the training before ended by an error of which no hook was called
            n_rows = getattr(trainer, "_train_batch_size", args.train_batch_size)
            reason = BeganAgain(f"training began again, with {n_rows} rows a batch")
            self._close(reason, goes_on=True)
        if self._starts.folder is None:
            self._open(args, state, trainer)
            return
        # What went well once is no mistake of the user's now: it costs the record alone.
        with EngineBoundary() as boundary:
            self._open(args, state, trainer)
        if boundary.error is not None:
            logger.warning("this training is not measured: %s", boundary.error)

    def _open(self, args: Any, state: Any, trainer: Any) -> None:
        """Open the record of a training that begins.

        Raises:
            UserError: as for `on_train_begin`.
        """
        check_one_process()
        config = with_seed_of_trainer(self._config, int(args.seed), self._source)
        n_gpus = config.devices.n_gpus
        if args.n_gpu > 1 and args.n_gpu != n_gpus:
            raise ConfigError("devices.n_gpus", n_gpus, f"{args.n_gpu}: the trainer uses so many")
        starts, trial = self._starts, getattr(trainer, "_trial", None)
        is_first, from_step = starts.folder is None, int(state.global_step)
        folder, goes_on = starts.next_folder(config, from_step, trial)
        plan = LoopPlan(
            folder,
            int(state.max_steps),
            from_step,
            goes_on,
            loop_facts("transformers Trainer", _GO_ON, _trainer_facts(args)),
            overwrites=self._overwrites and is_first,
        )
        loop = MeasuredLoop(config, plan)
        loop.weights.append(Path(args.output_dir))
        loop.open()
        self._loop, self.has_ended = loop, False
        starts.folder, starts.has_failed, starts.trial = loop.folder, False, trial
        self._batches.watch(trainer)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for a clean window, if the run does so, and begin a step.

        Args:
            args: the trainer's arguments.
            state: the trainer's state.
            control: not used.
            **kwargs: not used.
        """
        if self._loop is not None:
            self._loop.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step, with the rows and tokens that the trainer trained on in it.

        Args:
            args: the trainer's arguments.
            state: the trainer's state.
            control: told to save and stop, where training is to stop.
            **kwargs: not used.
        """
        if self._loop is None:
            return
        self._loop.end_step(*self._batches.take())
        for why in self._batches.objections:
            self._loop.lack(why)
        if not self._loop.goes_on:
            # Not where the step began: the trainer would leave it after its first backward pass,
            # and what that drew at random would be missing from a resume.
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the trainer's metrics, and add energy and emissions to its log.

        Args:
            args: the trainer's arguments.
            state: the trainer's state, whose history of logs gets the figures too.
            control: not used.
            logs: the trainer's figures, or None.
            **kwargs: not used.
        """
        if self._loop is None or not logs:
            return
        for name in _METRICS:
            value = logs.get(name)
            if isinstance(value, int | float):
                self._loop.metric(name, value if math.isfinite(value) else None)
        is_last = "total_flos" in logs  # of the whole training
        if "loss" not in logs and not is_last:
            return  # of an evaluation
        figures = self._loop.figures(is_last=is_last)
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete a checkpoint that the trainer has saved with ecorl's own state.

        Args:
            args: the trainer's arguments.
            state: the trainer's state.
            control: not used.
            **kwargs: not used.
        """
        if self._loop is not None:
            self._loop.checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the record.

        Args:
            args: the trainer's arguments.
            state: the trainer's state.
            control: not used.
            **kwargs: not used.
        """
        self.close()


def attach(
    trainer: Any,
    config: Config | str | Path,
    *,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
) -> EcorlCallback:
    """Attach ecorl to a `Trainer` that is made already, but does not train yet.

    Args:
        trainer: of transformers, or of a class that builds on it.
        config: a config, the path of a TOML file, or a preset's name.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        overwrite: as for `EcorlCallback`.

    Returns:
        The callback, which is the trainer's first; `EcorlCallback.detach` takes it away again.

    Raises:
        ConfigError: for a mistake in the config.
        RunError: when ecorl is attached to the trainer already.
    """
    callbacks = trainer.callback_handler.callbacks
    others = [one for one in callbacks if isinstance(one, EcorlCallback)]
    if not all(one.has_ended for one in others):
        raise RunError(ALREADY_ATTACHED)
    callback = EcorlCallback(config, run_dir, overwrite)
    for one in others:
        one.detach()
        if one in callbacks:  # it was handed to the trainer
            callbacks.remove(one)
    callback.attach_to(trainer)
    return callback


def _trainer_facts(args: Any) -> dict[str, str]:
    """What the head of the record says of the trainer's arguments."""
    facts = {
        "accumulation_steps": int(args.gradient_accumulation_steps),
        "batch_size": int(args.train_batch_size),
        "learning_rate": args.learning_rate,
        "seed": args.seed,
    }
    if args.auto_find_batch_size:
        del facts["batch_size"]  # it is what the trainer has yet to find
    return told_facts(facts)
