"""The wrapped methods of one TRL trainer: where its stages meet ecorl's runtime.

`roll_adapters.trl_hooks.attach` makes a `TrlAttachment`; see there for what happens when. The
order of calls and what is open between them is `ecorl.runtime.rollout`'s; here is only what TRL's
methods take and return.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ecorl.control import AS_IT_IS, Command, GearChoice, TrainingStage
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Stage, StageWork
from ecorl.runtime.control.standing import stand
from ecorl.runtime.energy.log_figures import LEGEND, await_settled, log_figures
from ecorl.runtime.frozen_models import FrozenModels
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.processes.ranks import Ranks
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.rollout import GeneratedRows, Rollout
from ecorl.runtime.runs.record import ending_by
from roll_adapters.trl.gears.shifting import TrlGears
from roll_adapters.trl.inputs.first_rows import FirstPrompt
from roll_adapters.trl.log_probs import LogProbStages
from roll_adapters.trl.masks import add_generated, tell_not_counted, trained
from roll_adapters.trl.packing.loss import unscaled
from roll_adapters.trl.packing.packed_trainer import TrlPacking
from roll_adapters.trl.rewards import RewardStages
from roll_adapters.trl.saves import save_or_note
from roll_adapters.trl.trainings import Trainings

logger = logging.getLogger(__name__)

Original = Callable[..., Any]

LOG_PROBS = "_get_per_token_logps_and_entropies"

HOOKED = (
    "_generate",
    "_generate_single_turn",
    LOG_PROBS,
    "_calculate_rewards",
    "compute_loss",
    "training_step",
    "train",
    "log",
    "_save_checkpoint",
    "evaluate",
)
"""Methods of a trainer that are wrapped, on the object only."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a config changes in how a trainer computes.

    Attributes:
        gears: numeric formats of the training stage; None: it stays as the trainer has it.
        packing: micro-batches of even tokens; None: they stay as the trainer has them.
    """

    gears: TrlGears | None = None
    packing: TrlPacking | None = None


class TrlAttachment:
    """The wrapped methods of one trainer; made by `attach`, undone by `detach`.

    Args:
        trainer: the TRL trainer.
        runtime: started, with the trainer's facts.
        on_close: called once with the attachment and the error that ended the training, if any.
        frozen: notices when an engine no longer stands for its model.
        prefix: put before the ids of rows, where several processes train.
        changes: what the config changes in how the trainer computes; None: nothing.
        ranks: exchange with the processes that train with this one; None where there are none.

    Attributes:
        gears: from `Changes`.
        packing: likewise.
        closed: whether it has ended.
        has_begun: whether a training has begun that it follows.
        has_failed: whether an error has ended the training; it is in the record then.
        callbacks: of the trainer, that call this.
        trainings: attaches again when the trainer trains again; None: it does not.
        choice: what the control path decided before the step under way; None before the first.
        widths: numbers of processes to which the training can be changed; empty: to none.
        is_stopping: tells whether training was asked to stop, by a signal for instance; whoever
            listens for that sets it.
        guards_saves: whether a save that fails costs its checkpoint alone: one that was not the
            user's own wish. Otherwise the error is the user's, as without ecorl.
        missed_save: step of the newest save that failed; None where none did.
        first_prompt: looks at the first prompt of the training; None where prompts were checked.
    """

    def __init__(
        self,
        trainer: Any,
        runtime: Runtime,
        on_close: Callable[[TrlAttachment, BaseException | None], None],
        frozen: FrozenModels,
        prefix: str = "",
        changes: Changes | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.trainer, self.runtime = trainer, runtime
        changes = changes or Changes()
        self.gears, self.packing = changes.gears, changes.packing
        self.closed = self.has_begun = self.has_failed = False
        self.callbacks: tuple[TrainerCallback, ...] = ()
        self.trainings: Trainings[TrlAttachment] | None = None
        self.choice: GearChoice | None = None
        self.widths: tuple[int, ...] = ()
        self.is_stopping: Callable[[], bool] = lambda: False
        self.guards_saves = False
        self.missed_save: int | None = None
        self.first_prompt: FirstPrompt | None = None
        self._ranks = ranks
        self._on_close = on_close
        self._policy_shape = runtime.training.models.get(Stage.ACTOR_TRAIN)
        width = int(trainer.accelerator.num_processes)
        self._rollout = Rollout(runtime, self._policy_shape, prefix, width)
        self._rewards = RewardStages(trainer, self._rollout, frozen, self.packing)
        self._log_probs = LogProbStages(trainer, self._rollout, frozen, self.packing)
        self._evaluated: GeneratedRows | None = None
        self._n_sampled = 0
        self._told = False
        self._logged = runtime.totals() if runtime.is_head else RunTotals()
        self._original: dict[str, Original] = {}
        self._instance: dict[str, Any] = {}

    # ------------------------------------------------------------ wrapping

    def wrap(self) -> None:
        """Put the hooks in place, on the object only; its class stays as it is."""
        hooks: tuple[Original, ...] = (
            self._generate,
            self._generate_single_turn,
            self._per_token_logps,
            self._calculate_rewards,
            self._compute_loss,
            self._training_step,
            self._train,
            self._log,
            self._save_checkpoint,
            self._evaluate,
        )
        for name, hook in zip(HOOKED, hooks, strict=True):
            self._wrap(name, hook)
        if self.gears is not None:
            self.gears.adapt_optimizer()

    def detach(self) -> None:
        """Give the trainer its own methods back and close the run's record; safe to call twice.

        The two callbacks stay with the trainer and do nothing any more: they may be running.
        """
        trainings, self.trainings = self.trainings, None
        if trainings is not None and trainings.newest not in (None, self):
            trainings.newest.detach()  # of a later training of this trainer
        self.end()
        self._unwrap()

    def end(self, error: BaseException | None = None) -> None:
        """Close the run's record; where the trainer may train again, its ``train`` stays wrapped.

        Args:
            error: that has ended the training; None when it ended by itself.
        """
        if self.closed:
            return
        self.closed = True
        if self.gears is not None:
            self.gears.detach()
        self._unwrap(but=() if self.trainings is None else ("train",))
        if error is not None:
            self.has_failed = True
            self.runtime.record.event(*ending_by(error))
            if self.trainings is not None:
                self.trainings.starts.has_failed = True
        self._rollout.end_training()
        self.runtime.close()
        self._on_close(self, error)

    def _wrap(self, name: str, hook: Original) -> None:
        # A method that the user replaced on the object is called by the hook, and put back after.
        if name in self.trainer.__dict__:
            self._instance[name] = self.trainer.__dict__[name]
        self._original[name] = getattr(self.trainer, name)
        setattr(self.trainer, name, hook)

    def _unwrap(self, but: Collection[str] = ()) -> None:
        for name in [name for name in self._original if name not in but]:
            del self._original[name]
            self.trainer.__dict__.pop(name, None)
            if name in self._instance:
                self.trainer.__dict__[name] = self._instance.pop(name)

    @property
    def training(self) -> bool:
        """Whether the trainer trains just now; evaluation passes through untouched."""
        return bool(self.trainer.model.training)

    # ------------------------------------------------------------ generation

    def begin_step(self) -> bool:
        """Begin an optimizer step; it may generate one batch, several or none.

        Before it training stands still for as long as the control path asks for it.

        Returns:
            Whether training is to be saved and ended after this step.
        """
        choice = self.stand()
        self._rollout.begin_step(*self._step())
        if self.gears is not None:
            gear = choice.gear_at(self._rollout.width if self.widths else None)
            self.gears.begin_step(gear, self._step()[0], self._steps_left())
        return choice.command is Command.STOP

    def stand(self) -> GearChoice:
        """Stand still for as long as the control path asks for it; see `Runtime.tick`."""
        left = self._steps_left()
        self.choice = stand(
            self.runtime,
            steps_left=left if left > 0 else None,
            is_stopping=self.is_stopping,
            stage=self._stage(max(left, 0)),
        )
        return self.choice

    def _stage(self, steps_left: int) -> TrainingStage:
        """What the control path is told of the training stage."""
        stage = AS_IT_IS if self.gears is None else self.gears.stage(steps_left)
        if not self.widths:
            return stage
        return replace(stage, width=self._rollout.width, widths=self.widths)

    def _steps_left(self) -> int:
        state = self.trainer.state
        return int(state.max_steps) - int(state.global_step)

    def end_training_stage(self) -> None:
        """End the open actor_train execution, if any: the optimizer has stepped."""
        self._rollout.end_training(None if self.gears is None else self.gears.last_label)

    def _step(self) -> tuple[int, int]:
        """Number of the step, 1-based, and of the rollout batch that it begins with, 0-based."""
        args, step = self.trainer.args, int(self.trainer.state.global_step)
        per_batch = int(args.steps_per_generation) * int(self.trainer.num_iterations)
        return step + 1, step * int(args.gradient_accumulation_steps) // per_batch

    def _generate(self, prompts: list[Any], *args: Any, **kwargs: Any) -> Any:
        original = self._original["_generate"]
        self._n_sampled = 0
        if not self.training:
            output = original(prompts, *args, **kwargs)
            if self._evaluated is not None:
                self._count(self._evaluated, output)
            return output
        self._rewards.forget()
        limit = int(self.trainer.max_completion_length or 0)  # None: no limit, so none is known
        run = self._rollout.begin_generation(*self._step(), len(prompts), limit)
        output = original(prompts, *args, **kwargs)
        rows = GeneratedRows()
        self._count(rows, output)
        self._rollout.end_generation(run, rows)
        if self.first_prompt is not None:
            self.first_prompt.read(prompts, output[0])
        completions = output[3] if len(output) > 3 else output[2]
        self._rewards.submit(prompts, completions, output[1])
        return output

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Count what is sampled: TRL cuts off what a turn has beyond the longest completion."""
        output = self._original["_generate_single_turn"](*args, **kwargs)
        with EngineBoundary():  # what cannot be counted adds nothing
            self._n_sampled += sum(map(len, output[0] if isinstance(output, tuple) else output))
        return output

    def _count(self, rows: GeneratedRows, output: Any) -> None:
        """Add generated rows; where they cannot be counted the record says so."""
        with EngineBoundary() as boundary:
            add_generated(rows, output, self._n_sampled)
        if boundary.error is not None:
            told = self._log_probs.not_counted
            tell_not_counted(self._rollout, Stage.GENERATION, boundary.error, told)

    # ------------------------------------------------------------ log-probs

    def _per_token_logps(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original[LOG_PROBS]
        # Within the loss a forward is part of actor_train, whoever's it is, and so it is within a
        # measurement of the gears.
        is_measuring = self.gears is not None and self.gears.is_measuring
        if not self.training or self._rollout.training or is_measuring:
            return original(*args, **kwargs)
        return self._log_probs.compute(original, *args, **kwargs)

    # ------------------------------------------------------------ completion barrier

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original["_calculate_rewards"]
        if not self.training:
            return original(*args, **kwargs)
        # Both are waited for here, though only rewards are asked for: TRL computes advantages right
        # after this call, and may read the reference's tensor from then on.
        self._rollout.barrier_ahead = False
        with nullcontext() if self.packing is None else self.packing.rewards():
            self._rollout.join(Stage.REWARD)
            self._rollout.join(Stage.REFERENCE)
            output = self._rewards.calculate(original, *args, **kwargs)
        if self.packing is not None:
            with self.runtime.clock:
                self.packing.forwards.compare()
        return output

    # ------------------------------------------------------------ training

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does; an error or Ctrl-C that ends training ends the record's attempt too.

        The record can then be gone on with, from the same process or another.
        """
        if self.closed:
            return self._train_again(*args, **kwargs)
        try:
            return self._original["train"](*args, **kwargs)
        except BaseException as error:
            self.end(error)
            raise

    def _train_again(self, *args: Any, **kwargs: Any) -> Any:
        """Train after the training that this attachment followed, with an attachment of its own."""
        trainings = self.trainings
        if trainings is not None and trainings.newest is self:
            self._unwrap()
            callbacks = self.trainer.callback_handler.callbacks
            callbacks[:] = [one for one in callbacks if one not in self.callbacks]
            if not trainings.begin_again(*args, **kwargs):
                # This training goes without; the next one is tried again.
                self._wrap("train", self._train)
                return self._original["train"](*args, **kwargs)
            if self._ranks is not None:
                self._ranks.leave()  # those of the new training have met
        return self.trainer.train(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            # Joined long before, unless a trainer knows no barrier.
            self._rollout.join(Stage.REFERENCE)
        gears = self.gears if self.training else None
        packing = self.packing if self.training else None
        if gears is not None and gears.is_float8:
            packing = None  # numbers would change by more than their rounding
        if gears is not None and not self._rollout.training:
            self._measure(gears, inputs)  # its own execution comes before that of the micro-batch
        if packing is not None and not self._rollout.training:
            with self.runtime.clock, nullcontext() if gears is None else gears.within():
                packing.compare_training(self._original[LOG_PROBS], model, inputs)
        if self.training and not self._rollout.training:
            n_rows, n_tokens, n_output, unknown = trained(self.trainer, inputs)
            if unknown is not None:
                told = self._log_probs.not_counted
                tell_not_counted(self._rollout, Stage.ACTOR_TRAIN, unknown, told)
            label = None if gears is None else gears.label
            self._rollout.begin_training(n_rows, n_tokens, n_output, label)
        original = self._original["compute_loss"]
        if packing is not None:
            scaled = unscaled if gears is None else gears.scaled
            original = packing.loss.wrapped(original, self._original[LOG_PROBS], scaled)
        if gears is None:
            return original(model, inputs, *args, **kwargs)
        return gears.compute_loss(original, model, inputs, *args, **kwargs)

    def _measure(self, gears: TrlGears, inputs: Any) -> None:
        """Account what measuring the gears takes, as training work without output tokens."""
        if not gears.is_due:
            return
        n_rows = int(inputs["completion_ids"].shape[0])
        run = self._rollout.start(StageWork(Stage.ACTOR_TRAIN, n_rows, 0, 0, 0, self._policy_shape))
        gears.measure(self._original["compute_loss"], inputs)
        self._rollout.end(run)

    def _training_step(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original["training_step"]
        if self.gears is None:
            output = original(*args, **kwargs)
        else:
            output = self.gears.training_step(original, *args, **kwargs)
        if not self.trainer.accelerator.sync_gradients:
            self._rollout.end_training()  # a micro-batch; the next one opens its own execution
        return output

    # ------------------------------------------------------------ evaluation

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as TRL does; of several data sets all together are one evaluation."""
        original = self._original["evaluate"]
        with self.evaluating():
            return original(*args, **kwargs)

    @contextmanager
    def evaluating(self) -> Iterator[GeneratedRows]:
        """Account what is done inside the block as an evaluation; all processes enter it.

        Evaluations inside it belong to it. One that an exception ends is in no record.
        """
        if self._evaluated is not None:
            yield self._evaluated
            return
        run = self._rollout.begin_evaluation()
        self._evaluated = rows = GeneratedRows()
        try:
            yield rows
        finally:
            self._evaluated = None
        self._rollout.end_evaluation(run, rows)

    # ------------------------------------------------------------ checkpoints

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original["_save_checkpoint"]
        if not self.guards_saves:
            return original(*args, **kwargs)
        step = int(self.trainer.state.global_step)
        folder = Path(self.trainer.args.output_dir) / f"checkpoint-{step}"

        def save() -> None:
            original(*args, **kwargs)

        if not save_or_note(save, folder, step, self.runtime, self._ranks):
            self.missed_save = step
        return None

    # ------------------------------------------------------------ the trainer's own log

    def _log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Add the run's energy to what the trainer logs, before its loggers see it."""
        original = self._original["log"]
        is_last = "total_flos" in logs  # of the whole training
        if is_last:
            self.runtime.settle()  # what all processes have executed since the last step
            await_settled(self.runtime)
        if (self.training or is_last) and self.runtime.is_head:
            with self.runtime.clock:
                now = self.runtime.totals()
                logs.update(log_figures(self._logged, now))
                self._logged = now
            if not self._told:
                self._told = True
                logger.info(LEGEND)
        return original(logs, *args, **kwargs)
