"""How a run stands: running, killed, failed, stopped, finished, or not known from here."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys

import pytest

from ecorl.errors import RunError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader, RunEnding, is_being_written
from ecorl.records import EventKind
from ecorl.report import build_report, read_config
from ecorl.report.head import state_of
from ecorl.report.render.numbers import duration
from ecorl.runtime.runs.record import ending_by

WRITER = """
import sys
from pathlib import Path
from ecorl.ledger import Ledger
from ecorl.records import EventKind
ledger = Ledger.create(Path(sys.argv[1]), run_id="r", config_toml="", meta={})
ledger.event(EventKind.START, "training from step 0 of 20")
for step in (1, 2, 3):
    ledger.metric(step, "loss", 1.0)
assert ledger.flush()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def writer(tmp_path):
    """A process that writes a run in `tmp_path` and waits."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / LEDGER_FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def run_state(folder):
    with LedgerReader(folder) as reader:
        return state_of(reader, None, reader.executions())


def course(folder) -> tuple[str, str]:
    """How the run went, and the time in that which it took."""
    with LedgerReader(folder) as reader:
        report = build_report(reader, read_config(reader.run(), folder))
    return "\n".join(report.verdict), duration(report.head.run_time_s)


def test_another_process_is_seen_to_write_and_is_not_disturbed(writer, tmp_path, snapshot):
    for _ in range(3):
        assert run_state(tmp_path).ending is RunEnding.RUNNING
    assert (run_state(tmp_path).n_steps_done, run_state(tmp_path).n_steps_planned) == (3, 20)
    text, took = course(tmp_path)
    snapshot(text, took=took)
    # The lock is still the writer's.
    with pytest.raises(RunError, match="another process"):
        Ledger.open_for_resume(tmp_path / LEDGER_FILE, from_step=0)


def test_a_killed_run_is_told_from_a_running_one(writer, tmp_path, snapshot):
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert run_state(tmp_path).ending is RunEnding.KILLED
    text, took = course(tmp_path)
    snapshot(text, took=took)


def test_a_copy_of_a_record_is_not_running(writer, tmp_path):
    copy = tmp_path.with_name(tmp_path.name + "-copy")
    shutil.copytree(tmp_path, copy)
    assert is_being_written(copy / LEDGER_FILE) is False
    assert run_state(tmp_path).ending is RunEnding.RUNNING


def test_a_lock_of_this_machine_says_nothing_of_another_ones_run(run, snapshot):
    meta = {"host": "elsewhere.example"}
    path = run.folder / "other" / LEDGER_FILE
    with Ledger.create(path, run_id="r", config_toml="", meta=meta) as ledger:
        ledger.event(EventKind.START, "")
        ledger.flush()
        # Whatever the record says of its host, a lock that is held here is held.
        assert run_state(path).ending is RunEnding.RUNNING
    state = run_state(path)
    assert state.ending is RunEnding.NO_END
    text, took = course(path.parent)
    assert state.ended_by in text
    snapshot(text, took=took)
    # Gone on with on this machine, nothing is left to guess.
    Ledger.open_for_resume(path, from_step=0).close()
    assert run_state(path).ending is RunEnding.KILLED


def test_this_very_process_keeps_its_lock_when_it_asks(run):
    path = run.ledger.path
    alias = run.folder / "alias"
    alias.symlink_to(run.folder)
    # To close a handle on the lock's file would free it.
    assert is_being_written(path)
    assert is_being_written(alias / LEDGER_FILE)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(is_being_written, (path,))
    run.ledger.close()
    assert is_being_written(path) is False


def test_a_record_without_its_lock_and_one_that_cannot_be_asked(run):
    run.ledger.event(EventKind.START, "")
    run.ledger.close()
    lock = run.folder / (LEDGER_FILE + ".lock")
    lock.unlink()
    assert run_state(run.folder).ending is RunEnding.KILLED  # a read-only copy, say
    lock.symlink_to(lock.name)  # a circle: it cannot be opened
    assert is_being_written(run.ledger.path) is None
    assert run_state(run.folder).ending is RunEnding.NO_END


def test_what_ended_a_run_is_named(run, snapshot):
    run.ledger.event(EventKind.START, "training from step 0 of 20")
    for step in (1, 2, 3):
        run.ledger.metric(step, "loss", 1.0)
    run.ledger.checkpoint(2, "checkpoint-2")
    run.ledger.event(*ending_by(MemoryError("\n CUDA out of memory. \nTried to allocate")))
    report = run.report()
    assert report.head.state is RunEnding.FAILED
    snapshot("\n".join(report.verdict))


def test_a_run_that_did_nothing_says_so_in_words(run, snapshot):
    run.ledger.event(EventKind.START, "training from step 0 of 2")
    snapshot("\n".join(run.report().verdict), "running")
    run.ledger.event(EventKind.STOP, "stopped by a signal")
    snapshot("\n".join(run.report().verdict), "stopped")
    run.ledger.event(*ending_by(ValueError()))
    snapshot("\n".join(run.report().verdict), "failed")


def test_a_long_line_of_an_exception_is_cut():
    kind, detail = ending_by(RuntimeError("x" * 5000))
    assert kind is EventKind.FAILURE
    assert len(detail) < 400
    assert detail.endswith("…")
    assert ending_by(KeyboardInterrupt()) == (EventKind.STOP, "stopped from the keyboard")
