from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest

from ecorl.config import DeviceConfig, LearnedPolicyConfig, PlacementConfig
from ecorl.devices import load_profile
from ecorl.devices.llama import model_shape
from ecorl.errors import ConfigError
from ecorl.records import (
    Action,
    Algorithm,
    GuardRefusal,
    PathCost,
    Provenance,
    SchedulerState,
    Stage,
    StageWork,
)
from ecorl.scheduler import Guards, Static, build_policy, place
from ecorl.scheduler.features import HIGH, LOW, N_FEATURES, NAMES, SCHEMA
from ecorl.scheduler.learned import LearnedScheduler, _mean_and_spread
from ecorl.scheduler.policy_file import META_NAMES, META_SCHEMA, PolicyFile, shipped_path

STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
MODELS = {s: model_shape("1b", scalar_head=s is Stage.REWARD) for s in STAGES}


def config(**kwargs):
    return PlacementConfig(policy=LearnedPolicyConfig(**kwargs), l_max=8192)


def scheduler(n_gpus=1, card="u55c", models=MODELS, **kwargs):
    devices = DeviceConfig(n_gpus=n_gpus)
    gpu, fpga = load_profile("h100_sxm"), load_profile(card)
    return build_policy(config(**kwargs), gpu, fpga, devices, models)


def state(stage=Stage.REWARD, length=300, rows=64, queue=0, paths=(), n_gpus=1, **kwargs):
    work = StageWork(stage, rows, rows * (length + 100), rows * length, 2 * length, MODELS[stage])
    shares = (0.5,) * n_gpus
    made = SchedulerState(3, Algorithm.GRPO, stage, shares, shares, queue, True, work, paths=paths)
    return replace(made, **kwargs)


def seen(time_s=2e-3, energy_j=3.0, count=20):
    return tuple(PathCost(s, time_s, energy_j, count, Provenance.MEASURED) for s in STAGES)


def parts(proposal):
    return proposal.action, proposal.reason, proposal.costs


def test_the_shipped_policy_is_of_this_schema_and_tells_how_it_was_made():
    file = PolicyFile()
    assert file.metadata[META_SCHEMA] == SCHEMA
    assert tuple(json.loads(file.metadata[META_NAMES])) == NAMES
    assert file.record["plan"]["family"] == "roofline"
    assert file.record["n_labels"] > 10_000
    assert file.energy_margin is None  # half of its training had no energy guard


def test_one_state_and_a_batch_of_states_give_the_same_logits():
    file = PolicyFile()
    states = np.random.default_rng(0).uniform(LOW, HIGH, (50, N_FEATURES)).astype(np.float32)
    one_by_one = np.array([file.logits(tuple(map(float, row))).copy() for row in states])
    assert one_by_one == pytest.approx(file.batch(states), abs=1e-4)


def test_stages_that_stay_on_the_gpu_are_not_asked_about(snapshot):
    policy = scheduler()
    for stage in (Stage.GENERATION, Stage.ACTOR_TRAIN):
        action, reason, costs = parts(policy.propose(state(stage)))
        assert (action, costs) == (Action.GPU, ())
        snapshot(reason, str(stage))


def test_where_the_card_costs_more_joules_the_guards_leave_the_gpu_alone():
    action, reason, costs = parts(scheduler().propose(state()))
    assert action is Action.GPU
    assert "energy" in reason
    assert scheduler().propose(state()).refusal is GuardRefusal.ENERGY
    assert [c.action for c in costs] == list(Action)
    assert costs[1].energy_j > costs[0].energy_j


