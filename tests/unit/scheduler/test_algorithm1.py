from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.config import PlacementConfig
from ecorl.devices import load_profile
from ecorl.errors import EngineCrashed
from ecorl.records import Action, ActionCost, GuardRefusal, ModelShape, Stage
from ecorl.scheduler import CostModel, Guards, Proposal, place
from tests.examples import examples

GPU, U55C, V80, HOST = (load_profile(n) for n in ("h100_sxm", "u55c", "v80", "host_cpu"))
SMALL = ModelShape(2, 64, 128, 4, 2, 16, 256, 120_000, 100_000)
OFFLOADS = (Action.FPGA, Action.CONCURRENT)


class Fixed:
    name = "fixed"

    def __init__(self, action, costs=()):
        self.action, self.costs = action, costs

    def propose(self, state):
        return Proposal(self.action, "because", self.costs)


@pytest.mark.parametrize("action", list(Action))
def test_within_all_limits_the_proposal_stands(make_state, action):
    placement = place(make_state(queue=7, length=2048), Fixed(action), Guards())
    assert (placement.proposed, placement.action) == (action, action)
    assert (placement.policy, placement.reason) == ("fixed", "because")
    assert placement.refusal is None
    assert (placement.iteration, placement.stage) == (3, Stage.REWARD)


@pytest.mark.parametrize("action", OFFLOADS)
@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"queue": 8}, GuardRefusal.QUEUE_FULL),
        ({"length": 2049}, GuardRefusal.TOO_LONG),
        ({"available": False}, GuardRefusal.UNAVAILABLE),
        ({"stage": Stage.CRITIC}, GuardRefusal.NOT_FROZEN),
        ({"stage": Stage.GENERATION}, GuardRefusal.NOT_FROZEN),
        ({"stage": Stage.ACTOR_TRAIN}, GuardRefusal.NOT_FROZEN),
        # The first of several is named.
        ({"queue": 8, "length": 2049}, GuardRefusal.QUEUE_FULL),
        ({"queue": 8, "available": False}, GuardRefusal.UNAVAILABLE),
    ],
)
def test_each_guard_sends_the_stage_back_and_says_so(make_state, action, changes, refusal):
    placement = place(make_state(**changes), Fixed(action), Guards())
    assert (placement.proposed, placement.action) == (action, Action.GPU)
    assert placement.refusal is refusal
    assert "because" in placement.reason


def test_the_energy_guard_refuses_what_costs_more(make_state):
    guards = Guards(energy_margin=0.1, costs=CostModel(GPU, U55C))
    placement = place(make_state(), Fixed(Action.CONCURRENT), guards)
    assert placement.action is Action.GPU
    assert "1.1 times" in placement.reason
    assert placement.refusal is GuardRefusal.ENERGY
    assert len(placement.costs) == 3
    generous = replace(guards, energy_margin=1000.0)
    assert place(make_state(), Fixed(Action.CONCURRENT), generous).action is Action.CONCURRENT


def test_the_energy_guard_asks_its_own_cost_model_not_the_policy(make_state):
    lies = (ActionCost(Action.GPU, 1.0, 1e9, 0.0), ActionCost(Action.FPGA, 0.0, 0.0, 0.0))
    guards = Guards(energy_margin=0.0, costs=CostModel(GPU, U55C))
    placement = place(make_state(), Fixed(Action.FPGA, lies), guards)
    assert placement.action is Action.GPU
    assert placement.costs != lies


def test_the_energy_guard_lets_a_saving_pass(make_state):
    # The host's CPU as the GPU path, at 400 M parameters: the card needs less energy.
    model = replace(SMALL, n_params=400_000_000, n_params_active=400_000_000)
    weak = replace(
        HOST, figures={**HOST.figures, "active_w": replace(HOST.figure("active_w"), value=500.0)}
    )
    guards = Guards(energy_margin=0.0, costs=CostModel(weak, U55C))
    placement = place(make_state(model=model), Fixed(Action.CONCURRENT), guards)
    assert placement.action is Action.CONCURRENT
    assert placement.costs


