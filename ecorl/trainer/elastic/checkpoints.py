"""Checkpoints of an elastic training: whole or recognised as damaged, the last two kept."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ecorl.errors import RunError
from ecorl.files import write_whole
from ecorl.trainer.elastic.crew import first_line, raise_cause, reason_of
from ecorl.trainer.elastic.records import ElasticFault

_KEPT = 2
"""A newest one that is damaged must have one before it."""

_FORMAT = 1

_NAME = re.compile(r"step-(\d{8,})\.ckpt")


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """A state that was saved.

    Attributes:
        n_done: steps that it holds.
        payload: the state, as `state.to_bytes` wrote it.
        control: what the controller remembered; None where it remembers nothing.
    """

    n_done: int
    payload: bytes
    control: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A checkpoint whose content is not what was written.

    Attributes:
        name: its name.
        reason: what is wrong with it.
    """

    name: str
    reason: str


class CheckpointFolder:
    """The checkpoints of one training, as files of a header line and the state.

    Args:
        folder: where they lie; it is made.

    Raises:
        OSError: when it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # What a driver left that was killed while it wrote.
        for part in folder.glob(".step-*.ckpt.*.part"):
            with suppress(OSError):
                part.unlink()

    def write(
        self, n_done: int, payload: bytes, control: Mapping[str, object] | None = None
    ) -> None:
        """Save a state, and delete all but the newest two.

        Args:
            n_done: steps that it holds.
            payload: the state.
            control: what the controller remembers, in values that JSON can hold; None: nothing.

        Raises:
            OSError: when it cannot be written; those that are there stay.
        """
        header = {
            "format": _FORMAT,
            "n_done": n_done,
            "n_bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
            "control": control,
        }
        line = json.dumps(header).encode() + b"\n"
        write_whole(self.folder / f"step-{n_done:08d}.ckpt", line + payload)
        for _, path in self._files()[:-_KEPT]:
            with suppress(OSError):  # one too many costs space alone
                path.unlink()

    def n_done(self) -> int:
        """Tell how many steps the newest checkpoint holds, by header and size alone.

        Returns:
            Steps; 0 where there is no checkpoint.

        Raises:
            OSError: when one cannot be read.
        """
        for n_done, path in reversed(self._files()):
            with path.open("rb") as file:
                line = file.readline()
            n_bytes = path.stat().st_size - len(line)
            if not isinstance(_header(line, n_done, n_bytes), str):
                return n_done
        return 0

    def newest(self) -> tuple[TrainingCheckpoint | None, list[DamagedFile]]:
        """Read the newest checkpoint that is whole.

        Damaged ones that are newer are renamed, so that they are not looked at again.

        Returns:
            The checkpoint, or None where there is none; and the damaged ones that were passed over.

        Raises:
            OSError: when one cannot be read; that says nothing about its content.
            RunError: when all that are there are damaged.
        """
        damaged: list[DamagedFile] = []
        for n_done, path in reversed(self._files()):
            read = _read(path, n_done)
            if isinstance(read, TrainingCheckpoint):
                for one in damaged:
                    with suppress(OSError):
                        name = self.folder / one.name
                        name.rename(name.with_suffix(".damaged"))
                return read, damaged
            damaged.append(DamagedFile(path.name, read))
        if damaged:
            found = ", ".join(f"{one.name} ({one.reason})" for one in damaged)
            raise RunError(
                f"no checkpoint in {self.folder} is whole: {found}; restore one of them, or begin "
                "anew in another folder"
            )
        return None, []

    def _files(self) -> list[tuple[int, Path]]:
        """Step and file of all checkpoints, the oldest first."""
        found = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match is not None)


def _read(path: Path, n_done: int) -> TrainingCheckpoint | str:
    """Read one checkpoint; or tell what is wrong with its content."""
    line, end, payload = path.read_bytes().partition(b"\n")
    header = _header(line + end, n_done, len(payload))
    if isinstance(header, str):
        return header
    if header.get("sha256") != hashlib.sha256(payload).hexdigest():
        return "its content does not match its hash"
    control = header.get("control")
    return TrainingCheckpoint(n_done, payload, control if isinstance(control, dict) else None)


def _header(line: bytes, n_done: int, n_bytes: int) -> dict[str, Any] | str:
    """The header of a file with this number of bytes after it; or what is wrong with it."""
    try:
        header = json.loads(line)
    except ValueError as error:
        return f"its header cannot be read: {error}"
    if not isinstance(header, dict):
        return "its header is no JSON object"
    if header.get("format") != _FORMAT:
        return f"format {header.get('format')!r}, this ecorl reads {_FORMAT}"
    if header.get("n_done") != n_done:
        return f"it says that it holds {header.get('n_done')} steps"
    if header.get("n_bytes") != n_bytes:
        return f"it has {n_bytes} bytes of {header.get('n_bytes')}"
    return header


class Saver:
    """Takes states from members and writes them, one after the other.

    A state that cannot be written is a fault and no error: training goes on, and the checkpoints
    that are there stay.

    Args:
        folder: of the checkpoints.
        patience_s: how long a member's state is waited for, s.
        tell: takes faults.

    Attributes:
        n_saved: steps that the last state on the disk holds; -1 before there is one.
        failure: why the last state was not written, in one line.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        patience_s: float,
        tell: Callable[[ElasticFault, str, str], None],
    ) -> None:
        self._folder, self._patience_s, self._tell = folder, patience_s, tell
        self._pool = ThreadPoolExecutor(1, "checkpoints")
        self._under_way: Future[None] | None = None
        self._n_done = -1
        self.n_saved = -1
        self.failure = ""

    @property
    def is_busy(self) -> bool:
        """Whether a state is being written."""
        return self._under_way is not None and not self._under_way.done()

    def save(self, n_done: int, snapshot: Any, control: Mapping[str, object] | None = None) -> None:
        """Write a state, beside the training.

        Args:
            n_done: steps that it holds.
            snapshot: reference of the member's answer.
            control: what the controller remembers; None: nothing.

        Raises:
            Exception: what the task's own functions raised for the state before it.
        """
        self.settle()
        self._n_done = n_done
        self._under_way = self._pool.submit(self._write, n_done, snapshot, control)

    def settle(self) -> bool:
        """Wait for the state that is being written; returns whether the last one was.

        Raises:
            Exception: what the task's own functions raised, such as those that pickle its state.
        """
        if self._under_way is None:
            return self.n_saved == self._n_done
        under_way, self._under_way = self._under_way, None
        error = under_way.exception()
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            raise_cause(error)
        if isinstance(error, OSError | RayError):
            self.failure = reason_of(error) if isinstance(error, RayError) else first_line(error)
            name = f"step-{self._n_done:08d}.ckpt"
            self._tell(ElasticFault.CHECKPOINT_FAILED, name, self.failure)
            return False
        under_way.result()
        self.n_saved = self._n_done
        return True

    def close(self) -> None:
        """Write what is to be written, and end the thread.

        Raises:
            Exception: what the task's own functions raised.
        """
        try:
            self.settle()
        finally:
            self._pool.shutdown()

    def _write(self, n_done: int, snapshot: Any, control: Mapping[str, object] | None) -> None:
        self._folder.write(n_done, ray.get(snapshot, timeout=self._patience_s), control)