def test_what_the_run_has_measured_replaces_the_modelled_costs_of_the_gpu_path():
    policy = scheduler()
    action, reason, costs = parts(policy.propose(state(paths=seen())))
    assert action is Action.CONCURRENT
    assert "measured" in reason
    assert costs[0].time_s == pytest.approx(2e-3 * 64 * 300, rel=0.35)
    # A few executions do not count: the first are slower than the rest.
    assert policy.propose(state(paths=seen(count=2))).action is Action.GPU
    assert policy.propose(state()).action is Action.GPU


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"fpga_available": False}, GuardRefusal.UNAVAILABLE),
        ({"fpga_queue": 8}, GuardRefusal.QUEUE_FULL),
        ({"length": 20_000}, GuardRefusal.TOO_LONG),
    ],
)
def test_guards_stand_outside_the_network(changes, refusal):
    asked = state(paths=seen(), **changes)
    action, _, _ = parts(scheduler().propose(asked))
    assert action is Action.GPU
    placed = place(asked, scheduler(), Guards.from_config(config()))
    assert (placed.proposed, placed.action) == (Action.GPU, Action.GPU)
    assert placed.refusal is refusal
    # The same guards say the same of a policy that does not know them.
    stubborn = place(asked, Static({Stage.REWARD: Action.FPGA}), Guards.from_config(config()))
    assert stubborn.refusal is refusal
    assert stubborn.reason.startswith(f"{placed.reason}; ")
    assert "placement.policy.reward" in stubborn.reason


def test_one_policy_serves_any_number_of_gpus():
    for n_gpus in (1, 8, 32, 1024):
        action, _, costs = parts(scheduler(n_gpus).propose(state(n_gpus=n_gpus)))
        assert action in Action
        assert len(costs) == 3


def test_missing_readings_become_the_mean_of_the_others():
    assert _mean_and_spread((None, None)) == (0.5, 0.0)
    assert _mean_and_spread((0.2, None, 0.4)) == pytest.approx((0.3, 0.1))
    values = tuple(np.random.default_rng(1).uniform(0, 1, 32).tolist())
    assert _mean_and_spread(values) == pytest.approx((np.mean(values), np.std(values)))


def test_an_empty_batch_and_an_unknown_model_stay_on_the_gpu():
    assert scheduler().propose(state(rows=0)).action is Action.GPU
    assert scheduler().propose(state(rows=0)).refusal is GuardRefusal.COST_UNKNOWN
    policy = scheduler(models={})
    assert policy.propose(state()).action is Action.GPU
    assert policy.propose(state()).refusal is GuardRefusal.CANNOT_RUN
    alone = scheduler(models={s: MODELS[s] for s in (Stage.REWARD, Stage.REFERENCE)})
    assert alone.propose(state(paths=seen())).action is Action.CONCURRENT


def test_a_card_without_the_needed_figures_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"v80\.\w+ = \(not given\)"):
        scheduler(card="v80")


@pytest.mark.parametrize("key", ["mfu_prefill", "mbu_decode", "peak_bf16_flops", "idle_w"])
def test_a_gpu_without_the_needed_figures_is_refused_in_one_line(key):
    gpu = load_profile("h100_sxm")
    less = replace(gpu, figures={k: f for k, f in gpu.figures.items() if k != key})
    with pytest.raises(ConfigError, match=rf"h100_sxm\.{key} = \(not given\)"):
        build_policy(config(), less, load_profile("u55c"), None, MODELS)


def test_only_a_stage_that_was_measured_is_called_so():
    policy = scheduler()
    cheap = (PathCost(Stage.REWARD, 2e-3, 3.0, 20, Provenance.MEASURED),)
    assert "GPU measured" in policy.propose(state(paths=cheap)).reason
    other = state(Stage.REFERENCE, paths=cheap)
    assert "measured" not in policy.propose(other).reason


def test_a_measured_time_at_a_computed_power_is_no_measured_energy():
    policy, cheap = scheduler(), seen()
    known = policy.propose(state(paths=cheap))
    unknown = policy.propose(
        state(paths=tuple(replace(cost, energy_j_per_token=None) for cost in cheap))
    )
    assert "GPU measured" in known.reason
    assert "measured" not in unknown.reason
    by_energy, by_time = known.costs[0], unknown.costs[0]
    assert by_time.time_s == by_energy.time_s
    assert by_time.energy_j != by_energy.energy_j
    assert by_time.energy_j > 0
    assert {c.provenance for c in unknown.costs} == {Provenance.MODELLED}


