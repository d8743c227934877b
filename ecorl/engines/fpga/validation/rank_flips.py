"""Rank flips and score shifts of a reward model in FP16, INT8 and with INT4 weights.

The paper's Table 3 for any model: the share of held-out preference pairs that a precision orders
other than float32 does (and that share in the tenth of the pairs with the smallest margin, where a
flip is most likely), and the mean and 99th percentile of the absolute score shift. A text without a
finite score in a precision is named, and its pairs are left out of that precision's shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.engines.protocol import Float32
from ecorl.statistics import wilson_interval

SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True)
class FlipShare:
    """Share of pairs that a precision orders differently.

    Attributes:
        n_pairs: pairs with both scores in both precisions.
        n_flips: those in another order; a tie in one precision only counts as a flip.
        share: of flips, or None without pairs.
        interval: Wilson's 95 % interval of the share, or None without pairs.
    """

    n_pairs: int
    n_flips: int
    share: float | None
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.share is None or self.interval is None:
            return "-"
        low, high = (100 * end for end in self.interval)
        return f"{100 * self.share:.3g} % ({low:.2g} to {high:.2g} %)"


@dataclass(frozen=True, slots=True)
class PrecisionFigures:
    """One precision against float32.

    Attributes:
        name: of the precision.
        flips: over all pairs.
        low_margin: over the tenth of the pairs whose float32 scores are nearest to each other.
        shift_mean: mean absolute score shift over all texts, in units of the score; None without.
        shift_p99: its 99th percentile; None without.
        unanswered: texts without a finite score, as (pair, side); side 0 is the chosen one.
    """

    name: str
    flips: FlipShare
    low_margin: FlipShare
    shift_mean: float | None
    shift_p99: float | None
    unanswered: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PrecisionStudy:
    """All precisions on the same pairs.

    Attributes:
        n_pairs: held-out pairs.
        n_low_margin: size of the lowest-margin tenth.
        score_std: standard deviation of the exact scores, to compare the shifts with.
        precisions: one entry a precision.
    """

    n_pairs: int
    n_low_margin: int
    score_std: float
    precisions: tuple[PrecisionFigures, ...]

    def of(self, name: str) -> PrecisionFigures:
        """The figures of one precision.

        Raises:
            KeyError: when it was not studied.
        """
        for found in self.precisions:
            if found.name == name:
                return found
        raise KeyError(name)

    def lines(self) -> list[str]:
        """The study as a table in plain text."""
        heads = (
            "",
            "flips (95 % interval)",
            "lowest-margin tenth",
            "mean shift",
            "99th percentile",
        )
        cells = [heads, *(_cells(p) for p in self.precisions)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return [
            *table,
            f"{self.n_pairs:,} pairs, {self.n_low_margin:,} of them in the lowest-margin tenth; "
            f"shifts beside scores with a standard deviation of {self.score_std:.3g}",
        ]


def low_margin_tenth(exact: Float32) -> np.ndarray:
    """Indices of the tenth of the pairs with the smallest exact margin, at least one.

    Args:
        exact: ``[n, 2] float32``, chosen and rejected.
    """
    margins = np.abs(exact[:, 0] - exact[:, 1])
    return np.argsort(margins, kind="stable")[: math.ceil(len(exact) / 10)]


def study_of(exact: Float32, scores: Mapping[str, Float32]) -> PrecisionStudy:
    """Compare precisions with the exact scores.

    Args:
        exact: float32 scores ``[n, 2]``, chosen and rejected, all finite, at least one pair.
        scores: those of each precision by its name; NaN or infinity for a text without a score.

    Raises:
        ValueError: for exact scores that are not finite, or shapes that differ.
    """
    if not len(exact) or not np.isfinite(exact).all():
        raise ValueError("exact scores must be there and finite")
    low = low_margin_tenth(exact)
    return PrecisionStudy(
        n_pairs=len(exact),
        n_low_margin=len(low),
        score_std=float(np.std(exact.astype(np.float64))),
        precisions=tuple(_figures(name, exact, values, low) for name, values in scores.items()),
    )


def _figures(name: str, exact: Float32, scores: Float32, low: np.ndarray) -> PrecisionFigures:
    if scores.shape != exact.shape:
        raise ValueError(f"{name}: scores {scores.shape}, exact {exact.shape}")
    answered = np.isfinite(scores)
    shifts = np.abs(scores.astype(np.float64) - exact)[answered]
    return PrecisionFigures(
        name=name,
        flips=_flips(exact, scores),
        low_margin=_flips(exact[low], scores[low]),
        shift_mean=float(shifts.mean()) if shifts.size else None,
        shift_p99=float(np.percentile(shifts, 99)) if shifts.size else None,
        unanswered=tuple((int(pair), int(side)) for pair, side in np.argwhere(~answered)),
    )


def _flips(exact: Float32, scores: Float32) -> FlipShare:
    both = np.isfinite(scores).all(axis=1)
    n = int(both.sum())
    if not n:
        return FlipShare(0, 0, None, None)
    ours, theirs = scores[both], exact[both]
    differ = np.sign(ours[:, 0] - ours[:, 1]) != np.sign(theirs[:, 0] - theirs[:, 1])
    n_flips = int(differ.sum())
    return FlipShare(n, n_flips, n_flips / n, wilson_interval(n_flips, n))


def _cells(found: PrecisionFigures) -> Sequence[str]:
    shifts = [found.shift_mean, found.shift_p99]
    return (
        found.name,
        str(found.flips),
        str(found.low_margin),
        *("-" if value is None else f"{value:.3g}" for value in shifts),
    )
