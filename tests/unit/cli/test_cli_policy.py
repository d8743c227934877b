"""``ecorl policy`` and ``ecorl plan`` as their user meets them, with plans of seconds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields

import numpy as np
import onnx
import pytest
from rich.console import Console

from ecorl import cli
from ecorl.cli.policy import training as policy_training
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.operate.plan import job as job_plan
from ecorl.policy.calibration.calibration import Calibration
from ecorl.policy.training.train import QUICK, TrainingPlan
from ecorl.records import Action, ActionCost, Algorithm, Placement, Provenance, Stage
from tests.fakes.hidden_runs import wrote
from tests.plain_words import banned

TINY = ("--quick", "--scenarios", 1, "--rounds", 2, "--no-compare")
SMALL = ("--scenarios", 1, "--seeds", 2, "--iterations", 4)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process: exit code and both streams, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a tiny training."""
    folder = tmp_path_factory.mktemp("trained") / "t"
    sizes = {"n_scenarios": 1, "n_rounds": 2}
    job = policy_training.prepare("roofline", None, folder, sizes, resume=False, quick=True)
    policy_training.run(job, folder / "scheduler.onnx", False, Console(quiet=True))
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """The record of a run with every action."""
    return wrote(tmp_path_factory.mktemp("run"), seed=1)


