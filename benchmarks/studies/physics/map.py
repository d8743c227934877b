"""The break-even map: where a U55C takes fewer joules a token than an H100, and by how much.

Axes: model, rows, tokens a row, the GPU's precision, its MFU, and who pays for idle power
(`benchmarks.studies.physics.passes`). For each cell joules a token of the GPU and of the card at
three levels (`benchmarks.studies.physics.passes`): our cycle model, the ideal HLS design, and the
bound of the silicon. A ratio is tokens per joule of the card over those of the GPU: above 1 the
card wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.studies.physics.passes import (
    ACCOUNTINGS,
    PRECISIONS,
    SHAPES,
    ChargingRule,
    Pass,
    Precision,
    bound_pass,
    card_pass,
    gpu_pass,
    ideal_pass,
    scoring,
)
from ecorl.devices import DeviceProfile

Side = Literal["ours", "ideal", "bound"]
"""Level of the card: our cycle model, the ideal HLS design, the bound of the silicon."""

SIDES: tuple[Side, ...] = ("ours", "ideal", "bound")
Joules = npt.NDArray[np.float64]


class Axes(NamedTuple):
    """The axes of the map.

    Attributes:
        sizes: names of `SHAPES`.
        rows: rows of a batch.
        tokens: tokens of a row.
        mfus: shares of the GPU's peak.
    """

    sizes: tuple[str, ...] = tuple(SHAPES)
    rows: tuple[int, ...] = (1, 4, 16, 64, 256)
    tokens: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    mfus: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


QUICK = Axes(("20m", "360m", "7b"), (1, 64), (32, 512, 4096), (0.1, 0.4, 0.5, 0.6))


class Cell(NamedTuple):
    """One cell: where it lies, and the ratio there."""

    size: str
    rows: int
    tokens: int
    precision: str
    mfu: float
    accounting: str
    ratio: float

    def words(self) -> str:
        """Model, batch and GPU in words."""
        return (
            f"{params_words(self.size)}, {self.rows:,} x {self.tokens:,} tokens, {self.precision} "
            f"at {100 * self.mfu:.0f} % MFU, {self.accounting}"
        )


@dataclass(frozen=True, slots=True)
class BreakEvenMap:
    """The map; arrays are ``[size, rows, tokens, precision, mfu, accounting]``, J a token.

    Attributes:
        axes: what it spans.
        gpu_j: of the GPU path.
        card_j: of the card path, by side; NaN where a model does not fit the card.
        gpu_rules: the longest term of the GPU's pass, ``[size, rows, tokens, precision, mfu]``.
        card_rules: of the card's, by side, ``[size, rows, tokens]``.
        card_parts: parts of a batch on our card, ``[size, rows, tokens]``; 0 where none fits.
    """

    axes: Axes
    gpu_j: Joules
    card_j: dict[Side, Joules]
    gpu_rules: npt.NDArray[np.str_]
    card_rules: dict[Side, npt.NDArray[np.str_]]
    card_parts: npt.NDArray[np.int64]

    def ratio(self, side: Side) -> Joules:
        """Tokens per joule of the card over those of the GPU."""
        return self.gpu_j / self.card_j[side]

    def chosen(
        self,
        side: Side,
        accountings: Sequence[ChargingRule] = ACCOUNTINGS,
        precisions: Sequence[Precision] = PRECISIONS,
        mfus: Sequence[float] | None = None,
    ) -> Joules:
        """Select the ratios of some accountings, precisions and MFUs; all other axes whole.

        Args:
            side: level of the card.
            accountings: who pays for idle power.
            precisions: of the GPU.
            mfus: shares of the GPU's peak; all of the map when None.
        """
        found = np.take(self.ratio(side), [PRECISIONS.index(p) for p in precisions], axis=3)
        kept = self.axes.mfus if mfus is None else mfus
        found = np.take(found, [self.axes.mfus.index(m) for m in kept], axis=4)
        return np.take(found, [ACCOUNTINGS.index(a) for a in accountings], axis=5)

    def won_share(self, side: Side, accountings: Sequence[ChargingRule]) -> float:
        """Share of the cells where the model fits the card in which the card wins, 0 to 1.

        Args:
            side: level of the card.
            accountings: who pays for idle power.
        """
        ratios = self.chosen(side, accountings)
        return float(np.count_nonzero(ratios > 1.0)) / np.count_nonzero(~np.isnan(ratios))

    def best_of(
        self,
        side: Side,
        accountings: Sequence[ChargingRule] = ACCOUNTINGS,
        precisions: Sequence[Precision] = PRECISIONS,
        mfus: Sequence[float] | None = None,
    ) -> Cell:
        """Find the best cell of several accountings, precisions and MFUs.

        Args:
            side: level of the card.
            accountings: who pays for idle power.
            precisions: of the GPU.
            mfus: shares of the GPU's peak; all of the map when None.
        """
        a, cells = self.axes, []
        for charge, precision, mfu in product(accountings, precisions, mfus or a.mfus):
            found = self.chosen(side, (charge,), (precision,), (mfu,))[..., 0, 0, 0]
            i, j, k = np.unravel_index(int(np.nanargmax(found)), found.shape)
            at = a.sizes[i], a.rows[j], a.tokens[k]
            cells.append(Cell(*at, precision.name, mfu, charge.title, float(found[i, j, k])))
        return max(cells, key=lambda cell: cell.ratio)

    def largest_winner(
        self,
        side: Side,
        accountings: Sequence[ChargingRule] = ACCOUNTINGS,
        precisions: Sequence[Precision] = PRECISIONS,
        mfus: Sequence[float] | None = None,
    ) -> str | None:
        """Find the largest model for which the card wins in some cell; None where it never does.

        Args:
            side: level of the card.
            accountings: who pays for idle power.
            precisions: of the GPU.
            mfus: shares of the GPU's peak; all of the map when None.
        """
        won = self.chosen(side, accountings, precisions, mfus) > 1.0
        winners = [size for i, size in enumerate(self.axes.sizes) if bool(won[i].any())]
        return max(winners, key=lambda size: SHAPES[size].n_params_active, default=None)


def params_m(size: str) -> float:
    """Millions of parameters that a token of a reward model multiplies with."""
    return SHAPES[size].n_params_active / 1e6


def params_words(size: str) -> str:
    """Write the active parameters of a model in words."""
    millions = params_m(size)
    return f"{millions:.0f} M" if millions < 1e3 else f"{millions / 1e3:.1f} B"


CardPasses = dict[tuple[int, ...], dict[Side, Pass | None]]
"""The card's passes by side, for each ``(size, rows, tokens)``; None where a model does not fit."""


