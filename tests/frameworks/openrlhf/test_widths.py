"""Another number of GPUs for OpenRLHF's actor: saved, ended, and started again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from ecorl.records import EventKind, Stage
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import GPU, train
from tests.frameworks.trainings import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S + 60)]

CONFIG = GPU + "trainer.widths = [1, 2]\n"
SAVES = {"ckpt.save_steps": 1, "ds.zero_stage": 0}


@pytest.mark.deep
def test_with_zero_the_width_stays_and_one_line_says_so(tiny, cluster, tmp_path):
    run = train(cluster, tiny, tmp_path, CONFIG, SAVES | {"ds.zero_stage": 2}, check=False)
    assert run.result.code == 2
    told = "trainer.widths = [1, 2]: allowed is one with --ds.zero_stage 2: DeepSpeed loads"
    assert told in run.result.text.strip().splitlines()[-1]
    assert not run.record.exists()


@pytest.mark.deep
def test_deepspeed_refuses_a_checkpoint_of_zero_with_another_width(tiny, cluster, tmp_path):
    """What the line is about; a release of DeepSpeed that can do it is to be made use of."""
    changes = {"ckpt.save_steps": 1, "ds.zero_stage": 2}
    harness.run_training(cluster, tiny, tmp_path, changes, n_steps=2)
    wider = changes | {"ckpt.load_enable": True, "actor.num_gpus_per_node": 2}
    again = harness.run_training(cluster, tiny, tmp_path, wider, n_steps=2, check=False)
    assert again.code != 0
    assert "used a DP world size of 1 but the current world size is 2" in again.text


@pytest.mark.deep
def test_one_gpu_two_and_one_again(tiny, tmp_path):
    n_steps = 5
    plan = {"ECORL_TEST_WIDTHS": json.dumps({2: 2, 4: 1}), "ECORL_TEST_STEPS": str(n_steps)}
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as folder,
        harness.cluster(Path(folder), **plan) as cluster,
    ):
        plain = harness.run_training(cluster, tiny, tmp_path / "plain", SAVES, n_steps=n_steps)
        run = train(cluster, tiny, tmp_path / "run", CONFIG, SAVES, n_steps=n_steps)
    trained = [r for r in run.rows() if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens]
    assert [(r.iteration, r.width) for r in trained] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 1)]
    assert {r.n_sequences for r in trained} == {harness.N_ROWS}
    with run.read() as reader:
        assert [a.from_step for a in reader.attempts()] == [0, 2, 4]
        assert not any(row.superseded for row in reader.executions())
        events = {e.kind for e in reader.events()}
        told = [e.detail for e in reader.events() if e.kind is EventKind.WIDTH]
        metrics = {(m.iteration, m.name): m.value for m in reader.metrics()}
    assert told == [
        "training goes on with 2 processes after step 2",
        "training goes on with 1 processes after step 4",
    ]
    assert EventKind.FINISH in events
    assert EventKind.STOP not in events
    assert {step for step, name in metrics if name == "reward"} == set(range(1, n_steps + 1))
    assert (metrics[2, "next_width"], metrics[4, "next_width"]) == (2.0, 1.0)
    costs = {step: value for (step, name), value in metrics.items() if name == "width_change_s"}
    assert costs.keys() == {3, 5}
    assert all(cost > 0 for cost in costs.values())
    # The same rows, and the gradient of the whole batch, however many compute it.
    for name in ("train/reward", "train/kl", "train/actor_lr"):
        right, found = (r.numbers[name][3] for r in (plain, run))
        assert found == pytest.approx(right, rel=1e-3, abs=1e-5), name
    norms = [r.numbers["train/actor_grad_norm"][3] for r in (plain, run)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)
