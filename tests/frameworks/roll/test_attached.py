"""What ROLL can do beside its plain RLVR, with ecorl; see test_conformance for that."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.records import Action, Stage
from ecorl.report import build_report, read_config
from tests.frameworks.ray_nodes import further_node
from tests.frameworks.roll import harness
from tests.frameworks.roll.attached import (
    AWAY,
    EXACT,
    GPU,
    largest_difference,
    merged,
    train,
    train_example,
)
from tests.frameworks.trainings import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S + 60)]

N, ROWS = 2, harness.N_ROWS
MOVABLE = "roll_adapters.roll.workers.RewardModelWorker"


@pytest.fixture
def config(tiny):
    """Makes a config of two steps of RLVR in a folder, changed by keyword."""

    def make(folder, **changes):
        folder.mkdir(parents=True, exist_ok=True)
        return merged(harness.rlvr(tiny, folder, n_steps=N), changes)

    return make


@pytest.fixture(scope="module")
def shorter(tiny, cluster, tmp_path_factory):
    """A plain training of two steps."""
    folder = tmp_path_factory.mktemp("shorter")
    return harness.run_training(cluster, folder, harness.rlvr(tiny, folder, n_steps=N))


def expected(roles, n_steps=N, n_rows=ROWS):
    return {(step, role): n_rows for step in range(1, n_steps + 1) for role in roles}


def of_step(rows, step, stage):
    """The only execution of a stage in a step; old log-probs are not training's."""
    (found,) = [r for r in rows if (r.iteration, r.stage) == (step, stage) and r.n_output_tokens]
    return found


@pytest.mark.deep_on_double
def test_a_reference_on_its_own_gpus_runs_beside_values(config, shorter, cluster, tmp_path):
    block = merged(GPU, {"roll": {"overlap_reference": True}})
    run = train(cluster, tmp_path, config(tmp_path), block)
    assert largest_difference(shorter, run) == 0.0
    rows = run.rows()
    assert {r.action for r in rows} == {Action.GPU}
    for step in range(1, N + 1):
        reference, values = (of_step(rows, step, s) for s in (Stage.REFERENCE, Stage.CRITIC))
        assert values.t_start_s < reference.t_end_s
        assert reference.t_start_s < values.t_end_s


@pytest.mark.deep_on_double
def test_cards_of_a_node_without_gpus_are_in_the_pool(framework, config, shorter, tmp_path):
    """ROLL's own reference gives way to INT8 kernels there; the double is no model of theirs.

    A class of the user's that computes on cards itself has two of them.
    """
    own = config(
        tmp_path,
        reference={"device_mapping": "[1], fpga:0"},
        rewards={"long": {
            "worker_cls": "tests.frameworks.roll.rewards.CardReward", "device_mapping": "fpga:1-2",
        }},
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as folder,
        harness.cluster(Path(folder), framework, n_fpgas=0) as cluster,
        further_node(cluster, "cards", n_cpus=4, n_fpgas=3),
    ):
        run = train(cluster, tmp_path, own, AWAY if framework == "real" else EXACT)
    away = [r for r in run.rows() if r.action is not Action.GPU]
    assert {(r.role, r.node) for r in away} == {("reference", "cards")}
    assert sum(r.n_sequences for r in away) == N * ROWS
    with run.read() as reader:
        report = build_report(reader, read_config(reader.run(), run.record))
        assert count_samples(reader, expected(("reference",))) == (0, 0)
    if framework == "double":
        assert largest_difference(shorter, run) <= 1e-6
        return
    (shift,) = report.shifts
    assert shift.n_rows == ROWS
    assert 0 < shift.mean_nats < 0.2
    kl = "long/critic/kl"
    assert 0 < abs(run.numbers[kl][0] - shorter.numbers[kl][0]) < 0.2


FAULTS = [{"kind": "shape", "calls": [0]}, {"kind": "raise", "calls": [1]}]
"""Rewards of the wrong length, then a worker that raises."""


