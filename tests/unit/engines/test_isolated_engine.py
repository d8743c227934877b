"""What an engine process does to its parent when it goes wrong: nothing but a failed future."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import psutil
import pytest

from ecorl.config import FaultInjection
from ecorl.engines.host import HostLimits, IsolatedEngine
from ecorl.engines.lane import AsyncEngine
from ecorl.engines.messages import EngineSpec, error_of, fault_of
from ecorl.engines.protocol import InferenceEngine
from ecorl.errors import (
    CheckpointError,
    ConfigError,
    EngineCrashed,
    EngineError,
    EngineTimeout,
    MissingToolError,
)
from ecorl.records import Stage

RAISE, HANG, EXIT, LOSE, OWN = 9001, 9002, 9003, 9004, 9005
LIMITS = HostLimits(start_s=30.0, call_s=30.0, max_restarts=3, backoff_s=0.02, close_s=2.0)
REPO = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.usefixtures("toy_path")


def spec(stage=Stage.REWARD, faults=(), **options):
    return EngineSpec("plugin", "toy", Path("nowhere"), stage, "u55c", options, 1, tuple(faults))


@contextlib.contextmanager
def running(limits=LIMITS, **kwargs):
    engine = IsolatedEngine(spec(**kwargs), limits)
    try:
        yield engine
    finally:
        engine.close()


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition, limit_s=5.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(autouse=True)
def no_process_left():
    before = {child.pid for child in psutil.Process().children()}
    yield
    left = [child for child in psutil.Process().children() if child.pid not in before]
    assert not left, f"engine processes left behind, zombies included: {left}"


def test_answers_as_the_engine_itself_does(make_batch):
    batch = make_batch(5)
    with running() as engine:
        assert isinstance(engine, AsyncEngine)
        assert isinstance(engine, InferenceEngine)
        assert (engine.name, engine.device, engine.stage) == ("toy", "u55c", Stage.REWARD)
        assert engine.row_invariant is True
        assert engine.model.vocab_size == 10000
        result = engine.submit(batch).result(10)
        assert result.sample_ids == batch.sample_ids
        np.testing.assert_allclose(result.values, [row.sum() / 100 for row in batch.token_ids])
        assert result.values.dtype == np.float32
        assert result.report.device_time_s == 0.5
        with pytest.raises(EngineError):
            engine.logprobs(batch)
    with running(stage=Stage.REFERENCE) as engine:
        values = engine.logprobs(batch).values
        assert [len(row) for row in values] == list(batch.n_completion)


def test_the_lane_keeps_its_order_and_shows_its_depth(make_rows):
    with running() as engine:
        done = []
        futures = [engine.submit(make_rows([n])) for n in range(20)]
        for n, future in enumerate(futures):
            future.add_done_callback(lambda _, n=n: done.append(n))
        assert [float(f.result(10).values[0]) for f in futures] == pytest.approx(
            [n / 100 for n in range(20)]
        )
        assert until(lambda: len(done) == 20)
        assert done == sorted(done)
        assert engine.queue_depth == 0
        hung = [engine.submit(make_rows([HANG])) for _ in range(3)]
        assert engine.queue_depth == 3
        engine.cancel_and_restart()
        assert engine.queue_depth == 0
        assert all(isinstance(f.exception(1), EngineTimeout) for f in hung)


def test_a_hung_call_is_killed_and_the_next_works(make_rows):
    with running() as engine:
        first = engine.pid
        future = engine.submit(make_rows([HANG]))
        with pytest.raises(TimeoutError):
            future.result(0.1)
        started = time.monotonic()
        engine.cancel_and_restart()
        assert isinstance(future.exception(0), EngineTimeout)
        assert time.monotonic() - started < 2.0
        assert not engine.available
        assert until(lambda: not alive(first), 5.0)
        assert engine.wait_available(10)
        assert engine.pid != first
        assert float(engine.submit(make_rows([7])).result(10).values[0]) == pytest.approx(0.07)


def test_blocking_calls_have_a_deadline(make_rows):
    with running(HostLimits(start_s=30, call_s=1.0, backoff_s=0.02)) as engine:
        with pytest.raises(EngineTimeout):
            engine.score(make_rows([HANG]))
        assert float(engine.score(make_rows([7])).values[0]) == pytest.approx(0.07)


def test_giving_up_an_idle_engine_changes_nothing(make_rows):
    with running() as engine:
        pid = engine.pid
        engine.score(make_rows([1]))
        engine.cancel_and_restart()
        assert engine.available
        assert engine.pid == pid


@pytest.mark.parametrize(
    ("token", "survives", "text"),
    [
        (RAISE, True, "ValueError: a raising token"),
        (OWN, True, "the toy says no"),
        (EXIT, False, "exit code 5"),
        (LOSE, False, "exit code 1"),
    ],
)
def test_a_failing_batch_fails_alone(make_rows, token, survives, text):
    with running() as engine:
        pid = engine.pid
        with pytest.raises(EngineError, match=text):
            engine.submit(make_rows([token])).result(10)
        assert engine.wait_available(10)
        assert (engine.pid == pid) is survives
        assert float(engine.score(make_rows([7])).values[0]) == pytest.approx(0.07)


@pytest.mark.parametrize("at_work", [True, False])
def test_killed_from_outside_it_comes_back(make_rows, at_work):
    with running() as engine:
        pid = engine.pid
        futures = [engine.submit(make_rows([HANG])) for _ in range(2)] if at_work else []
        if at_work:
            assert until(futures[0].running)
            time.sleep(0.1)  # from here on the process has the batch, not only the lane
        os.kill(pid, signal.SIGKILL)
        for future in futures:
            with pytest.raises(EngineCrashed, match="signal 9"):
                future.result(5)
        assert until(lambda: engine.pid not in (pid, None))
        assert engine.wait_available(10)
        assert float(engine.score(make_rows([7])).values[0]) == pytest.approx(0.07)


def test_while_it_restarts_a_batch_fails_at_once(make_rows):
    limits = HostLimits(start_s=30, call_s=10, backoff_s=30.0)
    with running(limits) as engine:
        with pytest.raises(EngineCrashed):
            engine.submit(make_rows([EXIT])).result(10)
        assert until(lambda: not engine.available)
        started = time.monotonic()
        assert isinstance(engine.submit(make_rows([1])).exception(1), EngineCrashed)
        assert time.monotonic() - started < 2.0


def test_restarts_are_bounded_and_a_good_answer_renews_them(make_rows):
    limits = HostLimits(start_s=30, call_s=10, max_restarts=2, backoff_s=0.01)
    with running(limits) as engine:
        for _ in range(2):
            engine.submit(make_rows([EXIT])).exception(10)
            assert engine.wait_available(10)
        engine.score(make_rows([1]))
        for _ in range(2):
            engine.submit(make_rows([EXIT])).exception(10)
            assert engine.wait_available(10)
        engine.submit(make_rows([EXIT])).exception(10)
        assert not engine.wait_available(10)
        assert engine.pid is None
        with pytest.raises(EngineCrashed, match="failed"):
            engine.score(make_rows([1]))


def test_injected_faults_happen_once_though_the_process_restarts(make_rows):
    faults = [
        FaultInjection(kind="exit", calls=(1,)),
        FaultInjection(kind="hang", calls=(2,)),
        FaultInjection(kind="raise", calls=(4,)),
        FaultInjection(kind="nan", calls=(5,)),
    ]
    outcomes = []
    with running(HostLimits(call_s=1.0, backoff_s=0.01), faults=faults) as engine:
        for _ in range(7):
            try:
                value = engine.score(make_rows([7])).values[0]
                outcomes.append("nan" if np.isnan(value) else "ok")
            except EngineTimeout:
                outcomes.append("hang")
            except EngineCrashed as error:
                outcomes.append("exit" if "code 70" in str(error) else "raise")
    assert outcomes == ["ok", "exit", "hang", "ok", "raise", "nan", "ok"]


def test_errors_of_the_user_arrive_as_themselves():
    with pytest.raises(CheckpointError, match="nowhere is broken"):
        IsolatedEngine(spec(load="checkpoint"), LIMITS)
    with pytest.raises(ConfigError, match=r"toy\.toml:3: toy\.load") as caught:
        IsolatedEngine(spec(load="config"), LIMITS)
    assert (caught.value.key, caught.value.line) == ("toy.load", 3)
    with pytest.raises(EngineCrashed, match="RuntimeError: the toy is broken"):
        IsolatedEngine(spec(load="error"), LIMITS)
    with pytest.raises(EngineCrashed, match="exit code 3"):
        IsolatedEngine(spec(load="exit"), LIMITS)
    with pytest.raises(EngineTimeout, match="not ready after 1 s"):
        IsolatedEngine(spec(load="hang"), HostLimits(start_s=1.0))


@pytest.mark.parametrize(
    "error",
    [
        MissingToolError("no g++"),
        EngineTimeout("late"),
        ConfigError("a.b", 3, "4", "x.toml", 7),
    ],
)
def test_errors_survive_the_journey(error):
    back = error_of(fault_of(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


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
    assert isinstance(engine.submit(make_rows([1])).exception(1), EngineCrashed)
    with pytest.raises(EngineError):
        engine.score(make_rows([1]))


def test_close_does_not_wait_for_a_hung_call(make_rows):
    engine = IsolatedEngine(spec(), LIMITS)
    pid = engine.pid
    futures = [engine.submit(make_rows([HANG])) for _ in range(2)]
    assert until(futures[0].running)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 2.0
    assert not psutil.pid_exists(pid)
    assert all(isinstance(f.exception(1), EngineCrashed) for f in futures)


def test_a_batch_that_the_caller_cancels_is_skipped(make_rows):
    with running() as engine:
        hung = engine.submit(make_rows([HANG]))
        waiting = engine.submit(make_rows([1]))
        assert until(hung.running)
        assert waiting.cancel()
        engine.cancel_and_restart()
        assert isinstance(hung.exception(1), EngineTimeout)
        with pytest.raises(CancelledError):
            waiting.result(1)


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


def test_an_engine_that_does_not_close_is_killed(make_rows):
    engine = IsolatedEngine(spec(close="hang"), HostLimits(start_s=30, close_s=0.2))
    engine.score(make_rows([1]))
    pid = engine.pid
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 2.0
    assert not psutil.pid_exists(pid), "not even a zombie"


SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from ecorl.engines.host import HostLimits, IsolatedEngine
    from ecorl.engines.messages import EngineSpec
    from ecorl.engines.protocol import ScoreBatch
    from ecorl.records import Stage

    spec = EngineSpec("plugin", "toy", Path("x"), Stage.REWARD, "u55c")
    engine = IsolatedEngine(spec, HostLimits(start_s=30))
    assert "torch" not in sys.modules
    token = int(sys.argv[2])
    future = engine.submit(ScoreBatch(("a",), (np.array([token]),), (1,)))
    if token < 9000:
        future.result(10)
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
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stderr
    # One line and no more: what the engine prints goes to standard error.
    (line,) = done.stdout.splitlines()
    assert until(lambda: not alive(int(line)), 5.0)


def test_a_subclass_defined_elsewhere_arrives_as_its_public_base():
    from ecorl.devices.profile import MissingFigure
    from ecorl.engines.messages import error_of, fault_of
    from ecorl.errors import ConfigError

    error = MissingFigure("v80.clock_hz", None, "a figure", "profile v80")
    arrived = error_of(fault_of(error))
    assert type(arrived) is ConfigError
    assert str(arrived) == str(error)
