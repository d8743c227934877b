"""Configs of runs that wait: a replayed grid whose hours take a tenth of a second each."""

from __future__ import annotations

import contextlib

from ecorl.config import validate_config
from ecorl.control import Command
from ecorl.ledger import LedgerReader
from tests.fakes.recordings import two, write

DIRTY, CLEAN = 400.0, 200.0
HOUR_S = 0.1
START_S = 3.5
"""Long enough for a run to be open while the grid is still dirty."""

DIRTY_START = [DIRTY] * round(START_S / HOUR_S)
CLEAN_PART, DIRTY_PART = [CLEAN] * 15, [DIRTY] * 20


def plain_config(folder, **tables):
    """A config whose power is modelled, and whose run lies in a folder."""
    power = {"gpu": {"type": "modelled", "interval_s": 0.02}}
    return validate_config({"run_dir": str(folder), "telemetry": power, **tables})


def waiting_config(folder, values, *, carbon=None, **tables):
    """The same, with a run that waits while a replayed grid is dirty, at any step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    trace = write(folder.parent, two(values))
    feed = {"type": "replay", "path": str(trace), "speed": 3600.0 / HOUR_S}
    waits = {"threshold_g_per_kwh": 250.0, "pause": "steps", "max_wait_s": 60.0}
    asks = {"feeds": [feed], "recheck_s": 0.1, "stale_after_s": 0.5}
    return plain_config(folder, carbon={**waits, **asks, **(carbon or {})}, **tables)


def commands(folder):
    """The decisions of a run, each with what it goes by, without those that wait for an answer."""
    with contextlib.closing(LedgerReader(folder)) as reader:
        choices = [row.choice for row in reader.choices()]
    return [(c.command, str(c.why)) for c in choices if str(c.why) != "asking"]


def n_pauses(folder):
    """How often a run stood still."""
    return sum(command is Command.PAUSE for command, _ in commands(folder))
