"""Steps of a training whose gear is chosen step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.studies.trainer.language_model import language_loss
from ecorl.control import Gear
from ecorl.trainer.gears.formats import supported
from ecorl.trainer.gears.geared_model import GearedModel
from ecorl.trainer.optimizer.noise import GradientNoise, gradient_noise


class GearedSteps:
    """Computes gradients in a gear, and takes the optimizer's steps.

    Weights are in float32, and FP8 is simulated where the CPU has none.

    Args:
        model: of `benchmarks.studies.trainer.language_model.small_llama`.
        optimizer: of all its weights.
        gears: that there are to be; FP32 is always there.

    Attributes:
        model: that is trained.
        support: which gears there are, and which are simulated.
        weights: that are trained.
        time_s: CPU time of all gradients and steps so far, s.
        noise_s: CPU time of all measurements of noise so far, s.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, gears: Sequence[Gear]
    ) -> None:
        self.model, self._optimizer = model, optimizer
        self.weights = [w for w in model.parameters() if w.requires_grad]
        device = self.weights[0].device
        self.support = supported(tuple(gears), device, may_simulate_fp8=True)
        self._geared = GearedModel(model, Gear.FP32, self.support)
        self.time_s = self.noise_s = 0.0

    def gradients(self, rows: Tensor, gear: Gear) -> float:
        """Compute the gradients of a step's loss, and return the loss.

        Args:
            rows: ``[n, CONTEXT] int64``.
            gear: to compute in.
        """
        start_s = time.process_time()
        with self._geared.within(gear):
            loss = language_loss(self.model, rows)
            loss.backward()  # type: ignore[no-untyped-call]
        self.time_s += time.process_time() - start_s
        return loss.item()

    def update(self) -> None:
        """Take the optimizer's step, and drop the gradients."""
        start_s = time.process_time()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.time_s += time.process_time() - start_s

    def noise(self, parts: Sequence[Tensor], reference: Gear, gear: Gear) -> GradientNoise:
        """Measure a gear's noise beside that of another gear, on the same rows.

        Args:
            parts: micro-batches of a step, equally large.
            reference: the other gear.
            gear: that is measured.
        """
        start_s = time.process_time()
        found = gradient_noise(
            [lambda part=part: language_loss(self.model, part) / len(parts) for part in parts],  # type: ignore[misc]
            self.weights,
            lambda: self._geared.within(reference),
            lambda: self._geared.within(gear),
        )
        self.noise_s += time.process_time() - start_s
        return found
