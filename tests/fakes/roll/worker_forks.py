"""Ray's worker processes as forks of a prepared one: ``python worker_forks.py SOCKET``.

What Ray has started asks the prepared process for a fork, gives it its arguments, environment and
outputs, and waits; each of the two ends with the other. Ray goes by the number that a worker tells
it, as it must where workers are in containers. The fork is prepared with libraries alone, so that
whatever changes modules of ROLL when they are loaded finds them not loaded yet.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import shlex
import signal
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

# Without Ray, whose library keeps the environment that it was loaded in.
PREPARED = (
    "torch", "numpy", "safetensors.torch",
    "asyncio", "google.protobuf.internal.builder", "jsonschema", "requests", "yaml",
)  # fmt: skip
PARENT_S = 5.0
"""How often the prepared process looks whether who started it is still there."""
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("!I")


def run_as_fork(path: str, argv: list[str]) -> None:
    """Have a fork do what this process was started for, and end with it. Returns if there is none.

    Args:
        path: of the prepared process's socket.
        argv: Python's, from the script on.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
    except OSError:
        return
    asked = json.dumps({"argv": argv, "env": dict(os.environ), "cwd": str(Path.cwd())}).encode()
    socket.send_fds(link, [_LENGTH.pack(len(asked))], [0, 1, 2])
    link.sendall(asked)
    link.recv(1)
    os._exit(0)


def serve(path: str) -> NoReturn:
    """Fork for everyone who asks."""
    for name in PREPARED:
        __import__(name)
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
            _become_worker(link)
        link.close()
    sys.exit()


def _become_worker(link: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Even one that is stopped ends with the process that it comes from.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    head, outputs, _, _ = socket.recv_fds(link, _LENGTH.size, 3)
    (length,) = _LENGTH.unpack(head)
    with link.makefile("rb") as sent:
        asked = json.loads(sent.read(length))
    for number, output in enumerate(outputs):
        os.dup2(output, number)
        os.close(output)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    import numpy as np

    # Python's own numbers differ from fork to fork.
    np.random.seed()  # noqa: NPY002
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()
    os.execvp = _run_here
    _run(asked["argv"])
    sys.exit()


def _end_with(link: socket.socket) -> None:
    link.recv(1)
    os._exit(1)


def _run_here(_: str, args: list[str]) -> None:
    """Go on as the worker that Ray's script for its environment would replace itself by."""
    words = shlex.split(args[-1])
    if words[:2] != ["exec", sys.executable]:
        os.execv("/bin/bash", args)
    _run(words[2:])


def _run(argv: list[str]) -> Any:
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    sys.argv = argv
    return runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
