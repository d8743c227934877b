from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from ecorl.config import DeviceConfig, PlacementConfig
from ecorl.devices import load_profile
from ecorl.errors import ConfigError
from ecorl.records import Action, Algorithm, ModelShape, Provenance, Stage
from ecorl.scheduler import (
    CostModel,
    Guards,
    Lookahead,
    Policy,
    Proposal,
    RoleDevices,
    Static,
    Threshold,
    build_policy,
    place,
)
from ecorl.scheduler import policies as module

GPU, U55C, HOST = load_profile("h100_sxm"), load_profile("u55c"), load_profile("host_cpu")
SMALL = ModelShape(2, 64, 128, 4, 2, 16, 256, 120_000, 100_000)


def placement(**policy):
    return PlacementConfig.model_validate({"policy": policy})


def parts(proposal):
    return proposal.action, proposal.reason, proposal.costs


def test_static_places_what_the_config_says(make_state):
    policy = build_policy(placement(type="static", reward="concurrent"), GPU, U55C)
    assert policy.propose(make_state(Stage.REWARD)).action is Action.CONCURRENT
    assert policy.propose(make_state(Stage.REFERENCE)).action is Action.GPU
    assert policy.propose(make_state(Stage.CRITIC)).action is Action.GPU


@pytest.mark.parametrize(
    ("length", "queue", "action"),
    [
        (100, 2, Action.CONCURRENT),
        (101, 2, Action.GPU),
        (100, 3, Action.GPU),
        (1, 0, Action.CONCURRENT),
    ],
)
def test_threshold_at_its_edges(make_state, length, queue, action):
    policy = build_policy(placement(type="threshold", max_length=100, max_queue=2), GPU, U55C)
    assert isinstance(policy, Threshold)
    proposed, reason, _ = parts(policy.propose(make_state(length=length, queue=queue)))
    assert proposed is action
    assert reason


def test_threshold_never_offloads_a_trained_model(make_state):
    for stage in (Stage.GENERATION, Stage.CRITIC, Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN):
        assert Threshold(10**6, 100).propose(make_state(stage)).action is Action.GPU


def test_lookahead_says_do_not_offload_an_8_b_model_and_shows_the_arithmetic(make_state, snapshot):
    policy = build_policy(placement(type="lookahead"), GPU, U55C)
    action, reason, costs = parts(policy.propose(make_state()))
    assert action is Action.GPU
    snapshot(reason)
    assert [c.action for c in costs] == list(Action)
    by_action = {c.action: c for c in costs}
    assert by_action[Action.FPGA].energy_j > 5 * by_action[Action.GPU].energy_j
    assert {c.provenance for c in costs} == {Provenance.MODELLED}


def test_lookahead_prices_a_role_on_the_devices_that_serve_it(make_state):
    by_role = {Stage.REWARD: RoleDevices(load_profile("l4"))}

    def joules(gpu, roles=None):
        policy = build_policy(placement(type="lookahead"), gpu, U55C, by_role=roles)
        costs = parts(policy.propose(make_state()))[2]
        return next(c.energy_j for c in costs if c.action is Action.GPU)

    served = joules(GPU, by_role)
    assert served == pytest.approx(joules(load_profile("l4")))
    assert served != pytest.approx(joules(GPU))


def test_lookahead_offloads_where_the_gpu_path_is_slow(make_state):
    # A CPU as the GPU path, a model of 100,000 parameters, a batch of few rows.
    policy = Lookahead(CostModel(HOST, U55C), energy_weight=0.0, time_weight=1.0)
    state = make_state(model=replace(SMALL, n_params_active=400_000_000, n_params=400_000_000))
    action, reason, costs = parts(policy.propose(state))
    assert action is Action.CONCURRENT
    assert costs[1].time_s < costs[0].time_s
    assert "card beside GPU" in reason


def test_lookahead_counts_waiting(make_state):
    costs = CostModel(GPU, U55C, None, {Stage.REFERENCE: SMALL})
    short, long = (costs.estimate(make_state(queue=q)) for q in (0, 5))
    assert long.of(Action.FPGA).wait_s == pytest.approx(6 * short.of(Action.FPGA).wait_s)
    assert long.of(Action.GPU) == short.of(Action.GPU)


def test_overlap_is_the_later_work_that_is_sure_to_stay_on_the_gpu(make_state):
    models = {Stage.REWARD: SMALL, Stage.REFERENCE: SMALL, Stage.CRITIC: SMALL}
    costs = CostModel(GPU, U55C, None, models)
    ppo = {s: replace(make_state(s), algorithm=Algorithm.PPO) for s in Stage}
    critic = replace(ppo[Stage.REWARD].work, stage=Stage.CRITIC, model=SMALL)
    critic_s = costs.gpu_cost(critic).time_s
    assert costs.overlap_s(ppo[Stage.REWARD]) == costs.overlap_s(ppo[Stage.REFERENCE]) == critic_s
    assert critic_s > 0
    # The reference is decided next, and may leave the GPU as the reward does.
    assert costs.overlap_s(replace(ppo[Stage.REWARD], algorithm=Algorithm.GRPO)) == 0.0
    assert CostModel(GPU, U55C).overlap_s(ppo[Stage.REWARD]) == 0.0
    assert (
        costs.estimate(ppo[Stage.REWARD]).of(Action.CONCURRENT).time_s
        < costs.estimate(ppo[Stage.REWARD]).of(Action.FPGA).time_s
    )


