"""Sessions with an adapter that trains nothing: isolation, crashes, Ctrl-C, and going on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from ecorl.bench.tokens_per_joule import benchmark as session_module
from ecorl.bench.tokens_per_joule.benchmark import LEFT_OUT, read_folder, run_plan
from ecorl.bench.tokens_per_joule.plan import BenchPlan
from ecorl.bench.tokens_per_joule.result import read_result
from ecorl.bench.tokens_per_joule.running.folder import JSON_FILE, BenchFolder
from ecorl.bench.tokens_per_joule.running.idle import read_idle
from ecorl.bench.tokens_per_joule.running.known_truth import ARM
from ecorl.bench.tokens_per_joule.running.workers import JobWorker
from ecorl.bench.tokens_per_joule.summary import over_seeds
from ecorl.config import validate_config
from ecorl.errors import RunError, UserError
from ecorl.ledger import LedgerReader
from tests.forks import Fork
from tests.toy_adapter import POWER_W, TOKENS, make_plugin

ROOT = Path(__file__).parents[4]
STEPS, WARM_UP = 6, 2


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The adapter, registered for the processes that a session starts."""
    plugin = make_plugin(tmp_path / "plugin")
    path = os.pathsep.join(filter(None, [str(ROOT), str(plugin), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    return plugin


def config_text(tmp_path):
    return (
        'adapter = "toybench"\nname = "toy"\n[task]\ntype = "files"\npolicy = "p"\nreward = "r"\n'
        f'prompts = "{tmp_path}/prompts.jsonl"\n[trainer]\nsteps = {STEPS}\n'
    )


def make_plan(tmp_path, **changes):
    import tomllib

    base = validate_config(tomllib.loads(config_text(tmp_path)))
    fields = {
        "base": base,
        "placements": ("gpu_only", "learned"),
        "seeds": (1, 2, 3),
        "warm_up": WARM_UP,
        "idle_s": 0.0,
        "supervised": False,
    }
    return BenchPlan(**fields | changes)


def session(plan, folder, **kwargs):
    said = []
    result = run_plan(plan, folder, said.append, **kwargs)
    return result, said


def begun(folder, arm, seed):
    with LedgerReader(folder.run_dir(arm, seed)) as reader:
        return reader.run().created_unix_s


def test_all_arms_and_seeds_are_run_in_turns_each_in_a_process_of_its_own(toy, tmp_path):
    folder = BenchFolder(tmp_path / "b")
    result, said = session(make_plan(tmp_path), folder)
    # The toy raises where another run has left something in its process.
    assert [(r.arm, r.seed, r.missing) for r in result.runs] == [
        (arm, seed, "") for seed in (1, 2, 3) for arm in ("gpu_only", "learned")
    ]
    for run in result.runs:
        assert run.n_tokens == TOKENS * (STEPS - WARM_UP)
        assert run.tokens_per_j == pytest.approx(run.n_tokens / (POWER_W * run.time_s), rel=0.002)
    order = sorted(
        ((arm, seed) for arm in ("gpu_only", "learned") for seed in (1, 2, 3)),
        key=lambda one: begun(folder, *one),
    )
    assert order == [
        ("gpu_only", 1), ("learned", 1), ("learned", 2), ("gpu_only", 2), ("gpu_only", 3),
        ("learned", 3),
    ]  # fmt: skip
    assert "toy run of learned" in folder.log("learned", 1).read_text()
    assert sum(" of 6" in line for line in said) == 6
    for name in ("tokens_per_joule.json", "tokens_per_joule.csv", "tokens_per_joule.html"):
        assert (folder.path / name).is_file()


def test_a_crash_is_a_missing_cell_and_a_second_session_makes_that_run_alone(
    toy, tmp_path, monkeypatch
):
    folder, plan = BenchFolder(tmp_path / "b"), make_plan(tmp_path, seeds=(1, 2))
    monkeypatch.setenv("TOY_DIE", "learned")
    result, _ = session(plan, folder)
    missing = {(r.arm, r.seed): r.missing for r in result.runs}
    assert missing["gpu_only", 1] == missing["gpu_only", 2] == ""
    assert "SIGKILL" in missing["learned", 1]
    assert "toy run of learned" in missing["learned", 1]  # its last words
    kept = begun(folder, "gpu_only", 1)
    monkeypatch.delenv("TOY_DIE")
    again, said = session(plan, BenchFolder(tmp_path / "b"))
    assert [r.missing for r in again.runs] == [""] * 4
    assert begun(folder, "gpu_only", 1) == kept
    assert sum(" of 2" in line for line in said) == 2
    # What was cut off is kept aside.
    assert len(list((folder.path / "unfinished").iterdir())) == 2


def test_a_run_that_stops_by_itself_is_a_missing_cell_with_a_reason(
    toy, tmp_path, monkeypatch, snapshot
):
    monkeypatch.setenv("TOY_STOP", "learned")
    result, said = session(make_plan(tmp_path, seeds=(1,)), BenchFolder(tmp_path / "b"))
    missing = {r.arm: r.missing for r in result.runs}
    assert missing["gpu_only"] == ""
    assert any(missing["learned"] in line for line in said)
    snapshot(missing["learned"])


def test_seed_0_is_gone_on_with_as_any_other(toy, tmp_path):
    plan = make_plan(tmp_path, seeds=(0, 1))
    session(plan, BenchFolder(tmp_path / "b"), box_s=0.0)
    result, _ = session(plan, BenchFolder(tmp_path / "b"))
    assert [r.missing for r in result.runs] == [""] * 4


def test_what_comes_behind_the_last_run_is_caught_up_on(toy, tmp_path, monkeypatch):
    folder, plan = BenchFolder(tmp_path / "b"), make_plan(tmp_path, seeds=(1,))

    def fail(*_):
        raise RunError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(session_module._BenchSession, "_known_truth", fail)
        with pytest.raises(RunError, match="the disk is full"):
            session(plan, folder)
    # What had finished is in the results all the same.
    assert [r.missing for r in read_result(folder.path / JSON_FILE).runs] == ["", ""]
    assert not folder.is_done(ARM, 0)
    kept = begun(folder, "gpu_only", 1)
    session(plan, BenchFolder(tmp_path / "b"))
    assert folder.is_done(ARM, 0)
    assert begun(folder, "gpu_only", 1) == kept


def test_arms_in_another_order_give_the_same_figures_within_their_spread(toy, tmp_path):
    order = ("gpu_only", "concurrent", "learned")
    one, _ = session(make_plan(tmp_path, placements=order), BenchFolder(tmp_path / "b"))
    other, _ = session(make_plan(tmp_path, placements=order[::-1]), BenchFolder(tmp_path / "c"))

    def first(folder):
        return min((begun(BenchFolder(tmp_path / folder), arm, 1), arm) for arm in order)[1]

    assert (first("b"), first("c")) == ("gpu_only", "learned")
    # Tokens are exactly the same; a rate goes with how long the sleeping steps took.
    key = {(r.arm, r.seed): r.n_tokens for r in one.runs}
    assert key == {(r.arm, r.seed): r.n_tokens for r in other.runs}
    for arm in order:
        a, b = (over_seeds(result, arm, lambda run: run.tokens_per_j) for result in (one, other))
        assert a.median == pytest.approx(b.median, rel=0.5)
        j = [sum(r.machine.energy_j for r in x.runs if r.arm == arm) for x in (one, other)]
        s = [sum(r.time_s for r in x.runs if r.arm == arm) for x in (one, other)]
        assert j[0] / s[0] == pytest.approx(j[1] / s[1], rel=0.002)


def test_a_process_that_died_between_two_jobs_is_made_anew(toy, tmp_path):
    config = make_plan(tmp_path).base
    with JobWorker("toybench", is_forked=True, log=tmp_path / "log") as worker:
        worker.call("check", config, tmp_path / "none")
        process = worker._process
        process.kill()
        process.wait()
        answer = worker.ask("check", config, tmp_path / "none")
        assert answer.error == "JobDied"
        assert worker.ask("check", config, tmp_path / "none").error == ""


def test_a_mistake_of_the_user_s_ends_it_before_anything_ran(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_REFUSE", "learned")
    with pytest.raises(UserError, match="the toy refuses this"):
        session(make_plan(tmp_path), BenchFolder(tmp_path / "b"))
    assert not (tmp_path / "b").exists()


def test_a_box_that_is_used_up_leaves_whole_rounds_out(toy, tmp_path):
    folder = BenchFolder(tmp_path / "b")
    result, said = session(make_plan(tmp_path), folder, box_s=0.0)
    assert [r.missing for r in result.runs] == ["", "", *[LEFT_OUT] * 4]
    assert any("4 runs" in line for line in said)


def test_where_there_is_a_gpu_no_run_is_forked_from_one_that_knows_the_framework(
    toy, tmp_path, monkeypatch
):
    """The toy notes what it was told to import; a process that begins afresh was told nothing."""
    monkeypatch.setattr(session_module, "_has_gpu", lambda: True)
    monkeypatch.setenv("TOY_PRELOADED", "no")
    result, _ = session(make_plan(tmp_path, seeds=(1,)), BenchFolder(tmp_path / "b"))
    assert [r.missing for r in result.runs] == ["", ""]
    monkeypatch.setattr(session_module, "_has_gpu", lambda: False)
    result, _ = session(make_plan(tmp_path, seeds=(1,)), BenchFolder(tmp_path / "c"))
    assert all("was preloaded" in r.missing for r in result.runs)


def test_supervised_training_has_a_turn_and_a_place_of_its_own(toy, tmp_path):
    plan = make_plan(tmp_path, seeds=(1,), supervised=True)
    result, _ = session(plan, BenchFolder(tmp_path / "b"))
    (found,) = result.supervised
    assert found.tokens_per_j == pytest.approx(found.n_tokens / (POWER_W * found.time_s), rel=0.02)
    assert all(run.arm != "supervised" for run in result.runs)


def test_an_adapter_that_cannot_train_supervised_is_a_missing_cell(toy, tmp_path, monkeypatch):
    module = tmp_path / "lacking.py"
    module.write_text(
        "from tests.toy_adapter import benchmark_task, check, preload, run\n", "utf-8"
    )
    points = toy / "toy_adapter-1.0.dist-info" / "entry_points.txt"
    points.write_text("[ecorl.adapters]\ntoybench = lacking\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    plan = make_plan(tmp_path, seeds=(1,), supervised=True)
    result, _ = session(plan, BenchFolder(tmp_path / "b"))
    assert "train_supervised" in result.supervised[0].missing
    assert [r.missing for r in result.runs] == ["", ""]


# ---------------------------------------------------------------- the command


def command(tmp_path, *words, **env):
    path = tmp_path / "toy.toml"
    path.write_text(config_text(tmp_path))
    return Fork(
        "-m", "ecorl.cli", "bench", "tokens-per-joule", *words,
        cwd=tmp_path, env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **env}, new_session=True,
    )  # fmt: skip


def started(tmp_path, *words, **env):
    given = ("--config", "toy.toml", "--seeds", "1,2", "--placements", "gpu_only,learned")
    flags = ("--no-gears", "--no-supervised", "--warm-up", "2", "--out", "b")
    return command(tmp_path, *given, *flags, *words, **env)


def wait_for(condition, limit_s=60.0):
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it did not come")


def descendants(process):
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def test_the_command_prints_the_table_in_80_columns(toy, tmp_path):
    process = started(tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "gpu_only" in out
    assert "learned" in out
    assert max(map(len, out.splitlines())) <= 80
    # The same folder again runs nothing, and prints what there is.
    other = command(tmp_path, "--out", "b", "--csv")
    out, err = other.communicate(timeout=240)
    assert other.returncode == 0, err
    assert "run 1 of" not in err
    assert len(out.splitlines()) == 7


def test_ctrl_c_leaves_what_has_finished_and_a_second_call_goes_on(toy, tmp_path):
    process = started(tmp_path, TOY_STEP_S="0.15")
    folder = BenchFolder(tmp_path / "b")
    wait_for(lambda: folder.is_done("gpu_only", 1) and folder.run_dir("learned", 1).exists())
    children = descendants(process)
    assert children
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, "")
    assert "ecorl bench tokens-per-joule --out b" in err.replace("\n", " ")
    assert "Traceback" not in err
    psutil.wait_procs(children, timeout=240)
    assert not [child for child in children if child.is_running()]
    assert read_folder(BenchFolder(tmp_path / "b")).runs[0].missing == ""
    kept = begun(folder, "gpu_only", 1)
    again = command(tmp_path, "--out", "b")
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert [r.missing for r in read_folder(BenchFolder(tmp_path / "b")).runs] == [""] * 6
    assert begun(folder, "gpu_only", 1) == kept


def test_two_sessions_at_one_folder_are_refused(toy, tmp_path, snapshot):
    hold = tmp_path / "hold"
    hold.touch()
    process = started(tmp_path, TOY_HOLD=str(hold))
    folder = BenchFolder(tmp_path / "b")
    wait_for(lambda: folder.run_dir("gpu_only", 1).exists())
    other = command(tmp_path, "--out", "b")
    _, err = other.communicate(timeout=240)
    assert other.returncode == 2
    snapshot(err)
    hold.unlink()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err


def test_a_benchmark_that_is_killed_leaves_no_process(toy, tmp_path):
    process = started(tmp_path, TOY_STEP_S="0.5")
    folder = BenchFolder(tmp_path / "b")
    wait_for(lambda: folder.run_dir("gpu_only", 1).exists() and len(descendants(process)) > 1)
    children = descendants(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(children, timeout=240)
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--seeds", "1,x"), "--seeds = '1,x'"),
        (("--seeds", "1,1"), "--seeds = [1, 1]"),
        (("--placements", "gpu"), "--placements = 'gpu'"),
        (("--placements", ","), "--placements"),
        (("--seeds", "4294967296"), "--seeds"),
        (("--reward", "nan"), "--reward"),
        (("--correct", "nan"), "--correct"),
        (("--steps", "4", "--warm-up", "4"), "--warm-up = 4"),
        (("--steps", "0"), "--steps"),
        (("--correct", "1.5"), "--correct"),
        (("--engine", "cuda"), "--engine"),
        (("--config", "nothing.toml"), "--config = 'nothing.toml'"),
        (("--set", "trainer.stps=3"), "trainer.stps"),
        (("--json", "--csv"), "--csv"),
        (("--join", "absent.json"), "absent.json"),
        (("--out", "."), "--out"),
        (("--out", "toy.toml"), "toy.toml"),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_code_2(toy, tmp_path, words, named):
    process = command(tmp_path, *words)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    assert len(err.strip().splitlines()) == 1, err
    assert named in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plugin", "toy.toml"]


def test_another_config_for_the_same_folder_is_refused(toy, tmp_path):
    assert started(tmp_path).wait(120) == 0
    process = started(tmp_path, "--set", "trainer.beta=0.5")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "another config" in err
    assert len(err.strip().splitlines()) == 1


# ---------------------------------------------------------------- the idle machine


def test_the_idle_machine_is_read_by_the_instrument_of_the_runs(tmp_path):
    recording = tmp_path / "idle.csv"
    rows = "".join(f"{t / 10},cpu0,{70 + t % 2},,\n" for t in range(200))
    recording.write_text(f"t_s,device_id,power_w,energy_j,utilisation\n{rows}")
    config = validate_config(
        {"telemetry": {"gpu": {"type": "replay", "path": str(recording), "interval_s": 0.05}}}
    )
    (found,) = read_idle(config, "cpu", (), "before", 1.0)
    assert (found.device_id, found.when, str(found.provenance)) == ("cpu0", "before", "replayed")
    assert found.power_w == pytest.approx(70.5, abs=0.3)


def test_a_machine_without_an_instrument_has_no_idle_power():
    config = validate_config({"telemetry": {"gpu": {"type": "null"}}})
    assert [r.power_w for r in read_idle(config, "cpu", (), "after", 0.3)] in ([], [None])
