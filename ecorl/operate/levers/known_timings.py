"""What timing was found to save, as it travels with the package; no recording is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import tomlkit

SLACKS = (1.02, 1.25, 1.5, 3.0)
"""Time that there is over the time that the job takes without a pause; the first is what a slowdown
of 2 % leaves."""

FILE = "timing.toml"

TIMED_ALONG = "grids as EIA-930 recorded them in 2022"
"""What the replays of the file went along."""


@dataclass(frozen=True, slots=True)
class TimingSaving:
    """What timing changes along one grid.

    Attributes:
        grid: name of the recording.
        slack: time that there is over the time that the job takes without a pause.
        saved_share: CO2e saved of that of the job started at once, all starts together, where
            machines are given back in a pause; below 0 where it rose.
        low, high: least and greatest saving of a single start.
        width_saved_share: saved where the number of workers may change as well.
        kept_saved_share: saved where machines are kept through pauses, at idle power.
        n_starts: number of starts.
    """

    grid: str
    slack: float
    saved_share: float
    low: float
    high: float
    width_saved_share: float
    kept_saved_share: float
    n_starts: int


@cache
def known_timings() -> tuple[TimingSaving, ...]:
    """Read what the project's own replays came to; no recording is needed for it."""
    text = files("ecorl.operate.levers").joinpath(FILE).read_text("utf-8")
    return tuple(TimingSaving(**dict(row)) for row in tomlkit.parse(text).unwrap()["saving"])


def timings_toml(found: Sequence[TimingSaving]) -> str:
    """Write savings as the text of the file that `known_timings` reads.

    Args:
        found: the savings.
    """
    document = tomlkit.document()
    document.add(
        tomlkit.comment("What timing saves of a job's CO2e, replayed along recorded grids")
    )
    document.add(
        tomlkit.comment("(hours of 2022, EIA-930); written by the benchmark of the levers.")
    )
    rows = tomlkit.aot()
    for one in found:
        row = tomlkit.table()
        for name in TimingSaving.__slots__:
            value = getattr(one, name)
            row[name] = round(value, 5) if isinstance(value, float) else value
        rows.append(row)
    document["saving"] = rows
    return tomlkit.dumps(document)
