"""The command ecorl-openrlhf where OpenRLHF is not installed, and its own flags."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
import subprocess
import sys

import pytest

from ecorl.config import Config
from roll_adapters.openrlhf import command
from roll_adapters.ray_jobs.widths.handover import VARIABLE


@pytest.fixture(autouse=True)
def absent(monkeypatch):
    """OpenRLHF is not installed, whatever this machine has."""
    find_spec = importlib.util.find_spec

    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(command, "version", version)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "openrlhf" else find_spec(name, *a),
    )


@pytest.fixture
def run(capsys):
    """Run the command; gives its exit code and what it wrote."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return run


@pytest.fixture
def trained(monkeypatch):
    """What is trained, in place of a training; the release is one that is known."""
    monkeypatch.setattr(command, "version", lambda name: "0.11.2")
    calls = []

    def load(source, overrides):
        calls.append((source, list(overrides)))
        return Config()

    def train(config, flags):
        calls.append(list(flags))
        return 0

    monkeypatch.setattr(command, "_loaded", load)
    monkeypatch.setattr(command, "_train", train)
    return calls


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_needs_no_openrlhf(run, flag):
    code, out, err = run(flag)
    assert code == 0
    assert "--ecorl.config FILE" in out
    assert "not installed" in out
    assert err == ""


def test_a_mistake_is_one_line(run, snapshot):
    lines = []
    for words in (
        (),
        ("--train.seed", "1"),
        ("--ecorl.confg", "a.toml"),
        ("--ecorl.dir=x",),
        ("--ecorl.config", "a.toml", "--init_kl_coef", "0.1"),
        ("--ecorl.config", "a.toml"),
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        lines.append(err)
    snapshot("".join(lines))


@pytest.mark.parametrize("release", ["0.10.3", "0.9", "0.110.1", "1.0"])
def test_another_release_is_refused(run, monkeypatch, release):
    monkeypatch.setattr(command, "version", lambda name: release)
    code, _, err = run("--ecorl.config", "a.toml")
    assert code == 2
    assert "0.11.x" in err
    assert release in err


def test_flags_of_openrlhf_pass_in_order_and_ecorl_s_own_do_not(run, trained):
    words = [
        "--train.seed", "1", "--ecorl.config", "a.toml", "--ds.packing_samples",
        "--ecorl.set", "seed=3", "--reward.clip_range", "-1", "2", "--ecorl.set=placement.q_max=4",
    ]  # fmt: skip
    assert run(*words)[0] == 0
    assert trained == [
        ("a.toml", ["seed=3", "placement.q_max=4"]),
        ["--train.seed", "1", "--ds.packing_samples", "--reward.clip_range", "-1", "2"],
    ]


def test_widths_are_one_job_after_the_other(run, trained, monkeypatch):
    made = []

    class Supervisor:
        def __init__(self, command, width, has_stepped):
            made.append((command, width))

        def run(self):
            return 7

    monkeypatch.setattr(command, "_loaded", lambda *_: Config(trainer={"widths": [1, 2]}))
    monkeypatch.setattr(command, "JobSupervisor", Supervisor)
    monkeypatch.delenv(VARIABLE, raising=False)
    words = ["--ecorl.config", "a.toml", "--actor.num_gpus_per_node=1", "--train.seed", "1"]
    assert run(*words)[0] == 7
    ((build, width),) = made
    module = [sys.executable, "-m", "roll_adapters.openrlhf"]
    assert width == 1
    assert build(None) == [*module, *words]
    assert build(2) == [
        *module, "--ecorl.config", "a.toml", "--train.seed", "1",
        "--actor.num_gpus_per_node", "2", "--ckpt.load_enable",
    ]  # fmt: skip
    assert trained == []
    # The job itself trains.
    monkeypatch.setenv(VARIABLE, "/a/left.json")
    assert run(*words)[0] == 0
    assert trained == [["--actor.num_gpus_per_node=1", "--train.seed", "1"]]


def test_one_folder_holds_the_record_of_all_jobs(run, trained, monkeypatch, tmp_path):
    made = []

    class Supervisor:
        def __init__(self, command, width, has_stepped):
            made.append(command(None))

        def run(self):
            return 0

    timed = Config(trainer={"widths": [1, 2]}, run_dir=tmp_path / "run-{time}")
    monkeypatch.setattr(command, "_loaded", lambda *_: timed)
    monkeypatch.setattr(command, "JobSupervisor", Supervisor)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert run("--ecorl.config", "a.toml", "--ckpt.load_enable")[0] == 0
    (folder,) = tmp_path.iterdir()
    assert made[0][-2:] == ["--ecorl.set", f'run_dir="{folder}"']


def test_ctrl_c_ends_with_one_line(run, monkeypatch, trained, snapshot):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_train", stop)
    code, _, err = run("--ecorl.config", "a.toml")
    assert code == 130
    snapshot(err)


def test_a_config_that_is_not_there_is_one_line(run, monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setattr(command, "version", lambda name: "0.11.2")
    code, _, err = run("--ecorl.config", str(tmp_path / "none.toml"))
    assert code == 2
    assert "none.toml" in err


def test_openrlhf_s_command_runs_as_a_module_with_its_own_arguments(monkeypatch):
    seen = []

    def run_module(name, *, run_name, alter_sys):
        seen.append((name, run_name, alter_sys, list(sys.argv)))
        raise SystemExit(3)

    monkeypatch.setattr(runpy, "run_module", run_module)
    before = list(sys.argv)
    with pytest.raises(SystemExit):
        command._run_openrlhf(["--train.seed", "1"])
    module = "openrlhf.cli.train_ppo_ray"
    assert seen == [(module, "__main__", True, [module, "--train.seed", "1"])]
    assert sys.argv == before


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "roll_adapters.openrlhf", "--ecorl.nothing"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
