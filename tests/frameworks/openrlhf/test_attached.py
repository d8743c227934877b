"""OpenRLHF with ecorl: the numbers are those without it, and the record tells what was done."""

from __future__ import annotations

from collections import Counter

import pytest

from ecorl.bench.frameworks.samples import count_samples
from ecorl.config import load_config
from ecorl.errors import UserError
from ecorl.records import Action, Stage
from ecorl.report import build_report, read_config
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import (
    EXACT,
    GPU,
    INT8,
    await_step,
    largest_difference,
    processes,
    reward_service,
    steps_done,
    train,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * harness.LIMIT_S + 60)]

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


def assert_each_stage_is_there(run, roles=ROLES, n_steps=N, n_rows=ROWS):
    rows = run.rows()
    found = Counter((r.iteration, r.role) for r in rows)
    assert found == {(i, role): n for i in range(1, n_steps + 1) for role, n in roles.items()}
    assert all(r.n_sequences == n_rows and r.t_start_s < r.t_end_s for r in rows)
    for step in range(1, n_steps + 1):
        own = [r for r in rows if r.iteration == step]
        # All stages read the rows that were generated.
        assert len({r.n_tokens for r in own if r.stage is not Stage.GENERATION}) == 1
        outputs = {r.n_output_tokens for r in own}
        assert len(outputs - {0}) == 1
        generated = next(r for r in own if r.stage is Stage.GENERATION)
        assert all(r.t_start_s >= generated.t_end_s for r in own if r is not generated)


def test_all_on_the_gpu_path_changes_nothing(plain, tiny, cluster, tmp_path):
    run = train(cluster, tiny, tmp_path, GPU)
    assert largest_difference(plain, run) == 0.0
    assert_each_stage_is_there(run)
    rows = run.rows()
    assert {r.action for r in rows} == {Action.GPU}
    # One device, whose joules are each counted once.
    with run.read() as reader:
        assert count_samples(reader, expected()) == (0, 0)
        clock = next(e.detail for e in reader.events() if e.kind == "hook_clock")
    assert int(clock.split()[3]) > 20 * N  # the trainer's process is counted
    report = report_of(run)
    spent = sum(r.energy.energy_j for r in rows if r.energy and r.energy.energy_j is not None)
    assert 0 < spent < report.spending.columns[0].energy_j
    assert report.head.algorithm == "ppo"
    assert report.head.n_steps_done == N
    assert {"train/energy/actor_train_j", "train/device/reward"} <= run.result.metrics.keys()


def test_the_exact_path_on_workers_changes_nothing(plain, tiny, cluster, tmp_path):
    run = train(cluster, tiny, tmp_path, EXACT)
    assert largest_difference(plain, run) <= 1e-6
    assert_each_stage_is_there(run)
    away = [r for r in run.rows() if r.stage in INFERENCE]
    assert {r.action for r in away} == {Action.CONCURRENT}
    assert sum(r.n_rows_fallback for r in away) == 0
    assert run.faults() == set()
    with run.read() as reader:
        assert count_samples(reader, expected()) == (0, 0)
        waits = [(w.iteration, str(w.stage), w.n_rows, w.n_missing) for w in reader.barriers()]
    stages = sorted(map(str, INFERENCE))
    assert sorted(waits) == [(i, stage, ROWS, 0) for i in range(1, N + 1) for stage in stages]


def test_int8_tells_how_far_it_is_from_the_exact_path(tiny, cluster, tmp_path):
    run = train(cluster, tiny, tmp_path, INT8, n_steps=2)
    report = report_of(run)
    (flips,), (shift,) = report.flips, report.shifts
    assert flips.n_pairs == ROWS * (ROWS - 1) // 2
    assert flips.n_scores == ROWS
    assert 0 < flips.shift_abs_mean < 0.2
    assert shift.n_rows == ROWS
    assert 0 < shift.mean_nats < 0.2
    assert {r.action for r in run.rows() if r.stage in INFERENCE} == {Action.CONCURRENT}


