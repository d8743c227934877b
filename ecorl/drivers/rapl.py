"""Intel and AMD processors through the kernel's powercap folder (RAPL counters).

Package zones and their DRAM sub-zones are read. ``core`` and ``uncore`` lie inside the package and
``psys`` contains it, so none of these is added: a joule is counted once. Zones whose counters are
one and the same, as of the dies of one socket on some processors, are one zone, whatever their
names (`distinct`).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ecorl import errors
from ecorl.units import joules_from_microjoules

POWERCAP_ROOT = Path("/sys/class/powercap")

MAX_POWER_W = 2_000.0
"""No zone draws more, W: the largest packages are made for 500 W, their memory for less."""

REFRESH_S = 0.01
"""Slack for the counter's own refresh (1 ms or so), s: what it gains between two readings may have
been drawn over this much more time than lies between them."""

_WATCH_S = 0.5
_WATCH_MOVES = 10
"""For how long two zones that say the same are watched, and for how many steps of the counter."""

_STANDS_S = 0.1
"""A counter that has not moved for so long does not move at all, s."""

_LEAST_WITHIN = 0.1
"""Share of readings in which one counter shown twice says exactly the same twice, at least."""


@dataclass(frozen=True, slots=True)
class RaplZone:
    """One counter.

    Attributes:
        zone_id: ``cpu0``, ``dram0``, ...: the package number is that of the zone's name.
        name: the kernel's name, e.g. ``package-0``.
        folder: where its files lie.
        range_j: the counter starts again at 0 after this many J; 0: the kernel does not say when.
        same: the kernel's names of further zones that show this counter.
    """

    zone_id: str
    name: str
    folder: Path
    range_j: float
    same: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name, with those of the zones that show the same counter."""
        return f"{self.name} (shown as {', '.join(self.same)} too)" if self.same else self.name


def find_zones(root: Path = POWERCAP_ROOT) -> tuple[RaplZone, ...]:
    """Readable package and DRAM zones under `root`, packages first; several may show one counter.

    Raises:
        LibraryNotFound: `root` does not exist (no powercap in this kernel or container).
        DriverNotLoaded: there is no RAPL zone in it.
        NoPermission: the counters may be read by root only (the default since Linux 5.10).
        DriverError: a zone's files are malformed.
    """
    if not root.is_dir():
        raise errors.LibraryNotFound(f"{root} does not exist")
    zones: dict[str, RaplZone] = {}
    for folder in sorted(root.glob("intel-rapl:*")):
        name = _read_text(folder / "name")
        zone_id = _zone_id(name, folder, root)
        if zone_id is None:
            continue
        if zone_id in zones:
            # Two zones of one name need not be one counter.
            zone_id = f"{zone_id}-{folder.name.removeprefix('intel-rapl:')}"
        range_j = joules_from_microjoules(_read_number(folder / "max_energy_range_uj"))
        zones[zone_id] = RaplZone(zone_id, name, folder, range_j)
    if not zones:
        raise errors.DriverNotLoaded(f"no intel-rapl package under {root}")
    for zone in zones.values():
        read_counter_j(zone)
    return tuple(sorted(zones.values(), key=lambda z: (z.zone_id.startswith("dram"), z.zone_id)))


def distinct(zones: Sequence[RaplZone]) -> tuple[RaplZone, ...]:
    """Leave out zones that show the counter of an earlier one, which then names them (``same``).

    Takes no time but where two zones say the same: these are watched for up to half a second.

    Raises:
        DriverError: see `read_counter_j`.
    """
    found: list[RaplZone] = []
    for zone in zones:
        for i, first in enumerate(found):
            if _is_same_counter(first, zone):
                found[i] = replace(first, same=(*first.same, zone.name))
                break
        else:
            found.append(zone)
    return tuple(found)


def _is_same_counter(first: RaplZone, other: RaplZone) -> bool:
    """Whether two zones show one counter.

    Each reading of the one lies between two of the other. Counters of their own, of loads however
    alike, agree to a microjoule by chance only; one counter that is shown twice differs at most
    by the step of its refresh, where that falls between the readings.
    """
    range_j = min(first.range_j, other.range_j)
    step_j = excess_j = 0.0
    n = n_within = n_moves = 0
    before_j: float | None = None
    start_s = time.monotonic()
    end_s = start_s + _WATCH_S
    while n_moves < _WATCH_MOVES and time.monotonic() < end_s:
        if not n_moves and time.monotonic() > start_s + _STANDS_S:
            return False
        low_j, between_j, high_j = (read_counter_j(zone) for zone in (first, other, first))
        over_j = max(_rise(between_j, low_j, range_j), _rise(high_j, between_j, range_j), 0.0)
        excess_j = max(excess_j, over_j)
        if excess_j > MAX_POWER_W * REFRESH_S:
            return False
        moved_j = 0.0 if before_j is None else _rise(before_j, high_j, range_j)
        step_j, before_j = max(step_j, moved_j), high_j
        n, n_within, n_moves = n + 1, n_within + (over_j == 0), n_moves + (moved_j > 0)
        time.sleep(0.001)
    return n_moves > 0 and excess_j <= step_j and n_within >= _LEAST_WITHIN * n