def card_passes(card: DeviceProfile, axes: Axes) -> CardPasses:
    """Compute the card's passes, which depend on nothing of the GPU.

    Args:
        card: profile of the U55C.
        axes: what the map spans.
    """
    made: CardPasses = {}
    for i, j, k in np.ndindex(_cells(axes)):
        work = scoring(SHAPES[axes.sizes[i]], axes.rows[j], axes.tokens[k])
        made[i, j, k] = {
            "ours": card_pass(work, card),
            "ideal": ideal_pass(work, card),
            "bound": bound_pass(work, card),
        }
    return made


def charge_passes(
    cards: CardPasses, gpu: DeviceProfile, axes: Axes, memory_w: float | None = None
) -> BreakEvenMap:
    """Compute the map from the card's passes.

    Args:
        cards: of `card_passes`.
        gpu: profile of the H100.
        axes: what they span.
        memory_w: the GPU's power where memory rules, W; that of its profile when None.
    """
    cells = _cells(axes)
    gpus = (*cells, len(PRECISIONS), len(axes.mfus))
    made = BreakEvenMap(
        axes,
        np.full((*gpus, len(ACCOUNTINGS)), np.nan),
        {side: np.full((*gpus, len(ACCOUNTINGS)), np.nan) for side in SIDES},
        np.full(gpus, "", "U7"),
        {side: np.full(cells, "", "U16") for side in SIDES},
        np.zeros(cells, np.int64),
    )
    for cell, sides in cards.items():
        i, j, k = cell
        work = scoring(SHAPES[axes.sizes[i]], axes.rows[j], axes.tokens[k])
        own = sides["ours"]
        made.card_parts[cell] = 0 if own is None else own.n_parts
        for side, one in sides.items():
            made.card_rules[side][cell] = "" if one is None else one.rules
        for p, m in np.ndindex(gpus[3:]):
            other = gpu_pass(work, gpu, PRECISIONS[p], axes.mfus[m], memory_w)
            made.gpu_rules[(*cell, p, m)] = other.rules
            _charge(made, (*cell, p, m), other, sides, work.n_tokens)
    return made


def _cells(axes: Axes) -> tuple[int, int, int]:
    return len(axes.sizes), len(axes.rows), len(axes.tokens)


def _charge(
    made: BreakEvenMap, at: tuple[int, ...], gpu: Pass, cards: dict[Side, Pass | None], tokens: int
) -> None:
    for a, accounting in enumerate(ACCOUNTINGS):
        for side, card in cards.items():
            if card is not None:
                gpu_j, card_j = accounting.energies(gpu, card)
                made.gpu_j[(*at, a)] = gpu_j / tokens
                made.card_j[side][(*at, a)] = card_j / tokens
