"""The grid's intensity over the time of a run, from what the run's record tells of it.

For each instant that value counts whose interval holds the instant, the one that was asked for last
where there are several: a provider corrects what it said. Where no interval holds it, what counted
then counts: a feed may be late, within what the run allows. Where nothing was known, nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecorl.grid import Intensity
from ecorl.ledger import AttemptRow, IntensityRow
from ecorl.units import JOULES_PER_KWH

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Emitted:
    """What some energy emitted.

    Attributes:
        carbon_g: emissions of the energy for which the intensity is known, in the unit of its gas;
            None where it is known for none of it.
        known_j: that energy, J.
        unknown_j: energy drawn while the intensity was unknown, J: its emissions are missing.
    """

    carbon_g: float | None
    known_j: float
    unknown_j: float


class IntensityTimeline:
    """What is known of the intensity, as a step function of time.

    Args:
        rows: of the record, of one kind, in the order in which they were written.
        attempts: of the record.
        ends_s: end of the newest record of each attempt, s since 1970: what counted last counts
            until then.
    """

    def __init__(
        self,
        rows: Sequence[IntensityRow],
        attempts: Sequence[AttemptRow],
        ends_s: Mapping[int, float],
    ) -> None:
        self.values: tuple[Intensity, ...] = tuple(r.value for r in rows if r.value is not None)
        known = [row for row in rows if row.value is not None]
        numbers = {id(row): number for number, row in enumerate(known)}
        held = _held(rows, {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s for a in attempts},
                     ends_s)  # fmt: skip
        cuts = [t for start_s, end_s, _ in held for t in (start_s, end_s)]
        cuts += [t for value in self.values for t in (value.start_s, value.end_s)]
        self._cuts_s: NDArray[np.float64] = np.unique(np.array(cuts or [0.0], np.float64))
        painted = np.full(len(self._cuts_s), _NOTHING, np.int64)
        for start_s, end_s, row in held:
            painted[self._slice(start_s, end_s)] = numbers.get(id(row), _NOTHING)
        order = sorted(range(len(known)), key=lambda i: self.values[i].fetched_s)
        for number in order:
            value = self.values[number]
            painted[self._slice(value.start_s, value.end_s)] = number
        # Nothing is known after the last cut.
        painted[-1] = _NOTHING
        self._painted = painted
        per_kwh = np.array([v.g_per_kwh for v in self.values] + [0.0], np.float64)
        steps_s = np.diff(self._cuts_s)
        is_known = (painted[:-1] != _NOTHING).astype(np.float64)
        self._known_s = np.concatenate([[0.0], np.cumsum(is_known * steps_s)])
        self._sum = np.concatenate([[0.0], np.cumsum(per_kwh[painted[:-1]] * is_known * steps_s)])

    def _slice(self, start_s: float, end_s: float) -> slice:
        first, last = np.searchsorted(self._cuts_s, (start_s, end_s))
        return slice(int(first), int(last))

    def at(self, t_s: float) -> Intensity | None:
        """The value that counts at a time, or None where nothing is known.

        Args:
            t_s: time, s since 1970.
        """
        number = int(np.searchsorted(self._cuts_s, t_s, side="right")) - 1
        if number < 0 or self._painted[number] == _NOTHING:
            return None
        return self.values[int(self._painted[number])]

    def emitted(
        self,
        start_s: NDArray[np.float64],
        end_s: NDArray[np.float64],
        energy_j: NDArray[np.float64],
    ) -> Emitted:
        """What energies emitted, each drawn evenly over its time.

        Args:
            start_s: ``[n] float64``, begin of each, s since 1970.
            end_s: ``[n] float64``, end of each, later than its begin.
            energy_j: ``[n] float64``, J; none is NaN.
        """
        span_s = end_s - start_s
        known_s = self._between(self._known_s, start_s, end_s)
        mean = self._between(self._sum, start_s, end_s) / span_s
        # A sum of many steps rounds: a time that is known as a whole stays one.
        share = np.clip(known_s / span_s, 0.0, 1.0)
        share[np.abs(known_s - span_s) <= 1e-6 * span_s] = 1.0
        known_j = float(np.sum(energy_j * share))
        return Emitted(
            carbon_g=float(np.sum(energy_j * mean)) / JOULES_PER_KWH if share.any() else None,
            known_j=known_j,
            unknown_j=float(np.sum(energy_j * (1.0 - share))),
        )

    def _between(
        self,
        sums: NDArray[np.float64],
        start_s: NDArray[np.float64],
        end_s: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Rise of a running sum over times; outside of all that is known it stands still."""
        rise: NDArray[np.float64] = np.interp(end_s, self._cuts_s, sums) - np.interp(
            start_s, self._cuts_s, sums
        )
        return rise


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
