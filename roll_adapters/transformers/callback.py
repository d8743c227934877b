"""The callback of a `Trainer`: its steps are those of a measured loop."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ecorl.config import Config
from ecorl.errors import ConfigError, RunError
from ecorl.loop import LoopPlan, MeasuredLoop
from ecorl.loop.facts import loop_facts, told_facts
from ecorl.loop.opening import loop_config
from ecorl.loop.processors import check_one_process
from ecorl.runtime.runs.folder import with_seed_of_trainer
from ecorl.runtime.runs.notices import ALREADY_ATTACHED
from roll_adapters.transformers.batches import TrainedBatches, calling_trainer

_GO_ON = "start its script again, with resume_from_checkpoint for train"

_METRICS = ("loss", "grad_norm", "learning_rate", "eval_loss")
"""What of the trainer's own log becomes a metric of the record, under the same name."""


class EcorlCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Measures the training of a `Trainer`, lets it wait for clean windows, and accounts it.

    The record begins with the training and ends with it. A callback is not told of an error that
    ends the training: the record is then open until `close`, or until the trainer trains again
    (`attach` sees to it).

    Args:
        config: a config, the path of a TOML file, or a preset's name.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        overwrite: whether what ecorl wrote of a run that lies in the folder is removed first,
            whatever its state; otherwise such a run is refused when training begins.

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
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._overwrites = overwrite
        self.has_ended = False
        self._undo: Callable[[], None] | None = None
        self._loop: MeasuredLoop | None = None
        self._batches = TrainedBatches()

    def close(self, error: BaseException | None = None) -> None:
        """End the record; safe to call twice.

        Args:
            error: that has ended the training; None when it ended by itself.
        """
        loop, self._loop = self._loop, None
        self._batches.leave()
        if loop is not None:
            self.has_ended = True
            loop.close(error)

    def detach(self) -> None:
        """End the record, and take the callback from the trainer that `attach` gave it to."""
        self.close()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

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
        self.close()  # an error has ended the training before
        check_one_process()
        config = with_seed_of_trainer(self._config, int(args.seed), self._source)
        n_gpus = config.devices.n_gpus
        if args.n_gpu > 1 and args.n_gpu != n_gpus:
            raise ConfigError("devices.n_gpus", n_gpus, f"{args.n_gpu}: the trainer uses so many")
        facts = loop_facts("transformers Trainer", _GO_ON, _trainer_facts(args))
        plan = LoopPlan(
            self._run_dir,
            int(state.max_steps),
            int(state.global_step),
            facts,
            overwrites=self._overwrites,
        )
        loop = MeasuredLoop(config, plan)
        loop.weights.append(Path(args.output_dir))
        loop.open()
        self._loop, self.has_ended = loop, False
        self._batches.watch(calling_trainer(self))

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
    callbacks.insert(0, callback)
    own, original = trainer.__dict__.get("train"), trainer.train

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            callback.close(error)
            raise

    def undo() -> None:
        trainer.remove_callback(callback)
        if own is not None:
            trainer.train = own
        else:
            trainer.__dict__.pop("train", None)

    trainer.train, callback._undo = train, undo
    return callback


def _trainer_facts(args: Any) -> dict[str, str]:
    """What the head of the record says of the trainer's arguments."""
    rows = int(args.train_batch_size)
    facts = {
        "accumulation_steps": int(args.gradient_accumulation_steps),
        "batch_size": rows,
        "learning_rate": args.learning_rate,
        "seed": args.seed,
    }
    return told_facts(facts)
