"""What low-precision copies of the weights, kept from one micro-batch to the next, could save.

Autocast casts each weight once in a forward pass, and again in that of the next micro-batch. Copies
that are allocated once and filled after each step of the optimizer would save all casts of a step
but the first. How much that is at most is measured here before anything of the kind is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.trainer.language_model import SMALL, Batches, language_loss, small_llama
from ecorl.bench.rounds import timed_rounds
from ecorl.bench.stats import median
from ecorl.control import Gear
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.geared_model import GearedModel

FIGURES = FigureTable("trainer")

SIZES = SMALL | {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
                 "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
"""A Llama of 5 million weights, so that a cast is more than the call of it."""

N_ROWS = 4
"""Rows of a micro-batch, of `CONTEXT` tokens each."""

CAST, MICRO_BATCH = "cast", "micro_batch"


def weight_casts(box_s: float, n_rounds: int = 30) -> Figure:
    """Time casts of the weights beside micro-batches, in turns.

    Args:
        box_s: time for all rounds, s.
        n_rounds: at most.
    """
    torch.set_num_threads(1)
    model, rows = small_llama(0, SIZES), Batches(seed=1, n_rows=N_ROWS).next()
    geared = GearedModel(model, Gear.FP32, GearSupport((Gear.BF16,), ()))
    matrices = [w.detach() for w in model.parameters() if w.dim() == 2]

    def cast() -> None:
        for matrix in matrices:
            matrix.to(torch.bfloat16)

    def micro_batch() -> None:
        with geared.within(Gear.BF16):
            language_loss(model, rows).backward()  # type: ignore[no-untyped-call]

    times = timed_rounds({CAST: cast, MICRO_BATCH: micro_batch}, n_rounds, box_s)
    return cast_figure(times, sum(w.numel() for w in model.parameters()), rows.numel())


def cast_figure(times: Mapping[str, Sequence[float]], n_weights: int, n_tokens: int) -> Figure:
    """The share of a micro-batch that casting its weights takes.

    Args:
        times: of all matrices cast to BF16, and of a forward and backward pass in BF16, casts
            included, by round, s.
        n_weights: of the model.
        n_tokens: of a micro-batch.
    """
    return FIGURES.ratio(
        "trainer.weight_cast_share",
        times[CAST],
        times[MICRO_BATCH],
        cast_ms=1e3 * median(times[CAST]),
        batch_ms=1e3 * median(times[MICRO_BATCH]),
        n_weights=n_weights,
        n_tokens=n_tokens,
    )
