"""How an engine process ends: with its engine, with its parent, and never by itself alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest
from toy_process import HANG, LIMITS, alive, running, spec, until

from ecorl.engines.lanes.isolated import EngineProcess
from ecorl.errors import EngineCrashed, EngineError, EngineTimeout
from tests.fakes.blocking_engine import HostLimits, IsolatedEngine

REPO = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.usefixtures("toy_path", "no_process_left")


def test_close_is_orderly_and_may_be_repeated(make_rows, tmp_path):
    marker = tmp_path / "closed"
    engine = IsolatedEngine(spec(closed_marker=str(marker)), LIMITS)
    engine.score(make_rows([1]))
    pid = engine.pid
    engine.close()
    assert marker.exists(), "the engine's own close() has run"
    assert not psutil.pid_exists(pid)
    engine.close()
    assert not engine.available
    assert isinstance(engine.submit(make_rows([1])).exception(240), EngineCrashed)
    with pytest.raises(EngineError):
        engine.score(make_rows([1]))


def test_ctrl_c_in_its_first_moment_ends_no_engine_process_and_leaves_no_trace(capfd):
    """A terminal sends it to the whole group, also to a process that has no handler yet."""
    process = EngineProcess(threads=1)
    try:
        os.kill(process.pid, signal.SIGINT)
        ready = process.start(spec(), 0, LIMITS.start_s)
    finally:
        process.stop(5.0)
    assert ready.stage is spec().stage
    assert "KeyboardInterrupt" not in capfd.readouterr().err


def test_close_does_not_wait_for_a_hung_call(make_rows):
    engine = IsolatedEngine(spec(), LIMITS)
    pid = engine.pid
    futures = [engine.submit(make_rows([HANG])) for _ in range(2)]
    assert until(futures[0].running)
    engine.close()
    assert not psutil.pid_exists(pid)
    # Behind its 600 s the first would have been answered.
    assert all(isinstance(f.exception(240), EngineCrashed) for f in futures)


def test_a_batch_that_the_caller_cancels_is_skipped(make_rows):
    with running() as engine:
        hung = engine.submit(make_rows([HANG]))
        waiting = engine.submit(make_rows([1]))
        assert until(hung.running)
        assert waiting.cancel()
        engine.cancel_and_restart()
        assert isinstance(hung.exception(240), EngineTimeout)
        with pytest.raises(CancelledError):
            waiting.result(240)


def test_it_outlives_the_thread_that_made_it(make_rows):
    made = []
    thread = threading.Thread(target=lambda: made.append(IsolatedEngine(spec(), LIMITS)))
    thread.start()
    thread.join()
    (engine,) = made
    try:
        time.sleep(0.2)
        assert float(engine.score(make_rows([7])).values[0]) == pytest.approx(0.07)
    finally:
        engine.close()


def test_interrupts_do_not_reach_it(make_rows):
    with running() as engine:
        pid = engine.pid
        os.kill(pid, signal.SIGINT)
        engine.score(make_rows([1]))
        assert engine.pid == pid


def test_a_forked_copy_neither_uses_nor_ends_it(make_rows):
    with running() as engine:
        hung = engine.submit(make_rows([HANG]))
        assert until(hung.running)
        engine_pid = engine.pid
        pid = os.fork()
        if pid == 0:
            # Its lane has no thread: a batch handed over there would never be answered.
            refused = not engine.available and engine.submit(make_rows([1])).done()
            engine.close()
            os._exit(0 if refused else 1)
        assert os.waitpid(pid, 0)[1] == 0
        time.sleep(0.1)
        assert not hung.done()
        assert (engine.pid, engine.available) == (engine_pid, True)


def test_an_engine_that_does_not_close_is_killed(make_rows, tmp_path):
    marker = tmp_path / "closed"
    limits = HostLimits(start_s=240, close_s=0.2)
    engine = IsolatedEngine(spec(close="hang", closed_marker=str(marker)), limits)
    engine.score(make_rows([1]))
    pid = engine.pid
    engine.close()
    assert not marker.exists(), "it was waited for until it had closed"
    assert not psutil.pid_exists(pid), "not even a zombie"


SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from ecorl.engines.lanes.isolated import HostLimits, IsolatedEngine
    from ecorl.engines.lanes.threaded import EngineSpec
    from ecorl.engines.protocol import ScoreBatch
    from ecorl.records import Stage

    spec = EngineSpec("plugin", "toy", Path("x"), Stage.REWARD, "u55c")
    engine = IsolatedEngine(spec, HostLimits(start_s=30))
    assert "torch" not in sys.modules
    token = int(sys.argv[2])
    future = engine.submit(ScoreBatch(("a",), (np.array([token]),), (1,)))
    if token < 9000:
        future.result(240)
    print(engine.pid, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "raise":
        raise SystemExit("the user's script fails")
"""


@pytest.mark.parametrize(
    ("end", "token", "code"),
    [("kill", 1, -9), ("kill", HANG, -9), ("raise", HANG, 1), ("return", 1, 0)],
)
def test_it_dies_with_its_parent(toy_path, tmp_path, end, token, code):
    script = tmp_path / "user_script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), end, str(token)],
        env=os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{toy_path}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    # One line and no more: what the engine prints goes to standard error.
    (line,) = done.stdout.splitlines()
    assert until(lambda: not alive(int(line)), 240.0)
