"""Attributes emissions to energy by the time in which it was drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.timeline import Timelines, unknown_timelines
from ecorl.ledger import AttemptRow, ExecutionRow
from ecorl.report.energy.emissions import Draw, Emissions, total_emissions
from ecorl.report.energy.readings import DeviceReadings
from ecorl.report.energy.spans import EDGE_S, Span
from ecorl.report.energy.stages import energy_j

_Array = NDArray[np.float64]


class Attribution:
    """Finds what energies of a run emitted.

    Args:
        timelines: the intensities over the run's time; None: nothing is known of them.
        attempts: of the record.
        spans: begin and end of each attempt, monotonic s, by attempt.
    """

    def __init__(
        self,
        timelines: Timelines | None = None,
        attempts: Sequence[AttemptRow] = (),
        spans: Mapping[int, Span] | None = None,
    ) -> None:
        self.timelines = timelines or unknown_timelines()
        self._to_unix_s = {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s for a in attempts}
        self._spans = dict(spans or {})

    def of_executions(self, rows: Sequence[ExecutionRow]) -> Emissions:
        """Emissions of stage executions, the energy of each drawn evenly over its time.

        Args:
            rows: executions that have an energy.
        """
        windows = []
        for row in rows:
            energy, drawn_j = row.result.energy, energy_j(row.result)
            if energy is not None and drawn_j is not None:
                start_s, end_s = self._within(row.attempt, (energy.t_start_s, energy.t_end_s))
                windows.append((start_s, end_s, drawn_j))
        return self._emitted(*np.array(windows, np.float64).reshape(-1, 3).T)

    def of_readings(
        self,
        readings: Sequence[DeviceReadings],
        within: Mapping[int, Sequence[Span]] | None = None,
    ) -> tuple[Draw, float]:
        """Energy and emissions of what was read, second by second, and the time of it, s.

        Args:
            readings: of devices that have an energy.
            within: spans of each attempt, disjoint and in order, to which it is cut; by default all
                is taken. A second that lies partly within counts in proportion.
        """
        energy_j, time_s, emissions = 0.0, 0.0, []
        # One by one: a long run's seconds of all devices at once are large.
        for r in readings:
            pieces = [(r.starts_s, r.ends_s, r.energies_j)]
            if within is not None:
                pieces = [_cut(r, span) for span in within.get(r.attempt, ())]
            if not pieces:
                continue
            starts_s, ends_s, drawn_j = (np.concatenate(own) for own in zip(*pieces, strict=True))
            offset_s = self._to_unix_s.get(r.attempt, 0.0)
            emissions.append(self._emitted(starts_s + offset_s, ends_s + offset_s, drawn_j))
            energy_j += float(np.sum(drawn_j))
            time_s += float(np.sum(ends_s - starts_s))
        return Draw(energy_j, total_emissions(emissions)), time_s

    def evenly(self, energy_j: float, spans: Mapping[int, Sequence[Span]]) -> Emissions:
        """Emissions of energy that is drawn evenly over some time.

        Args:
            energy_j: the energy, J.
            spans: disjoint, by attempt, monotonic s.
        """
        start_s, end_s = self.windows(spans)
        if not len(start_s):
            start_s, end_s = np.zeros(1), np.zeros(1)
        length_s = end_s - start_s
        time_s = float(np.sum(length_s))
        n = len(length_s)
        share = length_s / time_s if time_s > 0 else np.full(n, 1.0 / n)
        return self._emitted(start_s, end_s, energy_j * share)

    def windows(self, spans: Mapping[int, Sequence[Span]] | None = None) -> tuple[_Array, _Array]:
        """Begins and ends of some times in s since 1970, each ``[n] float64``.

        Args:
            spans: by attempt, monotonic s; by default the whole run.
        """
        if spans is None:
            spans = {attempt: [span] for attempt, span in self._spans.items()}
        found = [self._within(attempt, span) for attempt, own in spans.items() for span in own]
        start_s, end_s = np.array(found, np.float64).reshape(-1, 2).T
        return start_s, end_s

    def _emitted(self, start_s: _Array, end_s: _Array, energy_j: _Array) -> Emissions:
        """By both kinds; times in s since 1970."""
        marginal = self.timelines.marginal
        return Emissions(
            self.timelines.average.emitted(start_s, end_s, energy_j),
            None if marginal is None else marginal.emitted(start_s, end_s, energy_j),
        )

    def _within(self, attempt: int, span: Span) -> Span:
        """A time in s since 1970, cut to its attempt."""
        low_s, high_s = self._spans.get(attempt, span)
        start_s = max(low_s, min(span[0], high_s - EDGE_S))
        end_s = max(start_s, min(span[1], high_s))
        offset_s = self._to_unix_s.get(attempt, 0.0)
        return start_s + offset_s, end_s + offset_s


def _cut(readings: DeviceReadings, span: Span) -> tuple[_Array, _Array, _Array]:
    """The seconds of a device's readings within a span: begins, ends (monotonic s), joules."""
    first = int(np.searchsorted(readings.ends_s, span[0], "right"))
    last = int(np.searchsorted(readings.starts_s, span[1], "left"))
    starts_s, ends_s = readings.starts_s[first:last], readings.ends_s[first:last]
    low_s, high_s = np.maximum(starts_s, span[0]), np.minimum(ends_s, span[1])
    share = (high_s - low_s) / (ends_s - starts_s)
    return low_s, high_s, readings.energies_j[first:last] * share
