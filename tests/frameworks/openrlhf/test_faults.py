"""Faults under OpenRLHF: the training goes on with the right numbers, and the record tells."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from ecorl.bench.frameworks.samples import count_samples
from ecorl.records import Action, Stage
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import (
    EXACT,
    await_step,
    largest_difference,
    processes,
    train,
)
from tests.frameworks.openrlhf.test_attached import INFERENCE, ROWS, expected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * harness.LIMIT_S + 60)]

EPISODES = {"train.num_episodes": 2}
N = 2 * harness.N_STEPS


@pytest.fixture(scope="module")
def plain_longer(tiny, cluster, tmp_path_factory):
    """As long again as the other plain training."""
    return harness.run_training(cluster, tiny, tmp_path_factory.mktemp("longer"), EPISODES)


# Calls of each engine: a NaN, a value too few, an error, no answer, the end of its process.
FAULTS = (
    EXACT
    + """
placement.deadline_s = 6.0
placement.max_faults = 100
engine.faults = [
  {kind = "nan", calls = [0], rows = [1, 5]},
  {kind = "shape", calls = [1]},
  {kind = "raise", calls = [2]},
  {kind = "exit", calls = [3]},
  {kind = "hang", calls = [5]},
]
"""
)


def test_engines_that_fail_cost_no_sample_and_no_number(plain_longer, tiny, cluster, tmp_path):
    run = train(cluster, tiny, tmp_path, FAULTS, EPISODES)
    assert largest_difference(plain_longer, run) <= 1e-6
    with run.read() as reader:
        assert count_samples(reader, expected(n_steps=N)) == (0, 0)
        faults = [(f.kind, f.where, f.n_rows) for f in reader.faults() if f.iteration]
    kinds = {str(kind) for kind, where, _ in faults if where in map(str, INFERENCE)}
    assert {"InvalidResult", "EngineCrashed"} <= kinds
    # Faulted rows are the exact path's, and those alone.
    rows = run.rows()
    fallen = Counter()
    for r in rows:
        fallen[str(r.stage)] += r.n_rows_fallback
    repeated = Counter()
    for r in rows:
        if r.stage in INFERENCE and r.action is Action.GPU:
            repeated[str(r.stage)] += r.n_sequences
    assert all(2 <= repeated[str(stage)] < N * ROWS for stage in INFERENCE), (fallen, repeated)


def test_a_scheduler_and_a_worker_that_are_killed(plain_longer, tiny, cluster, tmp_path):
    def disturb(record):
        await_step(record, 2)
        for process in processes("SchedulerActor"):
            process.kill()
        await_step(record, 4)
        processes("WorkerActor")[0].kill()

    run = train(cluster, tiny, tmp_path, EXACT, EPISODES, beside=disturb)
    assert largest_difference(plain_longer, run) <= 1e-6
    assert "SchedulerLost" in run.faults()
    with run.read() as reader:
        assert count_samples(reader, expected(n_steps=N)) == (0, 0)
        metrics = Counter((m.iteration, m.name) for m in reader.metrics())
    # Told around the kill, and each once.
    assert set(metrics.values()) == {1}
    assert {i for i, name in metrics if name == "reward"} == set(range(1, N + 1))


def test_a_node_that_is_lost(plain_longer, tiny, tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as folder,
        harness.cluster(Path(folder), n_fpgas=1) as cluster,
        harness.further_node(cluster, "cards") as lose,
    ):

        def disturb(record):
            await_step(record, 2)
            lose()

        config = EXACT + 'places.reference.node = "cards"\nplacement.deadline_s = 6.0\n'
        run = train(cluster, tiny, tmp_path, config, EPISODES, beside=disturb)
    assert largest_difference(plain_longer, run) <= 1e-6
    assert "NodeRecordLost" in run.faults()
    with run.read() as reader:
        assert count_samples(reader, expected(n_steps=N)) == (0, 0)
    last = [r for r in run.rows() if (r.iteration, r.stage) == (N, Stage.REFERENCE)]
    assert [r.action for r in last] == [Action.GPU]
