"""Faults under ROLL: the training goes on with the right numbers, and the record tells."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.records import Action, Stage
from tests.frameworks.ray_nodes import further_node
from tests.frameworks.roll import harness
from tests.frameworks.roll.attached import EXACT, largest_difference, merged, train
from tests.frameworks.roll.test_attached import expected
from tests.frameworks.trainings import LIMIT_S
from tests.frameworks.watching import await_step, processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S + 60)]

N = harness.N_STEPS


def hold(config, file):
    """Let a training wait in its second step until a file is there."""
    config["rewards"]["long"] |= {
        "worker_cls": "tests.frameworks.roll.rewards.HeldReward",
        "system_envs": {"HELD_AFTER": str(harness.N_ROWS // 2), "HELD_UNTIL": str(file)},
    }


@pytest.mark.deep_on_double
def test_a_worker_and_a_scheduler_that_are_killed(plain, tiny, cluster, tmp_path):
    done = tmp_path / "killed"

    def disturb(record):
        await_step(record, 1)
        for process in processes("SchedulerActor", cluster):
            process.kill()
        done.touch()

    # The worker's process ends in the middle of its first batch.
    block = merged(EXACT, {"engine": {"faults": [{"kind": "exit", "calls": [0]}]}})
    config = harness.rlvr(tiny, tmp_path)
    hold(config, done)
    run = train(cluster, tmp_path, config, block, beside=disturb)
    assert largest_difference(plain, run) <= 1e-6
    assert {"SchedulerLost", "EngineCrashed"} <= run.faults()
    with run.read() as reader:
        assert count_samples(reader, expected(("reference",), n_steps=N)) == (0, 0)
        metrics = Counter((m.iteration, m.name) for m in reader.metrics())
    # Told around the kill, and each once.
    assert set(metrics.values()) == {1}
    assert {i for i, name in metrics if name == "loss"} == set(range(1, N + 1))


@pytest.mark.deep_on_double
def test_a_node_of_cards_that_is_lost(framework, plain, tiny, tmp_path):
    done = tmp_path / "lost"
    config = harness.rlvr(tiny, tmp_path)
    hold(config, done)
    config["reference"]["device_mapping"] = "[1], fpga:0"
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as folder,
        harness.cluster(Path(folder), framework, n_fpgas=0) as cluster,
        further_node(cluster, "cards") as lose,
    ):

        def disturb(record):
            await_step(record, 1)
            lose()
            done.touch()

        block = merged(EXACT, {"placement": {"deadline_s": 6.0}})
        run = train(cluster, tmp_path, config, block, beside=disturb)
    assert largest_difference(plain, run) <= 1e-6
    assert "NodeRecordLost" in run.faults()
    with run.read() as reader:
        assert count_samples(reader, expected(("reference",), n_steps=N)) == (0, 0)
    last = [r for r in run.rows() if (r.iteration, r.stage) == (N, Stage.REFERENCE)]
    assert [r.action for r in last] == [Action.GPU]
