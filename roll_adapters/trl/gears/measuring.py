"""Measures, on the rows of a training step, how a gear's gradients and probabilities are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ecorl.control import Gear
from ecorl.trainer.gears.geared_model import GearedModel
from ecorl.trainer.gears.mismatch import probability_mismatch
from ecorl.trainer.gears.random_state import undisturbed
from ecorl.trainer.optimizer.noise import GradientNoise, gradient_noise
from roll_adapters.trl.gears.micro_batches import TrainerMemory, halves

_FP16_SCALE = 1024.0
"""By which the loss is multiplied while FP16's noise is measured, so that small gradients do not
become 0. Invented: far below the scales that trainings reach, so that it does not overflow."""


@dataclass(frozen=True, slots=True)
class GearMeasurement:
    """What was found of one gear; None where it cannot be told.

    Attributes:
        gear_variance: of the gradient in the gear, squared units of the gradient.
        reference_variance: of the same gradient in the reference gear.
        mismatch: mean ratio of token probabilities between trainer and rollout, at least 1.
    """

    gear_variance: float | None
    reference_variance: float | None
    mismatch: float | None

    @classmethod
    def combined(cls, found: Sequence[GearMeasurement]) -> GearMeasurement:
        """Combine those of several processes, each of rows of its own.

        Variances are added up, so that rows count by what they tell of the gradient.

        Args:
            found: of each process.
        """
        pairs = [
            (one.gear_variance, one.reference_variance)
            for one in found
            if one.gear_variance is not None and one.reference_variance is not None
        ]
        mismatches = [one.mismatch for one in found if one.mismatch is not None]
        mismatch = sum(mismatches) / len(mismatches) if mismatches else None
        if not pairs:
            return cls(None, None, mismatch)
        return cls(sum(own for own, _ in pairs), sum(other for _, other in pairs), mismatch)


def tells_of_gradient(inputs: Mapping[str, Any]) -> bool:
    """Whether rows say anything of the gradient: some of them have an advantage.

    Where all completions of each prompt have the same reward, rounding alone is left.

    Args:
        inputs: of the micro-batch.
    """
    advantages = inputs.get("advantages")
    return not isinstance(advantages, torch.Tensor) or bool(advantages.any())


def measure(
    trainer: Any,
    model: GearedModel,
    compute_loss: Callable[..., Any],
    inputs: Mapping[str, Any],
    gear: Gear,
    reference: Gear,
) -> GearMeasurement:
    """Measure a gear on the rows of a micro-batch; the training goes on as if nobody had.

    The gradient's noise is taken between the halves of the rows. The mismatch is that of this
    gear against the precision of the rollout, or against the rollout's own probabilities where an
    inference server has told them.

    Args:
        trainer: the TRL trainer.
        model: the trained model's gears.
        compute_loss: the trainer's own.
        inputs: of the micro-batch.
        gear: that is measured.
        reference: the gear that its noise is set against: BF16 where there is one.
    """
    before = TrainerMemory.of(trainer)
    bare = trainer.accelerator.unwrap_model(trainer.model)
    try:
        with undisturbed(trainer.accelerator.device):
            noise = _noise(bare, model, compute_loss, inputs, gear, reference)
            mismatch = _mismatch(trainer, bare, model, inputs, gear)
    finally:
        before.restore(trainer)
    if noise is None:
        return GearMeasurement(None, None, mismatch)
    return GearMeasurement(noise.gear_variance, noise.reference_variance, mismatch)


def _noise(
    bare: Any,
    model: GearedModel,
    compute_loss: Callable[..., Any],
    inputs: Mapping[str, Any],
    gear: Gear,
    reference: Gear,
) -> GradientNoise | None:
    parts = halves(inputs)
    if parts is None:
        return None

    def loss_of(part: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
        return lambda: compute_loss(bare, part)

    return gradient_noise(
        [loss_of(part) for part in parts],
        [p for p in bare.parameters() if p.requires_grad],
        lambda: model.within(reference),
        lambda: model.within(gear),
        _FP16_SCALE if gear is Gear.FP16 else 1.0,
    )


@torch.no_grad()
def _mismatch(
    trainer: Any, bare: Any, model: GearedModel, inputs: Mapping[str, Any], gear: Gear
) -> float | None:
    if inputs.get("pixel_values") is not None:
        return None
    completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
    if inputs.get("tool_mask") is not None:
        mask = mask * inputs["tool_mask"]  # what a tool has answered, nobody has sampled
    ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
    attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    find = type(trainer)._get_per_token_logps_and_entropies

    def log_probabilities() -> torch.Tensor:
        found: torch.Tensor = find(trainer, bare, ids, attended, completion_ids.shape[1])[0]
        return found

    # Two passes in training would drop different activations.
    was_training = bare.training
    bare.eval()
    try:
        rollout = inputs.get("sampling_per_token_logps")
        if rollout is None:
            rollout = log_probabilities()
        with model.within(gear):
            own = log_probabilities()
    finally:
        bare.train(was_training)
    return probability_mismatch(rollout, own, mask)
