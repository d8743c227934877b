"""A run that lies in a folder: its state, and what is removed of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ecorl.config import Config
from ecorl.errors import RunError
from ecorl.kinds import EventKind
from ecorl.report.comparison import write as comparison
from ecorl.report.sharing.files import EMISSIONS_FILE, FOOTPRINT_FILE
from ecorl.report.write import HTML_FILE, JSON_FILE
from ecorl.runtime.runs import found
from ecorl.runtime.runs.found import FoundRun, remove_record
from ecorl.runtime.runs.record import AttachedRun, create_run, open_attached_run

WRITES = """
import sys
from pathlib import Path
from ecorl.ledger.lock import WriterLock
lock = WriterLock(Path(sys.argv[1]))
print("writes", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with an attached run that was stopped after two steps."""
    ledger = open_attached_run(Config(), tmp_path / "run", None, {})
    ledger.event(EventKind.START, "")
    for step in (1, 2):
        ledger.metric(step, "loss", 0.5)
    ledger.event(EventKind.STOP, "")
    ledger.close()
    return tmp_path / "run"


def test_state_and_step_are_those_of_the_record(folder, snapshot):
    found = FoundRun.of(folder)
    assert (found.ending, found.step, found.checkpoint) == ("stopped", 2, None)
    snapshot(str(found.refusal()))


def test_a_checkpoint_that_is_gone_is_not_offered_as_one(folder, tmp_path, snapshot):
    with open_attached_run(Config(), folder, 2, {}) as ledger:
        ledger.checkpoint(2, str(tmp_path / "gone"))
    snapshot(str(FoundRun.of(folder).refusal()))


def test_a_record_of_a_run_that_never_began_is_no_run(tmp_path, snapshot):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    open_attached_run(Config(), folder, None, {}).close()
    opened = AttachedRun.open(Config(), folder, None, {"fact": "new"})
    assert opened.is_new
    assert FoundRun.of(folder).meta["fact"] == "new"
    with pytest.raises(RunError) as written:
        AttachedRun.open(Config(), folder, None, {})
    opened.ledger.event(EventKind.START, "")
    opened.ledger.close()
    with pytest.raises(RunError) as begun:
        AttachedRun.open(Config(), folder, None, {})
    snapshot(f"{written.value}\n{begun.value}")
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_record_whose_start_was_lost_is_a_run_all_the_same(tmp_path, snapshot):
    folder = tmp_path / "run"
    with open_attached_run(Config(), folder, None, {}) as ledger:
        ledger.metric(1, "loss", 0.5)
    with pytest.raises(RunError) as caught:
        AttachedRun.open(Config(), folder, None, {})
    snapshot(str(caught.value))


def test_a_record_of_another_machine_stays(tmp_path, snapshot):
    folder = tmp_path / "run"
    open_attached_run(Config(), folder, None, {"host": "far"}).close()
    with pytest.raises(RunError) as caught:
        AttachedRun.open(Config(), folder, None, {})
    snapshot(str(caught.value))


def test_the_names_of_a_run_s_files_are_those_that_are_written():
    written = {HTML_FILE, JSON_FILE, FOOTPRINT_FILE, EMISSIONS_FILE}
    written |= {comparison.HTML_FILE, comparison.JSON_FILE, "config.toml"}
    assert written <= set(found._FILES)


def test_what_ecorl_wrote_goes_and_what_the_user_has_stays(folder):
    own = ["notes.txt", "models/reward/weights", "models/base/weights", "nodes/mine.txt"]
    ours = ["report.html", "footprint.json", "nodes/gpu-1.sqlite", "nodes/gpu-1.sqlite-wal"]
    ours += ["models/reference/weights", "models/reward-math/weights"]
    for name in own + ours:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    os.utime(folder / "models/reward/weights", (1e9, 1e9))  # of before the run
    remove_record(folder)
    left = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert left == sorted(own)


def test_a_record_that_another_process_writes_stays(folder, snapshot):
    command = [sys.executable, "-c", WRITES, str(folder / "ledger.sqlite")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "writes\n"
        with pytest.raises(RunError) as caught:
            remove_record(folder)
        snapshot(f"{caught.value}\n{FoundRun.of(folder).refusal()}")
    assert (folder / "ledger.sqlite").is_file()
    assert (folder / "config.toml").is_file()


def test_a_run_of_the_command_is_never_removed(tmp_path):
    create_run(Config(), tmp_path / "run", {}).close()
    with pytest.raises(RunError, match="`ecorl run`"):
        remove_record(tmp_path / "run")
    assert (tmp_path / "run" / "ledger.sqlite").is_file()
