"""A Ray cluster on this machine for one run that trains in several groups of processes in turn.

A process of its own starts it (``python -m ecorl.runtime.ray.local_cluster FD PARENT_PID``), so
that who supervises the training need not import Ray, whose driver ends its process when the cluster
is lost. Each group joins the cluster by its address: starting one takes seconds each time.

The parent's side, `local_cluster`, imports no Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from ecorl.child_process import die_with_parent, hear_keyboard, start_module, wait_or_kill
from ecorl.errors import ConfigError

ADDRESS = "ECORL_RAY_ADDRESS"
"""Environment variable: address of the cluster that was started for this run."""

START_S = 120.0
"""Longest wait for the cluster, s. Invented: a slow machine takes some ten seconds."""

_END_S = 20.0
"""Longest wait for its orderly end, s; then it is killed. Invented."""

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"  # names of variables


@contextlib.contextmanager
def local_cluster(n_workers: int) -> Iterator[dict[str, str]]:
    """Start a cluster that has a place for each accelerator worker; it ends with the block.

    Args:
        n_workers: accelerator workers of the run.

    Yields:
        The environment variables with which processes of the run join it.

    Raises:
        ConfigError: when it does not start.
    """
    own, theirs = socket.socketpair()
    variables = _token()
    with Connection(own.detach()) as link:
        with theirs:
            # Signals of the terminal are the parent's: it decides when the cluster ends.
            process = start_module(__name__, theirs.fileno(), variables, own_session=True)
        try:
            link.send(n_workers)
            yield variables | {ADDRESS: _address(link)}
        finally:
            link.close()
            wait_or_kill(process, _END_S)


def _token() -> dict[str, str]:
    """A token of the cluster's own, unless the user has said how Ray's processes trust each other.

    Ray would otherwise put one for all clusters of this user into the home folder.
    """
    if _MODE in os.environ:
        return {}
    return {_MODE: "token", _TOKEN: secrets.token_hex(32)}


def _address(link: Connection) -> str:
    told = ""
    with contextlib.suppress(EOFError, OSError):
        told = str(link.recv()) if link.poll(START_S) else f"it took more than {START_S:g} s"
    host, _, port = told.rpartition(":")
    if host and port.isdigit() and " " not in told:
        return told
    allowed = f"a Ray cluster that starts on this machine ({told or 'its process ended'})"
    raise ConfigError("runtime.address", "local", allowed)


def main(argv: Sequence[str]) -> int:
    """Start the cluster, tell its address, and end it when the parent closes the socket.

    Args:
        argv: file descriptor of the socket, and process id of the parent.
    """
    fd, parent_pid = (int(word) for word in argv[:2])
    die_with_parent(parent_pid)
    os.set_inheritable(fd, False)
    # Imported here: the parent has no use for it.
    import ray

    from ecorl.runtime.ray.cluster import join

    for which in (signal.SIGINT, signal.SIGTERM):  # Ray has set handlers of its own
        signal.signal(which, signal.SIG_IGN)
    hear_keyboard()
    with Connection(fd) as link:
        try:
            quiet = {"log_to_driver": False, "configure_logging": False}
            join("local", int(link.recv()), include_dashboard=False, **quiet)
        except ConfigError as error:
            link.send(error.allowed)
            return 1
        link.send(ray.get_runtime_context().gcs_address)
        with contextlib.suppress(EOFError, OSError):
            link.recv()
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
