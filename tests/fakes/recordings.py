"""Small files of recorded grid data, and what reading them says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from ecorl.carbon.traces.reading import read_trace
from ecorl.errors import DataError
from ecorl.records import FaultKind

HOUR_S = 3600.0
NEW_YEAR = datetime(2022, 1, 1, tzinfo=UTC)
NEW_YEAR_S = NEW_YEAR.timestamp()


def write(folder, text, name="X_2022.csv"):
    """A file with a text, or with bytes."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def hour(number, offset=UTC):
    """The time of an hour of the year, with its offset."""
    return str((NEW_YEAR + timedelta(hours=number)).astimezone(offset))


def two(values, header="time,g_per_kwh", numbers=None):
    """A file of two columns with an hour a row."""
    numbers = range(len(values)) if numbers is None else numbers
    rows = [f"{hour(n)},{value}" for n, value in zip(numbers, values, strict=True)]
    return "\n".join([header, *rows, ""])


def whats(trace):
    """The repairs of a trace, each as line, column and text."""
    return [(r.line, r.column, r.what) for r in trace.repairs]


def refused(path, *parts, **options):
    """The one line that a file is refused with; it has the parts."""
    with pytest.raises(DataError) as caught:
        read_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    return message


def weeks(n_days=10):
    """Values of a calm grid, 330 to 374 g/kWh."""
    hours = np.arange(24 * n_days)
    return np.round(350 + 20 * np.sin(2 * np.pi * hours / 24) + hours % 5, 1).tolist()


SILENT = {FaultKind.INTENSITY_UNKNOWN, FaultKind.INTENSITY_KNOWN}
"""Faults of a `blinking` grid that a busy machine asks late: it is silent meanwhile."""


def blinking(folder, threshold_g_per_kwh=300.0):
    """A table ``[carbon]`` that makes a training wait again and again, whatever its speed.

    Its replayed grid is clean for 0.8 s of each 4 s, so that the boundary of two steps falls into
    dirty hours nearly always, and no wait is long.
    """
    path = write(folder, two(([400.0] * 8 + [200.0] * 2) * 300), "BLINKING_2022.csv")
    feed = {"type": "replay", "path": str(path), "speed": 9000.0}
    return {
        "threshold_g_per_kwh": threshold_g_per_kwh, "pause": "steps", "max_wait_s": 600.0,
        "recheck_s": 0.5, "stale_after_s": 60.0, "feeds": [feed],
    }  # fmt: skip
