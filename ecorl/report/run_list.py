"""The runs of a folder, one line each: what is read of each run's ledger, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import LEDGER_FILE, LedgerReader, RunEnding
from ecorl.records import Provenance
from ecorl.report.energy.causes import spending
from ecorl.report.energy.pauses import recorded_evidence
from ecorl.report.energy.readings import attempt_spans, device_readings
from ecorl.report.head import head
from ecorl.report.run_config import read_config

UNREADABLE = "unreadable"
"""State of a run whose ledger cannot be read."""

_DEEPEST = 4
"""Levels of folders below the given one that are searched: ``runs/DAY/STUDY/RUN/record``."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """What a list of runs says of one of them.

    Attributes:
        name: its folder, below the one that was searched.
        folder: where it lies.
        state: how it stands, in a word or two; `UNREADABLE` where its ledger cannot be read.
        why: the reason of the state, or what to know of it; None where the word says all.
        started_unix_s: wall clock of its first start, s since 1970; None: not known.
        n_steps_done, n_steps_planned: None where the record does not tell.
        energy_j: energy of its machines over the whole run, J, as its report has it; without what
            a simulated card would have drawn. None: not known.
        provenance: the weakest of the parts of that energy.
        at_least: whether a part of it is missing.
        tokens_per_j: output tokens over that energy; None where one of them is not known.
    """

    name: str
    folder: Path
    state: str
    why: str | None = None
    started_unix_s: float | None = None
    n_steps_done: int | None = None
    n_steps_planned: int | None = None
    energy_j: float | None = None
    provenance: Provenance | None = None
    at_least: bool = False
    tokens_per_j: float | None = None


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs of a folder.

    Attributes:
        runs: the newest first; those without a time of start come last.
        n_older: runs that were found and left out, since only so many of the newest were wanted.
        closed: folders that could not be searched.
    """

    runs: tuple[ListedRun, ...]
    n_older: int
    closed: tuple[Path, ...]


def list_runs(folder: Path, newest: int | None = None) -> RunList:
    """Find the runs in a folder and read what a list says of them; nothing is written.

    Args:
        folder: a run folder, or one that holds run folders.
        newest: how many of the newest to read; None: all.

    Raises:
        RunError: when there is no such folder, or it cannot be searched.
    """
    folders, closed = _found(folder)
    begun = sorted(((_started(f), f) for f in folders), key=lambda pair: -(pair[0] or 0.0))
    wanted = begun if newest is None else begun[:newest]
    runs = tuple(_read(run_dir, _name(run_dir, folder), started) for started, run_dir in wanted)
    return RunList(runs, len(begun) - len(wanted), tuple(closed))


# ---------------------------------------------------------------- finding


def _found(folder: Path) -> tuple[list[Path], list[Path]]:
    """The run folders in a folder, itself included, and the folders that cannot be searched."""
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder; name the one that holds your runs")
    runs = [folder] if (folder / LEDGER_FILE).is_file() else []
    closed: list[Path] = []
    level = [folder]
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for place in level:
            try:
                inside = sorted(p for p in place.iterdir() if p.is_dir())
            except OSError as error:
                if place == folder:
                    reason = error.strerror or error
                    raise RunError(f"{folder}: cannot be searched ({reason})") from error
                closed.append(place)
                continue
            own = [p for p in inside if _is_run(p)]
            runs += own
            # A link may lead round in a circle; a run's own folders hold its weights.
            below += [p for p in inside if p not in own and not p.is_symlink()]
        level = [p for p in below if not p.name.startswith(".")]
    return runs, closed


def _is_run(folder: Path) -> bool:
    try:
        return (folder / LEDGER_FILE).is_file()
    except OSError:  # a folder that may not be entered is told of when it is searched
        return False


def _name(run_dir: Path, folder: Path) -> str:
    return run_dir.resolve().name if run_dir == folder else str(run_dir.relative_to(folder))


# ---------------------------------------------------------------- reading


def _started(run_dir: Path) -> float | None:
    try:
        with LedgerReader(run_dir) as reader:
            attempts = reader.attempts()
            return attempts[0].unix_anchor_s if attempts else reader.run().created_unix_s
    except (LedgerError, RunError):
        return None


def _read(run_dir: Path, name: str, started: float | None) -> ListedRun:
    try:
        with LedgerReader(run_dir) as reader:
            return _listed(reader, run_dir, name)
    except (LedgerError, RunError) as error:
        why = str(error).removeprefix(f"{(run_dir / LEDGER_FILE).absolute()}: ")
        return ListedRun(name, run_dir, UNREADABLE, why, started)


def _listed(reader: LedgerReader, run_dir: Path, name: str) -> ListedRun:
    """Read one run: its head and its energy as its report has them, and nothing for the rest."""
    spans = attempt_spans(reader.attempts(), reader.last_times())
    executions = reader.executions()
    ran = head(reader, read_config(reader.run(), run_dir), spans, executions)
    readings = []
    for device_id in reader.read_device_ids():
        readings += device_readings(list(reader.power_seconds(device_id)), spans)
    spent = spending(recorded_evidence(reader, spans, executions, readings), None)
    column = spent.columns[-1] if spent.columns else None
    return ListedRun(
        name=name,
        folder=run_dir,
        state=str(ran.state),
        why=None if ran.state is RunEnding.FINISHED else ran.ended_by,
        started_unix_s=ran.started_unix_s,
        n_steps_done=ran.n_steps_done,
        n_steps_planned=ran.n_steps_planned,
        energy_j=None if column is None else column.energy_j,
        provenance=None if column is None else column.provenance,
        at_least=column is not None and column.at_least,
        tokens_per_j=None if column is None else column.tokens_per_joule,
    )
