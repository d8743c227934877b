"""CodeCarbon beside a run, in a process of its own: its failure costs the run nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ecorl.child_process import start_module, wait_or_kill

PATIENCE_S = 10.0
"""How long CodeCarbon may take to sum up, s. Invented: it takes one reading more and adds it."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What another instrument found of the same time.

    Attributes:
        version: of the instrument.
        duration_s: time that it measured, s.
        energy_j: of the machine, J.
        parts_j: of its parts, J: ``cpu``, ``gpu``, ``ram``.
        carbon_g: by its own factor, g.
    """

    version: str
    duration_s: float
    energy_j: float
    parts_j: dict[str, float]
    carbon_g: float

    def to_json(self) -> str:
        """As one line, which `from_json` reads."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Beside:
        """Read what `to_json` wrote.

        Raises:
            ValueError: when it is something else.
        """
        return _found(json.loads(text))


class CodeCarbonProcess:
    """CodeCarbon, measuring this machine from `start` to `stop`.

    Args:
        country: code of three letters, by whose mix it computes emissions.
    """

    def __init__(self, country: str) -> None:
        self._country = country
        self._process: subprocess.Popen[bytes] | None = None
        self._fd: int | None = None
        self._failed: str | None = None

    def start(self) -> None:
        """Start to measure; returns at once."""
        read_fd, write_fd = os.pipe()
        try:
            # It speaks to people of its own accord, and nobody has asked it here.
            with Path(os.devnull).open("wb") as nowhere:
                self._process = start_module(
                    "ecorl.telemetry.beside.codecarbon_main",
                    write_fd,
                    stdin=subprocess.PIPE,
                    output=nowhere,
                )
            self._fd = read_fd
            if self._process.stdin is not None:
                self._process.stdin.write(f"{self._country}\n".encode())
                self._process.stdin.flush()
        except OSError as error:
            self._failed = str(error)
            if self._fd is None:
                os.close(read_fd)
        finally:
            os.close(write_fd)

    def stop(self) -> Beside | str:
        """End it; what it found, or why it found nothing. Safe to call twice."""
        process, self._process = self._process, None
        fd, self._fd = self._fd, None
        if process is None or fd is None:
            return self._failed or "it was not started"
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            text = _line(fd, time.monotonic() + PATIENCE_S)
        finally:
            os.close(fd)
            wait_or_kill(process, 1.0, reap_s=1.0)
        if not text:
            return f"it ended with exit code {process.returncode} and told nothing"
        try:
            return _found(json.loads(text))
        except ValueError as error:
            return str(error)


def _line(fd: int, until_s: float) -> str:
    """What comes from a pipe until its end, or until it is too late."""
    found = b""
    while (left_s := until_s - time.monotonic()) > 0:
        ready, _, _ = select.select([fd], [], [], left_s)
        if not ready:
            break
        more = os.read(fd, 65_536)
        if not more:
            break
        found += more
    return found.decode("utf-8", "replace").strip()


def _found(told: object) -> Beside:
    if not isinstance(told, dict):
        raise ValueError("it told something else than its figures")
    if "error" in told:
        raise ValueError(str(told["error"]))
    try:
        parts_j = {str(k): float(v) for k, v in told["parts_j"].items()}
        numbers = [float(told[name]) for name in ("duration_s", "energy_j", "carbon_g")]
        version = str(told["version"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its figures are not whole ({error})") from error
    if not all(math.isfinite(n) and n >= 0 for n in (*numbers, *parts_j.values())):
        raise ValueError("its figures are no amounts")
    duration_s, energy_j, carbon_g = numbers
    return Beside(version, duration_s, energy_j, parts_j, carbon_g)
