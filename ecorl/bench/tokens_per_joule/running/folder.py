"""The folder of a benchmark: its plan, its runs, what came of them, and the results.

plan.json       what is run, and where it ran
task/           files that all runs share
runs/           a run folder for each arm and seed, as of `ecorl run`
logs/           what each run printed
unfinished/     runs that were cut off; nothing is read from them
notes.json      runs that failed, with the reason, and readings of the idle machine
tokens_per_joule.json, .csv, .html      the results
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ecorl.bench.tokens_per_joule.plan import BenchPlan, Stand, stand_from
from ecorl.bench.tokens_per_joule.running.idle import IdleReading
from ecorl.config import parse_config
from ecorl.errors import RunError
from ecorl.files import lockable, write_whole
from ecorl.records import Provenance
from ecorl.runtime.runs.record import is_complete

KIND = "ecorl tokens-per-joule"
"""What ``plan.json`` and the results name themselves, so that no other JSON is taken for them."""

_LOCK_FILE = "session.lock"

JSON_FILE, CSV_FILE, HTML_FILE = (f"tokens_per_joule.{end}" for end in ("json", "csv", "html"))


class BenchFolder:
    """A benchmark's folder on disk.

    Args:
        path: the folder; it is made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._existed: bool | None = None
        self._notes: dict[str, Any] = {"failed": {}, "idle": []}

    @property
    def is_begun(self) -> bool:
        """Whether it holds a benchmark already."""
        return (self.path / "plan.json").is_file()

    @property
    def holds_runs(self) -> bool:
        """Whether runs of a benchmark were begun in it."""
        runs = self.path / "runs"
        return self.is_begun and runs.is_dir() and any(runs.iterdir())

    # ------------------------------------------------------------ plan

    def begin(self, plan: BenchPlan, stand: Stand) -> None:
        """Make the folder, or go on with it.

        Args:
            plan: what is to be run.
            stand: where.

        Raises:
            RunError: when it holds a benchmark of another device, driver or config, or something
                else, or cannot be written.
        """
        if self.is_begun:
            before, then = self.plan()
            self._refuse_other(then, stand)
            # Arms and seeds of earlier calls stay in the results.
            plan, stand = before.with_more(plan), then
            self._notes = self._read_notes()
        for name in ("runs", "logs"):
            self._make(self.path / name)
        self._write_plan(plan, stand)

    def place(self, device: str, gpu_uuids: Sequence[str]) -> None:
        """Note where the framework computes.

        Args:
            device: ``cuda`` or ``cpu``.
            gpu_uuids: of the GPUs that it sees; none on a processor.

        Raises:
            RunError: when earlier runs of the benchmark computed elsewhere.
        """
        plan, stand = self.plan()
        here = stand.computing_on(device, gpu_uuids)
        self._refuse_other(stand, here)
        self._write_plan(plan, here)

    def _refuse_other(self, before: Stand, now: Stand) -> None:
        found = before.differences(now)
        if found:
            raise RunError(
                f"{self.path} holds a benchmark of {' and of '.join(found)}: choose another "
                "folder with --out"
            )

    def _write_plan(self, plan: BenchPlan, stand: Stand) -> None:
        data = {"benchmark": KIND, "plan": plan.as_dict(), "stand": asdict(stand)}
        self.write("plan.json", json.dumps(data, indent=1) + "\n")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other sessions away from the folder inside the block; it is made where it is not.

        Raises:
            RunError: when another one is at it, or it holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is no folder: choose another one with --out")
        if not self.is_begun:
            self._existed = self.path.exists()
            if self._existed and any(one.name != _LOCK_FILE for one in self.path.iterdir()):
                self._existed = None
                raise RunError(
                    f"{self.path} holds something else: choose another folder with --out"
                )
        self._make(self.path)
        lock = FileLock(lockable(self.path / _LOCK_FILE), timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise RunError(f"{self.path}: another process is at this benchmark") from error
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error
        try:
            yield
        finally:
            lock.release()

    def withdraw(self) -> None:
        """Leave nothing of a benchmark that was begun just now and made no run."""
        runs = self.path / "runs"
        if self._existed is None or (runs.is_dir() and any(runs.iterdir())):
            return
        for name in ("runs", "logs", "task"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("plan.json", "notes.json", _LOCK_FILE):
            (self.path / name).unlink(missing_ok=True)
        if not self._existed:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def plan(self) -> tuple[BenchPlan, Stand]:
        """Read what an earlier call has planned, and where it ran.

        Raises:
            RunError: when there is no benchmark in the folder, or its plan cannot be read.
        """
        path = self.path / "plan.json"
        try:
            data = json.loads(path.read_text("utf-8"))
            return _plan_from(data["plan"]), stand_from(data["stand"])
        except OSError as error:
            raise RunError(f"{self.path} holds no benchmark (there is no plan.json)") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} cannot be read ({error})") from error

    def write(self, name: str, text: str) -> Path:
        """Write a file of the folder, whole or not at all.

        Args:
            name: of the file.
            text: its content.

        Raises:
            RunError: when it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / name, text)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error
        return self.path / name

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder}: cannot be made ({error.strerror})") from error

    # ------------------------------------------------------------ runs

    def run_dir(self, arm: str, seed: int) -> Path:
        """The folder of a run."""
        return self.path / "runs" / f"{arm}-{seed}"

    def log(self, arm: str, seed: int) -> Path:
        """The file of what a run printed."""
        return self.path / "logs" / f"{arm}-{seed}.log"

    def is_done(self, arm: str, seed: int) -> bool:
        """Whether a run has finished."""
        return is_complete(self.run_dir(arm, seed))

    def clear(self, arm: str, seed: int) -> None:
        """Put a run that was cut off aside, and forget why it failed.

        Raises:
            RunError: when it cannot be moved.
        """
        self._notes["failed"].pop(_key(arm, seed), None)
        run_dir = self.run_dir(arm, seed)
        if not run_dir.exists():
            return
        aside = self.path / "unfinished"
        self._make(aside)
        number = sum(1 for _ in aside.iterdir()) + 1
        try:
            run_dir.rename(aside / f"{run_dir.name}-{number}")
        except OSError as error:
            raise RunError(f"{run_dir}: cannot be moved aside ({error.strerror})") from error

    # ------------------------------------------------------------ notes

    def fail(self, arm: str, seed: int, why: str) -> None:
        """Note why a run has no figures."""
        self._notes["failed"][_key(arm, seed)] = why
        self._write_notes()

    def failure(self, arm: str, seed: int) -> str:
        """Why a run has no figures; empty where nothing is noted."""
        return str(self._notes["failed"].get(_key(arm, seed), ""))

    def add_idle(self, readings: Sequence[IdleReading]) -> None:
        """Note what the idle machine drew."""
        self._notes["idle"] += [asdict(reading) for reading in readings]
        self._write_notes()

    @property
    def idle(self) -> list[IdleReading]:
        """What the idle machine drew, as noted."""
        return [idle_from(data) for data in self._notes["idle"]]

    def note(self, name: str, value: Any) -> None:
        """Note something else, plain data."""
        self._notes[name] = value
        self._write_notes()

    def noted(self, name: str) -> Any:
        """What was noted under a name; None where nothing was."""
        return self._notes.get(name)

    def open_notes(self) -> None:
        """Read the notes of an earlier call."""
        self._notes = self._read_notes()

    def _write_notes(self) -> None:
        self.write("notes.json", json.dumps(self._notes, indent=1) + "\n")

    def _read_notes(self) -> dict[str, Any]:
        path = self.path / "notes.json"
        if not path.is_file():
            return {"failed": {}, "idle": []}
        try:
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return {"failed": {}, "idle": [], **found}
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({error})") from error


def _key(arm: str, seed: int) -> str:
    return f"{arm}-{seed}"


def idle_from(data: Mapping[str, Any]) -> IdleReading:
    """Read back a reading of the idle machine."""
    told = data["provenance"]
    return IdleReading(**{**data, "provenance": None if told is None else Provenance(told)})


def _plan_from(data: Mapping[str, Any]) -> BenchPlan:
    return BenchPlan(
        base=parse_config(data["config"], "plan.json"),
        placements=tuple(data["placements"]),
        extras=tuple(data["extras"]),
        seeds=tuple(data["seeds"]),
        warm_up=data["warm_up"],
        idle_s=data["idle_s"],
        supervised=data["supervised"],
        reward=data["reward"],
        correct=data["correct"],
    )
