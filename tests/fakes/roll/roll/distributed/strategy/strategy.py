"""What a worker computes with: a model, and for training an optimizer and its state on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from roll.models.model_providers import TinyModel

BETAS, EPSILON = (0.9, 0.999), 1e-8


class InferenceStrategy:
    def __init__(self, worker: Any) -> None:
        self.worker, self.worker_config = worker, worker.worker_config
        args = self.worker_config.model_args
        rank = args.lora_rank if args.lora_target else 0
        scale = (args.lora_alpha or args.lora_rank) / args.lora_rank
        self.model = TinyModel(args.model_name_or_path, rank, scale)

    def load_states(self, *args: Any, **kwargs: Any) -> None:
        """Bring the model to the device, which is where it is."""

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """Free the device."""


class TrainStrategy(InferenceStrategy):
    """Adam. Not torch's: that imports what takes longer than a training here."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        assert worker.world_size == 1, "the double trains in one process"
        self.args = self.worker_config.training_args
        self.parameters = {name: self.model.weights[name] for name in self.model.trained}
        for weight in self.parameters.values():
            weight.requires_grad_()
        self.moments = {
            f"{moment}.{name}": torch.zeros_like(weight, requires_grad=False)
            for name, weight in self.parameters.items()
            for moment in ("first", "second")
        }
        self.n_steps = 0
        self.draw = torch.Generator().manual_seed(worker.pipeline_config.seed)

    @property
    def learning_rate(self) -> float:
        return self.args.learning_rate * min(1.0, (self.n_steps + 1) / (self.args.warmup_steps + 1))

    def step(self, losses: list[Tensor]) -> float:
        """One step along the mean of some micro-batches' losses; returns the gradient's norm."""
        for loss in losses:
            (loss / len(losses)).backward()
        found = {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad
            for name, weight in self.parameters.items()
        }
        norm = float(torch.sqrt(sum(gradient.square().sum() for gradient in found.values())))
        scale = min(1.0, self.args.max_grad_norm / (norm + 1e-6))
        rate = self.learning_rate
        self.n_steps += 1
        with torch.no_grad():
            for name, weight in self.parameters.items():
                gradient = found[name] * scale
                first, second = self.moments[f"first.{name}"], self.moments[f"second.{name}"]
                first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
                second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
                mean = first / (1 - BETAS[0] ** self.n_steps)
                spread = (second / (1 - BETAS[1] ** self.n_steps)).sqrt() + EPSILON
                weight.mul_(1 - rate * self.args.weight_decay).sub_(rate * mean / spread)
                weight.grad = None
        return norm

    def save_checkpoint(self, folder: Path) -> None:
        self.model.save(folder)
        save_file(
            self.moments | {"n_steps": torch.tensor(self.n_steps)}, folder / "optimizer.safetensors"
        )
        save_file({"draw": self.draw.get_state()}, folder / "rng.safetensors")

    def load_checkpoint(self, folder: Path) -> None:
        self.model.load(folder)
        state = load_file(folder / "optimizer.safetensors")
        self.n_steps = int(state.pop("n_steps"))
        self.moments = state
        self.draw.set_state(load_file(folder / "rng.safetensors")["draw"])


def create_strategy(worker: Any) -> InferenceStrategy:
    args = worker.worker_config.strategy_args
    trains = args is not None and args.strategy_name.endswith("_train")
    return (TrainStrategy if trains else InferenceStrategy)(worker)
