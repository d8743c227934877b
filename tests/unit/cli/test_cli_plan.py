"""``ecorl plan`` on the command line: text, JSON, picture, grids, and one line for each mistake."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys

import pytest

from ecorl import cli
from ecorl.cli.plan.words import bought
from ecorl.operate.plan.offload import OffloadAnswer
from tests.fakes.hidden_runs import wrote
from tests.plain_words import banned

JOB = ("--policy-model", "8b", "--n-gpus", 8, "--card", "l4", "--n-cards", 8)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process: exit code and both streams, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", "plan", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


def the_line(outcome):
    code, out, err = outcome
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: ")
    return line


def test_one_table_and_the_answer_in_words(command, snapshot):
    code, out, _ = command(*JOB, "--kwh-price", 0.2)
    assert code == 0
    assert re.search(r"lower clocks .* 0\.0 to \d+\.\d %", out)
    assert banned(" ".join(out.split()), on_gpus=True) == []
    snapshot(out)


def test_a_missing_figure_is_a_dash_and_a_loss_is_no_saving(command):
    _, out, _ = command("--n-cards", 0)
    assert re.search(r"^overlap, one step off-policy +- ", out, re.M)


def test_json_holds_what_the_table_says(command):
    code, out, _ = command(*JOB, "--json")
    assert code == 0
    (found,) = json.loads(out).values()
    assert found["provenance"] == "modelled"
    assert found["offload"]["pays"] is False
    assert len(found["offload"]["placements"]) == 8
    assert found["levers"]["together"]["saved_share"] > 0.1
    assert found["levers_per_year"]["money_per_year"] is None
    assert found["levers"]["setting"]["slowdown"] <= 0.02 + 1e-9
    assert found["levers"]["natural_clocks"]["generation"] == 1.0
    assert found["levers"]["natural_clocks"]["reward"] == pytest.approx(1665 / 1980)


def test_clocks_of_a_gpu_that_was_not_measured_are_said_to_be_modelled(command):
    _, out, _ = command("--gpu", "h200", "--policy-model", "8b", "--n-gpus", 8, "--n-cards", 0)
    assert re.search(r"reference at \d\d % [^.]*\(modelled\)", " ".join(out.split()))


def test_the_picture_is_a_png(command, tmp_path):
    code, _, _ = command(*JOB, "--plot", tmp_path / "p.png")
    assert code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    code, _, _ = command("--plot", tmp_path / "q.png")  # whose cards cannot run the job
    assert code == 0


def test_a_grid_prints_rows_and_writes_them(command, tmp_path):
    file = tmp_path / "g.toml"
    file.write_text('length = [256, 1024]\npolicy_model = ["8b", "70b"]\nn_gpus = 2\n')
    code, out, _ = command("--what-ifs", file, "--csv", tmp_path / "g.csv", "--rows", 32)
    assert code == 0
    assert "missing figures:" in out
    with (tmp_path / "g.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == 4
    assert [row["time_s"] == "" for row in rows] == [False, True, False, True]
    code, out, _ = command("--what-ifs", file, "--json", "--rows", 32)
    assert [row["time_s"] is None for row in json.loads(out)] == [False, True, False, True]


def test_stages_of_a_run_stand_in_for_the_model_s(command, tmp_path):
    run = wrote(tmp_path, seed=2)
    code, out, _ = command(*JOB, "--run", run)
    assert code == 0
    assert re.search(rf"^  stages .*{re.escape(str(run))}", out, re.M)


def test_mistakes_are_one_line(command, snapshot, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        the_line(command(*options))
        for options in (
            ("--share", "generation"),
            ("--share", "generation=0.6", "--share", "actor_train=0.6"),
            ("--share", "generation=0.6", "--run", "x"),
            ("--run", "/nonexistent"),
            ("--fitted", "/nonexistent.toml"),
            ("--use", 2),
            ("--slack", 0.5),
            ("--seeds", 2),
            ("--csv", "x.csv"),
            ("--what-ifs", "/nonexistent.toml"),
            ("--what-ifs", "x.toml", "--plot", "p.png"),
            ("--thorough", "--json"),
            ("--calibration", "paper", "--share", "generation=0.5"),
        )
    ]
    snapshot("\n".join(lines))
    assert not list(tmp_path.iterdir())


def test_the_usual_question_needs_neither_torch_nor_the_extra():
    code = (
        "import sys\n"
        "for name in ('torch', 'gymnasium', 'stable_baselines3'): sys.modules[name] = None\n"
        "sys.argv = ['ecorl', 'plan']\nfrom ecorl import cli\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 x u55c" in done.stdout


def test_the_paper_s_costs_in_a_file_are_played_and_not_taken_apart(command, tmp_path):
    """They do not say what joules are drawn for, so that episodes are all there is."""
    (tmp_path / "p.toml").write_text('calibration = "paper"\n')
    code, out, _ = command("--config", tmp_path / "p.toml", "--iterations", 2, "--seeds", 1)
    assert code == 0
    assert re.search(r"^GPU-only", out, re.M)
    assert "lower clocks" not in out


def offload(saved_share, low, high, slowdown=0.0):
    return OffloadAnswer(
        n=2, device="l4", placements=(), saved_share=saved_share, low=low, high=high,
        slowdown=slowdown, why_not="", scans=(), by_number={},
    )  # fmt: skip


def test_the_answer_says_gain_loss_and_doubt_as_they_are(snapshot):
    answers = (
        offload(-0.05, -0.2, -0.01),
        offload(0.0002, 0.0, 0.0005),
        offload(0.05, 0.02, 0.08),
        offload(0.05, 0.02, 0.08, 0.5),
        offload(-0.01, -0.05, 0.03),
    )
    snapshot("\n".join(bought(found, 0.02) for found in answers))
