"""Runs of one training from the same seed, plain and with ecorl attached."""

from __future__ import annotations

import itertools
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu.loads.grpo import GrpoTraining, StepClock, attached, free
from benchmarks.gpu.run.setting import Setting
from ecorl.config import Config, validate_config

BENCHMARK = "gpu_training"
PLAIN, ATTACHED = "plain", "attached"

WARM_UP, BLOCK_STEPS = 1, 3
"""Steps of a block that are not measured, and those that are."""

CLOSING_S, REHEARSED_CLOSING_S = 5.0, 0.5
"""Time that is kept for the report and the last figures, s."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training that is over.

    Attributes:
        rows: what the trainer logged of each step.
        ends_s: end of each step, monotonic s.
        weights: of the policy at the end; empty where they were not asked for.
        wall_s: of all of it, making the trainer included, s.
    """

    rows: list[dict[str, float]]
    ends_s: list[float]
    weights: list[torch.Tensor]
    wall_s: float

    @property
    def step_s(self) -> list[float]:
        """Time of each step behind the warm-up, s."""
        return [end - begin for begin, end in itertools.pairwise(self.ends_s[WARM_UP - 1 :])]

    @property
    def span_s(self) -> tuple[float, float]:
        """Begin and end of the steps behind the warm-up, monotonic s."""
        return self.ends_s[WARM_UP - 1], self.ends_s[-1]


class Runs:
    """Trains from the same seed, again and again.

    Args:
        training: makes the trainers.
        folder: for the records of attached runs.
        setting: of the part.
    """

    def __init__(self, training: GrpoTraining, folder: Path, setting: Setting) -> None:
        self.training, self.folder, self.setting = training, folder, setting
        self.closing_s = REHEARSED_CLOSING_S if setting.is_rehearsal else CLOSING_S
        self._run_s = self._block_s = 0.0

    def run(self, n_steps: int, config: Config | None, name: str, *, weights: bool = False) -> Run:
        """Train once.

        Args:
            n_steps: of the training.
            config: with which ecorl is attached; None: it is not.
            name: of the run's record.
            weights: whether to keep the policy's weights.
        """
        start_s, setting = time.monotonic(), self.setting
        trainer = self.training.trainer(n_steps)
        context = (
            nullcontext()
            if config is None
            else attached(trainer, config, self.folder / name, setting)
        )
        with context:
            clock = StepClock(setting)
            trainer.add_callback(clock)
            trainer.train()
        kept = [p.detach().clone() for p in trainer.model.parameters()] if weights else []
        del trainer, context
        free(setting)
        self._run_s = time.monotonic() - start_s
        return Run(clock.rows, clock.ends_s, kept, self._run_s)

    def block(self, config: Config | None, name: str) -> Run:
        """Train one block: the warm-up and the measured steps.

        Args:
            config: with which ecorl is attached; None: it is not.
            name: of the run's record.
        """
        found = self.run(WARM_UP + BLOCK_STEPS, config, name)
        self._block_s = found.wall_s
        return found

    def has_room(self, n_blocks: int) -> bool:
        """Whether so many blocks end in time, by the last one, else by the last run.

        Args:
            n_blocks: how many.
        """
        need_s = n_blocks * (self._block_s or self._run_s)
        return self.setting.has_room(1.05 * need_s + self.closing_s)


def attached_config(**nvml: float) -> Config:
    """The config of an attached run: all stages on the GPU path, power by NVML.

    Args:
        **nvml: further settings of ``telemetry.gpu``.
    """
    return validate_config(
        {
            "name": BENCHMARK,
            "placement": {"policy": {"type": "static"}, "profile_both_paths": False},
            "telemetry": {"gpu": {"type": "nvml", **nvml}},
        }
    )
