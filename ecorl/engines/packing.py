"""Packs rows of different lengths into micro-batches of even padded tokens.

A forward pass computes a rectangle: each of its rows takes as many tokens as its longest one. Rows
of like length together leave little padding. What is packed here is the order and the cut alone;
which rows there are, and what is computed of them, stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

COMPARED_EVERY = 100
"""Calls or steps between two comparisons of packed results with those of the same rows unpacked.
Invented: a comparison computes the rows once more without a backward pass, so that in the long run
they take less than a hundredth of the time."""

_HALVINGS = 5
"""An automatic budget is the whole batch halved so many times at most. Invented: beyond 32
micro-batches their fixed times outgrow the padding that is left."""


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """What packing made of some rows.

    Attributes:
        n_micro_batches: forward passes that they took.
        n_tokens: their own tokens, without padding.
        n_computed: tokens of the micro-batches, padding included.
        n_unpacked: tokens of the batch as it would have been computed otherwise, with its padding.
        difference: from `relative_difference`, of the results with and without packing; None
            where they were not compared.
    """

    n_micro_batches: int
    n_tokens: int
    n_computed: int
    n_unpacked: int
    difference: float | None = None

    def __add__(self, other: PackedTokens) -> PackedTokens:
        found = [d for d in (self.difference, other.difference) if d is not None]
        return PackedTokens(
            self.n_micro_batches + other.n_micro_batches,
            self.n_tokens + other.n_tokens,
            self.n_computed + other.n_computed,
            self.n_unpacked + other.n_unpacked,
            max(found, default=None),
        )


def pack(lengths: npt.ArrayLike, budget: int) -> list[Indices]:
    """Pack rows into as few micro-batches as a budget of tokens allows, as even as they can be.

    Rows are sorted by length, longest first, and cut. For rows of one part no other way needs
    fewer micro-batches. The same lengths give the same micro-batches.

    Args:
        lengths: tokens of each row, ``[n_rows]``, or of each of its parts, ``[n_rows, n_parts]``.
            Parts are padded on their own: a prompt on the left, say, and a completion on the right.
        budget: padded tokens of a micro-batch at most, above 0; a row that is longer is alone.

    Returns:
        The indices of the rows of each micro-batch, ascending; each row is in one of them.

    Raises:
        ValueError: for lengths below 0, or a budget below 1.
    """
    parts = _parts(lengths)
    if budget < 1:
        raise ValueError(f"budget is {budget}, needs to be at least 1")
    if not len(parts):
        return []
    if _whole(parts) <= budget:
        return [np.arange(len(parts))]
    found = [(order, _starts(parts[order], budget, len(parts))) for order in _orders(parts)]
    fewest = min(len(starts) for _, starts in found)
    cuts = [_evened(parts, order, fewest, budget) for order, s in found if len(s) == fewest]
    return min(cuts, key=lambda cut: padded_tokens(parts, cut))


def partition(lengths: npt.ArrayLike, n_micro_batches: int) -> list[Indices]:
    """Pack rows into a given number of micro-batches, as even as they can be.

    For processes that have to make equally many forward passes.

    Args:
        lengths: as for `pack`.
        n_micro_batches: 1 to the number of rows.

    Returns:
        The indices of the rows of each micro-batch.

    Raises:
        ValueError: for a number of micro-batches that there cannot be.
    """
    parts = _parts(lengths)
    if not 1 <= n_micro_batches <= len(parts):
        raise ValueError(f"{len(parts)} rows cannot make {n_micro_batches} micro-batches")
    most = padded_tokens(parts, [np.arange(len(parts))])
    cuts = [_evened(parts, order, n_micro_batches, most) for order in _orders(parts)]
    cut = min(cuts, key=lambda cut: (_largest(parts, cut), padded_tokens(parts, cut)))
    while len(cut) < n_micro_batches:
        divisible = [i for i, rows in enumerate(cut) if len(rows) > 1]
        widest = max(divisible, key=lambda i: (padded_tokens(parts, [cut[i]]), len(cut[i])))
        middle = len(cut[widest]) // 2
        cut[widest : widest + 1] = [cut[widest][:middle], cut[widest][middle:]]
    return cut


def automatic_budget(lengths: npt.ArrayLike, most: int, fixed_tokens: int) -> int:
    """Find a budget with which packing saves more padding than its forward passes cost.

    The whole batch is halved again and again. The budget is that with the fewest tokens, padding
    included, where each micro-batch counts as some tokens more. Where rows are alike they stay
    together.

    Args:
        lengths: as for `pack`.
        most: padded tokens that a forward pass may hold: those of the framework's own.
        fixed_tokens: tokens that are computed in the time that a forward pass takes whatever its
            size.

    Returns:
        The budget, at least 1 and at most `most`.
    """
    parts = _parts(lengths)
    candidates = [max(1, most >> halvings) for halvings in range(_HALVINGS + 1)]
    if not len(parts):
        return candidates[0]
    orders, whole, n_tokens = _orders(parts), _whole(parts), int(parts.sum())

    def cost(cut: Sequence[Indices]) -> int:
        return padded_tokens(parts, cut) + fixed_tokens * len(cut)

    def estimate(budget: int) -> int:
        return min(cost(_cut(o, _starts(parts[o], budget, len(parts)))) for o in orders)

    def least(budget: int) -> int:
        n_least = max(1 if whole <= budget else 2, math.ceil(n_tokens / budget))
        return n_tokens + fixed_tokens * n_least

    estimates: list[tuple[int, int]] = []
    for budget in candidates:
        # Rows of a small model are computed sooner than all budgets are tried.
        if estimates and min(estimates)[0] <= least(budget):
            break
        estimates.append((estimate(budget), -budget))
    # Even micro-batches may have more padding than those of the estimate, and take longer to find.
    found: list[tuple[int, int]] = []
    for estimated, negative in sorted(estimates):
        if found and min(found)[0] <= estimated:
            break
        found.append((cost(pack(parts, -negative)), negative))
    return -min(found)[1]


def padded_tokens(lengths: npt.ArrayLike, micro_batches: Sequence[Indices]) -> int:
    """Count the tokens of micro-batches, padding included.

    Args:
        lengths: as for `pack`.
        micro_batches: indices of their rows.
    """
    parts = _parts(lengths)
    return sum(len(rows) * int(parts[rows].max(axis=0).sum()) for rows in micro_batches)


def relative_difference(values: npt.ArrayLike, others: npt.ArrayLike) -> float:
    """How far results lie apart: the largest difference, as a share of the largest value of both.

    Args:
        values: any shape.
        others: of the same shape.
    """
    one, two = (np.asarray(v, dtype=np.float64) for v in (values, others))
    apart = float(np.abs(one - two).max(initial=0.0))
    size = max(float(np.abs(v).max(initial=0.0)) for v in (one, two))
    return apart / size if apart else 0.0


def _parts(lengths: npt.ArrayLike) -> Indices:
    """The lengths as ``[n_rows, n_parts]``."""
    found = np.asarray(lengths, dtype=np.int64)
    found = found.reshape(-1, 1) if found.ndim == 1 else found
    if found.ndim != 2 or (found < 0).any():
        raise ValueError("lengths need to be [n_rows] or [n_rows, n_parts] numbers of at least 0")
    return found


def _whole(parts: Indices) -> int:
    """Tokens of all rows in one micro-batch, padding included."""
    return len(parts) * int(parts.max(axis=0).sum())


def _orders(parts: Indices) -> list[Indices]:
    """Orders of the rows that are worth a try: by all of a row, and by each of its parts."""
    whole, index = parts.sum(axis=1), np.arange(len(parts))
    keys = [whole] if parts.shape[1] == 1 else [whole, *parts.T]
    # Rows of the same parts alone are told apart by their place.
    return [np.lexsort((index, *parts.T, -whole, -key)) for key in keys]


def _starts(parts: Indices, cap: int, most: int) -> list[int]:
    """Cut rows that are in order, each micro-batch as long as it keeps below a number of tokens.

    Args:
        parts: lengths, in the order of the rows.
        cap: padded tokens of a micro-batch; a row above it is alone.
        most: micro-batches at most; where they would be more, one more than this is returned.

    Returns:
        Where each micro-batch begins.
    """
    counts = np.arange(1, len(parts) + 1)
    starts: list[int] = []
    begin = 0
    while begin < len(parts) and len(starts) <= most:
        starts.append(begin)
        widths = np.maximum.accumulate(parts[begin:], axis=0).sum(axis=1)
        sizes = widths * counts[: len(widths)]
        begin += max(1, int(np.searchsorted(sizes, cap, side="right")))
    return starts


def _evened(parts: Indices, order: Indices, n: int, cap: int) -> list[Indices]:
    """Cut rows into at most `n` micro-batches, the largest of which is as small as it can be.

    Args:
        parts: lengths of all rows.
        order: of the rows.
        n: micro-batches at most.
        cap: tokens of a micro-batch with which so many are enough.
    """
    ordered, low, high = parts[order], 1, max(1, cap)
    while low < high:
        middle = (low + high) // 2
        if len(_starts(ordered, middle, n)) <= n:
            high = middle
        else:
            low = middle + 1
    return _cut(order, _starts(ordered, high, n))


def _cut(order: Indices, starts: Sequence[int]) -> list[Indices]:
    """The rows of each micro-batch, in the order in which they were given."""
    return [np.sort(rows) for rows in np.split(order, starts[1:])]


def _largest(parts: Indices, cut: Sequence[Indices]) -> int:
    return max(padded_tokens(parts, [rows]) for rows in cut)
