"""Emissions of a run over its time, for a table that others read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.timeline import IntensityTimeline, timelines
from ecorl.ledger import LedgerReader
from ecorl.records import Provenance, weakest
from ecorl.report.energy.readings import DeviceReadings, device_readings
from ecorl.report.energy.spans import attempt_spans
from ecorl.report.energy.totals import simulated_cards
from ecorl.report.run_config import RunConfig
from ecorl.units import kwh_from_joules

SHORTEST_S = 60.0
"""Length of an interval, s, of a run of up to a day."""

MOST_ROWS = 1440
"""Rows of the table at most: longer runs have longer intervals."""


@dataclass(frozen=True, slots=True)
class EmissionInterval:
    """What the metered machines drew and emitted in one interval.

    Attributes:
        start_unix_s: begin, s since 1970; ``duration_s`` its length, s.
        energy_j: J; an interval in which nothing was read is left out.
        energy_provenance: the weakest of the readings.
        intensity_g_per_kwh: of the average intensity, weighted by the energy; None: unknown.
        feed: whose value counted at the begin; None: unknown.
        pue: the power usage effectiveness, weighted likewise; None: unknown.
        carbon_g, marginal_g: by the average and by the marginal intensity, with the PUE; None where
            one is unknown for a part of it.
    """

    start_unix_s: float
    duration_s: float
    energy_j: float
    energy_provenance: Provenance
    intensity_g_per_kwh: float | None
    feed: str | None
    pue: float | None
    carbon_g: float | None
    marginal_g: float | None


def over_time(reader: LedgerReader, known: RunConfig) -> list[EmissionInterval]:
    """Cut a run into intervals, and tell what each of them emitted.

    Args:
        reader: the run's record.
        known: its config.
    """
    attempts = reader.attempts()
    spans = attempt_spans(attempts, reader.last_times())
    cards = simulated_cards(reader.executions(), reader.devices())
    to_unix_s = {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s for a in attempts}
    readings = [
        reading
        for device_id in reader.read_device_ids()
        if device_id not in cards
        for reading in device_readings(reader.power_seconds(device_id), spans)
        if len(reading.energies_j)
    ]
    if not readings:
        return []
    starts_s = np.concatenate([r.starts_s + to_unix_s[r.attempt] for r in readings])
    ends_s = np.concatenate([r.ends_s + to_unix_s[r.attempt] for r in readings])
    energies_j = np.concatenate([r.energies_j for r in readings])
    weak = np.concatenate([np.full(len(r.energies_j), _rank(r)) for r in readings])
    grid = timelines(reader, None if known.config is None else known.config.accounting)
    first_s = float(starts_s.min())
    length_s = max(SHORTEST_S, _rounded((float(ends_s.max()) - first_s) / MOST_ROWS))
    numbers = np.floor((starts_s - first_s) / length_s).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    found = []
    for rows in np.split(order, cuts):
        windows = (starts_s[rows], ends_s[rows], energies_j[rows])
        average = _emitted(grid.average, *windows)
        marginal = None if grid.marginal is None else _emitted(grid.marginal, *windows)
        drawn_j = float(energies_j[rows].sum())
        start_s = first_s + float(numbers[rows[0]]) * length_s
        value = grid.average.at(float(starts_s[rows].min()))
        found.append(
            EmissionInterval(
                start_unix_s=start_s,
                duration_s=min(length_s, float(ends_s[rows].max()) - start_s),
                energy_j=drawn_j,
                energy_provenance=_PROVENANCES[int(weak[rows].max())],
                intensity_g_per_kwh=average.mean_g_per_kwh,
                feed=None if value is None else value.feed,
                pue=average.pue,
                carbon_g=average.carbon_g,
                marginal_g=None if marginal is None else marginal.carbon_g,
            )
        )
    return found


_PROVENANCES = tuple(Provenance)


def _rank(reading: DeviceReadings) -> int:
    return _PROVENANCES.index(weakest(reading.provenance))


def _rounded(seconds: float) -> float:
    """A whole number of minutes that is no shorter."""
    return 60.0 * math.ceil(seconds / 60.0)


@dataclass(frozen=True, slots=True)
class _Part:
    carbon_g: float | None
    mean_g_per_kwh: float | None
    pue: float | None


def _emitted(
    timeline: IntensityTimeline,
    starts_s: NDArray[np.float64],
    ends_s: NDArray[np.float64],
    energies_j: NDArray[np.float64],
) -> _Part:
    """What some energy emitted; nothing where a part of it is unknown."""
    found = timeline.emitted(starts_s, ends_s, energies_j)
    if found.carbon_g is None or found.unknown_j > 1e-9 * (found.known_j + found.unknown_j):
        return _Part(None, None, None)
    if found.facility_j <= 0:
        return _Part(found.carbon_g, None, None)
    mean = found.carbon_g / kwh_from_joules(found.facility_j)
    return _Part(found.carbon_g, mean, found.facility_j / found.known_j)