@pytest.mark.parametrize(
    ("costs", "model", "words"),
    [
        (None, SMALL, "no cost model"),
        (CostModel(GPU, V80), SMALL, "v80 holds no"),
        (CostModel(GPU, U55C), None, "shape"),
    ],
)
def test_with_the_energy_guard_on_unknown_means_gpu(make_state, costs, model, words):
    guards = Guards(energy_margin=0.5, costs=costs)
    placement = place(make_state(model=model), Fixed(Action.CONCURRENT), guards)
    assert placement.action is Action.GPU
    assert words in placement.reason
    assert placement.refusal is GuardRefusal.COST_UNKNOWN
    off = replace(guards, energy_margin=None)
    assert place(make_state(model=model), Fixed(Action.FPGA), off).action is Action.FPGA


def test_a_profile_that_breaks_physics_does_not_break_the_run(make_state):
    broken = replace(
        U55C, figures={**U55C.figures, "n_dsp_used": replace(U55C.figure("n_dsp"), value=1e9)}
    )
    guards = Guards(energy_margin=0.5, costs=CostModel(GPU, broken))
    placement = place(make_state(), Fixed(Action.FPGA), guards)
    assert placement.action is Action.GPU
    assert "peak" in placement.reason


@pytest.mark.parametrize(
    "propose",
    [
        lambda state: 1 / 0,
        lambda state: (Action.FPGA, "because", ()),
        lambda state: Proposal("tpu", "novel"),
        lambda state: Action.FPGA,
        lambda state: None,
        lambda state: {}["x"],
    ],
)
def test_a_failing_policy_is_answered_by_the_gpu(make_state, propose):
    policy = Fixed(Action.FPGA)
    policy.propose = propose
    placement = place(make_state(), policy, Guards())
    assert (placement.proposed, placement.action) == (Action.GPU, Action.GPU)
    assert "policy failed" in placement.reason


def test_a_policy_may_say_which_guard_left_it_the_gpu(make_state):
    told = Fixed(Action.GPU)
    told.propose = lambda state: Proposal(Action.GPU, "why", (), GuardRefusal.QUEUE_FULL)
    placement = place(make_state(), told, Guards())
    assert (placement.action, placement.refusal) == (Action.GPU, GuardRefusal.QUEUE_FULL)
    assert place(make_state(), Fixed(Action.GPU), Guards()).refusal is None


def test_a_policys_own_engine_fault_is_survived(make_state):
    policy = Fixed(Action.FPGA)

    def propose(state):
        raise EngineCrashed("session died")

    policy.propose = propose
    assert "session died" in place(make_state(), policy, Guards()).reason


def test_guards_come_from_the_config():
    config = PlacementConfig(q_max=3, l_max=100, energy_margin=0.2)
    guards = Guards.from_config(config)
    assert (guards.q_max, guards.l_max, guards.energy_margin) == (3, 100, 0.2)


@given(
    action=st.sampled_from([*Action, "fpga", "concurrent", "nonsense", None]),
    stage=st.sampled_from(list(Stage)),
    queue=st.integers(0, 20),
    length=st.integers(0, 5000),
    available=st.booleans(),
    margin=st.one_of(st.none(), st.floats(0, 100)),
    q_max=st.integers(1, 10),
    l_max=st.integers(1, 4000),
)
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_policy_overrides_a_guard(
    make_state, action, stage, queue, length, available, margin, q_max, l_max
):
    costs = CostModel(GPU, U55C)
    state = make_state(stage, queue, available, rows=4, length=length)
    placement = place(state, Fixed(action), Guards(q_max, l_max, margin, costs))
    assert placement.reason
    if placement.action is Action.GPU:
        return
    assert placement.action == placement.proposed == action
    assert stage in (Stage.REWARD, Stage.REFERENCE)
    assert available
    assert queue < q_max
    assert length <= l_max
    if margin is not None:
        estimate = costs.estimate(state)
        gpu, offload = estimate.of(Action.GPU), estimate.of(placement.action)
        assert offload.energy_j <= (1 + margin) * gpu.energy_j
