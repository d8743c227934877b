"""A Ray cluster on this machine for one run that trains in several groups of processes in turn.

A process of its own starts it (``python -m ecorl.runtime.ray.local_cluster FD PARENT_PID``), so
that who supervises the training need not import Ray, whose driver ends its process when the cluster
is lost. Each group joins the cluster by its address: starting one takes seconds each time.

The parent's side, `LocalCluster`, imports no Ray. A cluster that is lost is noticed within a
second: its process looks after the two servers that make it up, and ends with them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from ecorl.child_process import (
    die_with_parent,
    hear_keyboard,
    outlive_parent,
    start_module,
    wait_or_kill,
)
from ecorl.errors import ConfigError
from ecorl.runtime.ray import ADDRESS

START_S = 120.0
"""Longest wait for the cluster, s. Invented: a slow machine takes some ten seconds."""

_END_S = 20
"""Longest wait for its orderly end, s; then it is killed. Invented."""

_KILLED_S = 5.0
"""How long the kernel may take to remove killed processes, s. Invented."""

_LOOK_S = 0.2
"""Time between two looks of the cluster's process at its servers, s. Invented."""

_SERVERS = ("gcs_server", "raylet")
"""Names of the processes without which there is no cluster."""

_LONGEST_BASE = 24
"""Bytes that the name of the folder around a cluster's own may have: Ray adds some 70 to that one,
and the name of a Unix socket has 107 at most."""

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"  # names of variables


class LocalCluster:
    """A cluster of a run's own; where it is lost, another one can be started in its place.

    Args:
        n_workers: accelerator workers of the run; it has a place for each.

    Attributes:
        variables: of the environment with which processes of the run join it; others once it was
            started anew.
    """

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._folder: Path | None = None
        self.variables: dict[str, str] = {}

    def start(self) -> None:
        """Start it, and wait until it is up.

        Raises:
            ConfigError: when it does not start. Nothing is left of it then.
        """
        try:
            self.variables = self._started()
        except BaseException as error:
            # Nobody has joined it: there is nothing to wait for.
            self._end(0.0)
            if isinstance(error, OSError):
                raise _refused(str(error)) from error
            raise

    def is_lost(self) -> bool:
        """Whether it has ended, though nobody has asked for that."""
        return self._process is not None and self._process.poll() is not None

    def renew(self) -> None:
        """Start another one in place of one that is lost.

        Raises:
            ConfigError: when it does not start.
        """
        self._end(0.0)
        self.start()

    def end(self) -> None:
        """End it; nothing is left of it, neither processes nor files."""
        self._end(_END_S)

    def _started(self) -> dict[str, str]:
        variables = _token()
        self._folder = _own_folder()
        own, theirs = socket.socketpair()
        self._link = Connection(own.detach())
        with theirs:
            # Signals of the terminal are the parent's: it decides when the cluster ends.
            self._process = start_module(__name__, theirs.fileno(), variables, own_session=True)
        folder = None if self._folder is None else str(self._folder)
        with contextlib.suppress(OSError):  # it has ended already, as `_address` tells
            self._link.send((self._n_workers, folder))
        return variables | {ADDRESS: _address(self._link)}

    def _end(self, patience_s: float) -> None:
        process, self._process = self._process, None
        link, self._link = self._link, None
        folder, self._folder = self._folder, None
        if link is not None:
            link.close()
        if process is not None:
            wait_or_kill(process, patience_s)
            _kill_session(process.pid)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def local_cluster(n_workers: int) -> Iterator[LocalCluster]:
    """Start a cluster that has a place for each accelerator worker; it ends with the block.

    Args:
        n_workers: accelerator workers of the run.

    Yields:
        The cluster, which is up.

    Raises:
        ConfigError: when it does not start.
    """
    cluster = LocalCluster(n_workers)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.end()


def _token() -> dict[str, str]:
    """A token of the cluster's own, unless the user has said how Ray's processes trust each other.

    Ray would otherwise put one for all clusters of this user into the home folder.
    """
    if _MODE in os.environ:
        return {}
    return {_MODE: "token", _TOKEN: secrets.token_hex(32)}


def _own_folder() -> Path | None:
    """Make a folder for all that the cluster writes, which Ray itself would leave behind.

    None where the user has told Ray a folder whose name leaves no room for one in it.

    Raises:
        OSError: it cannot be made.
    """
    told = os.environ.get("RAY_TMPDIR")
    base = told or tempfile.gettempdir()
    if len(os.fsencode(base)) > _LONGEST_BASE:
        if told:
            return None
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="ecorl-", dir=base))


def _address(link: Connection) -> str:
    told = ""
    with contextlib.suppress(EOFError, OSError):
        told = str(link.recv()) if link.poll(START_S) else f"it took more than {START_S:g} s"
    host, _, port = told.rpartition(":")
    if host and port.isdigit() and " " not in told:
        return told
    raise _refused(told or "its process ended")


def _refused(reason: str) -> ConfigError:
    allowed = f"a Ray cluster that starts on this machine ({reason})"
    return ConfigError("runtime.address", "local", allowed)


def _kill_session(leader: int) -> None:
    """Kill what is left of a cluster's processes, and wait until they are gone.

    Where a server was killed its workers and agents live on for a time, hold files open and write
    to the run's record.
    """
    end_s = time.monotonic() + _KILLED_S
    while (left := [one for one in psutil.process_iter() if _is_of(one, leader)]) and (
        time.monotonic() < end_s
    ):
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        time.sleep(0.02)


def _is_of(process: psutil.Process, leader: int) -> bool:
    """Whether a process is of a session, and lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(process.pid) == leader and not _has_ended(process)
    return False


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


# ---------------------------------------------------------------- the cluster's process


def main(argv: Sequence[str]) -> int:
    """Start the cluster, tell its address, and end it when the parent closes the socket.

    Args:
        argv: file descriptor of the socket, and process id of the parent.
    """
    fd, parent_pid = (int(word) for word in argv[:2])
    die_with_parent(parent_pid)
    os.set_inheritable(fd, False)
    # A parent that is gone is no error: nobody is there to be told.
    with contextlib.suppress(EOFError, OSError), Connection(fd) as link:
        return _serve(link)
    return 1


def _serve(link: Connection) -> int:
    # Imported here: the parent has no use for it.
    import ray

    from ecorl.runtime.ray.cluster import join

    _ignore_signals()
    hear_keyboard()
    n_workers, folder = link.recv()
    quiet = {"log_to_driver": False, "configure_logging": False}
    try:
        join("local", int(n_workers), include_dashboard=False, _temp_dir=folder, **quiet)
    except ConfigError as error:
        link.send(error.allowed)
        return 1
    _ignore_signals()  # `ray.init` has set a handler of its own
    # From here on the parent's end is that of the socket, and the folder is removed after it.
    outlive_parent()
    with contextlib.suppress(OSError):  # the parent has just ended, as the socket tells
        link.send(ray.get_runtime_context().gcs_address)
    servers = [one for one in psutil.Process().children() if one.name() in _SERVERS]
    while not link.poll(_LOOK_S):
        if any(_has_ended(one) for one in servers):
            # Without them Ray's own end of a driver takes up to a minute.
            os._exit(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_END_S)  # where Ray hangs and the parent, which would notice, is gone
    ray.shutdown()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _ignore_signals() -> None:
    """Leave it to the parent when the cluster ends: by the socket, whatever the signal."""
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
