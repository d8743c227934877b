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
    """Run the command in this process: exit code and both streams."""

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


def test_one_table_and_the_answer_in_words(command):
    code, out, _ = command(*JOB, "--kwh-price", 0.2)
    assert code == 0
    told = " ".join(out.split())
    assert re.search(
        r"Do not buy 8 x l4 for this job: the best placement takes [\d.]+ % more", told
    )
    assert re.search(r"together \d+\.\d % \(\d+\.\d to \d+\.\d %\)", told)
    assert "never pay back" in told
    assert "--g-per-kwh" in told
    assert "(replayed along grids as EIA-930 recorded them in 2022" in told
    for row in ("the GPUs alone", "8 x l4: reward", "lower clocks", "FP8 in training"):
        assert re.search(rf"^{re.escape(row)}", out, re.M), row
    assert "reward, reference at 1,470 to 1,845 MHz under the limit on power (measured" in told
    assert "For a rollout's batches neither the power nor the clock below which" in told
    assert "is published, so at the low end locks save nothing." in told
    assert re.search(r"lower clocks .* 0\.0 to \d+\.\d %", out)
    assert banned(told, on_gpus=True) == []


def test_a_missing_figure_is_a_dash_and_a_loss_is_no_saving(command):
    _, out, _ = command("--n-cards", 0)
    told = " ".join(out.split())
    assert "There is no second device in this plan." in told
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
    told = " ".join(out.split())
    assert re.search(r"reference at \d\d % of the greatest under the limit on power \(mod", told)


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
    assert re.search(
        rf"^  stages +time and energy of run {re.escape(str(run))}, energy \w+", out, re.M
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--share", "generation"), "--share"),
        (("--share", "generation=0.6", "--share", "actor_train=0.6"), "add up to 1"),
        (("--share", "generation=0.6", "--run", "x"), "--share"),
        (("--run", "/nonexistent"), "ledger"),
        (("--fitted", "/nonexistent.toml"), "nonexistent"),
        (("--use", 2), "plan.use = 2.0"),
        (("--slack", 0.5), "plan.slack = 0.5"),
        (("--seeds", 2), "--seeds = 2: allowed is nothing without --thorough"),
        (("--csv", "x.csv"), "--csv"),
        (("--what-ifs", "/nonexistent.toml"), "--what-ifs"),
        (("--what-ifs", "x.toml", "--plot", "p.png"), "--plot"),
        (("--thorough", "--json"), "--json"),
        (("--calibration", "paper", "--share", "generation=0.5"), "--calibration"),
    ],
)
def test_mistakes_are_one_line(command, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in the_line(command(*options))
    assert not list(tmp_path.iterdir())


def test_the_usual_question_needs_neither_torch_nor_the_extra():
    code = (
        "import sys\n"
        "for name in ('torch', 'gymnasium', 'stable_baselines3'): sys.modules[name] = None\n"
        "sys.argv = ['ecorl', 'plan']\nfrom ecorl import cli\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Do not buy 4 x u55c" in done.stdout


def test_the_paper_s_costs_in_a_file_are_played_and_not_taken_apart(command, tmp_path):
    """They do not say what joules are drawn for, so that episodes are all there is."""
    (tmp_path / "p.toml").write_text('calibration = "paper"\n')
    code, out, _ = command("--config", tmp_path / "p.toml", "--iterations", 2, "--seeds", 1)
    assert code == 0
    assert "Played in the simulator" in out
    assert "lower clocks" not in out


def offload(saved_share, low, high, slowdown=0.0):
    return OffloadAnswer(
        n=2, device="l4", placements=(), saved_share=saved_share, low=low, high=high,
        slowdown=slowdown, why_not="", scans=(), by_number={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (offload(-0.05, -0.2, -0.01), "takes 5 % more energy than the GPUs alone (1 to 20 %)"),
        (offload(0.0002, 0.0, 0.0005), "saves less than 0.1 % of the energy"),
        (offload(0.05, 0.02, 0.08), "2 x l4 pay: the best placement takes 5.0 % less energy"),
        (offload(0.05, 0.02, 0.08, 0.5), "2 x l4 save energy at the price of time"),
        (offload(-0.01, -0.05, 0.03), "Whether they pay hangs on figures of the devices"),
    ],
)
def test_the_answer_says_gain_loss_and_doubt_as_they_are(found, words):
    assert words in bought(found, 0.02)
