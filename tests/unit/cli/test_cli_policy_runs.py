"""``ecorl policy evaluate`` and ``train`` on replays of recorded runs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace

import pytest

from benchmarks.studies.hidden_runs import hidden_scenario
from ecorl import cli
from ecorl.cli.policy import evaluate
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE
from ecorl.policy.calibration.replayed import replayed
from ecorl.policy.training.train import TrainingPlan
from tests.fakes.hidden_runs import REWARD_CARD, edited, wrote

TINY = ("--quick", "--scenarios", 1, "--rounds", 1, "--no-compare")
SMALL = ("--seeds", 2, "--iterations", 4)


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
def runs(tmp_path_factory):
    """The folders of three recorded runs."""
    root = tmp_path_factory.mktemp("runs")
    return [
        wrote(root / f"run-{seed}", hidden_scenario(seed, n_iterations=60), seed=seed)
        for seed in (1, 2, 3)
    ]


def given(folders):
    return tuple(word for folder in folders for word in ("--runs", folder))


def the_line(outcome):
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line


def test_training_replays_half_of_the_runs_and_evaluation_the_others(
    command, runs, tmp_path, snapshot
):
    folder = tmp_path / "t"
    train = ("policy", "train", "--family", "paper", "--folder", folder)
    code, out, err = command(*train, *TINY, *given(runs))
    assert code == 0, err
    replays = re.search(r"^  replays +4 of (\S+); .*: (\S+), (\S+)$", out, re.M)
    seen, *others = replays.groups()
    assert {seen, *others} == {"hidden-1", "hidden-2", "hidden-3"}
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["runs"] == [seen]
    record = json.loads((folder / "record.json").read_text())
    name = seen.replace("hidden", "run")
    assert record["scenarios"][1:] == [name, *(f"{name}-{i}" for i in (1, 2, 3))]

    resume = ("policy", "train", "--resume", "--no-compare", "--folder", folder)
    only = runs[int(seen[-1]) - 1]
    rest = [r for r in runs if r != only]
    gone_on = edited(
        only, _folder(tmp_path / only.name), "DELETE FROM execution WHERE iteration = 60"
    )
    lines = [
        the_line(command(*resume, *given(folders)))
        for folders in ([], [rest[0], only], [*rest, gone_on])
    ]
    assert command(*resume, *given(runs))[0] == 0

    made = tmp_path / "e.json"
    evaluate = ("policy", "evaluate", folder / "scheduler.onnx", *SMALL)
    code, out, err = command(
        *evaluate, *given(runs), "--json", made, "--report", tmp_path / "p.html"
    )
    assert code == 0, err
    assert re.search(rf"^- .*: {seen}$", out, re.M)
    scenarios = json.loads(made.read_text())["scenarios"]
    assert [s["replay"]["run"] for s in scenarios] == sorted(others)
    assert {s["replay"]["provenance"] for s in scenarios} == {"replayed"}
    assert "replayed" in (tmp_path / "p.html").read_text()
    lines.append(the_line(command(*evaluate, *given([only]))))

    # Before anything is played.
    bad = edited(only, _folder(tmp_path / "bad"), f"DELETE FROM execution WHERE {REWARD_CARD}")
    lines += [
        the_line(command(*evaluate, *args))
        for args in (
            ("--runs", bad),
            ("--runs", tmp_path / "none"),
            given([rest[0], rest[0]]),
            (*given(rest), "--calibration", tmp_path / "c.toml"),
        )
    ]
    snapshot("\n".join(lines), runs=runs[0].parent)


def _folder(path):
    path.mkdir()
    return path


def test_a_training_that_cannot_begin_leaves_nothing(command, runs, tmp_path, snapshot):
    train = ("policy", "train", *TINY, "--folder", tmp_path / "t")
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    given_folders = runs[:1], [runs[0], copy]
    lines = [the_line(command(*train, *given(folders))) for folders in given_folders]
    (copy / LEDGER_FILE).write_bytes(b"no database")
    lines.append(the_line(command(*train, *given([runs[1], copy]))))
    snapshot("\n".join(lines))
    assert not (tmp_path / "t").exists()


def test_a_policy_that_has_seen_no_run_is_compared_on_all(runs):
    scenarios = [replayed(r) for r in runs[:2]]
    assert evaluate.unseen(scenarios, {}) == (scenarios, ())
    plan = {"runs": ["hidden-1"]}
    assert evaluate.unseen(scenarios, {"plan": plan}) == (scenarios[1:], ("hidden-1",))
    with pytest.raises(ConfigError, match="--runs"):
        evaluate.unseen(scenarios[:1], {"plan": plan})


def test_a_plan_is_the_same_after_it_was_written(tmp_path):
    plan = replace(TrainingPlan(), runs=("a", "b"), runs_digest="0")
    assert TrainingPlan(**(json.loads(json.dumps({"runs": plan.runs, "runs_digest": "0"})))) == plan
