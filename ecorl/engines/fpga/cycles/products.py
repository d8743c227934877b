"""Loops that bring products into a vector kernel: ``hls_kernels/include/ecorl_products.hpp``."""

from __future__ import annotations

LANES = 16
BLOCK_ROWS = 16
SUM_WORDS = 256
"""Words of a part that are read before those of the next."""

PLACE_STEPS = 4
"""Steps from a write to a read of the same place of the buffer, at least."""


def words_of(n: int) -> int:
    """Words of 16 values."""
    return -(-n // LANES)


def product_runs(m: int, words: int, parts: int) -> int:
    """Count the bursts in which products are read.

    Args:
        m: rows.
        words: of a row.
        parts: sums that are added.
    """
    return 1 if parts == 1 else parts * -(-m * words // SUM_WORDS)


def arranged_steps(m: int, panel: int, panels: int = 1, unit: int = 1) -> int:
    """Steps of the buffer in which blocks of products become rows.

    A block of 16 rows comes in where the one before leaves; the last block, if it has fewer rows,
    comes in and then leaves, with a pause in between where it is very small.

    Args:
        m: rows.
        panel: words of a row that leave together.
        panels: of a row.
        unit: words of a row that stand together as they come in.
    """
    whole, rest = divmod(m, BLOCK_ROWS)
    tiles = whole * panels
    together = (tiles + 1) * BLOCK_ROWS if tiles else 0
    pauses = panels * arranged_pause(rest, panel, unit)
    return (together + 2 * panels * rest) * panel + pauses


def arranged_pause(rest: int, panel: int, unit: int = 1) -> int:
    """Steps between the way in and the way out of the last block's words.

    Args:
        rest: rows of the last block; 0 where it is whole.
        panel: words of a row that leave together.
        unit: words of a row that stand together as they come in.
    """
    if rest == 0 or panel == 0:
        return 0
    soonest = (rest + panel // unit - 1) * unit
    return max(PLACE_STEPS - soonest, 0)


def arranged_runs(m: int, panels: int = 1) -> int:
    """Count how often that buffer's loop begins: for whole blocks once, for each panel of the rest.

    Args:
        m: rows.
        panels: of a row.
    """
    whole, rest = divmod(m, BLOCK_ROWS)
    return bool(whole) + bool(rest) * panels
