"""Whether a Ray cluster can be joined, within a limit of time.

``ray.init`` asks a cluster that does not answer, or that asks for another token, again and again
and for ever, and nothing in its process can end it. So a process of its own joins first
(``python -m ecorl.runtime.ray.reach FD PARENT_PID``); it is killed when it takes too long, and the
process that wants to join has not begun then.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import IO

from ecorl.child_process import die_with_parent, hear_keyboard, start_module, wait_or_kill

START_S = 120.0
"""Longest wait until the process has imported Ray, s. Invented: a slow disk takes some ten
seconds."""

_END_S = 5.0
"""How long the process may take to leave the cluster, s; then it is killed. Invented."""

_LOOK_S = 1.0
"""Longest wait for a plain connection, s. Invented."""

_OF_A_JOB = ("RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK")
"""Variables that are for the job itself: Ray would make its environment a second time."""

_MET = "met: "
_WORDS = re.compile(rf"^(?:\[[^\]]*\] \S+:\d+: |{_MET})(.*\S)", re.MULTILINE)
"""What was met at the address, as `look` and Ray's log of connections print it; what else Ray
prints is advice."""


def refusal(address: str, patience_s: float) -> str | None:
    """Try whether a cluster can be joined.

    Args:
        address: as `ray.init` takes it, but not ``local``.
        patience_s: longest wait for its answer, s.

    Returns:
        None when it can, else Ray's reason on one line.

    Raises:
        TimeoutError: when it has not answered in time, with Ray's last words.
        OSError: when the process cannot be started.
    """
    own, theirs = socket.socketpair()
    leaves_within_s = 0.0
    with tempfile.TemporaryFile() as printed, Connection(own.detach()) as link:
        with theirs:
            process = start_module(__name__, theirs.fileno(), output=printed)
        try:
            link.send(address)
            if not link.poll(START_S):
                raise TimeoutError(f"Ray was not imported within {START_S:g} s")
            link.recv()
            if not link.poll(patience_s):
                told = f"no answer within {patience_s:g} s, runtime.patience_s"
                raise TimeoutError(": ".join(filter(None, (told, _met(printed)))))
            reason: str | None = link.recv()
            leaves_within_s = _END_S
        except (EOFError, ConnectionError):
            words = (_text(printed).splitlines() or ["no message"])[-1]
            reason = f"the process that tried it has ended: {words}"
        finally:
            wait_or_kill(process, leaves_within_s)
    return reason


def one_line(error: BaseException) -> str:
    """Say an error and its cause on one line."""
    told = [" ".join(str(one).split()) for one in (error, error.__cause__) if one is not None]
    return ": ".join(dict.fromkeys(filter(None, told))) or type(error).__name__


def _met(printed: IO[bytes]) -> str:
    met: list[str] = _WORDS.findall(_text(printed))
    return met[-1].rstrip(".") if met else ""


def _text(printed: IO[bytes]) -> str:
    printed.seek(0)
    return printed.read().decode(errors="replace").strip()


# ---------------------------------------------------------------- the process that tries


def main(argv: Sequence[str]) -> int:
    """Join the cluster, tell how that went, and leave it.

    Args:
        argv: file descriptor of the socket, and process id of the parent.
    """
    fd, parent_pid = (int(word) for word in argv[:2])
    die_with_parent(parent_pid)
    os.set_inheritable(fd, False)
    hear_keyboard()
    for name in _OF_A_JOB:
        os.environ.pop(name, None)
    # A parent that is gone is no error: no answer is needed then.
    with contextlib.suppress(EOFError, OSError), Connection(fd) as link:
        address = link.recv()
        import ray

        link.send("asks")
        look(address)
        reason = None
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = one_line(error)
        link.send(reason)
        if reason is None:
            ray.shutdown()
    return 0


def look(address: str) -> None:
    """Print what a connection to an address meets, where it names one: Ray itself says it late.

    Args:
        address: as `ray.init` takes it.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LOOK_S).close()
    except OSError as error:
        print(f"{_MET}{error.strerror or error}", flush=True)
    else:
        print(f"{_MET}what listens there does not answer as Ray's head does", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
