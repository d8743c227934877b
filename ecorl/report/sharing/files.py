"""``footprint.json`` and ``emissions.csv``, in the run folder and beside the saved weights."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.timeline import IntensityTimeline, timelines
from ecorl.engines.validate import EngineBoundary
from ecorl.files import write_whole
from ecorl.ledger import LedgerReader
from ecorl.records import Provenance
from ecorl.report.aggregate import build_report
from ecorl.report.energy.causes import simulated_cards
from ecorl.report.energy.readings import attempt_spans, device_readings
from ecorl.report.model import Report
from ecorl.report.run_config import RunConfig, read_config
from ecorl.report.sharing.summary import RunSummary, summarise
from ecorl.report.training_stage.model import is_simulated
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
    weak = np.concatenate(
        [np.full(len(r.energies_j), _PROVENANCES.index(r.provenance)) for r in readings]
    )
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


logger = logging.getLogger(__name__)

FOOTPRINT_FILE, EMISSIONS_FILE = "footprint.json", "emissions.csv"


def write_footprint(run_dir: Path, beside: Sequence[Path] = ()) -> list[Path]:
    """Write both files into a run's folder, and beside its weights.

    A file that cannot be written, or a record that cannot be read, costs a warning and no more: the
    training is over, and its record is there.

    Args:
        run_dir: the run's folder.
        beside: folders of saved weights; those that are not there are left out.

    Returns:
        The files that were written.
    """
    texts: dict[str, str] = {}
    # Whatever goes wrong in here, the training whose end this is must not fail for it.
    with EngineBoundary() as boundary, LedgerReader(run_dir) as reader:
        texts = footprint_texts(reader, read_config(reader.run(), run_dir))
    if boundary.error is not None:
        logger.warning("%s: no footprint is written (%s)", run_dir, boundary.error)
    written = []
    for folder in (run_dir, *(path for path in beside if path.is_dir())):
        for name, text in texts.items():
            if is_written(folder / name, text, logger):
                written.append(folder / name)
    return written


def is_written(path: Path, text: str, log: logging.Logger) -> bool:
    """Write a file whole or not at all; warn and return False where it cannot be written.

    Args:
        path: the file.
        text: its content.
        log: of the module that warns.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        log.warning("%s: cannot be written (%s)", path, error.strerror or error)
        return False
    return True


def footprint_texts(reader: LedgerReader, known: RunConfig) -> dict[str, str]:
    """Contents of both files by their names.

    Args:
        reader: the run's record.
        known: its config.

    Raises:
        LedgerError: when the record is damaged.
    """
    return texts_of(build_report(reader, known), reader, known)


def texts_of(report: Report, reader: LedgerReader, known: RunConfig) -> dict[str, str]:
    """Contents of both files by their names, where the report is there already.

    Args:
        report: of the run.
        reader: its record.
        known: its config.
    """
    summary = summarise(report, reader, known)
    return {
        FOOTPRINT_FILE: json.dumps(footprint_data(summary), indent=2) + "\n",
        EMISSIONS_FILE: emissions_csv(over_time(reader, known)),
    }


def footprint_data(s: RunSummary) -> dict[str, Any]:
    """What ``footprint.json`` holds; a figure that is missing is null.

    Args:
        s: the run's figures.
    """
    energy = None
    if s.energy is not None:
        energy = plain(s.energy) | {"energy_kwh": kwh_from_joules(s.energy.energy_j)}
    return {
        "run": {
            "run_id": s.run_id,
            "state": s.state,
            "started": _moment(s.started_unix_s),
            "run_time_s": s.run_time_s,
            "devices": list(s.devices),
            "commit": s.commit,
            "steps": s.work.n_steps,
            "samples": s.work.n_samples,
            "tokens": s.work.n_tokens,
            "final_loss": s.final_loss,
        },
        "energy": energy,
        "emissions": {str(e.kind): plain(e) for e in s.emissions} or None,
        "pue": plain(s.pue),
        "waiting": None if s.waiting is None else plain(s.waiting),
        "memory": {
            "peak_device_bytes": s.peak_memory_device_bytes,
            "peak_host_bytes": s.peak_memory_host_bytes,
        },
        "batch": {
            "effective_batch_size": s.work.effective_batch_size,
            "gradient_accumulation_steps": s.work.accumulation_steps,
        },
        "training_stage": {
            "gears": [
                {"gear": gear, "simulated": is_simulated(gear), "token_share": part}
                for gear, part in s.work.gears.items()
            ],
            "widths": list(s.work.widths),
        },
        "codecarbon": None if s.beside is None else plain(s.beside),
        "missing": list(s.missing),
    }


def plain(value: Any) -> Any:
    """A record as JSON holds it; a number that is not finite becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_COLUMNS = (
    "start", "duration_s", "energy_j", "mean_power_w", "energy_provenance",
    "intensity_g_per_kwh", "feed", "pue", "carbon_g", "marginal_g",
)  # fmt: skip


def emissions_csv(intervals: Sequence[EmissionInterval]) -> str:
    """The intervals as CSV; a figure that is missing is empty.

    Args:
        intervals: of a run, in the order of time.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for i in intervals:
        power_w = i.energy_j / i.duration_s if i.duration_s > 0 else None
        cells = (i.duration_s, i.energy_j, power_w, str(i.energy_provenance),
                 i.intensity_g_per_kwh, i.feed, i.pue, i.carbon_g, i.marginal_g)  # fmt: skip
        writer.writerow([_moment(i.start_unix_s), *(_cell(cell) for cell in cells)])
    return out.getvalue()


def _cell(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.9g}"


def _moment(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).isoformat(timespec="seconds")