def the_line(outcome):
    """The one line on standard error of a user's mistake."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line


def listing(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def weights(folder):
    with np.load(folder / "policy.npz") as found:
        return {name: found[name] for name in found.files}


# ---------------------------------------------------------------- each command does its work


def test_training_leaves_policy_and_report(trained):
    assert {"plan.json", "policy.npz", "record.json", "report.html", "scheduler.onnx"} <= set(
        listing(trained)
    )
    assert json.loads((trained / "plan.json").read_text())["n_scenarios"] == 1
    assert "How it learned" in (trained / "report.html").read_text()


@pytest.mark.parametrize(("family", "on"), [("roofline", "drift"), ("paper", "paper")])
def test_a_training_compares_at_its_end(family, on, command, tmp_path, monkeypatch):
    """On kept-out jobs of a family that there is, whatever it was trained on."""
    monkeypatch.setattr(policy_training, "_COMPARED_QUICK", (1, 2, 3))
    folder = tmp_path / "t"
    code, out, _ = command(
        "policy", "train", "--quick", "--family", family, "--scenarios", 1, "--rounds", 1,
        "--folder", folder,
    )  # fmt: skip
    assert code == 0
    assert re.search(rf"^  compared .*\b{on}$", out, re.M)
    assert "clairvoyant DP" in (folder / "report.html").read_text()


def test_export_gives_the_trained_file_once_more(command, trained, tmp_path):
    code, out, _ = command("policy", "export", trained, "--out", tmp_path / "x.onnx")
    assert code == 0
    assert "x.onnx" in out
    assert (tmp_path / "x.onnx").read_bytes() == (trained / "scheduler.onnx").read_bytes()


def test_evaluate_prints_the_table_and_writes_json_and_page(command, trained, tmp_path):
    made = tmp_path / "e.json", tmp_path / "e.html"
    code, out, _ = command(
        "policy", "evaluate", trained / "scheduler.onnx", "--family", "paper", *SMALL,
        "--json", made[0], "--report", made[1],
    )  # fmt: skip
    assert code == 0
    assert re.search(r"^learned +-?\d", out, re.M)
    assert re.search(r"^- [01] of 1\b", out, re.M)
    (scenario,) = json.loads(made[0].read_text())["scenarios"]
    assert len(scenario["scores"]["learned"]["score"]) == 2
    assert "clairvoyant DP" in made[1].read_text()


def test_calibrate_then_train_on_it_then_evaluate_on_it(command, run_dir, tmp_path, snapshot):
    file, folder = tmp_path / "c.toml", tmp_path / "f"
    code, out, _ = command("policy", "calibrate", run_dir, "--out", file)
    assert code == 0
    snapshot(out)
    assert Calibration.load(file).n_cards == 4
    code, out, _ = command("policy", "train", "--calibration", file, *TINY, "--folder", folder)
    assert code == 0
    snapshot(out.partition("training: ")[0], "training")
    assert (folder / "calibration.toml").read_bytes() == file.read_bytes()
    record = json.loads((folder / "record.json").read_text())
    assert record["plan"]["family"] == "fitted"
    code, out, _ = command(
        "policy", "evaluate", folder / "scheduler.onnx", "--calibration", file, *SMALL
    )
    assert code == 0
    assert "learned" in out
    other = tmp_path / "other.toml"
    other.write_text(file.read_text() + "# changed\n")
    again = command("policy", "train", "--resume", "--folder", folder, "--calibration", other)
    assert str(other) in the_line(again)


def test_plan_says_whether_offloading_pays(command, trained, snapshot):
    policy = (
        "--thorough", "--policy", trained / "scheduler.onnx", "--iterations", 4, "--seeds", 2,
    )  # fmt: skip
    code, out, _ = command("plan", "--calibration", "paper", *policy)
    assert code == 0
    explained = " (Eq. 7 of the EcoRL-Sched paper)"
    assert banned(" ".join(out.split()).replace(explained, ""), on_gpus=True) == []
    # How good so short a training is may depend on the machine.
    snapshot(re.sub(r"(?m)^learned .*\n", "", out), trained=trained)
    for args in (("--policy-model", "8b"), ("--n-cards", 0)):
        code, out, _ = command("plan", *args, *policy)
        assert code == 0
        snapshot("\n\n".join(out.split("\n\n")[-3:-1]), " ".join(map(str, args)))


def test_plan_reads_a_file_and_options_go_before_it(command, trained, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('gpu = "a100_sxm"\nrows = 64\nlength = 300\npolicy_model = "8b"\n')
    policy = (
        "--thorough", "--policy", trained / "scheduler.onnx", "--iterations", 2, "--seeds", 1,
    )  # fmt: skip
    code, out, _ = command("plan", "--config", file, "--rows", 32, *policy)
    assert code == 0
    assert re.search(r"^  iteration +32 .*\b300\b", out, re.M)
    assert re.search(r"^  GPUs .*\(a100_sxm\)$", out, re.M)
    assert re.search(r"^  models +8b: .*; 8b: ", out, re.M)


def test_a_plan_is_for_what_a_run_trains_unless_another_algorithm_is_asked_for(
    command, trained, monkeypatch
):
    policy = (
        "--thorough", "--policy", trained / "scheduler.onnx", "--iterations", 2, "--seeds", 1,
    )  # fmt: skip
    code, out, _ = command("plan", *policy)
    assert code == 0
    assert re.search(r"^  algorithm +grpo and rloo\b", out, re.M)
    assert out.count("Values used:") == 1  # one table for both
    code, out, _ = command("plan", "--algorithm", "ppo", *policy)
    assert re.search(r"^  algorithm +ppo$", out, re.M)
    assert re.search(r"^  models .*\bcritic$", out, re.M)
    # Of algorithms that differ in their stages each has a table of its own.
    monkeypatch.setattr(job_plan, "RUN_ALGORITHMS", (Algorithm.GRPO, Algorithm.DAPO))
    assert list(job_plan.PlannedJob().scenarios(2)) == ["grpo", "dapo"]


def test_the_help_of_plan_and_training_shows_defaults_units_and_what_is_allowed(command):
    code, out, _ = command("plan", "--help")
    assert code == 0
    told = " ".join(re.sub("[│╭╰─╮╯]", " ", out).split())
    for field in fields(job_plan.PlannedJob):
        assert f"--{field.name.replace('_', '-')} " in told
        default = (
            "grpo and rloo" if field.default is None else f"{field.default}".removesuffix(".0")
        )
        assert f"[default: ({default}" in told, field.name
    for words in (
        "a100_sxm, b200_sxm, h100_sxm, h200, host_cpu, l4",
        "160k, 15m, 135m",
        "ppo, grpo, rloo",
    ):
        assert words in told
    assert told.count("TOKENS") == 2
    told = " ".join(re.sub("[│╭╰─╮╯]", " ", command("policy", "train", "--help")[1]).split())
    plans = (TrainingPlan(), QUICK)
    for name in ("n_scenarios", "n_rounds", "ppo_steps"):
        full, quick = (getattr(plan, name) for plan in plans)
        assert f"({full}; {quick} with --quick)" in told
    assert f"({plans[0].seed})" in told
    assert f"({plans[0].family})" in told


def test_each_command_has_one_plain_line_in_the_help(command):
    for words, n in (((), 8), (("policy",), 7), (("carbon",), 5), (("fpga",), 4)):
        out = command(*words, "--help")[1]
        lines = out.partition("Commands")[2].splitlines()[1:]
        told = [line for line in lines if re.match(r"│ [a-z]", line)]
        assert len(told) >= n
        assert all(line.rstrip(" │").endswith(".") for line in told), told


def test_a_paragraph_of_the_help_is_broken_where_the_terminal_ends(command):
    lines = command("policy", "export", "--help")[1].splitlines()
    first = next(i for i, line in enumerate(lines) if "The file holds" in line)
    paragraph = lines[first : first + 5]
    assert all(len(line.strip()) > 60 for line in paragraph)
    assert "   ecorl policy export runs/policy-try --out my_scheduler.onnx" in map(
        str.rstrip, lines
    )


def a_record(folder, placements):
    folder.mkdir()
    with Ledger.create(folder / LEDGER_FILE, run_id="t", config_toml="", meta={}) as ledger:
        for p in placements:
            ledger.placement(p)
    return folder


COSTS = tuple(ActionCost(a, 1.5, 20.0, 0.5, Provenance.MODELLED) for a in Action)


def decided(iteration, stage, action=Action.GPU, costs=()):
    return Placement(iteration, stage, Action.CONCURRENT, action, "p", "because of q_max", costs)


def test_explain_shows_costs_guards_and_reason(command, tmp_path, snapshot):
    run = a_record(
        tmp_path / "r",
        [
            decided(1, Stage.REWARD, Action.CONCURRENT, COSTS),
            decided(2, Stage.REWARD, Action.GPU, COSTS),
            decided(3, Stage.REWARD),
            decided(3, Stage.ACTOR_TRAIN, Action.GPU, COSTS),
        ],
    )
    code, out, _ = command("policy", "explain", run)
    assert code == 0
    assert re.search(r"^card beside GPU +1\.50 s +20\.0 J +0\.500 s +modelled", out, re.M)
    assert banned(out, on_gpus=True) == []
    snapshot(out)
    for n in (1, 3):
        out = command("policy", "explain", run, "--iteration", n)[1]
        snapshot(out.rpartition("\n\n")[2], f"iteration {n}")
    mistakes = (("--iteration", 9), ("--stage", "reference"))
    lines = [the_line(command("policy", "explain", run, *given)) for given in mistakes]
    snapshot("\n".join(lines), "mistakes")


# ---------------------------------------------------------------- interruption


def test_a_resumed_training_gives_the_network_of_an_unbroken_one(
    command, monkeypatch, trained, tmp_path
):
    import ecorl.policy.training.train as module

    calls, fit, folder = [], module.fit, tmp_path / "t"

    def stopped(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fit(*args, **kwargs)

    monkeypatch.setattr(module, "fit", stopped)
    code, _, err = command("policy", "train", *TINY, "--folder", folder)
    assert code == 130
    (line,) = err.splitlines()
    assert f"ecorl policy train --resume --folder {folder}" in line
    assert "policy.npz" not in listing(folder)
    assert command("policy", "train", "--resume", "--no-compare", "--folder", folder)[0] == 0
    assert len(calls) == 3  # the first round was not fitted again
    ours, unbroken = weights(folder), weights(trained)
    assert ours.keys() == unbroken.keys()
    assert all(np.array_equal(ours[name], unbroken[name]) for name in ours)


# ---------------------------------------------------------------- refusals


def test_a_folder_that_is_not_empty_and_one_of_another_plan(command, trained, tmp_path, snapshot):
    before, resume = listing(trained), ("--resume", "--folder")
    lines = [
        the_line(command("policy", "train", *args))
        for args in (
            (*TINY, "--folder", trained),
            (*resume, trained, "--seed", 4),
            (*resume, tmp_path / "none"),
        )
    ]
    snapshot("\n".join(lines), trained=trained)
    assert listing(trained) == before
    assert listing(tmp_path) == []


def test_a_training_that_cannot_begin_leaves_nothing(command, tmp_path, snapshot):
    fresh = ("policy", "train", *TINY[:1], "--folder", tmp_path / "t")
    lines = [
        the_line(command(*fresh, *args))
        for args in (
            ("--scenarios", 0),
            ("--calibration", tmp_path / "none.toml"),
            ("--calibration", tmp_path / "c.toml", "--family", "paper"),
            ("--out", tmp_path),
            ("--family", "nonsense"),
        )
    ]
    snapshot("\n".join(lines))
    assert listing(tmp_path) == []


def test_foreign_onnx_files(command, trained, tmp_path):
    foreign, other = tmp_path / "foreign.onnx", tmp_path / "other.onnx"
    foreign.write_text("this is no model")
    model = onnx.load(trained / "scheduler.onnx")
    for one in model.metadata_props:
        one.value = "ecorl.features/0" if one.key == "ecorl.schema" else one.value
    onnx.save(model, other)
    before = listing(tmp_path)
    for name in (foreign, other, tmp_path / "none.onnx"):
        report = ("--report", tmp_path / "r.html")
        assert str(name) in the_line(command("policy", "evaluate", name, *SMALL, *report))
        assert str(name) in the_line(command("plan", "--thorough", "--policy", name))
    assert "ecorl.features/0" in the_line(command("policy", "evaluate", other))
    assert listing(tmp_path) == before


def test_runs_and_folders_that_lack_what_is_needed(command, tmp_path, snapshot):
    run = a_record(tmp_path / "r", [decided(1, Stage.GENERATION)])
    before = listing(tmp_path)
    lines = [
        the_line(command("policy", name, folder))
        for name in ("calibrate", "explain", "export")
        for folder in (run, tmp_path / "none")
    ]
    snapshot("\n".join(lines))
    assert listing(tmp_path) == before


def test_an_export_of_broken_files_is_refused(command, tmp_path):
    (tmp_path / "policy.npz").write_text("no arrays")
    (tmp_path / "record.json").write_text("{}")
    assert "policy.npz" in the_line(command("policy", "export", tmp_path))
    assert listing(tmp_path) == ["policy.npz", "record.json"]


def test_plans_that_cannot_be_made(command, snapshot):
    lines = [
        the_line(command("plan", *options))
        for options in (
            ("--gpu", "h9"),
            ("--card", "v80"),
            ("--gpu", "u55c"),
            ("--card", "h9"),
            ("--policy-model", "9b"),
            ("--algorithm", "sarsa"),
            ("--calibration", "guess"),
            ("--abilities", "every"),
            ("--rows", 0),
            ("--n-cards", -1),
            ("--length", "nan"),
            ("--load", 1.5),
            ("--n-gpus", 1),
            ("--config", "/nonexistent/job.toml"),
        )
    ]
    snapshot("\n".join(lines))


def test_plan_files_with_mistakes(command, tmp_path, snapshot):
    file, lines = tmp_path / "job.toml", []
    for text in ("gpus = 3", "rows = 2.5", "rows = true", "gpu = 5", "algorithm = 'x'"):
        file.write_text(text)
        lines.append(the_line(command("plan", "--config", file)))
    snapshot("\n".join(lines))
    file.write_text("gpu = ")
    assert "TOML" in the_line(command("plan", "--config", file))


@pytest.mark.parametrize("missing", ["gymnasium", "stable_baselines3"])
def test_without_the_extra_one_line_says_what_to_install(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "sys.argv = ['ecorl', 'policy', 'evaluate']; from ecorl import cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = the_line((done.returncode, done.stdout, done.stderr))
    assert "ecorl[policy]" in line
    assert missing in line


def test_the_command_line_itself_needs_nothing_of_the_extra():
    code = "import sys, ecorl.cli.commands; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "ecorl.cli.policy.app" in loaded
    heavy = {"torch", "gymnasium", "stable_baselines3", "scipy", "onnx", "numpy", "matplotlib"}
    assert loaded & heavy == set()


def test_no_subcommand_shows_the_help(command):
    code, out, err = command("policy")
    assert (code, err) == (2, "")
    assert "calibrate" in out
