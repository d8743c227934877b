"""Which tokens of a batch are computed: rows that begin alike share their beginning.

The rows of a GRPO group have one prompt. Its keys, values and everything else of its tokens are
the same in each row, bit for bit, so the forward computes them once; the completions go on from
there. A result does not depend on whether this was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.cycles import BatchShape
from ecorl.engines.protocol import Int64

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Segments:
    """A batch as runs of tokens, each going on from the end of its parent.

    Attributes:
        ids: ``[n_tokens] int32``, the tokens that are computed.
        begin: ``[n_segments + 1] int64``, first token of each segment.
        parent: ``[n_segments] int32``, the segment that one goes on from, or -1. Parents have no
            parent, and their children follow them.
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

    def token(self, row: int, position: int) -> int:
        """Where the token of a row at a position stands in `ids`."""
        first = self.rows[row][0]
        length = int(self.begin[first + 1] - self.begin[first])
        if position < length:
            return int(self.begin[first]) + position
        return int(self.begin[self.rows[row][1]]) + position - length

    def tokens(self, row: int, positions: Int64) -> Int64:
        """`token` of several positions, ``[n] int64``."""
        first = self.rows[row][0]
        length = int(self.begin[first + 1] - self.begin[first])
        own = int(self.begin[self.rows[row][-1]]) - length
        shared = int(self.begin[first])
        offset = np.where(positions < length, shared, own if len(self.rows[row]) > 1 else shared)
        return np.asarray(positions + offset, np.int64)

    def shape(self, n_wanted: Sequence[int], head_rows: int) -> BatchShape:
        """What the cycle model must know.

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
        """The same for rewards that rest on the given tokens, each of which is computed once.

        The cycle model takes a segment's last tokens for them, in the attention of the last layer.

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


def segments_of(rows: Sequence[Int64], n_completion: Sequence[int] | None = None) -> Segments:
    """Cut rows into segments; rows with the same prompt share it.

    Args:
        rows: token ids of each row, without padding, at least one token each.
        n_completion: completion tokens at the end of each row; without it nothing is shared.
    """
    families: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):
        prompt = row[: len(row) - n_completion[index]] if n_completion is not None else row[:0]
        # Rows without a prompt, or alone with theirs, are families of their own.
        key = prompt.tobytes() if len(prompt) else b"%d" % index + b"\0" * 9
        families.setdefault(key, []).append(index)
    parts: list[Int64] = []
    parents: list[int] = []
    where: list[tuple[int, ...]] = [()] * len(rows)
    for members in families.values():
        prompt_length = len(rows[members[0]])
        if n_completion is not None:
            prompt_length -= n_completion[members[0]]
        if len(members) == 1 or prompt_length == 0:
            for index in members:
                where[index] = (len(parts),)
                parts.append(rows[index])
                parents.append(-1)
            continue
        head = len(parts)
        parts.append(rows[members[0]][:prompt_length])
        parents.append(-1)
        for index in members:
            rest = rows[index][prompt_length:]
            if not len(rest):
                where[index] = (head,)
                continue
            where[index] = (head, len(parts))
            parts.append(rest)
            parents.append(head)
    begin = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=begin[1:])
    ids = np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)
    return Segments(ids, begin, np.asarray(parents, np.int32), tuple(where))
