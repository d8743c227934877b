"""The gears inside OpenRLHF's actor: around each micro-batch of its training, and nothing else.

    training_step   forward and backward pass in the gear; with the last micro-batch of an optimizer
                    step DeepSpeed looks at the gradient. One that is not finite it does not take:
                    the step's micro-batches are then computed anew in BF16, from the same rows and
                    random numbers.

Old log-probs, generation and the reference come before, and see nothing of a gear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ecorl.control import Gear
from ecorl.errors import UserError
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.mismatch import probability_mismatch
from ecorl.trainer.gears.random_state import RandomState, undisturbed
from roll_adapters.ray_jobs.gears.orders import GearOrder, Prepared, StepEnd
from roll_adapters.ray_jobs.gears.worker import (
    ATTRIBUTE,
    WorkerGears,
    evaluating,
    support_of,
    training_device,
)

Original = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """One call of the training step, so that it can be repeated."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    random: RandomState


class ActorGears(WorkerGears):
    """The gears of one process of the actor.

    Args:
        trainer: OpenRLHF's ``ActorPPOTrainer`` of this process.
        support: the gears, and which of them are simulated.

    Raises:
        ConfigError: when FP8 is asked for and no layer takes it.
        MissingToolError: when FP8 is asked for and torchao is not installed.
    """

    def __init__(self, trainer: Any, support: GearSupport) -> None:
        self._actor, self._engine = trainer.actor, trainer.actor.model
        super().__init__(self._engine.module, Gear.BF16, support)
        self._own: Original = trainer.training_step
        self._device = training_device()
        self._window: list[_MicroBatch] = []
        trainer.training_step = self.training_step

    def training_step(self, experience: Any, *arguments: Any, **named: Any) -> Any:
        """Train on a micro-batch. See OpenRLHF's ``ActorPPOTrainer.training_step``.

        Args:
            experience: the rows.
            *arguments: further arguments.
            **named: likewise.
        """
        if self.due:
            self._measure(experience)
        if self.is_own:
            self._window.clear()
            return self._own(experience, *arguments, **named)
        random = RandomState.now(self._device)
        self._window.append(_MicroBatch((experience, *arguments), named, random))
        n_steps = self._engine.global_steps
        with self.engaged(self.gear), self._refusing_overflow():
            status = self._own(experience, *arguments, **named)
        if self._engine.global_steps == n_steps:
            return status  # the gradient of further micro-batches is added to it
        window, self._window = self._window, []
        if self._engine.was_step_applied():
            self.report.ends.append(StepEnd.WELL)
            return status
        self.report.ends.append(StepEnd.REDONE)
        for batch in window:
            batch.random.restore()
            with self.engaged(self.safe):
                status = self._own(*batch.arguments, **batch.named)
        return status

    @contextmanager
    def _refusing_overflow(self) -> Iterator[None]:
        """Have DeepSpeed take no gradient that is not finite.

        Under ZeRO 1 and 2 it never does. Without ZeRO it looks in BF16 as well, counts the step as
        skipped, and takes it all the same, unless the loss is scaled; the scale of BF16 is 1.
        """
        scaling = getattr(self._engine.optimizer, "loss_scale_config", None)
        if scaling is None:
            yield
            return
        before, scaling.use_grad_scaling = scaling.use_grad_scaling, True
        try:
            yield
        finally:
            scaling.use_grad_scaling = before

    @torch.no_grad()
    def _measure(self, experience: Any) -> None:
        """Measure on a micro-batch how far the gears' token probabilities are from the rollout's.

        Where vLLM has not told its own, the actor's log-probs in BF16 stand for them.
        """
        start_s = time.monotonic()
        due = self.take_due()
        rollout = getattr(experience, "rollout_log_probs", None)
        if rollout is None:
            rollout = experience.action_log_probs
        has_images = any(getattr(experience, "mm_train_inputs", None) or ())
        for gear in due:
            self.report.mismatch[gear] = None
            if rollout is None or has_images:
                continue
            with undisturbed(self._device), self.model.within(gear), evaluating(self._actor):
                own = self._actor(
                    experience.sequences,
                    experience.action_mask,
                    attention_mask=experience.attention_mask,
                )
            found = probability_mismatch(rollout, own, experience.action_mask)
            self.report.mismatch[gear] = found
        self.report.measured_s += time.monotonic() - start_s


def prepare(actor: Any, order: GearOrder) -> Prepared:
    """Make a process of the actor ready to shift; its model is loaded.

    Args:
        actor: OpenRLHF's ``PolicyModelActor``; Ray passes it.
        order: the gears.
    """
    engine = actor.trainer.actor.model
    dtypes = {p.dtype for p in engine.module.parameters() if p.requires_grad}
    if dtypes != {torch.bfloat16}:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return Prepared(why_not=f"its weights are in {names}, not in bfloat16")
    try:
        support = support_of(order)
        setattr(actor, ATTRIBUTE, ActorGears(actor.trainer, support))
    except UserError as error:
        return Prepared(why_not=str(error))
    basic = getattr(engine, "basic_optimizer", engine.optimizer)
    n_steps = getattr(actor, "max_steps", None)
    return Prepared(support.simulated, None, type(basic).__name__, n_steps)
