"""Readings from a recording, played at the speed at which they were taken."""

from __future__ import annotations

import bisect
import csv
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ecorl.errors import DataError
from ecorl.records import MAX_ENERGY_J, MAX_POWER_W, PowerSample, Provenance, kind_in_name
from ecorl.telemetry.sources.specs import DeviceInfo

COLUMNS = ("t_s", "device_id", "power_w", "energy_j", "utilisation")

MIN_HOLD_S = 2.0
"""Shortest default time for which a recorded row stands, s; as the default staleness limit."""


@dataclass
class Track:
    """The rows of one device: times (s, ascending) and the three figures (None when empty)."""

    t_s: list[float] = field(default_factory=list)
    rows: list[tuple[float | None, float | None, float | None]] = field(default_factory=list)


def read_tracks(path: Path) -> dict[str, Track]:
    """Parse a recording: CSV with the columns ``t_s, device_id, power_w, energy_j, utilisation``.

    Times are s on any clock, ascending for each device. An empty figure is a missing reading.
    Power is 0 to 1e6 W; the energy counter, in J, at most 2**53 mJ.

    Raises:
        DataError: naming file and line, for a file that is missing or malformed.
    """
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            return _parse(handle, path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason})") from error


def _parse(lines: Iterable[str], path: Path) -> dict[str, Track]:
    tracks: dict[str, Track] = {}
    reader = csv.reader(lines)
    try:
        header = next(reader, None)
        if header is None or tuple(cell.strip() for cell in header) != COLUMNS:
            raise DataError(f"{path}:1: the header must be {','.join(COLUMNS)}")
        for row in reader:
            if row:
                _add_row(tracks, row, f"{path}:{reader.line_num}")
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}") from error
    if not tracks:
        raise DataError(f"{path}:2: no readings")
    return tracks


def _add_row(tracks: dict[str, Track], row: Sequence[str], where: str) -> None:
    if len(row) != len(COLUMNS):
        raise DataError(f"{where}: {len(row)} cells, expected {len(COLUMNS)}")
    t_s = _cell(row[0], "t_s", where)
    device_id = row[1].strip()
    if t_s is None or not device_id:
        raise DataError(f"{where}: t_s and device_id may not be empty")
    power_w, energy_j, utilisation = (
        _cell(row[i], COLUMNS[i], where) for i in range(2, len(COLUMNS))
    )
    if any(figure is not None and figure < 0 for figure in (power_w, energy_j, utilisation)):
        raise DataError(f"{where}: a figure is negative")
    limits = (("power_w", power_w, MAX_POWER_W), ("energy_j", energy_j, MAX_ENERGY_J))
    for column, figure, limit in (*limits, ("utilisation", utilisation, 1.0)):
        if figure is not None and figure > limit:
            raise DataError(f"{where}: {column} = {figure:g} is above {limit:g}")
    track = tracks.setdefault(device_id, Track())
    if track.t_s and t_s <= track.t_s[-1]:
        raise DataError(f"{where}: t_s = {t_s:g} does not ascend for {device_id}")
    track.t_s.append(t_s)
    track.rows.append((power_w, energy_j, utilisation))


def _cell(text: str, column: str, where: str) -> float | None:
    if not text.strip():
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise DataError(f"{where}: {column} = {text!r} is not a number") from error
    if not math.isfinite(number):
        raise DataError(f"{where}: {column} = {text!r} is not finite")
    return number


class ReplaySource:
    """Plays a recording.

    Like an instrument with a slow refresh, it answers with the newest row that is due, at the
    time of asking. The energy counter alone is interpolated up to the next row: it would otherwise
    look as if it stood still between rows that are seconds apart. Before a device's first row,
    after its last row has stood for `hold_s`, and wherever the recording itself has an empty
    figure, the figure is None.

    Args:
        path: the CSV file; see `read_tracks`.
        interval_s: polling interval, s.
        hold_s: how long a row stands when none follows, s; None takes 2.5 times the median step
            of the device, at least `MIN_HOLD_S`.
        started_s: monotonic time at which the first row plays, s; None: when it is opened.
    """

    name = "replay"
    provenance = Provenance.REPLAYED

    def __init__(
        self,
        path: Path,
        interval_s: float = 0.1,
        hold_s: float | None = None,
        started_s: float | None = None,
    ) -> None:
        self.interval_s = interval_s
        self._started_s = started_s
        self._path, self._given_hold_s = path, hold_s
        self._clock: Callable[[], float] = time.monotonic
        self._tracks: dict[str, Track] = {}
        self._hold_s: dict[str, float] = {}
        self._shift_s = 0.0

    def open(self) -> None:
        """Read the whole file and start the clock.

        Raises:
            DataError: the file is missing or malformed.
        """
        self._tracks = read_tracks(self._path)
        first_s = min(track.t_s[0] for track in self._tracks.values())
        started_s = self._clock() if self._started_s is None else self._started_s
        self._shift_s = started_s - first_s
        for device_id, track in self._tracks.items():
            steps_s = [b - a for a, b in pairwise(track.t_s)]
            usual_s = 2.5 * statistics.median(steps_s) if steps_s else 0.0
            self._hold_s[device_id] = self._given_hold_s or max(MIN_HOLD_S, usual_s)

    def describe(self) -> tuple[DeviceInfo, ...]:
        """Devices with the name of the recording."""
        return tuple(
            DeviceInfo(
                i, kind_in_name(i), self.provenance, "replay", f"recorded in {self._path.name}"
            )
            for i in self._tracks
        )

    def read(self) -> tuple[PowerSample, ...]:
        """The newest row that is due, for each device."""
        now_s = self._clock()
        return tuple(self._at(device_id, now_s) for device_id in self._tracks)

    def close(self) -> None:
        """Nothing to release: the file was read at `open`."""

    def _at(self, device_id: str, now_s: float) -> PowerSample:
        track, file_s = self._tracks[device_id], now_s - self._shift_s
        # A nanosecond of slack: shifting a clock forth and back rounds.
        index = bisect.bisect_right(track.t_s, file_s + 1e-9) - 1
        figures: tuple[float | None, float | None, float | None] = (None, None, None)
        error: str | None = None
        if index < 0:
            error = "NotStarted"
        elif file_s - track.t_s[index] > self._hold_s[device_id]:
            error = "RecordingGap" if index + 1 < len(track.t_s) else "RecordingEnded"
        else:
            power_w, _, utilisation = track.rows[index]
            figures = (power_w, self._energy_j(device_id, index, file_s), utilisation)
            error = "RecordedMissing" if figures[0] is None and figures[1] is None else None
        return PowerSample(device_id, now_s, *figures, self.provenance, "replay", error)

    def _energy_j(self, device_id: str, index: int, file_s: float) -> float | None:
        """The counter between a row and the next one, J; the row's own at the edge of a gap."""
        track = self._tracks[device_id]
        energy_j = track.rows[index][1]
        if energy_j is None or index + 1 == len(track.rows):
            return energy_j
        next_j, step_s = track.rows[index + 1][1], track.t_s[index + 1] - track.t_s[index]
        if next_j is None or next_j < energy_j or step_s > self._hold_s[device_id]:
            return energy_j
        share = max(0.0, file_s - track.t_s[index]) / step_s
        return energy_j + (next_j - energy_j) * min(1.0, share)
