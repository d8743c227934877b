"""The energy of a run: its EDI matrix, sums by role, and what earlier attempts recorded."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ecorl.carbon.timeline import Emitted, timelines
from ecorl.config import parse_config
from ecorl.edi import EdiMatrix, edi_reading
from ecorl.errors import ConfigError, LedgerError
from ecorl.ledger import LEDGER_FILE, ExecutionRow, LedgerReader, PowerSecond
from ecorl.records import (
    EVALUATION_ROLE,
    MIN_COVERAGE,
    Action,
    PathCost,
    Provenance,
    Role,
    StageResult,
    weakest,
)
from ecorl.runtime.handles import RoleTotals, RunTotals
from ecorl.runtime.monitor import Monitor, added_up
from ecorl.telemetry.check import stopped_seconds
from ecorl.telemetry.integrate import CounterVerdict, judge_counter


class RunEnergy:
    """Takes each settled execution once, from whatever machine; thread-safe.

    Args:
        edi: the matrix to keep.
        before: what earlier attempts of the run have drawn.
        framework_on: profile names of the devices on which the framework computes.
    """

    def __init__(
        self, edi: EdiMatrix, before: RunTotals | None = None, framework_on: Collection[str] = ()
    ) -> None:
        self.edi = edi
        self._framework_on = frozenset(framework_on)
        self._before = before or RunTotals(drawn_j=0.0, beside_j=0.0)
        self._roles: dict[Role, RoleTotals] = dict(self._before.roles)
        # Steps of the executions under way by serial, and of each step those that have ended less
        # those that are settled.
        self._open: dict[int, int] = {}
        self._waiting: Counter[int] = Counter()
        self._newest: int | None = None
        self._lock = threading.Lock()

    def begin(self, serial: int, iteration: int) -> None:
        """Note that an execution is under way, until `expect` or `drop`.

        Args:
            serial: of the execution.
            iteration: its step.
        """
        with self._lock:
            self._open[serial] = iteration

    def expect(self, serial: int, iteration: int) -> None:
        """Note that an execution has ended; `add` follows once it is settled.

        Args:
            serial: of the execution.
            iteration: its step.
        """
        with self._lock:
            self._open.pop(serial, None)
            self._waiting[iteration] += 1
            self._newest = max(iteration, self._newest or iteration)

    def drop(self, serial: int) -> None:
        """Note that an execution will never be accounted.

        Args:
            serial: of the execution.
        """
        with self._lock:
            self._open.pop(serial, None)

    def add(self, result: StageResult, share: float = 1.0, batch: int | None = None) -> None:
        """Add one settled execution to the sums, and its price to the EDI matrix.

        Where its energy is not known the matrix learns its time all the same: how long a stage
        takes on a path may be all that a policy can know of a device without a meter.

        Args:
            result: the execution, with its energy if there is one.
            share: of its stage's work, where it is one machine's part of a stage that ran on
                several: its joules are its own, but its time is that of the whole stage.
            batch: 0-based number of its rollout batch; None where that is not known.
        """
        with self._lock:
            self._waiting[result.iteration] -= 1
            if not self._waiting[result.iteration]:
                del self._waiting[result.iteration]
            self._roles[result.role] = added(self._roles.get(result.role), result)
            if result.role == EVALUATION_ROLE:
                return  # no price of what is trained with
            if result.fault is not None:
                # The joules of a faulty execution count in the sums, not as the price of a token.
                return
            reading = edi_reading(result, batch)
            if result.action is not Action.GPU:
                reading = replace(reading, device=self._column(reading.device))
            if reading.time_s is not None:
                # Else each machine's part would say that a token took so many times as long.
                reading = replace(reading, time_s=reading.time_s * share)
            self.edi.update(reading)

    def _column(self, card: str) -> str:
        """Name the column of the matrix for what is offloaded.

        An accelerator of the framework's own kind has one of its own: what a stage costs there is
        not what it costs beside the training.
        """
        return f"{card} (accelerator)" if card in self._framework_on else card

    def edi_json(self) -> str:
        """The EDI matrix as it is now."""
        with self._lock:
            return self.edi.to_json()

    def path_costs(
        self,
        device: str,
        elsewhere: Mapping[Role, str],
        card: str | None = None,
        batch: int | None = None,
    ) -> tuple[PathCost, ...]:
        """Cost of each role so far on the devices that serve it on the GPU path, and on the card.

        Args:
            device: profile name of the trainer's.
            elsewhere: profile names of the roles that others serve.
            card: profile name of the card; None: the GPU path alone.
            batch: 0-based number of the rollout batch at hand, from which ages follow; None: they
                are not known.
        """
        with self._lock:
            found = [*self.edi.path_costs(device, batch)]
            if elsewhere:
                found = [c for c in found if c.role not in elsewhere]
            for role, other in elsewhere.items():
                found += [c for c in self.edi.path_costs(other, batch) if c.role == role]
            if card is not None:
                found += self.edi.path_costs(self._column(card), batch, on_card=True)
        return tuple(found)

    def totals(self, monitors: Iterable[Monitor]) -> RunTotals:
        """Sum up the run so far.

        Args:
            monitors: of all machines.
        """
        before, parts = self._before, [monitor.drawn() for monitor in monitors]
        # A machine without metered devices draws nothing that this sum could miss.
        metered = [p for p in parts if p.provenance is not None]
        drawn_j = added_up([before.drawn_j, *(p.drawn_j for p in metered)]) if metered else None
        beside_j = added_up([before.beside_j, *(p.beside_j for p in metered)]) if metered else None
        with self._lock:
            roles = dict(self._roles)
            # `add` comes without `expect` for executions of an earlier scheduler.
            waiting = {step: n for step, n in self._waiting.items() if n > 0}
            steps = {*waiting, *self._open.values()}
            up_to_step = min(steps) - 1 if steps else self._newest
        found = [r.provenance for r in roles.values()]
        if drawn_j is not None:
            found += [before.provenance, *(p.provenance for p in metered)]
        known = [p for p in found if p is not None]
        return RunTotals(
            roles=roles,
            drawn_j=drawn_j,
            beside_j=beside_j,
            provenance=weakest(*known) if known else None,
            up_to_step=up_to_step,
            n_waiting=sum(waiting.values()),
        )


def added(sums: RoleTotals | None, result: StageResult) -> RoleTotals:
    """The sums of a role with one more execution.

    Args:
        sums: before it; None at the first.
        result: the execution.
    """
    energy_j = result.energy.energy_j if result.energy else None
    before = sums or RoleTotals(0.0, 0, 0, 0, None)
    more = replace(before, n_executions=before.n_executions + 1)
    if energy_j is None or result.energy is None:
        return replace(more, n_missing=before.n_missing + 1)
    known = [p for p in (before.provenance, result.energy.provenance) if p is not None]
    return replace(
        more,
        energy_j=before.energy_j + energy_j,
        n_output_tokens=before.n_output_tokens + result.n_output_tokens,
        provenance=weakest(*known),
    )


def sums_by_role(results: Iterable[StageResult]) -> Mapping[Role, RoleTotals]:
    """Sum up executions that a record holds.

    Args:
        results: the executions.
    """
    sums: dict[Role, RoleTotals] = {}
    for result in results:
        sums[result.role] = added(sums.get(result.role), result)
    return sums


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
        with LedgerReader(run_dir) as reader:
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