def test_rewards_of_the_real_service_survive_its_restart(tiny, cluster, tmp_path):
    """REINFORCE with LoRA: the reference is a model of its own, and moves."""
    port = harness.free_port()
    url = f"http://127.0.0.1:{port}/openrlhf"
    # OpenRLHF takes several services in turns.
    changes = harness.REINFORCE | harness.remote_reward(f"{url},{url}") | {"ds.lora.rank": 4}
    with reward_service(tmp_path, tiny.reward, port) as restart:
        plain = harness.run_training(cluster, tiny, tmp_path / "plain", changes)

        def disturb(record):
            await_step(record, 1)
            restart()

        run = train(cluster, tiny, tmp_path / "attached", EXACT, changes, beside=disturb)
    assert largest_difference(plain, run) <= 1e-6
    roles = {r: n for r, n in ROLES.items() if not r.startswith("critic")}
    rows = run.rows()
    assert Counter(r.role for r in rows) == {role: n * N for role, n in roles.items()}
    for step in range(1, N + 1):
        generated, reward = (
            next(r for r in rows if (r.iteration, r.stage) == (step, stage))
            for stage in (Stage.GENERATION, Stage.REWARD)
        )
        # Fetched inside the rollout, and not counted as generation.
        assert generated.time_s + reward.time_s <= reward.t_end_s - generated.t_start_s + 1e-3
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
    changes |= {"train.num_episodes": 2}
    run = train(cluster, tiny, tmp_path / "run", GPU, changes)
    rows = run.rows()
    roles = {"generation": 1, "reward": 1, "critic": 1, "actor_train": 2, "critic_train": 1}
    found = Counter((r.iteration, r.role) for r in rows)
    assert found == {(i, role): n for i in range(1, 2 * N + 1) for role, n in roles.items()}
    # What is done with a batch is booked to the iteration in which it was generated.
    for step in range(1, 2 * N + 1):
        own = [r for r in rows if r.iteration == step]
        assert len({r.n_output_tokens for r in own} - {0}) == 1
    generated = {r.iteration: r for r in rows if r.stage is Stage.GENERATION}
    trained = {r.iteration: r.t_end_s for r in rows if r.stage is Stage.ACTOR_TRAIN}
    assert any(generated[i + 1].t_start_s < trained[i] for i in range(1, 2 * N))
    assert run.result.metrics["train/n_letters"].keys() == set(range(1, 2 * N + 1))


def test_a_killed_training_goes_on_with_its_record(tiny, cluster, tmp_path):
    def kill(record):
        await_step(record, 3)
        for process in processes("PPOTrainer"):
            process.kill()

    changes = harness.SAVES | {"train.num_episodes": 2}
    killed = train(cluster, tiny, tmp_path, GPU, changes, beside=kill, check=False)
    assert killed.result.code != 0
    assert 3 <= steps_done(killed.record) < 2 * N
    again = train(cluster, tiny, tmp_path, GPU, changes, check=False)
    assert again.result.code == 2
    assert "with the same flags and --ckpt.load_enable" in again.result.text
    run = train(cluster, tiny, tmp_path, GPU, changes | harness.RESUMES)
    with run.read() as reader:
        assert len(reader.attempts()) == 2
        assert count_samples(reader, expected(n_steps=2 * N)) == (0, 0)
    assert_each_stage_is_there(run, n_steps=2 * N)
    report = report_of(run)
    assert report.head.state == "finished"
    assert report.head.n_steps_done == 2 * N
    # The matrix goes on: it has readings of both attempts.
    assert (tmp_path / "checkpoints" / "_actor" / "global_step4" / "ecorl_state.json").is_file()


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        (EXACT, harness.COLOCATED, "placement.policy.reward = 'concurrent'"),
        (EXACT, {"train.colocate_actor_ref": True}, "placement.policy.reference = 'concurrent'"),
        ('algorithm = "grpo"\n', {}, "algorithm = 'grpo'"),
        ('runtime.type = "local"\n', {}, "runtime.type = 'local'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    config, changes, told, tiny, cluster, tmp_path
):
    run = train(cluster, tiny, tmp_path, config, changes, check=False)
    assert run.result.code == 2
    assert told in run.result.text.splitlines()[-1], run.result.text
    assert not run.record.exists()


def test_the_example_is_a_config_of_ecorl():
    folder = harness.ROOT / "roll_adapters" / "examples" / "openrlhf"
    config = load_config(str(folder / "ecorl.toml"))
    assert config.runtime.type == "ray"
    with pytest.raises(UserError):
        load_config(str(folder / "ecorl.toml"), ["placement.policy.type=none"])