def test_a_reward_model_moves_and_its_faults_change_nothing(config, cluster, tiny, tmp_path):
    own = {
        "worker_cls": MOVABLE,
        # Rows that share a forward pass would be what was ready, and with it their last bits.
        "infer_batch_size": 1,
        "model_args": {"model_name_or_path": str(tiny.reward)},
    }
    rewards, folder = dict.fromkeys(harness.DOMAINS, own), tmp_path / "moved"
    here = train(cluster, tmp_path, config(tmp_path, rewards=rewards), GPU)
    moved = {
        "placement": {"policy": {"type": "static", "reward": "concurrent"}},
        "engine": {"offload": {"type": "torch"}, "faults": FAULTS},
    }
    run = train(cluster, folder, config(folder, rewards=rewards), moved)
    assert largest_difference(here, run) <= 1e-6
    assert run.faults() == {"InvalidResult", "EngineCrashed"}
    roles = [f"reward:{domain}" for domain in harness.DOMAINS]
    for attached in (here, run):
        with attached.read() as reader:
            assert count_samples(reader, expected(roles, n_rows=ROWS // 2)) == (0, 0)
    sent = [r for r in run.rows() if r.stage is Stage.REWARD and r.action is not Action.GPU]
    assert len(sent) == N * ROWS
    assert sum(r.n_sequences for r in sent) == N * ROWS
    assert sum(r.n_rows_fallback for r in sent) > 0


@pytest.mark.deep_on_double
def test_asynchronous_rollouts_are_booked_to_their_own_step(config, cluster, tmp_path):
    run = train(cluster, tmp_path, config(tmp_path, async_generation_ratio=1), GPU)
    rows = run.rows()
    trained = Counter(r.iteration for r in rows if r.stage is Stage.CRITIC_TRAIN)
    assert trained == {1: 1, 2: 1}
    generated = [r for r in rows if r.stage is Stage.GENERATION]
    # Samples that are generated ahead belong to the batch that they are handed over in; those
    # that come into none are in the last step.
    n_rows = {step: [r.n_sequences for r in generated if r.iteration == step] for step in (1, 2)}
    assert n_rows[1] == [ROWS]
    assert ROWS in n_rows[2]
    ahead = next(r for r in generated if (r.iteration, r.n_sequences) == (2, ROWS))
    assert ahead.t_start_s < of_step(rows, 1, Stage.CRITIC_TRAIN).t_end_s
    assert {r.iteration for r in generated} == {1, 2}


CRITIC = (
    "critic.model_args.dtype=fp32", "critic.device_mapping='[2]'",
    "critic.strategy_args.strategy_config.param_dtype=float32",
    "critic.training_args.gradient_accumulation_steps=1",
    "+critic.model_args.attn_implementation=sdpa",
    "rewards.general.model_args.dtype=fp32",
)  # fmt: skip
RULES = (
    "num_return_sequences_in_group=2", "+actor_train.data_args.prompt=prompt",
    "~actor_train.data_args.messages",
    *(f"rewards.{domain}.worker_cls=tests.frameworks.roll.rewards.LengthReward"
      for domain in ("math", "ifeval")),
)  # fmt: skip


@pytest.mark.deep_on_double
@pytest.mark.parametrize(
    ("name", "more", "tags"),
    [
        ("rlhf_critic", CRITIC, ("general",)),
        ("rlvr_two_domains", RULES, ("math", "ifeval")),
    ],
)
def test_the_examples_are_converted_and_train(name, more, tags, cluster, tiny, tmp_path):
    harness.write_rows(tmp_path / "rows.jsonl", tags)
    env = {
        "POLICY": str(tiny.actor), "REWARD": str(tiny.reward),
        "CRITIC": str(harness.critic_of(tiny)), "PROMPTS": str(tmp_path / "rows.jsonl"),
    }  # fmt: skip
    run = train_example(cluster, tmp_path, name, env, more)
    rows = run.rows()
    roles = Counter(r.role for r in rows if r.n_output_tokens)
    moved = {"reference", *(f"reward:{tag}" for tag in tags if name == "rlhf_critic")}
    assert moved == {r.role for r in rows if r.action is not Action.GPU}
    assert roles["actor_train"] == roles["generation"] == N
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)


REFUSED = [
    (
        merged(GPU, {"roll": {"overlap_reference": True}}),
        {"reference": {"device_mapping": "[0]"}},
        "ecorl.roll.overlap_reference = True: allowed is false: reference and actor_train share",
    ),
    (
        merged(AWAY, {"runtime": {"type": "ray", "patience_s": 1.0}}),
        {"reference": {"device_mapping": "[1], fpga:7"}},
        "reference.device_mapping = 'fpga:7': allowed is cards that the cluster has: fpga:0 to",
    ),
    (merged(GPU, {"placement": {"q_max": 0}}), {}, "ecorl.placement.q_max = 0"),
]


@pytest.mark.deep_on_double
@pytest.mark.parametrize(("block", "changes", "told"), REFUSED)
def test_what_cannot_work_is_refused_with_its_line(block, changes, told, config, cluster, tmp_path):
    run = train(cluster, tmp_path, config(tmp_path, **changes), block, check=False)
    line = run.result.text.strip().splitlines()[-1]
    assert run.result.code == 2
    assert told in line
    assert "tiny.yaml:" in line
    assert not run.record.exists()


@pytest.mark.deep_on_double
def test_the_policy_trains_in_fp8_and_then_in_its_own_gear(
    framework, config, shorter, cluster, tmp_path
):
    """Half of the tokens may be in low precision. The double trains no module of torch's."""
    gears = {"allowed": ["FP8", "FP32"], "simulate_fp8": True, "mismatch_limit": 3.0}
    block = merged(GPU, {"gears": gears, "carbon": {"control": {"low_share": 0.5}}})
    run = train(cluster, tmp_path, config(tmp_path), block)
    trained = [of_step(run.rows(), step, Stage.ACTOR_TRAIN) for step in range(1, N + 1)]
    assert {r.width for r in trained} == {1}
    assert {r.gear for r in run.rows() if r not in trained} == {None}
    with run.read() as reader:
        told = {m.name: m.value for m in reader.metrics() if m.iteration == 1}
        faults = [f.detail for f in reader.faults()]
    if framework == "double":
        assert [r.gear for r in trained] == [None, None]
        why = "TrainStrategy trains no module of torch's"
        assert faults == [f"the training stage stays as the framework has it: {why}"]
        assert largest_difference(shorter, run) == 0.0
        return
    assert [r.gear for r in trained] == ["FP8 simulated", "FP32"]
    assert faults == []
    assert 1.0 < told["probability_mismatch_FP8"] < 1.5
    # The rows of the first step are those of the plain training; its gradient is another one.
    norms = [r.numbers["actor_train/grad_norm"][0] for r in (shorter, run)]
    assert norms[0] != norms[1] == pytest.approx(norms[0], rel=0.2)


@pytest.mark.deep_on_double
def test_the_width_of_the_policy_stays(config, cluster, tmp_path):
    run = train(cluster, tmp_path, config(tmp_path), {"trainer": {"widths": [1, 2]}}, check=False)
    assert run.result.code == 2
    assert "ecorl.trainer.widths = [1, 2]: allowed is one" in run.result.text.splitlines()[-1]
    assert not run.record.exists()
