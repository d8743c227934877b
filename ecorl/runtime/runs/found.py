"""A run that lies in a folder already: how it stands, how it is gone on with, how it is removed."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import RunError
from ecorl.ledger import LEDGER_FILE, LedgerReader, RunEnding, ending_of, is_being_written
from ecorl.ledger.lock import WriterLock
from ecorl.ledger.nodes import COURSE, NODES_FOLDER
from ecorl.records import Stage

ORIGIN, ATTACH = "origin", "attach"
"""Key and value in the ledger's head of a run whose trainer the user's script made."""

GO_ON = "go_on"
"""Key in the ledger's head of how such a run is gone on with, where that is not `BY_SCRIPT`."""

BY_SCRIPT = "start its script again with resume_from_checkpoint=True for attach and train"
"""How a run is gone on with whose trainer the user's script made."""

BEGINS_AGAIN = "begins_again"
"""Key in the ledger's head of a job that may begin again on its record without a checkpoint."""

_ANOTHER = 'name = "..." or run_dir = "runs/{name}-{seed}-{time}" in the config makes another run'

_FILES = (
    "config.toml",
    "report.html",
    "report.json",
    "comparison_report.html",
    "comparison_report.json",
    "footprint.json",
    "emissions.csv",
    "calibration.toml",
    ".models.json",
)
"""Files that ecorl writes into a run's folder, beside the ledger. The names of reports are those of
`ecorl.report`, which lies above this room; a test holds them together."""

_NODE_FILE = re.compile(r"[A-Za-z0-9._-]+-\d+\.sqlite(-wal|-shm|-journal|\.lock)?")
_ROLES = (Stage.REWARD, Stage.REFERENCE)


@dataclass(frozen=True, slots=True)
class FoundRun:
    """What there is to know of a run that lies in a folder, before another one may begin there.

    Attributes:
        folder: of the run.
        meta: the head of its record.
        config_toml: its config.
        ending: how it stands.
        is_empty: whether nothing is in its record: it never began to train.
        step: the last step that it recorded; 0 for none.
        has_checkpoint: whether it recorded any checkpoint.
        checkpoint: the newest one that is there; None without one.
    """

    folder: Path
    meta: Mapping[str, str]
    config_toml: str
    ending: RunEnding
    is_empty: bool
    step: int
    has_checkpoint: bool
    checkpoint: Path | None

    @classmethod
    def of(cls, folder: Path) -> FoundRun:
        """Read the run of a folder.

        Args:
            folder: holds a ledger.

        Raises:
            LedgerError: when that cannot be read.
        """
        with LedgerReader(folder) as reader:
            run, events = reader.run(), reader.events()
            ending, _ = ending_of(reader, events)
            saved = [row for row in reader.checkpoints() if not row.superseded]
            metrics = reader.metrics()
            has_course = any(event.kind in COURSE for event in events)
            is_empty = not (has_course or saved or metrics or reader.executions())
        steps = [row.iteration for row in metrics if not row.superseded]
        there = [row for row in saved if Path(row.path).exists()]
        newest = max(there, key=lambda row: row.iteration, default=None)
        return cls(
            folder=folder,
            meta=run.meta,
            config_toml=run.config_toml,
            ending=ending,
            is_empty=is_empty,
            step=max([*steps, *(row.iteration for row in saved)], default=0),
            has_checkpoint=bool(saved),
            checkpoint=None if newest is None else Path(newest.path),
        )

    @property
    def attached(self) -> bool:
        """Whether a script or a command other than `ecorl run` has started it."""
        return self.meta.get(ORIGIN) == ATTACH

    @property
    def go_on(self) -> str:
        """How a run like this is gone on with from a checkpoint, in words."""
        return self.meta.get(GO_ON, BY_SCRIPT)

    @property
    def how_to_go_on(self) -> str:
        """How this run is gone on with, or that it cannot be, in words."""
        if self.checkpoint is not None:
            return f"{self.go_on} (its checkpoint: {self.checkpoint})"
        if self.has_checkpoint or BEGINS_AGAIN in self.meta:
            return self.go_on
        return "no checkpoint is recorded yet: start its script again with overwrite=True"

    def refusal(self) -> RunError:
        """The error that says why no other run may begin in the folder, and what may be done."""
        course = f"after step {self.step}" if self.step else "before its first step ended"
        # Not by its end alone: a run that has stopped may still be writing what it knows.
        if is_being_written(self.folder / LEDGER_FILE):
            return RunError(
                f"{self.folder} holds a run that is still written, {course}: end it first (where "
                f"this process has attached it: attachment.detach()); {_ANOTHER}"
            )
        if self.ending is RunEnding.FINISHED:
            way = f"`ecorl report {self.folder}` shows it"
        elif self.checkpoint is not None:
            way = f"to go on with it {self.how_to_go_on}"
        elif self.has_checkpoint:
            way = f"to go on with it {self.go_on}, though its checkpoints are gone from their place"
        else:
            way = "no checkpoint of it is recorded, so that there is nothing to go on from"
        return RunError(
            f"{self.folder} holds a run already, {self.ending} {course}: {way}; overwrite=True "
            f"removes it first; {_ANOTHER}"
        )


