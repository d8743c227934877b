"""Reads from a run's record what its earlier attempts have drawn, so that a resume goes on."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ecorl.carbon.timeline import Emitted, timelines
from ecorl.config import parse_config
from ecorl.errors import ConfigError, LedgerError
from ecorl.ledger import LEDGER_FILE, ExecutionRow, LedgerReader, PowerSecond
from ecorl.records import MIN_COVERAGE, Provenance, weakest
from ecorl.runtime.energy.run_energy import sums_by_role
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.monitor import added_up
from ecorl.telemetry.check import stopped_seconds
from ecorl.telemetry.integrate import CounterVerdict, judge_counter

logger = logging.getLogger(__name__)


def recorded_totals(run_dir: Path) -> RunTotals | None:
    """Add up what all attempts of a run have spent so far; None where there is no record yet.

    Work that a resume has superseded counts: its energy was spent.

    Args:
        run_dir: folder of the run.
    """
    if not (run_dir / LEDGER_FILE).is_file():
        return None
    try:
        with contextlib.closing(LedgerReader(run_dir)) as reader:
            executions, seconds = reader.executions(), list(reader.power_seconds())
            lost = bool(reader.lost_nodes())
            emitted = _emitted(reader, seconds)
    except LedgerError as error:
        logger.warning("what the run has drawn so far is not known: %s", error)
        return RunTotals()
    roles = sums_by_role(row.result for row in executions)
    unread = {row.attempt for row in executions} - {row.attempt for row in seconds}
    drawn_j = None if lost or unread else drawn_energy_j(seconds)
    found = [sums.provenance for sums in roles.values() if sums.provenance is not None]
    found += [row.provenance for row in seconds] if drawn_j is not None else []
    return RunTotals(
        roles=roles,
        drawn_j=drawn_j,
        carbon_g=None if drawn_j is None else emitted.carbon_g,
        unknown_j=emitted.unknown_j,
        beside_j=_beside_j(drawn_j, executions, {row.device_id for row in seconds}),
        provenance=weakest(*found) if found else None,
    )


def _emitted(reader: LedgerReader, seconds: Sequence[PowerSecond]) -> Emitted:
    """What the seconds of a record emitted, each at the intensity and PUE of its time."""
    accounting = None
    with contextlib.suppress(ConfigError):
        accounting = parse_config(reader.run().config_toml, "ledger").accounting
    to_unix_s = {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s for a in reader.attempts()}
    start_s = np.array([row.second + to_unix_s[row.attempt] for row in seconds], np.float64)
    energy_j = np.array([row.counted_j + row.alone_j for row in seconds], np.float64)
    return timelines(reader, accounting).average.emitted(start_s, start_s + 1.0, energy_j)


def drawn_energy_j(seconds: Iterable[PowerSecond]) -> float | None:
    """Energy that the metered devices drew in all attempts, J; None when readings are missing.

    Args:
        seconds: one-second roll-ups of all devices and attempts.
    """
    series: dict[tuple[int, str], list[PowerSecond]] = defaultdict(list)
    for row in seconds:
        series[row.attempt, row.device_id].append(row)
    return added_up(_series_j(rows) for rows in series.values()) if series else None


def _series_j(rows: list[PowerSecond]) -> float | None:
    """Energy of one device in one attempt; None where it is not known for all of the time."""
    if len({(row.provenance, row.source) for row in rows}) > 1:
        return None  # two instruments, whose times may overlap
    first, last = min(r.second for r in rows), max(r.second for r in rows)
    covered_s = sum(row.counted_s + row.alone_s for row in rows)
    # The first and the last second are covered in part.
    if covered_s < MIN_COVERAGE * (last - first - 1) or covered_s <= 0:
        return None
    if rows[0].provenance is not Provenance.MODELLED and _is_doubtful(rows):
        return None
    return sum(row.counted_j + row.alone_j for row in rows)


def _is_doubtful(rows: list[PowerSecond]) -> bool:
    """Whether the counter stood still for a time or contradicts the power readings."""
    counted_s = sum(row.counted_s for row in rows)
    if counted_s <= 0:
        return False
    held_j = sum(row.held_j - row.alone_j for row in rows)
    held_s = sum(row.held_s - row.alone_s for row in rows)
    counted_j = sum(row.counted_j for row in rows)
    verdict = judge_counter(counted_j, held_j, held_s / counted_s, counted_s)
    return verdict is CounterVerdict.DISPUTED or bool(stopped_seconds(rows))


def _beside_j(
    drawn_j: float | None, executions: Iterable[ExecutionRow], metered: set[str]
) -> float | None:
    """What the metered devices drew beside their executions, J; None when a part is missing."""
    own = [row.result for row in executions if metered.intersection(row.result.device_ids)]
    used_j = added_up(r.energy.energy_j if r.energy is not None else None for r in own)
    if drawn_j is None or used_j is None:
        return None
    # Executions at the edges of the readings may reach a little beyond them.
    return max(0.0, drawn_j - used_j)
