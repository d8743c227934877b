"""Tables of power and throughput by gear and width, as TOML files.

provenance = "measured"
source = "run /runs/a: 24 executions of actor_train"
widths = [1, 2, 4]

[power_w]                     # W, of all workers that train
BF16 = [690.0, 1381.0, 2770.0]
FP8 = [702.0, 1403.0, 2811.0]

[tokens_per_s]
BF16 = [8200.0, 16100.0, 31400.0]
FP8 = [10100.0, 19900.0, 38800.0]

[power_spread_w]              # standard deviation of single executions; may be left out
[tokens_spread_per_s]         # the same
[n]                           # number of executions behind each figure; may be left out
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from ecorl.config.reading import read_toml
from ecorl.control import Gear
from ecorl.controllers.problem.table import FloatArray, GearTable, TrainingAction
from ecorl.errors import ConfigError
from ecorl.files import write_whole
from ecorl.kinds import Provenance

KEY = "carbon.control.table"

_SPREADS = ("power_spread_w", "tokens_spread_per_s")
_TABLES = ("power_w", "tokens_per_s", *_SPREADS, "n")
_HEAD = (
    "Power and throughput of the training stage by gear and width: carbon.control.table reads it.",
    "Power is that of all workers that train, W; spreads are standard deviations of executions.",
)


def write_table(
    table: GearTable, path: Path, counts: Mapping[TrainingAction, int] | None = None
) -> None:
    """Write a table as TOML, atomically.

    Args:
        table: the figures.
        path: the file, in an existing folder.
        counts: number of executions behind each figure; None: nothing was counted.

    Raises:
        OSError: when it cannot be written.
    """
    found = tomlkit.document()
    for line in _HEAD:
        found.add(tomlkit.comment(line))
    found["provenance"] = str(table.provenance)
    found["source"] = table.source
    found["widths"] = list(table.widths)
    quantities: dict[str, FloatArray | None] = {
        name: getattr(table, name) for name in ("power_w", "tokens_per_s", *_SPREADS)
    }
    if counts is not None:
        each = [[counts[TrainingAction(w, g)] for w in table.widths] for g in table.gears]
        quantities["n"] = np.array(each)
    for name, values in quantities.items():
        if values is not None:
            rows = zip(table.gears, values.tolist(), strict=True)
            found[name] = {str(gear): row for gear, row in rows}
    write_whole(path, tomlkit.dumps(found))


def read_table(path: Path) -> GearTable:
    """Read a table that `write_table` wrote, or somebody by hand.

    Args:
        path: the file.

    Raises:
        ConfigError: with file and key, for a file that cannot be read, and for figures that are
            missing, not above 0, or fall where the width rises.
    """
    path = path.expanduser()
    data = read_toml(path, KEY)
    try:
        return _table(data)
    except ConfigError as error:
        key = error.key.removeprefix(f"{KEY}.")
        raise ConfigError(key, error.value, error.allowed, path) from error


def _table(data: Mapping[str, Any]) -> GearTable:
    unknown = sorted(set(data) - {"provenance", "source", "widths", *_TABLES})
    if unknown:
        allowed = f"provenance, source, widths, {', '.join(f'[{name}]' for name in _TABLES)}"
        raise ConfigError(unknown[0], data[unknown[0]], allowed)
    provenances = [str(one) for one in Provenance]
    if data.get("provenance") not in provenances:
        allowed = f"one of {', '.join(provenances)}"
        raise ConfigError("provenance", data.get("provenance"), allowed)
    source = data.get("source")
    if not isinstance(source, str) or not source.strip():
        raise ConfigError("source", source, "a sentence saying where the figures come from")
    widths = data.get("widths")
    if not isinstance(widths, list) or not widths or any(type(w) is not int for w in widths):
        raise ConfigError("widths", widths, "rising numbers of workers from 1 on")
    gears = _gears(data)
    spreads = [
        _quantity(data, name, gears, len(widths), may_be_nan=True) if name in data else None
        for name in _SPREADS
    ]
    return GearTable(
        gears=gears,
        widths=tuple(widths),
        power_w=_quantity(data, "power_w", gears, len(widths)),
        tokens_per_s=_quantity(data, "tokens_per_s", gears, len(widths)),
        provenance=Provenance(data["provenance"]),
        source=" ".join(source.split()),
        power_spread_w=spreads[0],
        tokens_spread_per_s=spreads[1],
    )


def _gears(data: Mapping[str, Any]) -> tuple[Gear, ...]:
    """The gears of the powers, which all other quantities must have."""
    powers = data.get("power_w")
    if not isinstance(powers, dict) or not powers:
        raise ConfigError("power_w", powers, "a table of figures by gear")
    names = [str(gear) for gear in Gear]
    for name in powers:
        if name not in names:
            raise ConfigError(f"power_w.{name}", powers[name], f"one of {', '.join(names)}")
    return tuple(Gear(name) for name in powers)


def _quantity(
    data: Mapping[str, Any], name: str, gears: tuple[Gear, ...], n: int, may_be_nan: bool = False
) -> FloatArray:
    """``[gears, n] float64``; a spread that is unknown is nan."""
    rows = data.get(name)
    if not isinstance(rows, dict):
        raise ConfigError(name, rows, "a table of figures by gear")
    for other in sorted(set(rows) - set(gears)):
        raise ConfigError(f"{name}.{other}", rows[other], f"a gear of power_w: {', '.join(gears)}")
    found = []
    for gear in gears:
        row, key = rows.get(gear), f"{name}.{gear}"
        if not isinstance(row, list) or len(row) != n:
            raise ConfigError(key, row, f"{n} figures, one for each of widths")
        for value in row:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not (math.isfinite(value) or (may_be_nan and math.isnan(value))):
                raise ConfigError(key, value, "a finite number")
        found.append([float(value) for value in row])
    return np.array(found)
