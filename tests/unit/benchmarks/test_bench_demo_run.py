"""Reading a demo run back from its ledger; commands that fail, hang or are not there."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks.studies import demo_run
from benchmarks.studies.demo_run import read_demo, run_logged
from ecorl.errors import RunError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.records import (
    Action,
    BarrierWait,
    FaultEvent,
    FaultKind,
    Provenance,
    Stage,
    StageResult,
)


def executed(ledger, stage, t_start_s, t_end_s):
    ledger.result(
        StageResult(
            iteration=1, stage=stage, action=Action.GPU, device_ids=("gpu0",), device="h100",
            t_start_s=t_start_s, t_end_s=t_end_s, time_s=t_end_s - t_start_s,
            time_provenance=Provenance.MEASURED, host_time_s=t_end_s - t_start_s, wait_s=0.0,
            n_sequences=4, n_tokens=40, n_output_tokens=20, energy=None,
        )
    )  # fmt: skip


def make_run(folder, *, finish=True, waits=(1.0, 0.5)):
    ledger = Ledger.create(folder / LEDGER_FILE, run_id="r", config_toml="", meta={})
    executed(ledger, Stage.GENERATION, 100.0, 104.0)
    executed(ledger, Stage.ACTOR_TRAIN, 105.0, 110.0)
    executed(ledger, Stage.GENERATION, 110.0, 114.0)
    executed(ledger, Stage.ACTOR_TRAIN, 115.0, 120.0)
    for wait_s in waits:
        ledger.barrier(BarrierWait(1, Stage.REWARD, wait_s, 4, 0, 0))
    ledger.evaluation("correct", "before", [0.0, 0.0, 1.0, 0.0])
    ledger.evaluation("correct", "after", [1.0, 0.0, 1.0, 1.0])
    ledger.evaluation("rank_flip", "held_out", [0.0, 0.0, 0.0, 1.0])
    ledger.fault(FaultEvent(1, FaultKind.ENGINE_TIMEOUT, "reward", "late", 4))
    if finish:
        ledger.event("finish", "")
    ledger.close()


def test_what_the_ledger_says(tmp_path):
    make_run(tmp_path)
    run = read_demo(tmp_path, 7, 33.0)
    assert (run.seed, run.run_s, run.n_faults) == (7, 33.0, 1)
    assert run.train_s == pytest.approx(20.0)
    assert run.wait_share == pytest.approx(1.5 / 20.0)
    gain = run.gains["correct"]
    assert (gain.mean_before, gain.gain, gain.n_pairs) == (0.25, 0.5, 4)
    assert set(run.gains) == {"correct"}
    assert run.flips is not None
    assert run.flips.share == 0.25


def test_a_run_gets_its_settings_and_variables(tmp_path, monkeypatch):
    seen = {}

    def logged(command, log, *, timeout_s, environment):
        seen.update(command=list(command), environment=environment)
        make_run(tmp_path / "run")

    monkeypatch.setattr(demo_run, "run_logged", logged)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("KEPT", "as it is")
    run = demo_run.run_demo(
        7, tmp_path, ("trainer.num_threads=2",), {"OMP_NUM_THREADS": "2", "ECORL_CACHE": "/other"}
    )
    assert run.seed == 7
    assert seen["command"][-2:] == ["--set", "trainer.num_threads=2"]
    assert "seed=7" in seen["command"]
    assert seen["environment"]["OMP_NUM_THREADS"] == "2"
    assert seen["environment"]["KEPT"] == "as it is"
    assert seen["environment"]["ECORL_CACHE"] == str(tmp_path / "cache")  # always an empty one


def test_a_missing_wait_makes_the_share_missing_and_not_smaller(tmp_path):
    make_run(tmp_path, waits=(1.0, None))
    assert read_demo(tmp_path, 7, 33.0).wait_share is None


def test_a_run_that_did_not_finish_is_no_measurement(tmp_path, snapshot):
    make_run(tmp_path, finish=False)
    with pytest.raises(RunError) as caught:
        read_demo(tmp_path, 7, 33.0)
    snapshot(str(caught.value))


def python(code):
    return [sys.executable, "-c", code]


def test_a_failing_command_says_its_last_line(tmp_path, snapshot):
    log = tmp_path / "log"
    run_logged(python("print('fine')"), log, timeout_s=240)
    assert log.read_text() == "fine\n"
    lines = []
    for command, timeout_s in (
        (python("print('no such model'); raise SystemExit(3)"), 240),
        (python("import time; time.sleep(600)"), 0.3),
        ([str(tmp_path / "nothing")], 240),
    ):
        with pytest.raises(RunError) as caught:
            run_logged(command, log, timeout_s=timeout_s)
        lines.append(str(caught.value))
    snapshot("\n".join(lines), python=sys.executable)


@pytest.fixture
def checkout(tmp_path, monkeypatch, require_tool):
    require_tool("git")
    root = tmp_path / "checkout"
    root.mkdir()
    monkeypatch.setattr(demo_run, "repository", lambda: root)

    def git(*arguments):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        run_logged(["git", *names, *arguments], tmp_path / "git.log", timeout_s=30, cwd=root)

    return root, git


def test_why_an_installation_cannot_be_measured(checkout, snapshot):
    root, git = checkout
    gaps = [demo_run.install_gap()]
    git("init", "-q")
    gaps.append(demo_run.install_gap())
    (root / "Makefile").write_text("install:\n\techo\n")
    gaps.append(demo_run.install_gap())
    snapshot("\n".join(gaps))
    with pytest.raises(RunError, match=re.escape(gaps[-1])):
        demo_run.measure_install(root.parent / "work")
    git("add", "Makefile")
    git("commit", "-qm", "one")
    assert demo_run.install_gap() is None


def test_an_installation_runs_in_a_clone_without_this_environment(
    checkout, tmp_path, require_tool, monkeypatch
):
    require_tool("make")
    root, git = checkout
    recipe = 'install:\n\tpwd > $(OUT)\n\techo "$$VIRTUAL_ENV$$PIP_NO_CACHE_DIR" >> $(OUT)\n'
    (root / "Makefile").write_text(f"OUT := {tmp_path / 'out'}\n{recipe}")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("VENV", "/somewhere")
    took = demo_run.measure_install(tmp_path / "work")
    assert took["clone_s"] > 0
    assert took["install_s"] > 0
    assert (tmp_path / "out").read_text().split() == [str(tmp_path / "work" / "clone"), "1"]
