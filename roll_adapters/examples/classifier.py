"""Trains a small classifier with gradient accumulation 1, 2, 4 and 8, each as a run of its own.

    python -m roll_adapters.examples.classifier --runs runs/classifier

The effective batch is 64 each time: with accumulation 4 an optimizer step follows four backward
passes over 16 images. What is to be seen is how much memory that saves, and whether loss and
accuracy stay. The loop in `train` is an ordinary one of PyTorch; what belongs to ecorl in it is the
`measure` block and what is called on its ``run``.

The images are drawn here: digits of seven segments, shifted, faint and under noise. Nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

import ecorl
from ecorl.config import Config, load_config, validate_config
from ecorl.runtime.memory import host_peak_bytes

EFFECTIVE_BATCH = 64
ACCUMULATIONS = (1, 2, 4, 8)
N_STEPS = 100
N_TEST = 2000
SIDE = 28
"""Width and height of an image, pixels."""

LAST_STEPS = 20
"""Steps over whose mean the final loss is told: that of one step is mostly luck."""

MOST_SHIFT = 6
"""By how much a digit is moved from the upper left corner, pixels."""

_SEGMENTS = (
    "abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg",
)  # fmt: skip
_PLACES = {
    "a": (0, 2, 0, 12), "b": (0, 11, 10, 12), "c": (9, 20, 10, 12), "d": (18, 20, 0, 12),
    "e": (9, 20, 0, 2), "f": (0, 11, 0, 2), "g": (9, 11, 0, 12),
}  # fmt: skip
"""First and last row and column of each segment in a digit of 20 by 12 pixels."""


@dataclass(frozen=True, slots=True)
class ClassifierRun:
    """What came of one training.

    Attributes:
        accumulation_steps: backward passes of an optimizer step.
        batch_size: images of a backward pass.
        activation_bytes: what PyTorch keeps of one forward pass for its backward pass, counted
            tensor by tensor, bytes.
        host_rise_bytes: most resident memory of a step above that before the first one, bytes. It
            varies by some MB from run to run, since it holds what allocators and libraries keep as
            well. None where the system does not tell.
        final_loss: mean over the last `LAST_STEPS` steps.
        correct: 1 for each held-out image that is told right, else 0.
        run_dir: folder of the run's record.
    """

    accumulation_steps: int
    batch_size: int
    activation_bytes: int
    host_rise_bytes: int | None
    final_loss: float
    correct: tuple[int, ...]
    run_dir: Path

    @property
    def accuracy(self) -> float:
        """Share of the held-out images that are told right."""
        return statistics.fmean(self.correct)

    @property
    def accuracy_error(self) -> float:
        """Standard error of the accuracy, by which images happen to be held out."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / len(self.correct))

    def gain_over(self, other: ClassifierRun) -> tuple[float, float]:
        """How much more accurate it is than another training, and the standard error of that.

        Both were asked for the same images, so that the images' own difficulty cancels.

        Args:
            other: the training to compare with.
        """
        gains = [a - b for a, b in zip(self.correct, other.correct, strict=True)]
        return statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))


# ---------------------------------------------------------------- task and model


