"""What gradient accumulation saves of memory, and that the training stays the same."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.papers.carbon_claims import CLAIMS
from benchmarks.studies.trainer.language_model import Batches, language_loss, small_llama

FIGURES = FigureTable("trainer")

ACCUMULATIONS = (1, 2, 4, 8, 16)
"""Backward passes of a step."""

GLOBAL_ROWS = 32
"""Rows of a step, however many backward passes it takes."""

N_STEPS = 6
"""Steps over which the losses are compared."""

_LEARNING_RATE = 2e-3


@dataclass(frozen=True, slots=True)
class AccumulatedTraining:
    """A training with some backward passes a step.

    Attributes:
        accumulation: backward passes of a step.
        held_bytes: what weights and moments hold between two steps, bytes.
        peak_bytes: most that tensors hold beside it during a step, by the events of torch's own
            allocator: activations, gradients and what operations need meanwhile, bytes.
        losses: of each step.
    """

    accumulation: int
    held_bytes: int
    peak_bytes: int
    losses: tuple[float, ...]

    def loss_off_by(self, other: AccumulatedTraining) -> float:
        """Largest relative difference of a step's loss to that of another training.

        Args:
            other: of the same batches.
        """
        pairs = zip(self.losses, other.losses, strict=True)
        return max(abs(own / theirs - 1.0) for own, theirs in pairs)


def accumulated_trainings(
    accumulations: Sequence[int] = ACCUMULATIONS, n_steps: int = N_STEPS
) -> list[AccumulatedTraining]:
    """Train the small model in float32 from the same batches with each accumulation.

    Args:
        accumulations: backward passes of a step, divisors of `GLOBAL_ROWS`.
        n_steps: steps of each, two at least: the optimizer makes its moments in the first one.
    """
    torch.set_num_threads(1)
    return [_train(number, n_steps) for number in accumulations]


def saved_share(
    trainings: Sequence[AccumulatedTraining], accumulation: int, *, of_all: bool = False
) -> float:
    """Share of the peak that an accumulation saves against one backward pass a step.

    Args:
        trainings: of `accumulated_trainings`, with accumulation 1 among them.
        accumulation: which.
        of_all: of all tensors, with weights and moments, in place of what a step needs beside them.
    """
    peaks = {
        one.accumulation: one.peak_bytes + (one.held_bytes if of_all else 0) for one in trainings
    }
    return 1.0 - peaks[accumulation] / peaks[1]


def _train(accumulation: int, n_steps: int) -> AccumulatedTraining:
    model, batches = small_llama(seed=0), Batches(seed=1, n_rows=GLOBAL_ROWS)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=_LEARNING_RATE, foreach=True)

    def step(rows: Tensor) -> float:
        parts = []
        for part in torch.split(rows, len(rows) // accumulation):
            loss = language_loss(model, part) / accumulation
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        return sum(parts)

    losses = [step(batches.next()) for _ in range(n_steps - 1)]
    rows = batches.next()
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as events:
        losses.append(step(rows))
    moments = [m for state in optimizer.state.values() for m in state.values()]
    held = sum(t.nbytes for t in [*weights, *moments])
    return AccumulatedTraining(accumulation, held, _peak_bytes(events), tuple(losses))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what torch's profiler writes to the process's standard error as it begins and ends."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _peak_bytes(events: Any) -> int:
    """Most bytes that were allocated and not yet freed since the recording began."""
    results = events.profiler.kineto_results.events()
    changes = sorted(
        ((one.start_ns(), one.nbytes()) for one in results if one.name() == "[memory]"),
        key=lambda change: change[0],
    )
    held = peak = 0
    for _, n_bytes in changes:
        held += n_bytes
        peak = max(peak, held)
    return peak


def accumulation_figure(found: Sequence[AccumulatedTraining]) -> Figure:
    """The memory that accumulation over 4 backward passes saves.

    Args:
        found: a training each, with accumulations 1 and 4 among them.
    """
    first = next(one for one in found if one.accumulation == 1)
    saved = {one.accumulation: saved_share(found, one.accumulation) for one in found}
    of_all = {one.accumulation: saved_share(found, one.accumulation, of_all=True) for one in found}
    off = max(one.loss_off_by(first) for one in found)
    printed = {one.id: one.printed for one in CLAIMS if one.id.startswith("memory_")}
    claims = {n: printed.get(f"memory_{n}") for n in saved}
    spread = {"saved": saved, "saved_of_all_tensors": of_all, "loss_off_by": off,
              "trainings": [asdict(one) for one in found]}  # fmt: skip
    return FIGURES.figure(
        "trainer.accumulation_memory_saved_4",
        saved[4],
        spread,
        n_rows=GLOBAL_ROWS,
        saved=_shares({n: share for n, share in saved.items() if n > 1}),
        of_all=_shares({n: share for n, share in of_all.items() if n > 1}),
        claimed=_shares({n: x for n, x in claims.items() if isinstance(x, float)}),
        off=off,
    )


def _shares(by_accumulation: Mapping[int, float]) -> str:
    return ", ".join(f"{n} {100 * share:.0f} %" for n, share in by_accumulation.items())
