"""Gears of OpenRLHF's actor; that its own changes no bit is in test_conformance."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from ecorl.edi import EdiMatrix
from ecorl.records import Stage
from tests.frameworks.openrlhf.attached import GPU, train
from tests.frameworks.trainings import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S + 60)]


def test_a_step_without_a_finite_gradient_is_computed_anew_in_bf16(cluster):
    """On DeepSpeed itself, which without ZeRO would take such a step in BF16."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.openrlhf.redone_steps"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    both = json.loads(re.search(r"^FOUND (.*)$", done.stdout, re.MULTILINE)[1])
    assert len(both) == 2
    for found in both:
        assert found["is_finite"]
        assert found["redone"] == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
        redone, fp8 = found["away"]
        assert redone == 0.0
        assert fp8 > 0.0
        assert found["rates"][0] == found["rates"][1]


def test_the_actor_trains_in_fp8_and_then_in_bf16(tiny, cluster, tmp_path):
    """Half of the tokens may be in low precision: of two steps the first."""
    config = (
        'gears = {allowed = ["FP8", "BF16"], simulate_fp8 = true, mismatch_limit = 3.0}\n'
        "carbon.control.low_share = 0.5\n"
    )
    run = train(cluster, tiny, tmp_path, GPU + config, {"ds.zero_stage": 2}, n_steps=2)
    trained = [r for r in run.rows() if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens]
    assert [(r.gear, r.width) for r in trained] == [("FP8 simulated", 1), ("BF16", 1)]
    others = [r for r in run.rows() if r not in trained]
    assert {r.gear for r in others} == {None}
    # Old log-probs are those of the reference, which sees no gear; the training's are others.
    numbers = run.numbers
    assert numbers["train/kl"][1] == 0.0
    assert numbers["train/ppo_kl"][1] != 0.0
    with run.read() as reader:
        told = {m.name: m.value for m in reader.metrics() if m.iteration == 1}
        edi = EdiMatrix.from_json(reader.edi()[-1].json) if reader.edi() else None
    assert 1.0 < told["probability_mismatch_FP8"] < 1.5
    assert told["gear_measurement_s"] > 0
    assert edi is None or {"FP8 simulated", "BF16"} <= {c.variant for c in edi.cells()}
    assert "gears: FusedAdam steps as it would without gears" in run.result.text


@pytest.mark.deep
def test_gears_that_the_actor_cannot_be_shifted_into_are_refused(tiny, cluster, tmp_path):
    config = f'{GPU}gears.allowed = ["FP32", "BF16"]\n'
    run = train(cluster, tiny, tmp_path, config, check=False)
    assert run.result.code == 2
    line = run.result.text.strip().splitlines()[-1]
    assert "gears.allowed = " in line
    assert "OpenRLHF keeps the actor's weights in BF16" in line
    assert not run.record.exists()