def draw(n_images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw digits.

    Args:
        n_images: how many.
        seed: of their shifts, their faintness and their noise.

    Returns:
        Images ``[n, 1, 28, 28] float32``, and digits ``[n] int64``.
    """
    rng = np.random.default_rng(seed)
    digits = rng.integers(10, size=n_images)
    glyphs = np.zeros((10, 20, 12), np.float32)
    for digit, segments in enumerate(_SEGMENTS):
        for top, bottom, left, right in map(_PLACES.__getitem__, segments):
            glyphs[digit, top:bottom, left:right] = 1.0
    images = rng.normal(0.0, 0.5, (n_images, 1, SIDE, SIDE)).astype(np.float32)
    tops, lefts = rng.integers(MOST_SHIFT + 1, size=(2, n_images))
    brightness = rng.uniform(0.5, 1.5, n_images)
    for image, digit, top, left, b in zip(images, digits, tops, lefts, brightness, strict=True):
        image[0, top : top + 20, left : left + 12] += b * glyphs[digit]
    return torch.from_numpy(images), torch.from_numpy(digits)


def build_model() -> nn.Module:
    """Make the classifier: three convolutions, without batch normalisation.

    Batch normalisation would see another batch with each accumulation, and train another model.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * (SIDE // 8) ** 2, 10),
    )  # fmt: skip


def activation_bytes(model: nn.Module, images: torch.Tensor, digits: torch.Tensor) -> int:
    """Count what PyTorch keeps of a forward pass for its backward pass, bytes.

    At the end of the forward pass all of it is held at once, which is where training peaks. The
    model's own weights are left out, and a tensor that several operations keep counts once.

    Args:
        model: the model; nothing of it changes.
        images: of one backward pass.
        digits: what they show.
    """
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = cross_entropy(model(images), digits)
    found = sum(kept.values())
    del loss  # until here it held what was counted: no address was used twice
    return found


# ---------------------------------------------------------------- training


def train(folder: Path, config: Config, accumulation_steps: int, n_steps: int) -> ClassifierRun:
    """Train the classifier under measurement.

    Args:
        folder: of the run's record.
        config: of the run.
        accumulation_steps: backward passes of an optimizer step.
        n_steps: optimizer steps.
    """
    images, digits = draw(n_steps * EFFECTIVE_BATCH, seed=1)
    model, batch_size = build_model(), EFFECTIVE_BATCH // accumulation_steps
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    n_kept = activation_bytes(model, images[:batch_size], digits[:batch_size])
    facts = {"accumulation_steps": accumulation_steps, "batch_size": batch_size}
    losses: list[float] = []
    peaks: list[int] = []
    with ecorl.measure(config, run_dir=folder, total_steps=n_steps, facts=facts) as run:
        by_step = run.watch_memory_by_step()
        before = host_peak_bytes()
        for number in range(n_steps):
            loss = 0.0
            for part in range(accumulation_steps):
                first = number * EFFECTIVE_BATCH + part * batch_size
                rows = slice(first, first + batch_size)
                part_loss = cross_entropy(model(images[rows]), digits[rows]) / accumulation_steps
                part_loss.backward()  # type: ignore[no-untyped-call]
                loss += part_loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
            peaks.append(host_peak_bytes())
            if not run.step(n_samples=EFFECTIVE_BATCH, loss=loss):
                break
        correct = evaluate(model)
        run.evaluation("correct", correct)
    return ClassifierRun(
        accumulation_steps=accumulation_steps,
        batch_size=batch_size,
        activation_bytes=n_kept,
        host_rise_bytes=max(peaks) - before if by_step else None,
        final_loss=statistics.fmean(losses[-LAST_STEPS:]),
        correct=tuple(correct),
        run_dir=folder,
    )


@torch.no_grad()
def evaluate(model: nn.Module) -> list[int]:
    """Ask the model for the held-out images: 1 for each that it tells right, else 0.

    Args:
        model: the classifier.
    """
    images, digits = draw(N_TEST, seed=2)
    told = torch.cat([model(rows).argmax(1) for rows in torch.split(images, EFFECTIVE_BATCH)])
    return [int(right) for right in told == digits]


def train_all(
    folder: Path,
    config: Config | None = None,
    n_steps: int = N_STEPS,
    accumulations: Sequence[int] = ACCUMULATIONS,
) -> list[ClassifierRun]:
    """Train with each accumulation, one after another, each in a process of its own.

    What one training leaves in the memory of its process says nothing of the next one.

    Args:
        folder: the runs' records lie below it.
        config: of all runs; None: the defaults.
        n_steps: optimizer steps of each.
        accumulations: backward passes of an optimizer step, divisors of `EFFECTIVE_BATCH`.
    """
    settings = config or validate_config({"name": "classifier"})
    found = []
    for number in accumulations:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            run_dir = folder / f"accumulation-{number}"
            run = process.submit(train, run_dir, settings, number, n_steps)
            found.append(run.result())
    return found


# ---------------------------------------------------------------- telling


def table(runs: Sequence[ClassifierRun]) -> str:
    """Write the trainings beside each other, a line each, and what came of them below.

    Args:
        runs: at least two of `train_all`; the others are compared with the first.
    """
    first = runs[0]
    lines = ["accumulation  batch  activations, MB  host's rise, MB  loss    accuracy, %"]
    for run in runs:
        rise = "-" if run.host_rise_bytes is None else f"{run.host_rise_bytes / 1e6:.1f}"
        lines.append(
            f"{run.accumulation_steps:12d}  {run.batch_size:5d}  {run.activation_bytes / 1e6:15.2f}"
            f"  {rise:>15}  {run.final_loss:.4f}"
            f"  {100 * run.accuracy:.2f} +- {100 * run.accuracy_error:.2f}"
        )
    others = runs[1:]
    steps = "/".join(str(run.accumulation_steps) for run in others)
    activations = [_saved(first.activation_bytes, run.activation_bytes) for run in others]
    rises = [_saved(first.host_rise_bytes, run.host_rise_bytes) for run in others]
    gain, error = max((run.gain_over(first) for run in others), key=lambda told: abs(told[0]))
    lines.append(
        f"With accumulation {steps} activations take {'/'.join(activations)} % less memory, and "
        f"the process's memory rises by {'/'.join(rises)} % less; accuracy moves by at most "
        f"{100 * abs(gain):.2f} +- {100 * error:.2f} percentage points."
    )
    return "\n".join(lines)


def _saved(before: int | None, now: int | None) -> str:
    return "-" if not before or now is None else f"{100 * (1 - now / before):.0f}"


def main() -> None:
    """Train with all accumulations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/classifier"), help="their records")
    parser.add_argument("--config", help="a config of ecorl's, e.g. one that waits")
    parser.add_argument("--steps", type=int, default=N_STEPS, help="optimizer steps of each")
    given = parser.parse_args()
    config = None if given.config is None else load_config(given.config)
    print(table(train_all(given.runs, config, given.steps)))


if __name__ == "__main__":
    main()
