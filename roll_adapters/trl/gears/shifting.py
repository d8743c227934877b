"""Shifts the training stage of a TRL trainer between gears, and keeps its steps sound.

    begin_step      the gear of the step, chosen by the control path within the limits
    compute_loss    the model is put into the gear; now and then the gear's noise is measured first
    training_step   the backward pass is over: the model is the framework's again. After the last
                    micro-batch the gradient is looked at: one that is not finite is computed anew,
                    in BF16, from the same rows and random numbers, before the optimizer sees it

Generation, rewards and the reference come before the loss, so that they see nothing of a gear.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ecorl.config import Config
from ecorl.control import Gear, TrainingStage
from ecorl.runtime.processes.ranks import Ranks
from ecorl.runtime.protocol import RecordWriter
from ecorl.trainer.gears import faults
from ecorl.trainer.gears.gearbox import Barred
from ecorl.trainer.gears.random_state import RandomState
from ecorl.trainer.optimizer.adamw import (
    DECELERATE,
    LITERAL,
    Form,
    PrecisionAdaptiveAdamW,
    adapted,
)
from roll_adapters.trl.gears.measuring import GearMeasurement, measure, tells_of_gradient
from roll_adapters.trl.gears.micro_batches import MicroBatch, TrainerMemory, repeat
from roll_adapters.trl.gears.setup import bare_model, make_gears
from roll_adapters.trl.masks import trained

logger = logging.getLogger(__name__)

Original = Callable[..., Any]


@dataclass(slots=True)
class _Step:
    """The optimizer step under way."""

    gear: Gear
    number: int
    tokens: int = 0
    batches: list[MicroBatch] = field(default_factory=list)
    returned: float = 0.0
    is_redoing: bool = False
    is_redone: bool = False


class TrlGears:
    """The gears of one TRL trainer.

    Args:
        trainer: the trainer, made but not yet training.
        config: the run's; its gears are on.
        record: the run's record.
        ranks: the processes that train together; None: this one alone.
        memory: what the run knew of its gears when it was interrupted; empty without that.

    Attributes:
        is_measuring: whether the gears are being measured just now, on rows of a training step.
        record: the run's record; over a cluster it is another one once the run has started.

    Raises:
        ConfigError: when the trainer or its device cannot be shifted as the config asks for.
        MissingToolError: when FP8 is asked for and torchao is not installed.
    """

    def __init__(
        self,
        trainer: Any,
        config: Config,
        record: RecordWriter,
        ranks: Ranks | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._trainer, self._config, self.record, self._ranks = trainer, config, record, ranks
        self.box, self._model = make_gears(trainer, config)
        self._device = trainer.accelerator.device
        self._scaler = torch.amp.GradScaler(
            self._device.type, enabled=Gear.FP16 in self.box.gears and self._model.own != Gear.FP16
        )
        if memory:
            self.box.recall(memory)
            if isinstance(memory.get("scaler"), dict) and self._scaler.is_enabled():
                self._scaler.load_state_dict(memory["scaler"])
        self._step: _Step | None = None
        self._last: Gear | None = None
        self._was_redone = False
        self._own_maker: Any = None
        self._has_maker = False
        self._owes_measurement = (memory or {}).get("owes_measurement") is True
        self.is_measuring = False

    # ------------------------------------------------------------ a step

    @property
    def label(self) -> str:
        """The name of the step's gear in the record."""
        return self.box.label(self._step.gear if self._step else self.box.gear)

    @property
    def is_float8(self) -> bool:
        """Whether the step computes in FP8, where a value's scale follows all rows beside it."""
        return (self._step.gear if self._step else self.box.gear) is Gear.FP8

    @contextmanager
    def within(self) -> Iterator[None]:
        """Have the model compute in the step's gear inside the block."""
        with nullcontext() if self._step is None else self._model.within(self._step.gear):
            yield

    @property
    def last_label(self) -> str | None:
        """The name of the gear in which the last step was computed in the end, or None."""
        return None if self._last is None else self.box.label(self._last)

    def stage(self, steps_left: int) -> TrainingStage:
        """What the control path is told of the training stage.

        Args:
            steps_left: steps that training has before it.
        """
        return self.box.stage(steps_left, self._last, is_redone=self._was_redone)

    def begin_step(self, wanted: Gear | None, number: int, steps_left: int) -> None:
        """Begin an optimizer step, in the gear that was chosen if the limits let it.

        Args:
            wanted: the choice; None: the gear stays.
            number: 1-based number of the step.
            steps_left: steps that training has before it, with this one.
        """
        gear = self.box.shift(wanted, steps_left)
        if self._ranks is not None:
            # One of them decides for all: a process may have been told another limit.
            gear = self.box.gear = self._ranks.broadcast(gear)
        self._step = _Step(gear, number)

    def adapt_optimizer(self) -> None:
        """Have the trainer step with AdamW decelerated by the gear, in place of its own AdamW.

        With gamma 1, as in BF16, it does the same to the last bit. A trainer makes its optimizer
        when training begins, unless it was given one.
        """
        if self._config.gears.optimizer == "own":
            return
        make = self._trainer.create_optimizer

        def made(*args: Any, **kwargs: Any) -> Any:
            optimizer = make(*args, **kwargs)
            if type(optimizer) is not torch.optim.AdamW:
                # That of an earlier training of this trainer is wrapped by accelerate.
                bare = getattr(optimizer, "optimizer", optimizer)
                if not isinstance(bare, PrecisionAdaptiveAdamW):
                    logger.warning(
                        "gears: the trainer's %s stays as it is: only AdamW is decelerated in low "
                        "precision", type(bare).__name__,
                    )  # fmt: skip
                return optimizer
            own = self._trainer.optimizer = adapted(optimizer)
            return own

        if self._trainer.optimizer is not None:
            made()
        else:
            self._own_maker = self._trainer.__dict__.get("create_optimizer")
            self._has_maker = True
            self._trainer.create_optimizer = made

    def detach(self) -> None:
        """Give the trainer its model and its own way to make an optimizer back."""
        self._model.release()
        self._step = None
        optimizer = self._decelerated()
        if optimizer is not None:
            optimizer.decelerate(1.0)  # who trains on without gears takes torch's steps
        if not self._has_maker:
            return
        self._has_maker = False
        self._trainer.__dict__.pop("create_optimizer", None)
        if self._own_maker is not None:
            self._trainer.create_optimizer = self._own_maker

    def memory(self) -> dict[str, Any]:
        """What a resumed run has to know of its gears, in values that JSON can hold."""
        found = self.box.memory() | {"owes_measurement": self._owes_measurement}
        return found | {"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else found

    # ------------------------------------------------------------ the trainer's methods

    @property
    def is_due(self) -> bool:
        """Whether noise and mismatch are to be measured before the step's first micro-batch."""
        step, every = self._step, self._config.gears.measure_every
        if step is None or step.is_redoing or step.tokens or not every:
            return False
        is_time = (step.number - 1) % every == 0 or self._owes_measurement
        return is_time and bool(self.box.measured_gears())

    def measure(self, original: Original, inputs: Mapping[str, Any]) -> None:
        """Measure the gears' noise and mismatch on a micro-batch; nothing of the training changes.

        Where the rows of all processes say nothing of the gradient, the next step is measured.

        Args:
            original: the trainer's own ``compute_loss``.
            inputs: of the micro-batch.
        """
        step = self._step
        if step is None:
            return
        found = tells_of_gradient(inputs)
        if self._ranks is not None:
            found = any(self._ranks.all_gather(found))
        self._owes_measurement = not found
        if not found:
            return
        start_s = time.monotonic()
        self.is_measuring = True
        try:
            for gear in self.box.measured_gears():
                safe = self.box.safe
                one = measure(self._trainer, self._model, original, inputs, gear, safe)
                self._take_over(gear, one)
        finally:
            self.is_measuring = False
        self.record.metric(step.number, "gear_measurement_s", time.monotonic() - start_s)
        if self.box.barred(step.gear) is not None:
            step.gear = self.box.gear = self.box.safe

    def compute_loss(
        self, original: Original, model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Compute the loss of a micro-batch in the step's gear.

        Args:
            original: the trainer's own ``compute_loss``.
            model: as the trainer hands it over.
            inputs: of the micro-batch.
            *args: further arguments.
            **kwargs: likewise.
        """
        step = self._step
        if step is None:
            loss: torch.Tensor = original(model, inputs, *args, **kwargs)
            return loss
        is_kept = not step.is_redoing and self.box.may_overflow(step.gear)
        if not step.is_redoing:
            step.tokens += trained(self._trainer, inputs).n_tokens  # the attachment tells why not
        if is_kept:
            random, before = RandomState.now(self._device), TrainerMemory.of(self._trainer)
        # Released when the backward pass is over, which may compute parts of the forward anew.
        self._model.engage(step.gear)
        loss = original(model, inputs, *args, **kwargs)
        if is_kept:
            items = kwargs.get("num_items_in_batch", args[1] if len(args) > 1 else None)
            after = TrainerMemory.of(self._trainer)
            step.batches.append(MicroBatch(inputs, items, random, before, after))
        return self.scaled(loss)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale a loss as the gear of the step asks for.

        Args:
            loss: of a micro-batch, or of a part of it that goes backward on its own.
        """
        step = self._step
        return self._scaler.scale(loss) if step is not None and self._is_scaled(step) else loss

    def training_step(
        self, original: Original, model: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Run a micro-batch forward and backward, and all of the step anew where it overflowed.

        Args:
            original: the trainer's own ``training_step``.
            model: as the trainer hands it over.
            *args: further arguments.
            **kwargs: likewise.

        Returns:
            The loss for the trainer's log.
        """
        try:
            output: torch.Tensor = original(model, *args, **kwargs)
        finally:
            self._model.release()
        step = self._step
        if step is None:
            return output
        is_scaled = self._is_scaled(step)
        if is_scaled:
            output = output / self._scaler.get_scale()
        if not self._trainer.accelerator.sync_gradients:
            if step.batches and not bool(output.isfinite()):
                output = torch.zeros_like(output)  # its repetition's loss follows with the last one
            step.returned += float(output) if step.batches else 0.0
            return output
        if step.batches:
            output = self._sound(step, model, output)
        self._end_step(step)
        return output

    # ------------------------------------------------------------ the end of a step

    def _sound(self, step: _Step, model: Any, output: torch.Tensor) -> torch.Tensor:
        """The loss of a step whose gradient is finite, if need be that of its repetition."""
        if not self._overflowed(step):
            self.box.went_well(step.gear)
            return output
        failed = step.gear
        if failed is Gear.FP16 and self._model.own is Gear.FP16:
            lower_scale(self._trainer.accelerator.scaler)
        step.gear, step.is_redoing, step.is_redone = self.box.safe, True, True
        self._model.engage(step.gear)
        try:
            losses = repeat(self._trainer, model, step.batches)
        finally:
            self._model.release()
            step.is_redoing = False
        self._tell_overflow(step, failed)
        # The trainer adds up what its micro-batches return.
        return torch.stack(losses).sum().to(output) - step.returned

    def _overflowed(self, step: _Step) -> bool:
        """Whether a gradient of the step is not finite; those of FP16 are unscaled first."""
        if self._is_scaled(step):
            self._scaler.unscale_(self._optimizer())
            self._scaler.update()  # the next step's scale, by whether this one overflowed
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        return not bool(torch.nn.utils.get_total_norm(gradients).isfinite())

    def _tell_overflow(self, step: _Step, failed: Gear) -> None:
        is_retired = self.box.overflowed(failed)
        label = self.box.label(failed)
        self.record.fault(faults.redone(step.number, label, step.gear))
        if is_retired:
            fault = faults.retired(step.number, label, self._config.gears.max_overflows)
            self.record.fault(fault)
            logger.warning("%s", fault.detail)

    def _end_step(self, step: _Step) -> None:
        step.batches.clear()
        self._last, self._was_redone = step.gear, step.is_redone
        tokens = step.tokens
        if self._ranks is not None:
            tokens = sum(self._ranks.all_gather(tokens))
        self.box.count(step.gear, float(tokens))
        optimizer = self._decelerated()
        if optimizer is not None:
            optimizer.decelerate(self.box.gamma(step.gear), self._form())

    def _decelerated(self) -> PrecisionAdaptiveAdamW | None:
        """The optimizer whose steps follow the gear; None where the trainer's stays as it is."""
        optimizer = self._optimizer()
        is_ours = self._config.gears.optimizer != "own"
        return optimizer if is_ours and isinstance(optimizer, PrecisionAdaptiveAdamW) else None

    def _form(self) -> Form:
        """How gamma enters a step by the config, whatever a checkpoint had."""
        return LITERAL if self._config.gears.optimizer == "literal" else DECELERATE

    def _take_over(self, gear: Gear, found: GearMeasurement) -> None:
        """Note a measurement, with those of all processes, and record it."""
        step = self._step
        assert step is not None
        if self._ranks is not None:
            found = GearMeasurement.combined(self._ranks.all_gather(found))
        was_barred = self.box.barred(gear)
        self.box.note_noise(gear, found.gear_variance, found.reference_variance)
        self.box.note_mismatch(gear, found.mismatch)
        self.record.metric(step.number, f"gradient_noise_ratio_{gear}", self.box.noise_ratio(gear))
        told = faults.told_mismatch(found.mismatch)
        self.record.metric(step.number, f"probability_mismatch_{gear}", told)
        is_barred = self.box.barred(gear) is Barred.MISMATCH and was_barred is None
        if is_barred and found.mismatch is not None:
            limit = self._config.gears.mismatch_limit
            fault = faults.barred(step.number, self.box.label(gear), found.mismatch, limit)
            self.record.fault(fault)
            logger.warning("%s", fault.detail)

    def _is_scaled(self, step: _Step) -> bool:
        return self._scaler.is_enabled() and step.gear is Gear.FP16 and not step.is_redoing

    def _optimizer(self) -> Any:
        optimizer = self._trainer.optimizer
        return getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it

    def _parameters(self) -> Any:
        return bare_model(self._trainer).parameters()


def lower_scale(scaler: torch.amp.GradScaler | None) -> None:
    """Lower the scale of a trainer's own FP16, which is not shown the gradient that overflowed.

    Args:
        scaler: of the trainer; None: it has none.
    """
    if scaler is not None and scaler.is_enabled():
        scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
