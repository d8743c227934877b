"""Intel and AMD processors through the kernel's powercap folder (RAPL counters).

Package zones and their DRAM sub-zones are read. ``core`` and ``uncore`` lie inside the package and
``psys`` contains it, so none of these is added: a joule is counted once.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import (
    DeviceLost,
    DriverError,
    DriverNotLoaded,
    DriverTimeout,
    LibraryNotFound,
    NoPermission,
    NotSupported,
)
from ecorl.units import joules_from_microjoules

POWERCAP_ROOT = Path("/sys/class/powercap")

MAX_POWER_W = 2_000.0
"""No zone draws more, W: the largest packages are made for 500 W, their memory for less."""

REFRESH_S = 0.01
"""Slack for the counter's own refresh (1 ms or so), s: what it gains between two readings may have
been drawn over this much more time than lies between them."""


@dataclass(frozen=True, slots=True)
class RaplZone:
    """One counter.

    Attributes:
        zone_id: ``cpu0``, ``dram0``, ...: the package number is that of the zone's name.
        name: the kernel's name, e.g. ``package-0``.
        folder: where its files lie.
        range_j: the counter starts again at 0 after this many J.
    """

    zone_id: str
    name: str
    folder: Path
    range_j: float


def find_zones(root: Path = POWERCAP_ROOT) -> tuple[RaplZone, ...]:
    """Readable package and DRAM zones under `root`, packages first.

    Raises:
        LibraryNotFound: `root` does not exist (no powercap in this kernel or container).
        DriverNotLoaded: there is no RAPL zone in it.
        NoPermission: the counters may be read by root only (the default since Linux 5.10).
        DriverError: a zone's files are malformed.
    """
    if not root.is_dir():
        raise LibraryNotFound(f"{root} does not exist")
    zones: dict[str, RaplZone] = {}
    for folder in sorted(root.glob("intel-rapl:*")):
        name = _read_text(folder / "name")
        zone_id = _zone_id(name, folder, root)
        if zone_id is None or zone_id in zones:
            continue
        range_j = joules_from_microjoules(_read_number(folder / "max_energy_range_uj"))
        zones[zone_id] = RaplZone(zone_id, name, folder, range_j)
    if not zones:
        raise DriverNotLoaded(f"no intel-rapl package under {root}")
    for zone in zones.values():
        read_counter_j(zone)
    return tuple(sorted(zones.values(), key=lambda z: (z.zone_id.startswith("dram"), z.zone_id)))


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
    would have needed.
    """

    def __init__(self, range_j: float) -> None:
        self._range_j = range_j
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
            next reading counts from here; the joules in between are not known.
        """
        last, self._last = self._last, (raw_j, t_s)
        if last is None:
            self._total_j = raw_j
            return self._total_j
        gained_j = raw_j - last[0] if raw_j >= last[0] else raw_j - last[0] + self._range_j
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
        raise DriverError(f"{path} holds {text!r}, not a number") from error
    if number < 0:
        raise DriverError(f"{path} holds {text!r}, which is negative")
    return number


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise DriverError(f"{path} is no text") from error
    except OSError as error:
        raise _error_from_os(error, path) from error


_OS_ERRORS: Sequence[tuple[set[int], type[DriverError]]] = (
    ({errno.EACCES, errno.EPERM}, NoPermission),
    ({errno.ENOENT, errno.ENODEV, errno.ENXIO}, DeviceLost),
    ({errno.ETIMEDOUT}, DriverTimeout),
    ({errno.ENODATA, errno.EOPNOTSUPP}, NotSupported),
)


def _error_from_os(error: OSError, path: Path) -> DriverError:
    for numbers, kind in _OS_ERRORS:
        if error.errno in numbers:
            return kind(f"{path}: {error.strerror}")
    return DriverError(f"{path}: {error}")
