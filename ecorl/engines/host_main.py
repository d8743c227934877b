"""The engine process: ``python -m ecorl.engines.host_main FD PARENT_PID``.

Loads the engine that the first message on the inherited socket describes, and computes batches
until the socket closes. Only `ecorl.engines.lanes.isolated` starts it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from ecorl.child_process import SIMULATOR, die_with_parent, hear_keyboard, name_process
from ecorl.engines.lanes.threaded import EngineFacts, Fault, Result, StartEngine, answer, fault_of
from ecorl.engines.protocol import InferenceEngine, Refresh, ScoreBatch
from ecorl.engines.registry import make_engine
from ecorl.engines.validate import EngineBoundary


def main(argv: Sequence[str]) -> int:
    """Serve one engine until the parent closes the socket. Returns the exit code."""
    fd, parent_pid = int(argv[0]), int(argv[1])
    die_with_parent(parent_pid)
    # Ctrl-C goes to the whole terminal group, SIGTERM of a job scheduler or `timeout` often too;
    # the parent, which may have a step to finish, decides when the engine ends.
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_IGN)
    hear_keyboard()  # one that came before is ignored too
    os.set_inheritable(fd, False)
    # Standard output belongs to the parent's command line; libraries here may print.
    with contextlib.suppress(OSError):  # a parent without standard error has closed it
        os.dup2(2, 1)
    with contextlib.closing(Connection(fd)) as link:
        start = link.recv()
        engine = _load(start, link)
        if engine is None:
            return 1
        with contextlib.closing(engine):
            _serve(engine, link)
    return 0


def _load(start: StartEngine, link: Connection) -> InferenceEngine | None:
    if start.spec.simulates_card:
        name_process(SIMULATOR)
    sys.path.extend(path for path in start.import_path if path not in sys.path)
    try:
        with EngineBoundary() as boundary:
            engine = make_engine(start.spec, calls_done=start.calls_done, own_process=True)
    except BaseException as error:  # not contained: it ends this process, and the parent is told
        link.send(fault_of(error))
        raise
    if boundary.error is not None:
        link.send(fault_of(boundary.error))
        return None
    link.send(EngineFacts.of(engine))
    return engine


def _serve(engine: InferenceEngine, link: Connection) -> None:
    while True:
        try:
            request = link.recv()
        except EOFError:
            return
        link.send(_answer(engine, request))


def _answer(engine: InferenceEngine, request: ScoreBatch | Refresh) -> Result | Fault:
    """The result, or the fault. An error that is not contained ends the process."""
    with EngineBoundary() as boundary:
        return answer(engine, request)
    return fault_of(boundary.caught())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