def remove_unbegun(folder: Path) -> None:
    """Remove the record of an attached run that never began, if that is what lies in a folder.

    A script that ended between attaching and training has left it: nothing is in it.

    Args:
        folder: of a run, or of none.

    Raises:
        RunError: when it cannot be removed.
        LedgerError: when the record cannot be read.
    """
    ledger = folder / LEDGER_FILE
    if not ledger.exists():
        return
    found = FoundRun.of(folder)
    # Whether it is written on another machine cannot be told from here.
    is_here = found.meta.get("host", platform.node()) == platform.node()
    if found.attached and found.is_empty and is_here and found.ending is not RunEnding.RUNNING:
        remove_record(folder)


def remove_record(folder: Path) -> None:
    """Remove what ecorl has written of a run into its folder, and nothing else.

    The ledger goes last: what was cut off on the way can be done again.

    Args:
        folder: of an attached run; one that holds no run stays as it is.

    Raises:
        RunError: when a process writes the record, or `ecorl run` has made it: its checkpoints
            and its model lie in the folder too.
        LedgerError: when the record cannot be read.
    """
    ledger = folder / LEDGER_FILE
    if not ledger.exists():
        return
    # Held while files go; who opens the record now waits for none of it, and is refused.
    lock = WriterLock(ledger.absolute())
    try:
        found = FoundRun.of(folder)
        if not found.attached:
            raise RunError(f"{folder} holds a run of `ecorl run`: choose another folder")
        with LedgerReader(folder) as reader:
            begun_s = reader.run().created_unix_s
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        _remove_models(folder / "models", begun_s)
        _remove_nodes(folder / NODES_FOLDER)
        for file in sorted(folder.glob(f"{LEDGER_FILE}-*")):
            file.unlink(missing_ok=True)
        ledger.unlink()
        (folder / f"{LEDGER_FILE}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: its run cannot be removed ({error})") from error
    finally:
        lock.release()


def _remove_models(folder: Path, begun_s: float) -> None:
    """Remove the models that the run saved, one a role; a folder of the user's is older."""
    for role in _ROLES:
        for path in folder.glob(f"{role}*"):
            files = [file for file in path.rglob("*") if file.is_file()]
            if files and all(file.stat().st_mtime >= begun_s for file in files):
                shutil.rmtree(path)
    _remove_if_empty(folder)


def _remove_nodes(folder: Path) -> None:
    """Remove the records of the run's other machines."""
    for file in folder.glob("*"):
        if _NODE_FILE.fullmatch(file.name):
            file.unlink(missing_ok=True)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
