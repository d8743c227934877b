"""The card's host code on XRT's noop driver: correct bits, and transfers beside kernels.

What is emulated takes the host's time, not a card's: the share of hidden transfers tells how the
host orders its work, and no figure of speed is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.studies.bits import BitComparison, compare
from ecorl.engines.fpga.card.decoder import CardDecoder
from ecorl.engines.fpga.card.opening import csim_container, emulated
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import Float32, Int64


@dataclass(frozen=True, slots=True)
class HostRun:
    """Results of some batches through XRT's noop driver.

    Attributes:
        bits: results against those of the C-simulation called directly.
        hidden_share: of each round, the time of transfers beside a running kernel over that of all
            transfers.
        n_groups: groups of rows that the cards worked on.
        n_faults: faults; there must be none.
    """

    bits: BitComparison
    hidden_share: tuple[float, ...]
    n_groups: int
    n_faults: int


def reward_run(
    checkpoint: Path, rows: Sequence[Int64], n_completion: Sequence[int], n_rounds: int
) -> HostRun:
    """Compute rewards through XRT's noop driver, all rows in one call a round.

    Args:
        checkpoint: folder of the checkpoint.
        rows: token ids of each row, ``[n_tokens] int64``.
        n_completion: completion tokens of each row.
        n_rounds: calls, each of all rows.
    """
    return _run(checkpoint, lambda decoder: decoder.score(rows, n_completion), n_rounds)


def logprob_run(
    checkpoint: Path, rows: Sequence[Int64], n_completion: Sequence[int], n_rounds: int
) -> HostRun:
    """Compute log-probs through XRT's noop driver, all rows in one call a round.

    Args:
        checkpoint: folder of the checkpoint.
        rows: token ids of each row, ``[n_tokens] int64``.
        n_completion: completion tokens of each row.
        n_rounds: calls, each of all rows.
    """

    def joined(decoder: Int8Decoder | CardDecoder) -> Float32:
        return np.concatenate(decoder.logprobs(rows, n_completion, 0.9))

    return _run(checkpoint, joined, n_rounds)


def _run(
    checkpoint: Path, answer: Callable[[Int8Decoder | CardDecoder], Float32], n_rounds: int
) -> HostRun:
    tensors, library = load_decoder(checkpoint), CsimLibrary.load("fast")
    want = answer(Int8Decoder(tensors, library))
    card = CardDecoder(tensors, library, emulated(csim_container("fast"), (0,)).setups)
    pairs, shares = [], []
    total_s = hidden_s = 0.0
    try:
        for _ in range(n_rounds):
            pairs.append((want, answer(card)))
            status = card.status()[0]
            taken_s, covered_s = status.transfer_s - total_s, status.hidden_s - hidden_s
            total_s, hidden_s = status.transfer_s, status.hidden_s
            shares.append(covered_s / taken_s)
    finally:
        status = card.status()[0]
        card.close()
    return HostRun(compare(pairs), tuple(shares), status.n_groups, status.n_faults)
