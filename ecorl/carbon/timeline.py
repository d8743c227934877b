"""The grid's intensity over the time of a run, from what the run's record tells of it.

For each instant that value counts whose interval holds the instant, the one that was asked for last
where there are several: a provider corrects what it said. Where no interval holds it, what counted
then counts: a feed may be late, within what the run allows. Where nothing was known, nothing is.

Intensity and power usage effectiveness (PUE) are step functions of time, so that

    grams = sum over all steps of energy drawn in the step x intensity x PUE

is exact for energy that is drawn evenly over given times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import FloatArray
from ecorl.config import AccountingConfig
from ecorl.grid import AverageIntensity, Intensity, MarginalIntensity
from ecorl.ledger import AttemptRow, IntensityRow, LedgerReader, PueRow
from ecorl.units import JOULES_PER_KWH

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Emitted:
    """What some energy emitted. All but ``carbon_g`` is energy, and all of it adds up.

    Attributes:
        carbon_g: emissions of ``known_j``, in the unit of the intensities' gas; None where nothing
            is known.
        known_j: energy of the machines for whose time intensity and PUE are known, J.
        unknown_j: energy drawn while one of the two was unknown, J: its emissions are missing.
        facility_j: ``known_j`` times the PUE of its time: what the building drew for it, J.
        mixed_j: energy for whose time the shares of the grid's fuels are known, J.
        renewable_j: the part of that by the share of the renewable fuels, J.
    """

    carbon_g: float | None
    known_j: float
    unknown_j: float
    facility_j: float = 0.0
    mixed_j: float = 0.0
    renewable_j: float = 0.0


class PueTimeline:
    """What is known of the power usage effectiveness, as a step function of time.

    Args:
        rows: of the record; those of an attempt count from its begin to the next one's.
        attempts: of the record.
        otherwise: what counts in attempts that recorded no row; None: nothing is known there.
    """

    def __init__(
        self, rows: Sequence[PueRow], attempts: Sequence[AttemptRow], otherwise: float | None
    ) -> None:
        steps: list[tuple[float, float | None]] = [(-math.inf, otherwise)]
        for number, attempt in enumerate(sorted(attempts, key=lambda a: a.unix_anchor_s)):
            own = sorted((r for r in rows if r.attempt == attempt.attempt), key=lambda r: r.start_s)
            begin_s = attempt.unix_anchor_s if number else -math.inf
            before = [r.pue for r in own if r.start_s <= begin_s]
            first = before[-1] if before else None if own else otherwise
            steps = [step for step in steps if step[0] < begin_s]
            steps.append((begin_s, first))
            steps += [(r.start_s, r.pue) for r in own if r.start_s > begin_s]
        self.cuts_s: FloatArray = np.array([t for t, _ in steps[1:]], np.float64)
        """``[n] float64``, where the value may change, s since 1970, in order."""
        self.values: FloatArray = np.array(
            [math.nan if v is None else v for _, v in steps], np.float64
        )
        """``[n + 1] float64``, before, between and behind the cuts; NaN: unknown."""

    def at(self, times_s: FloatArray) -> FloatArray:
        """The PUE at some times, NaN where it is unknown.

        Args:
            times_s: ``[n] float64``, s since 1970.
        """
        return np.asarray(self.values[np.searchsorted(self.cuts_s, times_s, "right")])


class IntensityTimeline:
    """What is known of the intensity, as a step function of time.

    Args:
        rows: of the record, of one kind, in the order in which they were written.
        attempts: of the record.
        ends_s: end of the newest record of each attempt, s since 1970: what counted last counts
            until then.
        pue: the power usage effectiveness over the same time.
    """

    def __init__(
        self,
        rows: Sequence[IntensityRow],
        attempts: Sequence[AttemptRow],
        ends_s: Mapping[int, float],
        pue: PueTimeline,
    ) -> None:
        known = [row for row in rows if row.value is not None]
        self.values: tuple[Intensity, ...] = tuple(
            row.value for row in rows if row.value is not None
        )
        numbers = {id(row): number for number, row in enumerate(known)}
        held = _held(rows, {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s for a in attempts},
                     ends_s)  # fmt: skip
        cuts = [t for start_s, end_s, _ in held for t in (start_s, end_s)]
        cuts += [t for value in self.values for t in (value.start_s, value.end_s)]
        self._cuts_s: FloatArray = np.union1d(np.array(cuts, np.float64), pue.cuts_s)
        self._painted = np.full(len(self._cuts_s) + 1, _NOTHING, np.int64)
        for start_s, end_s, row in held:
            self._painted[self._slice(start_s, end_s)] = numbers.get(id(row), _NOTHING)
        for number, value in sorted(enumerate(self.values), key=lambda pair: pair[1].fetched_s):
            self._painted[self._slice(value.start_s, value.end_s)] = number
        per_kwh = np.array([v.g_per_kwh for v in self.values] + [math.nan], np.float64)
        shares = [v.renewable_share for v in self.values]
        renewable = np.array([math.nan if s is None else s for s in shares] + [math.nan])
        self._g_per_kwh: FloatArray = per_kwh[self._painted]
        self._renewable: FloatArray = renewable[self._painted]
        begins_s = np.concatenate([[-math.inf], self._cuts_s])
        self._pue: FloatArray = pue.at(begins_s)

    def _slice(self, start_s: float, end_s: float) -> slice:
        first, last = np.searchsorted(self._cuts_s, (start_s, end_s))
        return slice(int(first) + 1, int(last) + 1)

    def at(self, t_s: float) -> Intensity | None:
        """The value that counts at a time, or None where nothing is known.

        Args:
            t_s: time, s since 1970.
        """
        number = self._painted[int(np.searchsorted(self._cuts_s, t_s, side="right"))]
        return None if number == _NOTHING else self.values[int(number)]

    def steps(self, start_s: float, end_s: float) -> list[tuple[float, Intensity | None]]:
        """Each value that counts within a time, and from when on.

        Args:
            start_s: begin of the time, s since 1970.
            end_s: end of it.
        """
        inside = self._cuts_s[(self._cuts_s > start_s) & (self._cuts_s < end_s)]
        found: list[tuple[float, Intensity | None]] = []
        for t_s in (start_s, *inside.tolist()):
            value = self.at(t_s)
            if not found or found[-1][1] is not value:
                found.append((t_s, value))
        return found

    def emitted(self, start_s: FloatArray, end_s: FloatArray, energy_j: FloatArray) -> Emitted:
        """What energies emitted with the PUE of their time, each drawn evenly over its time.

        Args:
            start_s: ``[n] float64``, begin of each, s since 1970.
            end_s: ``[n] float64``, end of each; where it is the begin, all is drawn at once.
            energy_j: ``[n] float64``, of the machines, J; none is NaN.
        """
        steps, parts_j = self._pieces(start_s, end_s, energy_j)
        n = len(self._painted)
        drawn_j = np.bincount(steps, parts_j, n)
        is_known = ~np.isnan(self._g_per_kwh) & ~np.isnan(self._pue)
        is_mixed = ~np.isnan(self._renewable)
        facility_j = np.where(is_known, drawn_j * self._pue, 0.0)
        touched = np.bincount(steps, minlength=n) > 0
        grams = float(np.sum(facility_j[is_known] * self._g_per_kwh[is_known])) / JOULES_PER_KWH
        return Emitted(
            carbon_g=grams if bool((touched & is_known).any()) else None,
            known_j=float(np.sum(drawn_j[is_known])),
            unknown_j=float(np.sum(drawn_j[~is_known])),
            facility_j=float(np.sum(facility_j)),
            mixed_j=float(np.sum(drawn_j[is_mixed])),
            renewable_j=float(np.sum(drawn_j[is_mixed] * self._renewable[is_mixed])),
        )

    def times_s(self, start_s: FloatArray, end_s: FloatArray) -> FloatArray:
        """For how long each value counted within some times.

        Args:
            start_s: ``[n] float64``, begin of each, s since 1970.
            end_s: ``[n] float64``, end of each.

        Returns:
            ``[len(values) + 1] float64``, s by value; the last one is the time in which nothing was
            known.
        """
        steps, parts_s = self._pieces(start_s, end_s, end_s - start_s)
        numbers = self._painted[steps] % (len(self.values) + 1)
        return np.bincount(numbers, parts_s, len(self.values) + 1).astype(np.float64)

    def pue_times_s(self, start_s: FloatArray, end_s: FloatArray) -> dict[float | None, float]:
        """For how long each PUE counted within some times, s; None: while none was known.

        Args:
            start_s: ``[n] float64``, begin of each, s since 1970.
            end_s: ``[n] float64``, end of each.
        """
        steps, parts_s = self._pieces(start_s, end_s, end_s - start_s)
        found: dict[float | None, float] = {}
        for step, time_s in enumerate(np.bincount(steps, parts_s, len(self._painted)).tolist()):
            pue = float(self._pue[step])
            key = None if math.isnan(pue) else pue
            if time_s > 0:
                found[key] = found.get(key, 0.0) + time_s
        return found

    def _pieces(
        self, start_s: FloatArray, end_s: FloatArray, amounts: FloatArray
    ) -> tuple[NDArray[np.int64], FloatArray]:
        """Cut times at the steps, and share out the amount of each evenly.

        Returns:
            ``[m] int64``, numbers of the steps, and ``[m] float64``, the amount in each; m >= n.
        """
        first = np.searchsorted(self._cuts_s, start_s, "right").astype(np.int64)
        last = np.maximum(np.searchsorted(self._cuts_s, end_s, "left"), first).astype(np.int64)
        n_pieces = last - first + 1
        if not len(first) or int(n_pieces.max()) == 1:
            return first, amounts
        of = np.repeat(np.arange(len(first)), n_pieces)
        steps = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
        low_s = np.where(steps == first[of], start_s[of], self._cuts_s[steps - 1])
        high_s = np.where(
            steps == last[of], end_s[of], self._cuts_s[np.minimum(steps, len(self._cuts_s) - 1)]
        )
        # What lies within one step keeps its amount to the last digit, however short it is.
        is_whole = n_pieces[of] == 1
        length_s = np.where(is_whole, 1.0, (end_s - start_s)[of])
        share = np.where(is_whole, 1.0, (high_s - low_s) / length_s)
        return steps, amounts[of] * share


def _held(
    rows: Sequence[IntensityRow], to_unix_s: Mapping[int, float], ends_s: Mapping[int, float]
) -> list[tuple[float, float, IntensityRow]]:
    """From when to when each row counted, s since 1970: until the next of its attempt."""
    found = []
    for number, row in enumerate(rows):
        following = rows[number + 1] if number + 1 < len(rows) else None
        start_s = row.t_s + to_unix_s[row.attempt]
        if following is not None and following.attempt == row.attempt:
            end_s = following.t_s + to_unix_s[row.attempt]
        else:
            end_s = ends_s.get(row.attempt, start_s)
        if end_s > start_s:
            found.append((start_s, end_s, row))
    return found


# ---------------------------------------------------------------- of a run


@dataclass(frozen=True, slots=True)
class Timelines:
    """The two kinds of intensity over the time of a run; no figure is made of both.

    Attributes:
        average: always there, though it may know nothing.
        marginal: None where the record has no value of that kind.
    """

    average: IntensityTimeline
    marginal: IntensityTimeline | None = None


def unknown_timelines() -> Timelines:
    """Timelines of a run of whose grid nothing is known."""
    return Timelines(IntensityTimeline((), (), {}, PueTimeline((), (), None)))


def timelines(reader: LedgerReader, accounting: AccountingConfig | None) -> Timelines:
    """What a run's record tells of the intensities over its time.

    Args:
        reader: the run's record.
        accounting: its PUE counts in attempts that recorded none; None without a config.
    """
    attempts, ends_s = reader.attempts(), reader.last_times()
    rows = [row for row in reader.intensities() if row.attempt in {a.attempt for a in attempts}]
    unix_ends_s = {
        a.attempt: ends_s.get(a.attempt, a.monotonic_anchor_s)
        + (a.unix_anchor_s - a.monotonic_anchor_s)
        for a in attempts
    }
    pue = PueTimeline(reader.pues(), attempts, None if accounting is None else accounting.pue)
    average = [row for row in rows if row.kind is AverageIntensity]
    marginal = [row for row in rows if row.kind is MarginalIntensity]
    return Timelines(
        IntensityTimeline(average, attempts, unix_ends_s, pue),
        IntensityTimeline(marginal, attempts, unix_ends_s, pue) if marginal else None,
    )
