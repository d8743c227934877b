"""How long training stands when its width changes."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.harness import Figure, FigureTable
from ecorl.bench.rounds import TimeBox
from ecorl.trainer import ElasticTrainer
from ecorl.trainer.elastic.records import (
    Drill,
    ElasticOptions,
    MemberOptions,
    Patience,
    StepDone,
    TrainingResult,
)
from ecorl.trainer.elastic.task import EpochOrder

FIGURES = FigureTable("trainer")

STEP_S = (0.25, 0.5)
"""Median time of a step within which the stall is judged, s: shorter ones are shorter than what a
change has to do at all, and longer ones hide it."""

_STEP_S = 0.38
"""Aimed at for a step at width 1, s: amid the 0.25 to 0.5 s for which the figure stands."""

MICRO_ROWS = 64
"""Rows of one forward pass at most."""

_MIN_STEPS = 6
"""Steps of each width that are measured at least, invented."""

_OBJECT_STORE_BYTES = 200_000_000


@dataclass
class WideTask:
    """Fits a sum by a wide layer, so that a step takes as long as its rows ask for.

    Attributes:
        batch_rows: rows of a step; the driver may change it between two steps.
        n_hidden: units of the wide layer.
    """

    batch_rows: int = 256
    n_hidden: int = 2048

    def make_model(self) -> nn.Module:
        """Make two layers."""
        wide = (nn.Linear(256, self.n_hidden), nn.GELU(), nn.Linear(self.n_hidden, 256))
        return nn.Sequential(*wide, nn.Linear(256, 1))

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Make torch's AdamW."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def rows(self, step: int) -> Sequence[int]:
        """Tell the rows of a step."""
        return EpochOrder(4 * self.batch_rows, self.batch_rows).rows(step)

    def loss(self, model: nn.Module, indices: Sequence[int]) -> Tensor:
        """Compute the squared error of each row."""
        # Of the row's number alone: sines of it, which lie anywhere between -1 and 1.
        numbers = torch.tensor(indices, dtype=torch.float32)[:, None]
        inputs = torch.sin(numbers * torch.arange(1.0, 257.0))
        predicted: Tensor = model(inputs)
        return (predicted[:, 0] - inputs[:, :8].sum(1)).square()


def width_change(box_s: float = 12.0) -> Figure:
    """Train at width 1, at 2, and at 1 again, and measure the times between finished steps.

    Args:
        box_s: time for the steps at settled widths, s; the second member's start comes on top.
    """
    task = WideTask()
    with (
        ray_here(),
        tempfile.TemporaryDirectory() as folder,
        ElasticTrainer(task, Path(folder), options=elastic_options(checkpoint_every=0)) as trainer,
    ):
        _calibrate(trainer, task)
        first = trainer.n_done
        _train_for(trainer, box_s / 4, width=1)
        trainer.set_width(2)
        _train_for(trainer, box_s / 4, width=2)
        trainer.set_width(1)
        result = _train_for(trainer, box_s / 2, width=1)
    return width_figure(result, first)


def _calibrate(trainer: ElasticTrainer, task: WideTask) -> None:
    """Find the rows with which a step takes as long as it should, on the member itself."""
    for _ in range(2):
        first = trainer.n_done
        result = trainer.train(first + 4)
        # The first step after a change of the batch's size allocates anew.
        step_s = statistics.median(one.time_s for one in result.steps[first + 1 :])
        n_parts = round(task.batch_rows * _STEP_S / step_s / MICRO_ROWS / 2)
        # An even number of forward passes, so that two members share them evenly.
        task.batch_rows = max(1, n_parts) * 2 * MICRO_ROWS


def _train_for(trainer: ElasticTrainer, time_s: float, width: int) -> TrainingResult:
    """Train until enough steps at a width are done; those before it is there do not count."""
    box: list[TimeBox] = []
    n_here = 0

    def on_step(done: StepDone) -> None:
        nonlocal n_here
        if done.width == width:
            if not box:
                box.append(TimeBox(time_s))
            n_here += 1
            if n_here >= _MIN_STEPS and not box[0].has_room():
                trainer.stop()

    return trainer.train(trainer.n_done + 100_000, on_step)


def width_figure(result: TrainingResult, first: int) -> Figure:
    """The stall of a change of width, judged where the steps are as long as they should be.

    Args:
        result: of a training on this machine's CPU whose width went from 1 to 2 and back.
        first: number of the first step that is measured.
    """
    steps = [one for one in result.steps if one.step >= first]
    times = [(a.width, b.width, b.ended_s - a.ended_s) for a, b in itertools.pairwise(steps)]
    gaps = [time_s for _, _, time_s in times]
    median_s = statistics.median(gaps)
    at_change = max(time_s for before, after, time_s in times if before != after)
    widths = ", ".join(
        f"{statistics.median(t for before, after, t in times if before == after == width):.3f} s "
        f"at {width}"
        for width in (1, 2)
    )
    prepared_s = next(one.prepared_s for one in result.changes if one.after == 2)
    is_in_range = STEP_S[0] <= median_s <= STEP_S[1]
    judged = (
        "" if is_in_range else f"; not judged: the median is not in {STEP_S[0]} to {STEP_S[1]} s"
    )
    return FIGURES.figure(
        "trainer.width_change_steps",
        max(gaps) / median_s,
        {"at_a_change": at_change / median_s, "n_steps": len(gaps)},
        judged=is_in_range,
        median_s=median_s,
        widths=widths,
        prepared_s=prepared_s,
        not_judged=judged,
    )


def elastic_options(checkpoint_every: int, drill: Drill | None = None) -> ElasticOptions:
    """Make the options of a training on this machine's CPU.

    Args:
        checkpoint_every: steps between two checkpoints; 0: none but in pauses and at the end.
        drill: called at each point of each member's life.
    """
    return ElasticOptions(
        max_width=2,
        checkpoint_every=checkpoint_every,
        member=MemberOptions(micro_batch_rows=MICRO_ROWS, drill=drill),
        patience=Patience(ping_s=5.0),
    )


@contextmanager
def ray_here() -> Iterator[None]:
    """Start a Ray cluster on this machine, unless this process has joined one.

    Both measurements do so; around both of them it saves one start.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=_OBJECT_STORE_BYTES,
    )
    try:
        yield
    finally:
        ray.shutdown()
