"""What OpenRLHF can do beside its plain PPO, with ecorl; see test_conformance for that."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.records import Action, Stage
from ecorl.report import build_report, read_config
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import (
    EXACT,
    GPU,
    Attached,
    held,
    largest_difference,
    reward_service,
    train,
)
from tests.frameworks.ray_nodes import free_port
from tests.frameworks.trainings import LIMIT_S, ROOT
from tests.frameworks.worker_forks import none_prepared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S + 60)]

N, ROWS = harness.N_STEPS, harness.N_ROWS
INFERENCE = (Stage.REWARD, Stage.REFERENCE)
ROLES = {
    "generation": 1, "reward": 1, "reference": 1, "critic": 1,
    # Its old log-probs are training work too.
    "actor_train": 2, "critic_train": 1,
}  # fmt: skip


def expected(stages=INFERENCE, n_steps=N, n_rows=ROWS):
    return {(step, str(stage)): n_rows for step in range(1, n_steps + 1) for stage in stages}


def report_of(run):
    with run.read() as reader:
        return build_report(reader, read_config(reader.run(), run.record))


def test_rewards_of_the_real_service_survive_its_restart(tiny, cluster, tmp_path):
    """REINFORCE with LoRA: the reference is a model of its own, and moves."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/openrlhf"
    # OpenRLHF takes several services in turns.
    changes = harness.REINFORCE | harness.remote_reward(f"{url},{url}") | {"ds.lora.rank": 4}
    with reward_service(tmp_path, tiny.reward, port) as restart:
        plain = harness.run_training(cluster, tiny, tmp_path / "plain", changes, n_steps=2)
        with held(cluster, 1, lambda _record: restart()) as beside:
            attached = tmp_path / "attached"
            run = train(cluster, tiny, attached, EXACT, changes, n_steps=2, beside=beside)
    assert largest_difference(plain, run) <= 1e-6
    roles = {r: n for r, n in ROLES.items() if not r.startswith("critic")}
    rows = run.rows()
    assert Counter(r.role for r in rows) == {role: 2 * n for role, n in roles.items()}
    for step in (1, 2):
        generated, reward = (
            next(r for r in rows if (r.iteration, r.stage) == (step, stage))
            for stage in (Stage.GENERATION, Stage.REWARD)
        )
        # Fetched inside the rollout; what nobody generated meanwhile is not generation.
        assert reward.t_start_s < generated.t_end_s < reward.t_end_s
        assert generated.time_s <= generated.t_end_s - generated.t_start_s
        assert reward.n_sequences == ROWS
        assert reward.energy is None or reward.energy.energy_j is None  # of the service's machine
    assert {r.action for r in rows if r.stage is Stage.REFERENCE} == {Action.CONCURRENT}


REWARD = """
def reward_func(queries, prompts, labels):
    value = float(len(queries[0]) % 7)
    return {"rewards": value, "scores": value, "extra_logs": {"n_letters": len(queries[0])}}
"""


