"""Prefix sharing: rows with the same prompt compute its tokens once.

The rows of a GRPO group have one prompt. Its keys, values and all other values of its tokens are
the same in each row, bit for bit, so the forward computes them once; the completions continue from
there. A result does not depend on whether a prompt was shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.cycles.model import BatchShape
from ecorl.engines.protocol import Int64

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Segments:
    """A batch as runs of tokens, each of which continues its parent or begins a sequence.

    Attributes:
        ids: ``[n_tokens] int32``, the tokens that are computed.
        begin: ``[n_segments + 1] int64``, first token of each segment.
        parent: ``[n_segments] int32``, the segment that each continues, or -1. Parents have no
            parent, and their children come right behind them.
        rows: for each row of the batch its segments, parent first.
    """

    ids: Int32
    begin: Int64
    parent: Int32
    rows: tuple[tuple[int, ...], ...]

    @property
    def n_tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.ids)

    def tokens(self, row: int, positions: Int64) -> Int64:
        """Places in `ids` of a row's tokens.

        Args:
            row: index in the batch.
            positions: ``[n] int64``, of the tokens in the row, from 0.

        Returns:
            ``[n] int64``.
        """
        first = self.rows[row][0]
        length = int(self.begin[first + 1] - self.begin[first])
        own = int(self.begin[self.rows[row][-1]]) - length
        shared = int(self.begin[first])
        offset = np.where(positions < length, shared, own if len(self.rows[row]) > 1 else shared)
        return np.asarray(positions + offset, np.int64)

    def shape(self, n_wanted: Sequence[int], head_rows: int) -> BatchShape:
        """The batch as the cycle model sees it.

        Args:
            n_wanted: results of each row: 1, or its completion tokens.
            head_rows: outputs of the head.
        """
        lengths = np.diff(self.begin).tolist()
        firsts = [0 if p < 0 else lengths[p] for p in self.parent]
        wanted = [0] * len(lengths)
        for row, n in zip(self.rows, n_wanted, strict=True):
            # A log-prob is read at the token before: one of them at the end of a shared prompt.
            own = n if head_rows == 1 or len(row) == 1 else max(n - 1, 0)
            wanted[row[-1]] = max(wanted[row[-1]], own)
            if head_rows != 1 and len(row) > 1:
                wanted[row[0]] = 1
        return BatchShape(tuple(lengths), tuple(wanted), head_rows, tuple(firsts), sum(n_wanted))

    def shape_at(self, tokens: Sequence[Int64], n_results: int) -> BatchShape:
        """The same for rewards read at given tokens, each of which is computed once.

        In the attention of the last layer the cycle model assumes that they end their segment.

        Args:
            tokens: tokens whose last hidden state is needed, in any order.
            n_results: rewards.
        """
        lengths = np.diff(self.begin).tolist()
        distinct = np.unique(np.concatenate(tokens)) if tokens else np.empty(0, np.int64)
        owners = np.searchsorted(self.begin, distinct, side="right") - 1
        wanted = np.bincount(owners, minlength=len(lengths)).tolist()
        firsts = [0 if p < 0 else lengths[p] for p in self.parent]
        return BatchShape(tuple(lengths), tuple(wanted), 1, tuple(firsts), n_results)


MAX_FAMILY_TOKENS = 8192
"""Tokens of the largest family (rows that share a prompt). A family passes the layers as one, so
this bounds the memory of a call. A larger group is cut into parts that each compute the prompt."""


def segments_of(rows: Sequence[Int64], n_completion: Sequence[int] | None = None) -> Segments:
    """Cut rows into segments; rows with the same prompt share it.

    Args:
        rows: token ids of each row, without padding, at least one token each.
        n_completion: completion tokens at the end of each row; without it nothing is shared.
    """
    parts: list[Int64] = []
    parents: list[int] = []
    where: list[tuple[int, ...]] = [()] * len(rows)

    def add(part: Int64, parent: int) -> int:
        parts.append(part)
        parents.append(parent)
        return len(parts) - 1

    for length, members in _families(rows, n_completion):
        if len(members) == 1 or length == 0:
            for index in members:
                where[index] = (add(rows[index], -1),)
            continue
        head = add(rows[members[0]][:length], -1)
        for index in members:
            rest = rows[index][length:]
            where[index] = (head, add(rest, head)) if len(rest) else (head,)
    begin = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=begin[1:])
    ids = np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)
    return Segments(ids, begin, np.asarray(parents, np.int32), tuple(where))


def _families(
    rows: Sequence[Int64], n_completion: Sequence[int] | None
) -> list[tuple[int, list[int]]]:
    """Lengths of prompts with the rows that share each, in parts of at most MAX_FAMILY_TOKENS."""
    counts = n_completion if n_completion is not None else [len(row) for row in rows]
    groups: dict[bytes, list[int]] = {}
    for index, (row, n) in enumerate(zip(rows, counts, strict=True)):
        groups.setdefault(row[: len(row) - n].tobytes(), []).append(index)
    families: list[tuple[int, list[int]]] = []
    for members in groups.values():
        length = len(rows[members[0]]) - counts[members[0]]
        n_tokens = 0
        for index in members:
            rest = len(rows[index]) - length
            if n_tokens == 0 or n_tokens + rest > MAX_FAMILY_TOKENS:
                families.append((length, []))
                n_tokens = length
            families[-1][1].append(index)
            n_tokens += rest
    return families
