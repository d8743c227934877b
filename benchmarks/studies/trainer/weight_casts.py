"""What low-precision copies of the weights, kept from one micro-batch to the next, could save.

Autocast casts each weight once in a forward pass, and again in that of the next micro-batch. Copies
that are allocated once and filled after each step of the optimizer would save all casts of a step
but the first. How much that is at most is measured here before anything of the kind is built.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness.figures import Figure
from benchmarks.studies.trainer.language_model import CONTEXT, VOCABULARY, Batches, language_loss
from ecorl.bench.rounds import timed_rounds
from ecorl.bench.stats import spread_of
from ecorl.control import Gear
from ecorl.records import Provenance
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.geared_model import GearedModel

HIDDEN, INTERMEDIATE, N_LAYERS, N_HEADS = 256, 704, 6, 4
"""A Llama of 5 million weights, so that a cast is more than the call of it."""

N_ROWS = 4
"""Rows of a micro-batch, of `CONTEXT` tokens each."""

MEASURED = Provenance.MEASURED


@dataclass(frozen=True, slots=True)
class CastTimes:
    """Times of both, taken in turns.

    Attributes:
        n_weights: of the model.
        n_tokens: of a micro-batch.
        cast_s: of all matrices cast to BF16, by round, s.
        micro_batch_s: of a forward and backward pass in BF16, casts included, by round, s.
    """

    n_weights: int
    n_tokens: int
    cast_s: Sequence[float]
    micro_batch_s: Sequence[float]


def cast_times(box_s: float, n_rounds: int = 30) -> CastTimes:
    """Time casts of the weights beside micro-batches.

    Args:
        box_s: time for all rounds, s.
        n_rounds: at most.
    """
    torch.set_num_threads(1)
    model, rows = _model(), Batches(seed=1, n_rows=N_ROWS).next()
    geared = GearedModel(model, Gear.FP32, GearSupport((Gear.BF16,), ()))
    matrices = [w.detach() for w in model.parameters() if w.dim() == 2]

    def cast() -> None:
        for matrix in matrices:
            matrix.to(torch.bfloat16)

    def micro_batch() -> None:
        with geared.within(Gear.BF16):
            language_loss(model, rows).backward()  # type: ignore[no-untyped-call]

    times = timed_rounds({"cast": cast, "micro_batch": micro_batch}, n_rounds, box_s)
    n_weights = sum(w.numel() for w in model.parameters())
    return CastTimes(n_weights, rows.numel(), times["cast"], times["micro_batch"])


def cast_figure(found: CastTimes) -> Figure:
    """The share of a micro-batch that casting its weights takes.

    Args:
        found: of `cast_times`.
    """
    shares = [a / b for a, b in zip(found.cast_s, found.micro_batch_s, strict=True)]
    cast_ms, batch_ms = (1e3 * statistics.median(s) for s in (found.cast_s, found.micro_batch_s))
    return Figure(
        "trainer.weight_cast_share", statistics.median(shares), "1", MEASURED, spread_of(shares),
        note="time in which all matrices are cast to BF16 over that of a micro-batch's forward and "
        "backward pass: the most that copies kept over the micro-batches of a step could save. "
        f"{cast_ms:.2f} of {batch_ms:.0f} ms, {found.n_weights:,} weights, {found.n_tokens} tokens "
        "on one core",
    )  # fmt: skip


def _model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
        num_hidden_layers=N_LAYERS, num_attention_heads=N_HEADS, num_key_value_heads=N_HEADS,
        max_position_embeddings=CONTEXT, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)
