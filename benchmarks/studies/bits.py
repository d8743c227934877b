"""Counts of results whose bits differ where they must not: between builds, batches and cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import Float32, Int64


@dataclass(frozen=True, slots=True)
class BitComparison:
    """Counts of numbers that were compared and that differed in a bit."""

    n: int
    n_different: int


def compare(pairs: Sequence[tuple[Float32, Float32]]) -> BitComparison:
    """Compare arrays pair by pair, bit by bit; a NaN equals the same NaN.

    Raises:
        ValueError: when two arrays differ in shape.
    """
    n = different = 0
    for a, b in pairs:
        if a.shape != b.shape:
            raise ValueError(f"shapes {a.shape} and {b.shape}")
        n += a.size
        different += int((a.view(np.uint32) != b.view(np.uint32)).sum())
    return BitComparison(n, different)


def strict_against_fast(checkpoint: Path, rows: Sequence[Int64]) -> BitComparison:
    """Compare residual streams and rewards of the strict and the fast build.

    Args:
        checkpoint: folder of the checkpoint.
        rows: token ids of each row, ``[n_tokens] int64``.
    """
    tensors = load_decoder(checkpoint)
    fast, strict = (Int8Decoder(tensors, CsimLibrary.load(build)) for build in ("fast", "strict"))
    return compare(
        [(fast.hidden(rows), strict.hidden(rows)), (fast.score(rows), strict.score(rows))]
    )


def one_row_everywhere(
    checkpoint: Path, rows: Sequence[Int64], n_completion: Sequence[int], seed: int
) -> BitComparison:
    """Compare rewards of single rows with other batches, orders, threads, cards, shared prompts.

    Args:
        checkpoint: folder of the checkpoint.
        rows: token ids of each row, ``[n_tokens] int64``.
        n_completion: completion tokens of each row.
        seed: of the order in which rows are shuffled.
    """
    tensors, library = load_decoder(checkpoint), CsimLibrary.load("fast")
    model = Int8Decoder(tensors, library)
    alone = np.concatenate([model.score([row]) for row in rows])
    order = np.random.default_rng(seed).permutation(len(rows))
    mixed = np.empty_like(alone)
    mixed[order] = model.score([rows[i] for i in order])
    threaded = Int8Decoder(tensors, library, threads=2).score(rows)
    two_cards = Int8Decoder(tensors, library, n_cards=2).score(rows)
    shared = model.score(rows, n_completion)
    return compare(
        [(alone, other) for other in (model.score(rows), mixed, threaded, two_cards, shared)]
    )
