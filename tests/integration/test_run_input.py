"""What `ecorl run` is given: checked before torch is there, and by `ecorl run --check` alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ecorl import cli
from ecorl.config import load_config
from ecorl.errors import UserError
from ecorl.ledger import Ledger
from ecorl.runtime.runs.record import create_run
from roll_adapters.trl.inputs.start import ALGORITHMS, check_resume
from tests.integration.tiny_inputs import other_model, rows_file

ROOM = 6
"""Longest completion of the runs here, tokens."""


@pytest.fixture
def config_file(tiny, tmp_path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
run_dir = "{tmp_path}/runs/here"

[task]
type = "files"
policy = "{tiny.policy}"
reward = "{tiny.reward}"
prompts = "{tiny.prompts}"
eval_prompts = "{tiny.eval_prompts}"
pairs = "{tiny.pairs}"

[trainer]
per_device_batch_size = 16
num_generations = 4
max_completion_length = {ROOM}

[placement.policy]
type = "threshold"
"""
    )
    return path


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ecorl", *words])
        capsys.readouterr()  # what the preparation of the tiny models has printed
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


# ---------------------------------------------------------------- without torch


def test_mistakes_in_paths_and_files_are_told_without_torch(config_file, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    few = rows_file(tmp_path / "few.jsonl", "1+1=")
    wrong = {
        "task.policy=/nowhere": "/nowhere",
        "task.reward=/nowhere": "/nowhere",
        "task.prompts=/nowhere": "/nowhere (task.prompts)",
        f"task.prompts={few}": "holds 1 prompts, a step needs 4",
        f"task.eval_prompts={tmp_path}/empty.jsonl": "(task.eval_prompts): holds no rows",
        f"task.pairs={few}": 'needs a string "chosen"',
        "run_dir=/proc/none": "run_dir",
        f"run_dir=/tmp/{'b' * 300}": "run_dir",
        f"devices.gpu=/tmp/{'b' * 300}": "cannot be read (File name too long)",
        "algorithm=ppo": "algorithm = 'ppo'",
        "devices.gpu=/nowhere": "devices.gpu",
        "devices.accelerator=/nowhere": "devices.accelerator",
        "devices.accelerator=l4": "devices.accelerator",
        'engine.offload={type="torch", device="cuda:900"}': "devices.accelerator",
        "accounting.pue_csv=/nowhere": "accounting.pue_csv",
        'carbon.feeds=[{type="replay", path="/nowhere"}]': "carbon.feeds.0.path",
        'carbon.feeds=[{type="electricity_maps", zone="DE", key_file="/nowhere"}]': "key_file",
        'telemetry.gpu={type="replay", path="/nowhere"}': "telemetry.gpu.path",
        'placement.policy={type="learned", path="/nowhere"}': "placement.policy.path",
        'engine.offload={type="plugin", name="nonesuch"}': "engine.offload.name",
        'carbon.control={controller="spot", slack=2.0, spot_prices="/nowhere"}': "spot_prices",
    }
    code = """
import json, sys
from pathlib import Path
from rich.console import Console
from ecorl.config import load_config
from ecorl.errors import UserError
from roll_adapters.trl.run import run

said = []
for override in json.loads(sys.argv[2]):
    config = load_config(sys.argv[1], [override])
    try:
        run(config, config.resolved_run_dir(), Console())
        said.append("it ran")
    except UserError as error:
        said.append(str(error))
loaded = sorted({"torch", "transformers", "trl", "datasets"} & set(sys.modules))
print(json.dumps({"said": said, "loaded": loaded}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(config_file), json.dumps(list(wrong))],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["loaded"] == []
    for said, words in zip(found["said"], wrong.values(), strict=True):
        assert words in said
        assert "\n" not in said
    assert not (tmp_path / "runs").exists()


def test_a_file_that_has_moved_since_is_named_before_a_resume(config_file, tiny, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(tiny.policy, policy)
    config = load_config(str(config_file), [f"task.policy={policy}"])
    run_dir = config.resolved_run_dir()
    create_run(config, run_dir, {}).close()
    assert len(list(check_resume(config, run_dir))) > 3
    policy.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError) as caught:
        list(check_resume(config, run_dir))
    assert f"{policy}: the policy (task.policy)" in str(caught.value)
    assert "put the file or folder back in its place, or a link" in str(caught.value)


def test_the_algorithms_are_those_of_which_there_are_trainers():
    from roll_adapters.trl.trainer import TRAINERS

    assert set(ALGORITHMS) == set(TRAINERS)


# ---------------------------------------------------------------- ecorl run --check


def test_check_tells_each_thing_and_writes_nothing(command, config_file, tiny, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    code, out, err = command("run", "--check", "--config", str(config_file))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [
        "run_dir", "task.policy", "task.reward", "devices.accelerator", "task.prompts",
        "task.eval_prompts", "task.pairs", "devices.gpu", "reward", "reference",
    ]  # fmt: skip
    assert str(tiny.policy) in lines[1]
    assert "may run on the simulated card (AMD Alveo U55C 16 GB)" in lines[8]
    assert "nothing was written" in lines[-1]
    assert sorted(tmp_path.rglob("*")) == before


def test_check_says_which_models_stay_where_they_are(command, config_file, tiny, tmp_path):
    odd = other_model(tmp_path / "odd", tiny.reward, hidden_act="gelu")
    words = ["--set", f"task.reward={odd}", "--set", "trainer.beta=0.0"]
    code, out, _ = command("run", "--check", "--config", str(config_file), *words)
    assert code == 0
    reward, reference = out.splitlines()[-3:-1]
    assert "the card cannot run it" in reward
    assert "hidden_act" in reward
    assert "stays on the host, since the card cannot run it" in reward
    assert reference.endswith("not needed: trainer.beta = 0")
    words = ["--set", 'placement.policy={type="static"}']
    _, out, _ = command("run", "--check", "--config", str(config_file), *words)
    assert "by placement.policy" in out.splitlines()[-2]


def test_check_of_a_preset_says_that_its_files_are_still_to_be_made(command, tmp_path):
    words = ["--set", f"run_dir={tmp_path}/run", "--set", f"task.cache_dir={tmp_path}/cache"]
    code, out, _ = command("run", "--check", "--config", "demo", *words)
    assert code == 0
    assert "made at the first run" in out
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_under_check_is_one_line(command, config_file, tmp_path):
    empty = rows_file(tmp_path / "p.jsonl", *["1"] * 4, "")
    for wrong in ("task.policy=/nowhere", f"task.prompts={empty}", "devices.gpu=h200"):
        code, out, err = command("run", "--check", "--config", str(config_file), "--set", wrong)
        assert code == 2
        assert len(err.strip().splitlines()) == 1, err
        assert "nothing was written" not in out
    assert not (tmp_path / "runs").exists()


def test_a_prompt_that_cannot_be_used_leaves_no_run(command, config_file, tmp_path):
    empty = rows_file(tmp_path / "p.jsonl", *["1"] * 4, "")
    code, _, err = command("run", "--config", str(config_file), "--set", f"task.prompts={empty}")
    assert code == 2
    assert f"{empty}:5: " in err
    assert len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "runs").exists()


def test_check_of_a_run_to_go_on_with_leaves_it_as_it_is(command, config_file):
    config = load_config(str(config_file))
    run_dir = config.resolved_run_dir()
    create_run(config, run_dir, {}).close()
    before = (run_dir / "ledger.sqlite").read_bytes()
    code, out, err = command("run", "--check", "--resume", str(run_dir))
    assert (code, err) == (0, "")
    assert "holds a run that can go on" in out
    assert (run_dir / "ledger.sqlite").read_bytes() == before
    # It can still be gone on with.
    Ledger.open_for_resume(run_dir / "ledger.sqlite", from_step=0).close()


def test_the_help_of_run_shows_how_it_is_called(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("run", "--help")
    assert code == 0
    for option in ("--config my.toml --check", "--set trainer.steps=200", "--resume runs/"):
        assert f"ecorl run {option}" in out or option in out
    assert max(map(len, out.splitlines())) <= 80
