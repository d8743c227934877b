"""What commands print that measure nothing is what they printed when it was recorded."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from ecorl import cli
from ecorl.controllers.catalogue import CONTROLLERS
from tests.recorded.outputs import CLOSE, SOLVED, neutral_machine

COMMANDS = Path(__file__).with_name("commands")
ROOT = Path(__file__).parents[2]
TRACE = "ecorl/config/presets/demo_carbon.csv"
"""Hours made up for a demo, 40 days of them."""
NOW_S = 1772323200.0
"""1 March 2026, behind the trace: where time stands for the commands."""
THREE_DAYS = ("--trace", TRACE, "--start", "2026-01-25", "--days", "3")

SMALL_JOB = (
    "--gpu", "l4", "--n-gpus", "1", "--policy-model", "0.5b", "--inference-model", "0.5b",
    "--n-cards", "1", "--algorithm", "ppo", "--card-price", "4000", "--kwh-price", "0.3",
    "--g-per-kwh", "400", "--card-embodied-kg", "50",
)  # fmt: skip
WHAT_IFS = "length = [256, 1024]\nn_cards = [0, 4]\n"
REWARD_MODEL = {
    "architectures": ["LlamaForSequenceClassification"], "model_type": "llama",
    "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
    "num_hidden_layers": 22, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip
EVALUATED = ("--seeds", "2", "--iterations", "6")

PRINTED = {
    "plan.json": ("plan", "--json"),
    "plan-small-job.json": ("plan", *SMALL_JOB, "--json"),
    "plan-what-ifs.json": ("plan", "--what-ifs", "{folder}/what_ifs.toml", "--json"),
    "carbon-plan.json": ("carbon", "plan", *THREE_DAYS, "--tokens", "6.9e9", "--json"),
    "carbon-simulate.json": (
        "carbon", "simulate", *THREE_DAYS, "--json",
        "--set", "carbon.control.spot_prices={folder}/prices.csv",
        *(word for name in CONTROLLERS for word in ("--controller", name)),
    ),
    "carbon-simulate-forecast.json": (
        "carbon", "simulate", *THREE_DAYS, "--forecast", "kind", "--json"
    ),
    "carbon-forecast.json": (
        "carbon", "forecast", "--json", "--hours", "30", "--set",
        f'carbon.feeds=[{{type="replay", name="made-up", path="{TRACE}", '
        "starts_at=2026-01-25T12:00:00Z}]",
        "--set", "carbon.threshold_g_per_kwh=60",
    ),
    "config-reference.txt": ("config", "reference"),
    "config-reference.md": ("config", "reference", "--markdown"),
}  # fmt: skip
"""Arguments of each command, by the file that holds what it prints."""
WRITTEN = {
    "fpga-estimate.json": (
        "fpga", "estimate", "--model", "{folder}/reward", "--tokens", "512", "--rows", "4"
    ),
    "policy-evaluate.json": (
        "policy", "evaluate", "--family", "paper", "--scenarios", "1", *EVALUATED
    ),
}  # fmt: skip
"""Those of commands that write JSON to a file, likewise."""


@pytest.fixture
def folder(tmp_path):
    """What the commands read that is not in the project."""
    (tmp_path / "what_ifs.toml").write_text(WHAT_IFS)
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "config.json").write_text(json.dumps(REWARD_MODEL))
    days = [f"2026-01-{day:02}" for day in range(5, 32)]
    prices = [f"{day}T{hour:02}:00Z,{1.5 if hour < 8 else 1}" for day in days for hour in range(24)]
    (tmp_path / "prices.csv").write_text("\n".join(["time,price", *prices]) + "\n")
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run a command in this process, at `NOW_S` in UTC on a wide terminal; what it prints."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words):
        words = [word.replace("{folder}", str(folder)) for word in words]
        with neutral_machine(), monkeypatch.context() as then:
            then.setattr(sys, "argv", ["ecorl", *words])
            then.setattr(time, "time", lambda: NOW_S)
            with pytest.raises(SystemExit) as caught:
                cli.main()
        streams = capsys.readouterr()
        assert caught.value.code == 0, streams.err
        return streams.out.replace(str(folder), "/recorded")

    return call


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed_is_as_recorded(name, run, recorded):
    close = SOLVED if name.startswith(("carbon-plan", "carbon-simulate")) else CLOSE
    recorded(run(*PRINTED[name]), COMMANDS / name, close)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_as_recorded(name, run, folder, recorded):
    out = folder / "out.json"
    run(*WRITTEN[name], "--json", str(out))
    recorded(out.read_text("utf-8"), COMMANDS / name)
