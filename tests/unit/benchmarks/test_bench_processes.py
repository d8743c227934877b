"""A command that is cut off leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.harness.processes import run_to_end

ROOT = Path(__file__).resolve().parents[3]

STUBBORN = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
Path(sys.argv[1]).write_text("ready")
time.sleep(600)
"""
"""A grandchild that ignores SIGTERM."""

BENCHMARK = """
import subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
code, waits = (folder / "stubborn.py").read_text(), float(sys.argv[2])
for name, own_session in (("same", False), ("other", True)):
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / name)], start_new_session=own_session
    )
    (folder / f"{name}.pid").write_text(str(child.pid))
while not all((folder / name).exists() for name in ("same", "other")):
    time.sleep(0.01)
(folder / "all").write_text("ready")
time.sleep(waits)
"""
"""A benchmark that starts two of them, one in a session of its own, then waits."""

PARENT = """
import sys
from pathlib import Path
import benchmarks.__main__ as everything
from benchmarks.harness.processes import run_to_end

def run(command, *, cwd, limit_s):
    folder = sys.argv[1]
    fake = [sys.executable, str(Path(folder) / "benchmark.py"), folder, "100"]
    return run_to_end(fake, cwd=Path(folder), limit_s=limit_s, grace_s=0.3)

everything.run_to_end = run
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script ignores it
sys.exit(everything.main(["engine"]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "benchmark.py").write_text(BENCHMARK)
    yield tmp_path
    for name in ("same", "other"):  # a failed test leaves nothing either
        if (tmp_path / f"{name}.pid").exists():
            pid = int((tmp_path / f"{name}.pid").read_text())
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def grandchildren(folder):
    return [int((folder / f"{name}.pid").read_text()) for name in ("same", "other")]


def fake_benchmark(folder, waits):
    return [sys.executable, str(folder / "benchmark.py"), str(folder), str(waits)]


def test_a_benchmark_that_is_cut_off_leaves_no_process(folder, monkeypatch):
    def monotonic():
        """The limit is over once the grandchildren have begun."""
        return time.monotonic() + (1000.0 if (folder / "all").exists() else 0.0)

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr("benchmarks.harness.processes.time", clock)
    # By itself it would end, with a code.
    assert run_to_end(fake_benchmark(folder, 600), cwd=folder, limit_s=600.0, grace_s=0.3) is None
    assert (folder / "all").exists()
    assert not any(map(is_alive, grandchildren(folder)))


def test_a_benchmark_that_ends_takes_its_session_with_it(folder):
    """Its parent is gone already, so that a process in another session cannot be told as ours."""
    assert run_to_end(fake_benchmark(folder, 0), cwd=folder, grace_s=0.3) == 0
    assert not is_alive(grandchildren(folder)[0])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_parent_ends_the_whole_family(folder, number, code):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        deadline_s = time.monotonic() + 240
        while not (folder / "all").exists() and time.monotonic() < deadline_s:
            assert parent.poll() is None
            time.sleep(0.05)
        parent.send_signal(number)
        assert parent.wait(timeout=240) == code
    finally:
        parent.kill()
        parent.wait()
    assert not any(map(is_alive, grandchildren(folder)))


def test_exit_codes_come_through(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    assert run_to_end(command, cwd=tmp_path, limit_s=60.0) == 3
    with pytest.raises(OSError, match="nowhere"):
        run_to_end([str(tmp_path / "nowhere")], cwd=tmp_path)