def write(tmp_path, change):
    model = onnx.load(shipped_path())
    change(model)
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def set_meta(model, key, value):
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: set_meta(m, META_SCHEMA, "other/1"), "other/1"),
        (lambda m: set_meta(m, META_NAMES, json.dumps(["x", *NAMES[1:]])), "differ"),
        (lambda m: set_meta(m, META_NAMES, "no json"), "differ"),
        (lambda m: m.metadata_props.clear() if hasattr(m.metadata_props, "clear")
         else m.ClearField("metadata_props"), "none"),
    ],
)  # fmt: skip
def test_a_policy_of_another_schema_is_refused_in_one_line(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words) as found:
        PolicyFile(write(tmp_path, change))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("content", [b"", b"not onnx at all", b"\x08\x01" * 50])
def test_a_file_that_is_no_onnx_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"policy\.onnx") as found:
        build_policy(
            config(path=path), load_profile("h100_sxm"), load_profile("u55c"), None, MODELS
        )
    assert "\n" not in str(found.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="readable"):
        PolicyFile(tmp_path / "none.onnx")


def test_in_the_profiling_phase_both_paths_are_seen():
    both = PlacementConfig(policy=LearnedPolicyConfig(), profile_both_paths=True, n_profiling=4)
    policy = build_policy(both, load_profile("h100_sxm"), load_profile("u55c"), None, MODELS)
    actions = [policy.propose(replace(state(), batch=i)).action for i in range(6)]
    assert actions[:4] == [Action.GPU, Action.CONCURRENT] * 2
    assert actions[4:] == [Action.GPU, Action.GPU]  # by the model it does not pay


def test_costs_follow_the_table_between_its_points():
    policy = scheduler()
    assert isinstance(policy, LearnedScheduler)
    times = [policy.propose(state(length=n)).costs[0].time_s for n in range(200, 1200, 50)]
    assert all(a <= b for a, b in pairwise(times))
    assert all(math.isfinite(t) for t in times)


def work_with(paths, stage=Stage.REWARD, role_name=""):
    made = state(stage, paths=paths)
    made = replace(made, work=replace(made.work, role_name=role_name))
    table = scheduler()._tables.of(made)
    return table.work(made), table.levels.measured


def path(stage, time_s, role_name="", count=20):
    return PathCost(stage, time_s, 3.0, count, Provenance.MEASURED, role_name)


def test_the_stage_at_hand_costs_what_its_model_has_cost():
    paths = (path(Stage.REWARD, 1e-3, "math"), path(Stage.REWARD, 4e-3, "code"))
    plain, _ = work_with((path(Stage.REWARD, 1e-3),))
    by_math, measured = work_with(paths, role_name="math")
    by_code, _ = work_with(paths, role_name="code")
    assert measured == {Stage.REWARD}
    assert by_math.gpu_s[0] == plain.gpu_s[0]
    assert by_code.gpu_s[0] == pytest.approx(4.0 * plain.gpu_s[0])
    _, unseen = work_with(paths, role_name="poems")
    assert unseen == frozenset()


def test_another_stage_costs_what_all_its_models_have_cost():
    paths = (path(Stage.REWARD, 1e-3, "math"), path(Stage.REWARD, 4e-3, "code"))
    both, _ = work_with(paths, Stage.REFERENCE)
    plain, _ = work_with((path(Stage.REWARD, 5e-3),), Stage.REFERENCE)
    assert both.gpu_s[0] == pytest.approx(plain.gpu_s[0])
    seldom = (*paths[:1], path(Stage.REWARD, 4e-3, "code", count=1))
    assert work_with(seldom, Stage.REFERENCE)[1] == frozenset()


def test_one_table_serves_the_models_of_a_stage_in_turn():
    paths = (path(Stage.REWARD, 1e-3, "math"), path(Stage.REWARD, 4e-3, "code"))
    table = scheduler()._tables.of(state(paths=paths))
    made = [replace(state(paths=paths).work, role_name=name) for name in ("math", "code", "math")]
    times = [table.work(replace(state(paths=paths), work=work)).gpu_s[0] for work in made]
    assert times[0] == times[2] != times[1]
