"""Child processes of this program: how they are started, tied to their parent and ended.

They are started by ``subprocess`` on a fresh interpreter. Python's own process pools are no choice:
`spawn` imports the user's main script a second time, and `fork` copies a trainer with threads and
an initialised GPU. Only where nothing but numbers is computed, in a program without a trainer
(studies of a benchmark, training the scheduler's policy), pools of forked workers are used; each
of those begins with `quiet_worker`. One more process is forked from: that of
`ecorl.bench.tokens_per_joule`, which has imported a framework and used nothing of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from ecorl.interrupt import remember_interrupts

SIMULATOR = "ecorl-simulator"
"""Name of a process that simulates a card, as the kernel shows it; 15 characters are the most."""

REAP_S = 5.0
"""How long the kernel may take to remove a killed process, s. Invented."""

_PR_SET_PDEATHSIG = 1


def start_module(
    module: str,
    fd: int,
    variables: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    output: IO[bytes] | None = None,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE FD PARENT_PID`` with this ecorl on its module path.

    It does not hear Ctrl-C until it calls `hear_keyboard`: one that comes while it still imports
    its libraries must not end it with a trace on the terminal.

    Args:
        module: dotted name of the module.
        fd: a pipe or socket that the child inherits; the parent's own copy stays open.
        variables: environment variables set beside those of this process.
        stdin: as of `subprocess.Popen`.
        output: file for all that the child prints; None leaves it this process's own.
        own_session: whether signals of the terminal, such as Ctrl-C, do not reach it.

    Raises:
        OSError: the system refuses another process.
    """
    # -P keeps the working folder off the child's path: a torch.py or json.py there must not stand
    # in for the library.
    with _keyboard_held_back():
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(fd), str(os.getpid())],
            stdin=stdin,
            stdout=output,
            stderr=output,
            pass_fds=(fd,),
            env=_environment(variables or {}),
            start_new_session=own_session,
        )


@contextlib.contextmanager
def _keyboard_held_back() -> Iterator[None]:
    """Hold SIGINT back from this thread, and so for good from what it starts inside the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hear_keyboard() -> None:
    """Let SIGINT reach this process, and one that came since it was started.

    It raises KeyboardInterrupt and is remembered, see `ecorl.interrupt`.
    """
    remember_interrupts()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def name_process(name: str) -> None:
    """Give this process a name in the kernel's tables; where that is refused it keeps its own.

    Args:
        name: the name, at most 15 characters.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit at once if it has ended already.

    For the kernel the parent is the *thread* that started this process: call this only in a child
    whose starting thread lives as long as the child may.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(1)


def outlive_parent() -> None:
    """Take `die_with_parent` back: this process notices its parent's end and ends by itself."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)


def wait_or_kill(
    process: subprocess.Popen[bytes], patience_s: float, reap_s: float = REAP_S
) -> bool:
    """Wait for a process that has been asked to end, and kill it when it does not.

    Args:
        process: the process.
        patience_s: how long it may take, s.
        reap_s: how long the kernel may take to remove it after SIGKILL, s; a process within a
            driver's call can take for ever.

    Returns:
        Whether it ended by itself.
    """
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(reap_s)
        return False
    return True


def end_group(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a process that leads a group, and all of the group: by SIGTERM, then by SIGKILL.

    Args:
        process: the leader, started with ``start_new_session=True``.
        patience_s: how long it may take after each signal, s.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with the folder that holds ecorl first on the module path."""
    folder = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return {**os.environ, **variables, "PYTHONPATH": path}


def quiet_worker() -> None:
    """Let a worker process end at Ctrl-C without a word; the main process tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