def test_two_iterations_are_open_at_once(tiny, cluster, tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(REWARD)
    changes = harness.ASYNC | harness.NO_REFERENCE | harness.remote_reward(file)
    run = train(
        cluster, tiny, tmp_path / "run", GPU, changes | {"train.num_episodes": 2}, n_steps=2
    )
    rows, n_steps = run.rows(), 4
    roles = {"generation": 1, "reward": 1, "critic": 1, "actor_train": 2, "critic_train": 1}
    found = Counter((r.iteration, r.role) for r in rows)
    assert found == {(i, role): n for i in range(1, n_steps + 1) for role, n in roles.items()}
    # What is done with a batch is booked to the iteration in which it was generated.
    for step in range(1, n_steps + 1):
        own = [r for r in rows if r.iteration == step]
        assert len({r.n_output_tokens for r in own} - {0}) == 1
    generated = {r.iteration: r for r in rows if r.stage is Stage.GENERATION}
    trained = {r.iteration: r.t_end_s for r in rows if r.stage is Stage.ACTOR_TRAIN}
    assert any(generated[i + 1].t_start_s < trained[i] for i in range(1, n_steps))
    assert run.result.metrics["train/n_letters"].keys() == set(range(1, n_steps + 1))


@pytest.mark.parametrize("estimator", ["RLOO", pytest.param("GROUP_NORM", marks=pytest.mark.deep)])
def test_several_samples_a_prompt_without_a_critic(estimator, tiny, cluster, tmp_path):
    changes = getattr(harness, estimator)
    plain = harness.run_training(cluster, tiny, tmp_path / "plain", changes, n_steps=2)
    run = train(cluster, tiny, tmp_path / "attached", EXACT, changes, n_steps=2)
    assert largest_difference(plain, run) <= 1e-6
    rows = run.rows()
    roles = {role: 2 * n for role, n in ROLES.items() if not role.startswith("critic")}
    assert Counter(r.role for r in rows) == roles
    n_rows = ROWS * changes["rollout.n_samples_per_prompt"]
    assert {r.n_sequences for r in rows if r.stage is not Stage.ACTOR_TRAIN} == {n_rows}
    with run.read() as reader:
        assert count_samples(reader, expected(n_steps=2, n_rows=n_rows)) == (0, 0)
    assert report_of(run).head.algorithm == ("rloo" if estimator == "RLOO" else "grpo")


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        (EXACT, harness.COLOCATED, "placement.policy.reward = 'concurrent'"),
        pytest.param('algorithm = "grpo"\n', {}, "algorithm = 'grpo'", marks=pytest.mark.deep),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    config, changes, told, tiny, cluster, tmp_path
):
    run = train(cluster, tiny, tmp_path, config, changes, check=False)
    assert run.result.code == 2
    assert told in run.result.text.splitlines()[-1], run.result.text
    assert not run.record.exists()


@pytest.mark.deep
def test_reward_and_reference_one_after_the_other(plain, tiny, cluster, tmp_path):
    """With all models on the same GPUs nothing overlaps, and rows may leave them all the same."""
    config = EXACT.replace("concurrent", "fpga")
    run = train(cluster, tiny, tmp_path, config, harness.COLOCATED)
    assert largest_difference(plain, run) <= 1e-6
    rows = run.rows()
    assert {r.action for r in rows if r.stage in INFERENCE} == {Action.FPGA}
    for step in range(1, N + 1):
        own = [r for r in rows if r.iteration == step and r.stage is not Stage.GENERATION]
        away = [r for r in own if r.stage in INFERENCE]
        assert all(a.t_end_s <= r.t_start_s or r.t_end_s <= a.t_start_s
                   for a in away for r in own if r is not a)  # fmt: skip


@pytest.mark.deep
def test_cards_that_no_node_has_are_missed_at_once(tiny, tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as folder,
        harness.cluster(Path(folder), n_fpgas=1) as cluster,
    ):
        config = EXACT + 'runtime = {type = "ray", patience_s = 1.0}\n'
        run = train(cluster, tiny, tmp_path, config, check=False)
    assert run.result.code == 2
    assert "a cluster with 2 of the resource FPGA (it has 1)" in run.result.text.splitlines()[-1]
    assert not run.record.exists()


def test_the_example_trains_with_int8(tiny, cluster, tmp_path):
    folder = ROOT / "roll_adapters" / "examples" / "openrlhf"
    command = (str(folder / "train.sh"), "--ecorl.set", f"run_dir={tmp_path / 'record'}")
    env = {
        "ECORL_OPENRLHF": f"{sys.executable} -m roll_adapters.openrlhf",
        "POLICY": str(tiny.actor), "REWARD": str(tiny.reward), "PROMPTS": str(tiny.prompts),
    }  # fmt: skip
    # As a user has it: each process starts by itself.
    with none_prepared(cluster.environment):
        result = harness.run_training(cluster, tiny, tmp_path, command=command, env=env, n_steps=2)
    run = Attached(result, tmp_path / "record")
    report = report_of(run)
    assert report.head.n_steps_done == 2
    assert {r.action for r in run.rows() if r.stage in INFERENCE} == {Action.CONCURRENT}
    # INT8, and by how much it differs from OpenRLHF's own models.
    (flips,), (shift,) = report.flips, report.shifts
    assert (flips.n_pairs, flips.n_scores) == (ROWS * (ROWS - 1) // 2, ROWS)
    assert 0 < flips.shift_abs_mean < 0.2
    assert shift.n_rows == ROWS
    assert 0 < shift.mean_nats < 0.2
