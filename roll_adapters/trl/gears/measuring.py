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
from ecorl.trainer.optimizer.noise import gradient_noise
from roll_adapters.trl.gears.micro_batches import forget_metrics, halves, metric_counts

_FP16_SCALE = 1024.0
"""By which the loss is multiplied while FP16's noise is measured, so that small gradients do not
become 0. Invented: far below the scales that trainings reach, so that it does not overflow."""


@dataclass(frozen=True, slots=True)
class GearMeasurement:
    """What was found of one gear; None where it cannot be told.

    Attributes:
        noise_ratio: standard deviation of the step's gradient over that in BF16.
        mismatch: mean ratio of token probabilities between trainer and rollout, at least 1.
    """

    noise_ratio: float | None
    mismatch: float | None

    @classmethod
    def mean(cls, found: Sequence[GearMeasurement]) -> GearMeasurement:
        """The mean over several processes, each with rows of its own.

        Args:
            found: of each process.
        """
        finite = [one.noise_ratio for one in found if one.noise_ratio is not None]
        mismatches = [one.mismatch for one in found if one.mismatch is not None]
        return cls(_mean(finite), _mean(mismatches))


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
    counts = metric_counts(trainer)
    bare = trainer.accelerator.unwrap_model(trainer.model)
    try:
        with undisturbed(trainer.accelerator.device):
            noise = _noise(bare, model, compute_loss, inputs, gear, reference)
            return GearMeasurement(noise, _mismatch(trainer, bare, model, inputs, gear))
    finally:
        forget_metrics(trainer, counts)


def _noise(
    bare: Any,
    model: GearedModel,
    compute_loss: Callable[..., Any],
    inputs: Mapping[str, Any],
    gear: Gear,
    reference: Gear,
) -> float | None:
    parts = halves(inputs)
    if parts is None:
        return None

    def loss_of(part: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
        return lambda: compute_loss(bare, part)

    found = gradient_noise(
        [loss_of(part) for part in parts],
        [p for p in bare.parameters() if p.requires_grad],
        lambda: model.within(reference),
        lambda: model.within(gear),
        _FP16_SCALE if gear is Gear.FP16 else 1.0,
    )
    return found.ratio


@torch.no_grad()
def _mismatch(
    trainer: Any, bare: Any, model: GearedModel, inputs: Mapping[str, Any], gear: Gear
) -> float | None:
    if inputs.get("pixel_values") is not None:
        return None
    completion_ids, mask = inputs["completion_ids"], inputs["completion_mask"]
    ids = torch.cat([inputs["prompt_ids"], completion_ids], dim=1)
    attended = torch.cat([inputs["prompt_mask"], mask], dim=1)
    find = type(trainer)._get_per_token_logps_and_entropies

    def log_probabilities() -> torch.Tensor:
        found: torch.Tensor = find(trainer, bare, ids, attended, completion_ids.shape[1])[0]
        return found

    rollout = inputs.get("sampling_per_token_logps")
    if rollout is None:
        rollout = log_probabilities()
    with model.within(gear):
        own = log_probabilities()
    return probability_mismatch(rollout, own, mask)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