@pytest.mark.parametrize(
    ("model", "fpga", "words"),
    [(None, "u55c", "shape"), (SMALL, "v80", "profile v80 holds no")],
)
def test_unknown_costs_mean_gpu_and_say_so(make_state, model, fpga, words):
    policy = Lookahead(CostModel(GPU, load_profile(fpga)))
    action, reason, costs = parts(policy.propose(make_state(model=model)))
    assert (action, costs) == (Action.GPU, ())
    assert "unknown" in reason
    assert words in reason


def test_the_papers_calibration_offloads_for_energy_and_stays_published(make_state):
    devices = DeviceConfig(calibration="paper")
    config = placement(type="lookahead", energy_weight=1.0, time_weight=0.0)
    policy = build_policy(config, GPU, U55C, devices)
    action, _, costs = parts(policy.propose(make_state()))
    assert action is Action.CONCURRENT
    assert {c.provenance for c in costs} == {Provenance.PUBLISHED}


def test_a_tie_goes_to_the_gpu(make_state):
    assert Lookahead(CostModel(GPU, U55C), 0.0, 0.0).propose(make_state()).action is Action.GPU
    assert Lookahead(CostModel(GPU, U55C)).propose(make_state(rows=0)).action is Action.GPU


class Learned:
    name = "mine"

    def __init__(self, path=None):
        self.path = path

    def propose(self, state):
        return Proposal(Action.GPU, f"weights from {self.path}")


def not_a_policy(path):
    return 3


def broken(path):
    raise ValueError("no such weights")


@pytest.fixture
def registered(monkeypatch):
    here = __name__
    points = [
        EntryPoint("mine", f"{here}:Learned", "ecorl.policies"),
        EntryPoint("three", f"{here}:not_a_policy", "ecorl.policies"),
        EntryPoint("broken", f"{here}:broken", "ecorl.policies"),
        EntryPoint("gone", "no_such_module_at_all:x", "ecorl.policies"),
    ]
    monkeypatch.setattr(module, "entry_points", lambda group: points)


def test_a_learned_policy_comes_by_entry_point(registered, make_state, tmp_path):
    config = placement(type="learned", name="mine", path=str(tmp_path / "w.onnx"))
    policy = build_policy(config, GPU, U55C)
    assert isinstance(policy, Policy)
    assert "w.onnx" in place(make_state(), policy, Guards()).reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nosuch", "'broken', 'gone', 'mine', 'three'"),
        ("three", "it made int"),
        ("broken", "no such weights"),
        ("gone", "no_such_module_at_all"),
    ],
)
def test_a_learned_policy_that_cannot_be_had(registered, name, words):
    with pytest.raises(ConfigError, match=words) as error:
        build_policy(placement(type="learned", name=name), GPU, U55C)
    assert error.value.key == "placement.policy.name"


def test_without_any_registered_policy_the_list_is_empty(monkeypatch):
    monkeypatch.setattr(module, "entry_points", lambda group: [])
    with pytest.raises(ConfigError, match=r"one of \[\]"):
        build_policy(placement(type="learned", name="x"), GPU, U55C)


def test_own_policies_keep_the_protocol():
    for policy in (Static({}), Threshold(1, 1), Lookahead(CostModel(GPU, U55C))):
        assert isinstance(policy, Policy)


def profiled(n_profiling, **policy):
    config = PlacementConfig.model_validate(
        {"policy": policy, "n_profiling": n_profiling, "profile_both_paths": True}
    )
    return build_policy(config, GPU, U55C)


def action_at(policy, state, iteration, batch):
    return policy.propose(replace(state, iteration=iteration, batch=batch)).action


def test_profiling_gives_both_paths_every_other_batch(make_state):
    policy = profiled(4, type="static", reward="concurrent")
    state = make_state(Stage.REWARD)
    # Where each step generates: iteration 1 is batch 0.
    offloaded = {i for i in range(1, 13) if action_at(policy, state, i, i - 1) != Action.GPU}
    assert offloaded == {2, 4, *range(5, 13)}


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_profiling_alternates_where_several_steps_train_on_one_batch(make_state, steps):
    policy = profiled(4, type="static", reward="concurrent")
    state = make_state(Stage.REWARD)
    seen = [action_at(policy, state, 1 + steps * batch, batch) for batch in range(6)]
    gpu, card = Action.GPU, Action.CONCURRENT
    assert seen == [gpu, card, gpu, card, card, card]


def test_a_lookahead_that_goes_by_what_was_measured_sees_both_paths(make_state):
    state = make_state(Stage.REWARD)
    dear = profiled(4, type="lookahead", energy_weight=1.0, time_weight=0.0)
    by_table = profiled(4, type="lookahead", energy_weight=1.0, time_weight=0.0, measured=False)
    own = action_at(by_table, state, 9, 8)
    assert [action_at(dear, state, i + 1, i) for i in range(5)] == [
        Action.GPU, Action.CONCURRENT, Action.GPU, Action.CONCURRENT, own,
    ]  # fmt: skip
    assert [action_at(by_table, state, i + 1, i) for i in (1, 3)] == [own, own]
    assert own is Action.GPU  # by the profiles a card does not pay here


def test_profiling_leaves_stages_that_stay_to_the_policy(make_state):
    policy = profiled(4, type="static", reward="concurrent")
    assert "profiling" in policy.propose(make_state(Stage.REWARD)).reason
    assert "profiling" not in policy.propose(make_state(Stage.ACTOR_TRAIN)).reason
    assert policy.name == "static"


def test_without_a_profiling_phase_the_policy_decides_from_the_first_batch(make_state):
    policy = profiled(0, type="static", reward="fpga")
    assert action_at(policy, make_state(Stage.REWARD), 1, 0) is Action.FPGA
