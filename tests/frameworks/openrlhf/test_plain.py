"""OpenRLHF without ecorl. What the other tests compare with must be the same each time."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.torch.engine import TorchEngine
from ecorl.records import Stage
from tests.frameworks.openrlhf import harness
from tests.frameworks.trainings import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S + 60)]


def test_plain_run_trains(plain, tiny):
    steps = list(range(1, harness.N_STEPS + 1))
    assert {name: list(values) for name, values in plain.metrics.items()} == dict.fromkeys(
        plain.metrics, steps
    )
    assert {"train/reward", "train/kl", "train/critic_loss", "train/timing/generation"} <= set(
        plain.metrics
    )
    # The reference counts, and answers are of several lengths.
    assert all(plain.metrics["train/kl"][step] != 0 for step in steps[1:])
    assert any(0 < rate < 1 for rate in plain.metrics["train/truncated"].values())
    start = load_file(tiny.actor / "model.safetensors")
    assert all(
        not weight.equal(start[name].to(weight.dtype))
        for name, weight in ((n, plain.weights[f"actor.{n}"]) for n in start)
        if weight.dim() > 1
    )


@pytest.mark.deep
def test_plain_runs_repeat(plain, tiny, cluster, tmp_path):
    again = harness.run_training(cluster, tiny, tmp_path)
    assert again.numbers == plain.numbers
    assert again.weights.keys() == plain.weights.keys()
    assert all(again.weights[name].equal(weight) for name, weight in plain.weights.items())


REWARDS = """
import json, sys, torch
from openrlhf.models import get_llm_for_sequence_regression
model = get_llm_for_sequence_regression(sys.argv[1], "reward", attn_implementation="eager").eval()
with torch.no_grad():
    print("REWARDS", json.dumps([model(row, torch.ones_like(row)).item() for row in map(
        lambda tokens: torch.tensor([tokens]), json.loads(sys.argv[2]))]))
"""


def test_reward_model_is_that_of_the_checkpoint(tiny, tmp_path):
    """OpenRLHF, transformers and ecorl's exact engine read the same head from the same folder."""
    rows = [[5, 9, 200, 2], [17, 3, 3, 88, 140, 2], [40, 41]]
    done = subprocess.run(
        [sys.executable, "-c", REWARDS, tiny.reward, json.dumps(rows)],
        env=harness.environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(re.search(r"^REWARDS (.*)$", done.stdout, re.MULTILINE)[1])
    model = AutoModelForSequenceClassification.from_pretrained(
        tiny.reward, num_labels=1, dtype=torch.bfloat16, attn_implementation="eager"
    )
    with torch.no_grad():
        right = [model(torch.tensor([row])).logits.item() for row in rows]
    assert told == pytest.approx(right, abs=1e-2)
    lengths = tuple(1 for _ in rows)
    batch = ScoreBatch(("a", "b", "c"), tuple(np.array(row, np.int64) for row in rows), lengths)
    values = TorchEngine(tiny.reward, Stage.REWARD, dtype="bfloat16").score(batch).values
    assert told == pytest.approx(values.tolist(), abs=1e-2)
    # The INT8 engine's reader takes both folders.
    assert load_decoder(tiny.reward).config.is_reward
    assert not load_decoder(tiny.actor).config.is_reward
