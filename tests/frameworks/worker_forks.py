"""Processes of trainings as forks of a prepared one: to load libraries is most of their time.

    python -P -m tests.frameworks.worker_forks SOCKET MODULE...

is the prepared process. It imports the modules, uses nothing of them, and forks for everyone who
asks: a process that was started with `SOCKET` in its environment asks in its `sitecustomize`, gives
the fork its arguments, environment and outputs, and waits; each of the two ends with the other. Ray
goes by the number that a worker tells it, as it must where workers are in containers.

The modules are libraries alone, so that whatever changes modules of a framework when they are
loaded finds them not loaded yet. Ray is none of them: its library keeps the environment that it was
loaded in, and has threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests import forks

SOCKET = "ECORL_TEST_FORKS"
"""Variable with the path of the prepared process's socket."""

ASKS = Path(__file__).parents[1] / "fakes" / "forked"
"""Folder of the `sitecustomize` with which Ray's workers ask."""

PARENT_S = 5.0
"""How often the prepared process looks whether who started it is still there."""

LIMIT_S = 240.0
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("!I")


# ---------------------------------------------------------------- for the tests


@contextlib.contextmanager
def prepared(
    folder: Path, env: Mapping[str, str], modules: Sequence[str]
) -> Iterator[Callable[[], None]]:
    """Have a prepared process in the block; yields what waits until it forks.

    Args:
        folder: of its log.
        env: its environment, with `SOCKET`.
        modules: what it imports.
    """
    command = [sys.executable, "-P", "-m", __name__, env[SOCKET], *modules]
    log = folder / "forks.log"
    with log.open("w") as told:
        process = subprocess.Popen(command, env=dict(env), cwd=folder, stdout=told, stderr=told)

    def await_ready() -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not Path(env[SOCKET]).exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < limit_s, "the prepared process is not ready"
            time.sleep(0.05)

    try:
        yield await_ready
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def none_prepared(env: Mapping[str, str]) -> Iterator[None]:
    """Have what starts in the block import everything itself, as it does for a user.

    Args:
        env: of the prepared process.
    """
    path = Path(env[SOCKET])
    away = path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        away.rename(path)


# ---------------------------------------------------------------- for what was started


def run_as_fork(argv: Sequence[str]) -> None:
    """Have a fork do what this process was started for, and end with it. Returns if there is none.

    Args:
        argv: Python's, from ``-m`` or the script on.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(os.environ[SOCKET])
    except OSError:
        return
    asked = {"argv": list(argv), "env": dict(os.environ), "cwd": str(Path.cwd())}
    sent = json.dumps(asked).encode()
    socket.send_fds(link, [_LENGTH.pack(len(sent))], [0, 1, 2])
    link.sendall(sent)
    code = link.recv(1)
    os._exit(code[0] if code else 1)


# ---------------------------------------------------------------- the prepared process


def serve(path: str, modules: Sequence[str]) -> NoReturn:
    """Fork for everyone who asks."""
    for name in modules:
        importlib.import_module(name)
    n_threads = len(list(Path("/proc/self/task").iterdir()))
    assert n_threads == 1, f"a fork has one of its {n_threads} threads"
    assert "ray" not in sys.modules
    gc.freeze()
    # Nobody waits for the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{path}.new")
    server.listen(64)
    Path(f"{path}.new").rename(path)
    server.settimeout(PARENT_S)
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            link, _ = server.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            server.close()
            _become(link)
        link.close()
    sys.exit()


def _become(link: socket.socket) -> NoReturn:
    """Do what another process was started for."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Even one that is stopped ends with the process that it comes from.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        head, files, _, _ = socket.recv_fds(link, _LENGTH.size, 3)
        (length,) = _LENGTH.unpack(head)
        with link.makefile("rb") as sent:
            asked = json.loads(sent.read(length))
        os.chdir(asked["cwd"])
        threading.Thread(target=_end_with, args=(link,), daemon=True).start()
        os.execvp = _run_here
        os.dup2(files[0], 0)
        os.close(files[0])
        code = forks.exit_code(asked["argv"], asked["env"], files[1:])
        link.send(bytes([code & 0xFF]))
    finally:
        os._exit(code)


def _end_with(link: socket.socket) -> None:
    link.recv(1)
    os._exit(1)


def _run_here(_: str, args: list[str]) -> None:
    """Go on as the worker that Ray's script for its environment would replace itself by."""
    words = shlex.split(args[-1])
    if words[:2] != ["exec", sys.executable]:
        os.execv("/bin/bash", args)
    forks.run_python(words[2:])


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
