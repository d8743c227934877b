"""The lines that travel between the sampling process and its parent: one JSON object a line.

Towards the child, once: a list of `SourceSpec`, with the configuration of its sources in it, which
the child validates; after it `EDGE` for each edge of a stage. From the child, first
``{"ready": [...]}`` with one report a spec, then ``{"samples": [...]}`` for every read.

`SamplerProcess` starts the child, reads its lines and ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ecorl.child_process import start_module, wait_or_kill
from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo, SourceSpec

EDGE = b"."
"""What the child gets where a stage begins or ends."""


@dataclass(frozen=True)
class SourceReport:
    """The child's report of one spec.

    Attributes:
        asked: the type in the spec.
        chosen: the type that opened, or `asked` when none did.
        devices: its devices; empty when it did not open.
        interval_s: polling interval, s.
        refusals: type and reason of each source that was tried and did not open.
        error: name of the error when none opened, else None.
        user_error: message of a mistake of the user (an unreadable replay file), else None.
        unread: devices that gave no readings when it opened, each with the reason in words.
    """

    asked: str
    chosen: str
    devices: tuple[DeviceInfo, ...]
    interval_s: float
    refusals: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    user_error: str | None = None
    unread: tuple[tuple[str, str], ...] = ()


def encode_specs(specs: Sequence[SourceSpec]) -> str:
    """Specs as one line."""
    return _adapter(SourceSpec).dump_json(tuple(specs)).decode() + "\n"


def decode_specs(line: str) -> tuple[SourceSpec, ...]:
    """The specs of a line of `encode_specs`, validated."""
    specs: tuple[SourceSpec, ...] = _adapter(SourceSpec).validate_json(line)
    return specs


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Reads and writes a tuple of one kind of record."""
    return TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]


def encode_ready(reports: Sequence[SourceReport]) -> str:
    """Reports as one line."""
    return f'{{"ready":{_adapter(SourceReport).dump_json(tuple(reports)).decode()}}}\n'


def encode_samples(samples: Sequence[PowerSample]) -> str:
    """Samples as one line."""
    rows = [
        [s.device_id, s.t_s, s.power_w, s.energy_j, s.utilisation, s.provenance, s.source, s.error]
        for s in samples
    ]
    return json.dumps({"samples": rows}, separators=(",", ":")) + "\n"


def decode(line: str | bytes) -> tuple[SourceReport, ...] | tuple[PowerSample, ...]:
    """Reports or samples of one line.

    Raises:
        ValueError: the line is neither.
    """
    try:
        data = json.loads(line)
        if "ready" in data:
            reports: tuple[SourceReport, ...] = _adapter(SourceReport).validate_python(
                data["ready"]
            )
            return reports
        return tuple(
            PowerSample(row[0], row[1], row[2], row[3], row[4], Provenance(row[5]), row[6], row[7])
            for row in data["samples"]
        )
    except (KeyError, TypeError, IndexError, ValidationError) as error:
        raise ValueError(f"not a line of the sampler: {line!r}") from error


PIPE_BYTES = 1 << 20
"""Size of the pipe: about a minute of samples of eight GPUs, should this process stand still."""

PATIENCE_S = 1.0
"""How long to wait for the process to end before it is killed, and again after that, s."""


class SamplerProcess:
    """A running ``python -m ecorl.telemetry.sampling.sampler_main``.

    Args:
        specs: the sources to read.

    Raises:
        OSError: when the process cannot be started.
    """

    def __init__(self, specs: Sequence[SourceSpec]) -> None:
        self._fd, write_fd = os.pipe()
        self._own_pid = os.getpid()
        self._orders, theirs = socket.socketpair()
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._fd, False)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        module = "ecorl.telemetry.sampling.sampler_main"
        try:
            self._popen = start_module(module, write_fd, stdin=theirs.fileno(), output=self._errors)
        except OSError:
            os.close(self._fd)
            self._orders.close()
            self._errors.close()
            raise
        finally:
            os.close(write_fd)
            theirs.close()
        self.pid = self._popen.pid
        # After `end` nothing may be sent: the descriptor's number may be another file's by then.
        self._orders_lock = threading.Lock()
        with contextlib.suppress(OSError):
            self._orders.sendall(encode_specs(specs).encode(), socket.MSG_NOSIGNAL)

    def mark_edge(self) -> None:
        """Ask for a reading at once; dropped where the process does not listen. Never raises."""
        if os.getpid() != self._own_pid:
            return  # a forked process: the lock may be held there for ever
        # A pipe would end this process where its user has set SIGPIPE back to its default.
        with self._orders_lock, contextlib.suppress(OSError):
            self._orders.send(EDGE, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def lines(self, timeout_s: float) -> list[bytes] | None:
        """Return all complete lines, after at most `timeout_s`; None when the process has ended."""
        self._poll.poll(timeout_s * 1000)
        ended = False
        while True:
            try:
                chunk = os.read(self._fd, PIPE_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                ended = True
                break
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return None if ended and not lines else lines

    def last_words(self) -> str:
        """Return the exit code and the last line of what the process printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(PATIENCE_S)
        code = self._popen.returncode
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        last = text.splitlines()[-1] if text else "no message"
        return f"exit code {code}: {last}"

    def end(self) -> None:
        """End the process within a bounded time and close its pipes; never raises."""
        with self._orders_lock:
            self._orders.close()
        wait_or_kill(self._popen, PATIENCE_S, reap_s=PATIENCE_S)
        os.close(self._fd)
        self._errors.close()
