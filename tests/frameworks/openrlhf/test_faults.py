"""Faults under OpenRLHF: the training goes on with the right numbers, and the record tells."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.records import Action, Stage
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import EXACT, held, largest_difference, train
from tests.frameworks.openrlhf.test_attached import expected
from tests.frameworks.ray_nodes import further_node
from tests.frameworks.trainings import LIMIT_S
from tests.frameworks.watching import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S + 60)]

N = harness.N_STEPS


def test_workers_and_a_scheduler_that_are_killed(plain, tiny, cluster, tmp_path):
    def disturb(_record):
        for process in processes("SchedulerActor", cluster):
            process.kill()

    # The workers' processes end in the middle of their first batches.
    config = EXACT + 'engine.faults = [{kind = "exit", calls = [0]}]\n'
    with held(cluster, 2, disturb) as beside:
        run = train(cluster, tiny, tmp_path, config, beside=beside)
    assert largest_difference(plain, run) <= 1e-6
    assert {"SchedulerLost", "EngineCrashed"} <= run.faults()
    with run.read() as reader:
        assert count_samples(reader, expected(n_steps=N)) == (0, 0)
        metrics = Counter((m.iteration, m.name) for m in reader.metrics())
    # Told around the kill, and each once.
    assert set(metrics.values()) == {1}
    assert {i for i, name in metrics if name == "reward"} == set(range(1, N + 1))


def test_a_node_that_is_lost(plain, tiny, tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as folder,
        harness.cluster(Path(folder), n_fpgas=1) as cluster,
        further_node(cluster, "cards") as lose,
        held(cluster, 2, lambda _record: lose()) as beside,
    ):
        config = EXACT + 'places.reference.node = "cards"\nplacement.deadline_s = 6.0\n'
        run = train(cluster, tiny, tmp_path, config, beside=beside)
    assert largest_difference(plain, run) <= 1e-6
    assert "NodeRecordLost" in run.faults()
    with run.read() as reader:
        assert count_samples(reader, expected(n_steps=N)) == (0, 0)
    last = [r for r in run.rows() if (r.iteration, r.stage) == (N, Stage.REFERENCE)]
    assert [r.action for r in last] == [Action.GPU]