def _rise(from_j: float, to_j: float, range_j: float) -> float:
    """How far a counter is ahead of another reading of it, J; below 0 where it is behind."""
    if range_j <= 0:
        return to_j - from_j
    return (to_j - from_j + range_j / 2) % range_j - range_j / 2


def read_counter_j(zone: RaplZone) -> float:
    """The raw counter of a zone, J, between 0 and ``zone.range_j``.

    Raises:
        NoPermission: the file may not be read.
        DeviceLost: the zone has gone.
        DriverError: the content is no number.
    """
    return joules_from_microjoules(_read_number(zone.folder / "energy_uj"))


class UnwrappedCounter:
    """Turns a counter that wraps at `range_j` into one that only grows.

    One wrap between two readings is recovered. Several cannot be seen: at 200 W and the usual
    range of 262 kJ a counter wraps every 22 min, far above any polling interval. A counter that
    starts again (suspend, firmware) falls as well; it is told apart by the power that a wrap
    would have needed. A fall of a counter whose range is not known may be either: from then on it
    tells nothing.

    Args:
        range_j: the counter starts again at 0 after this many J; 0 where that is not known.
    """

    def __init__(self, range_j: float) -> None:
        self._range_j = range_j
        self._is_unknown = False
        self._last: tuple[float, float] | None = None
        self._total_j = 0.0

    def update(self, raw_j: float, t_s: float) -> float | None:
        """Count a raw reading.

        Args:
            raw_j: the counter's value, J.
            t_s: time of the reading, s.

        Returns:
            Cumulative energy, J; None where the counter started again: what it gained since the
            last reading, with or without a wrap, would have needed more than `MAX_POWER_W`. The
            next reading counts from here; the joules in between are not known. None for good
            after a fall without a known range.
        """
        last, self._last = self._last, (raw_j, t_s)
        if last is None:
            self._total_j = raw_j
            return self._total_j
        gained_j = raw_j - last[0]
        if gained_j < 0:
            self._is_unknown = self._is_unknown or self._range_j <= 0
            gained_j += self._range_j
        if self._is_unknown:
            return None
        if gained_j > MAX_POWER_W * (t_s - last[1] + REFRESH_S):
            return None
        self._total_j += gained_j
        return self._total_j


def _zone_id(name: str, folder: Path, root: Path) -> str | None:
    """``cpuN`` for ``package-N``, ``dramN`` for its memory, None for zones that overlap them."""
    if name.startswith("package-"):
        return f"cpu{name.removeprefix('package-')}"
    if name == "dram":
        parent = root / folder.name.rpartition(":")[0]
        package = _read_text(parent / "name") if parent.is_dir() else ""
        if package.startswith("package-"):
            return f"dram{package.removeprefix('package-')}"
    return None


def _read_number(path: Path) -> float:
    text = _read_text(path)
    try:
        number = float(int(text))
    except ValueError as error:
        raise errors.DriverError(f"{path} holds {text!r}, not a number") from error
    if number < 0:
        raise errors.DriverError(f"{path} holds {text!r}, which is negative")
    return number


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise errors.DriverError(f"{path} is no text") from error
    except OSError as error:
        raise _error_from_os(error, path) from error


_OS_ERRORS: Sequence[tuple[set[int], type[errors.DriverError]]] = (
    ({errno.EACCES, errno.EPERM}, errors.NoPermission),
    ({errno.ENOENT, errno.ENODEV, errno.ENXIO}, errors.DeviceLost),
    ({errno.ETIMEDOUT}, errors.DriverTimeout),
    ({errno.ENODATA, errno.EOPNOTSUPP}, errors.NotSupported),
)


def _error_from_os(error: OSError, path: Path) -> errors.DriverError:
    for numbers, kind in _OS_ERRORS:
        if error.errno in numbers:
            return kind(f"{path}: {error.strerror}")
    return errors.DriverError(f"{path}: {error}")
