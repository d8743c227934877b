"""Versions of an adapted policy in a folder, and the history of what was in use and why.

    current.onnx    the policy in use; the file that a run's config names
    0001.onnx ...   every version that was ever in use
    history.json    what happened, and which version is in use

A swap writes the new version, then the history, then ``current.onnx``; each file is whole or not
there. Cut off before the history is written, nothing has happened: the policy before is in place,
and the version that nobody names is overwritten by the next one. Cut off after it, the policy
before is in place as well, and the next command finishes the swap (`Versions.settle`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ecorl.errors import RunError
from ecorl.files import lockable, write_whole

FORMAT = "ecorl.policy-history/1"
CURRENT, HISTORY = "current.onnx", "history.json"


class Versions:
    """The versions of one policy.

    Args:
        folder: made when the first policy comes.

    Raises:
        RunError: when its history cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._data = _read(self.folder / HISTORY)

    @property
    def current(self) -> Path:
        """The policy in use."""
        return self.folder / CURRENT

    @property
    def number(self) -> int | None:
        """Version in use; None before the first."""
        found = self._data["current"]
        return None if found is None else int(found)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands out of the folder.

        Raises:
            RunError: when another command has it.
        """
        make_folder(self.folder)
        try:
            held = FileLock(lockable(self.folder / ".lock")).acquire(timeout=0)
        except Timeout as error:
            raise RunError(f"{self.folder}: another command is changing this policy") from error
        with held:
            self._data = _read(self.folder / HISTORY)
            yield

    def settle(self) -> None:
        """Finish an interrupted swap, and record a file that was put there by hand as a version.

        Raises:
            RunError: when a version that the history names is gone.
        """
        digest = _digest(self.current)
        if self.number is None:
            if digest is not None:
                self.take(self.current.read_bytes(), {"decision": "found in the folder"})
            return
        known = {e.get("sha256") for e in self._data["entries"]} - {None}
        if digest is None or digest in known:
            content = self._content(self.number)
            if _digest(self.current) != hashlib.sha256(content).hexdigest():
                write_file(self.current, content)
        else:
            self.take(self.current.read_bytes(), {"decision": "put in place by hand"})

    def take(self, content: bytes, told: dict[str, Any]) -> int:
        """Put a policy in place as a new version.

        Args:
            content: of the policy file.
            told: what stands in the history beside number and time.

        Returns:
            Its number.
        """
        numbers = [e["version"] for e in self._data["entries"] if e.get("version") is not None]
        number = max(numbers, default=0) + 1
        make_folder(self.folder)
        write_file(self._path(number), content)
        digest = hashlib.sha256(content).hexdigest()
        self._say(number, {**told, "version": number, "before": self.number, "sha256": digest})
        write_file(self.current, content)
        return number

    def note(self, told: dict[str, Any]) -> None:
        """Write into the history what changed nothing."""
        self._say(self.number, {**told, "version": None})

    def rollback(self) -> int:
        """Put the version back that was in use before the present one.

        Returns:
            Its number.

        Raises:
            RunError: when there is none, or its file is gone or changed.
        """
        now = self.number
        made = [e for e in self._data["entries"] if e.get("version") == now and now is not None]
        before = made[-1].get("before") if made else None
        if before is None:
            raise RunError(
                f"{self.folder}: there is no policy before the present one to go back to"
            )
        content = self._content(int(before))
        self._say(int(before), {"decision": "rolled back", "from": now, "to": before,
                                "version": None})  # fmt: skip
        write_file(self.current, content)
        return int(before)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:04d}.onnx"

    def _content(self, number: int) -> bytes:
        """A version, as it was."""
        path = self._path(number)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror})") from error
        told = [e["sha256"] for e in self._data["entries"] if e.get("version") == number]
        if told and hashlib.sha256(content).hexdigest() != told[-1]:
            raise RunError(f"{path} is not the version that {HISTORY} tells of: it was changed")
        return content

    def _say(self, current: int | None, told: dict[str, Any]) -> None:
        entry = {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"), **told}
        data = {**self._data, "current": current, "entries": [*self._data["entries"], entry]}
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
        write_file(self.folder / HISTORY, text.encode())
        self._data = data


def make_folder(folder: Path) -> None:
    """Make a folder if need be.

    Raises:
        RunError: when it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made a folder ({error.strerror})") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file of a policy; it is whole or not there.

    Args:
        path: of the file.
        content: its bytes.

    Raises:
        RunError: when it cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror})") from error


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {"format": FORMAT, "current": None, "entries": []}
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error})") from error
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} is no history of a policy ({error})") from error
    fine = isinstance(data, dict) and data.get("format") == FORMAT and "current" in data
    if not (fine and isinstance(data.get("entries"), list)):
        raise RunError(f"{path} is no history of a policy (its format is not {FORMAT})")
    return data
