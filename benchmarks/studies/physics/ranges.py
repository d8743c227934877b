"""The interval of each figure of the break-even map that rests on what is assumed of the GPU.

A figure is computed once by the GPU's profile, and again at each of `corners`: profiles with their
figures at the ends of their intervals. The lowest and the highest of all are the figure's interval.
What the profile gives without an interval stays as it is, and so does the card.

The MFU is an axis of the map and no part of this, but where a figure takes one MFU as that of
scoring, it is computed at those of the map within the interval of ``mfu_prefill`` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.studies.physics.map import (
    Axes,
    BreakEvenMap,
    CardPasses,
    Joules,
    Side,
    card_passes,
    charge_passes,
)
from benchmarks.studies.physics.passes import IDLE_HIGH_W, ChargingRule, Precision, with_idle_w
from ecorl.devices import DeviceProfile, cheapest, dearest

POWERS = ("idle_w", "mbu_decode", "busy_w", "j_per_byte")
"""Figures with an interval by which a scoring pass is priced, its MFU aside."""

SCORING_MFU = "mfu_prefill"


class Ends(NamedTuple):
    """The interval of a figure; None where the figure is missing at that end."""

    low: float | None
    high: float | None

    def spread(self, *keys: str) -> dict[str, object]:
        """The interval as the spread of a benchmark's figure.

        Args:
            keys: the figures of the profile that were moved to their ends.
        """
        return {"low": self.low, "high": self.high, "of": list(keys)}


def ends_of(values: Iterable[float | None]) -> Ends:
    """Find the lowest and the highest value; None is lower than all.

    Args:
        values: of one figure, at least one.
    """
    found = sorted(values, key=lambda value: float("-inf") if value is None else value)
    return Ends(found[0], found[-1])


def corners(gpu: DeviceProfile) -> tuple[DeviceProfile, ...]:
    """Make the profiles at the ends of the intervals.

    All figures are at their cheap or all at their dear end but the idle power, which takes both
    ends with either: a pass on a GPU that is there anyway costs less the more it idles at, one on
    a dedicated GPU more.

    Args:
        gpu: profile of the GPU; without intervals there is no corner.
    """
    ends = cheapest(gpu), dearest(gpu)
    made: list[DeviceProfile] = []
    for end in ends:
        for idle in ends:
            corner = with_idle_w(end, idle.value("idle_w"))
            if corner not in made:
                made.append(corner)
    return tuple(made) if ends[0] != ends[1] else ()


def scoring_mfus(gpu: DeviceProfile) -> Ends:
    """The interval of the MFU that scoring reaches; its value twice where it has none.

    Args:
        gpu: profile of the GPU.
    """
    figure = gpu.figure(SCORING_MFU)
    return Ends(
        figure.value if figure.low is None else figure.low,
        figure.value if figure.high is None else figure.high,
    )


@dataclass(frozen=True, slots=True)
class RangedMap:
    """The map by a GPU's profile, and at the ends of what is assumed of that GPU.

    Attributes:
        found: by the profile as it is.
        corners: at the ends of its figures, as `corners` has them.
        scoring_mfus: MFUs of the map that scoring is taken to reach.
    """

    found: BreakEvenMap
    corners: tuple[BreakEvenMap, ...]
    scoring_mfus: tuple[float, ...]

    @property
    def all(self) -> tuple[BreakEvenMap, ...]:
        """The map by the profile, and those at the ends."""
        return self.found, *self.corners

    def ends(self, figure: Callable[[BreakEvenMap], float]) -> Ends:
        """The interval of a figure of the map.

        Args:
            figure: computes it from a map.
        """
        return ends_of(figure(one) for one in self.all)

    def ratio_ends(self, side: Side) -> tuple[Joules, Joules]:
        """The least and the greatest ratio of each cell, at its MFU.

        Args:
            side: level of the card.
        """
        ratios = np.array([one.ratio(side) for one in self.all])
        return ratios.min(axis=0), ratios.max(axis=0)

    def one_row(
        self, side: Side, accounting: ChargingRule, precision: Precision, mfu: float
    ) -> tuple[Joules, Joules, Joules]:
        """Ratios of one row at a time and their intervals, each ``[size, tokens]``.

        An MFU that scoring is taken to reach stands for all of those.

        Args:
            side: level of the card.
            accounting: who pays for idle power.
            precision: of the GPU.
            mfu: share of the GPU's peak.
        """

        def select(one: BreakEvenMap, mfus: Sequence[float]) -> Joules:
            return one.chosen(side, (accounting,), (precision,), mfus)[:, 0, :, 0, :, 0]

        mfus = self.scoring_mfus if mfu in self.scoring_mfus else (mfu,)
        every = np.concatenate([select(one, mfus) for one in self.all], axis=2)
        return select(self.found, (mfu,))[..., 0], every.min(axis=2), every.max(axis=2)


class Maps(NamedTuple):
    """The map, and twice more under another assumption about the H100.

    Attributes:
        ranged: by the H100's profile as it is.
        idle: the H100 idles at `passes.IDLE_HIGH_W`.
        full_power: the H100 draws its ``active_w`` where memory rules too. What it draws there by
            its profile is fitted to decoding in large models; scoring of small ones may lie between
            both maps.
    """

    ranged: RangedMap
    idle: RangedMap
    full_power: RangedMap


def ranged_maps(card: DeviceProfile, gpu: DeviceProfile, axes: Axes) -> Maps:
    """Compute all maps.

    Args:
        card: profile of the U55C.
        gpu: profile of the H100.
        axes: what they span.
    """
    cards = card_passes(card, axes)
    return Maps(
        ranged_map(cards, gpu, axes),
        ranged_map(cards, with_idle_w(gpu, IDLE_HIGH_W), axes),
        ranged_map(cards, gpu, axes, gpu.value("active_w")),
    )


def ranged_map(
    cards: CardPasses, gpu: DeviceProfile, axes: Axes, memory_w: float | None = None
) -> RangedMap:
    """Compute a map with its intervals.

    Args:
        cards: of `benchmarks.studies.physics.map.card_passes`.
        gpu: profile of the H100.
        axes: what they span.
        memory_w: the GPU's power where memory rules, W; that of its profile when None.
    """
    least, most = scoring_mfus(gpu)
    assert least is not None
    assert most is not None
    return RangedMap(
        charge_passes(cards, gpu, axes, memory_w),
        tuple(charge_passes(cards, corner, axes, memory_w) for corner in corners(gpu)),
        tuple(mfu for mfu in axes.mfus if least <= mfu <= most),
    )
