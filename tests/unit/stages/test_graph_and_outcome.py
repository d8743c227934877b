from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.devices import StageCost
from ecorl.errors import ConfigError
from ecorl.records import Action, Algorithm, Provenance, Stage
from ecorl.stages import StageGraph, may_leave_gpu, stage, stage_graph

G, RW, RF, C, A, CT = list(Stage)


def cost(time_s=1.0, energy_j=100.0, idle_w=10.0, provenance=Provenance.MODELLED):
    return StageCost(
        "d", 1, time_s=time_s, energy_j=energy_j, idle_power_w=idle_w, provenance=provenance
    )


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("with_reference", [None, True, False])
def test_graphs_are_acyclic_and_ordered(algorithm, with_reference):
    graph = stage_graph(algorithm, with_reference)
    order = graph.order()
    assert sorted(order) == sorted(graph.stages)
    for one in graph.stages:
        assert all(order.index(n) < order.index(one) for n in graph.needs[one])
    assert order[0] is G
    assert (CT in graph.stages) is (algorithm is Algorithm.PPO)


def test_what_must_be_complete_before_the_actor_trains():
    assert stage_graph(Algorithm.PPO).joins_before(A) == (G, RW, RF, C)
    assert stage_graph(Algorithm.GRPO).joins_before(A) == (G, RW, RF)
    assert stage_graph(Algorithm.GRPO, with_reference=False).joins_before(A) == (G, RW)
    assert stage_graph(Algorithm.DAPO).joins_before(A) == (G, RW)
    assert stage_graph(Algorithm.PPO).joins_before(G) == ()


def test_what_may_overlap():
    ppo = stage_graph(Algorithm.PPO)
    assert ppo.overlapping(RW) == (RF, C)
    assert ppo.overlapping(A) == (CT,)
    assert ppo.overlapping(G) == ()
    assert not ppo.may_overlap(RW, RW)
    assert not ppo.may_overlap(G, A)


def test_only_frozen_models_leave_the_gpu():
    assert [s for s in Stage if may_leave_gpu(s)] == [RW, RF]


def test_a_cycle_and_an_unknown_stage_are_refused():
    with pytest.raises(ConfigError, match="cycle"):
        StageGraph(Algorithm.PPO, {RW: (RF,), RF: (RW,)})
    with pytest.raises(ConfigError, match="generation"):
        StageGraph(Algorithm.PPO, {RW: (G,)})
    with pytest.raises(ConfigError, match="critic"):
        stage_graph(Algorithm.GRPO).joins_before(C)


def test_the_three_actions_by_hand():
    gpu, fpga = cost(1.0, 700.0, 70.0), cost(4.0, 292.0, 21.0)
    a1 = stage(Action.GPU, gpu, fpga, 2.0, 3.0)
    assert (a1.critical_s, a1.gpu_energy_j, a1.fpga_energy_j) == (1.0, 700.0, 84.0)
    assert a1.barrier_wait_s == 0.0
    a2 = stage(Action.FPGA, gpu, fpga, 2.0, 3.0)
    assert (a2.critical_s, a2.barrier_wait_s) == (6.0, 6.0)
    assert (a2.gpu_energy_j, a2.fpga_energy_j) == (420.0, 292.0 + 63.0)
    a3 = stage(Action.CONCURRENT, gpu, fpga, 2.0, 3.0)
    assert (a3.critical_s, a3.gpu_energy_j, a3.fpga_energy_j) == (3.0, 210.0, 292.0)
    assert (a1.own_energy_j, a2.own_energy_j, a3.own_energy_j) == (700.0, 712.0, 502.0)
    hidden = stage(Action.CONCURRENT, gpu, fpga, 0.0, 10.0)
    assert (hidden.critical_s, hidden.gpu_energy_j) == (0.0, 0.0)
    assert hidden.fpga_energy_j == 292.0 + 6.0 * 21.0
    assert hidden.power_w == pytest.approx((292.0 + 126.0) / 10.0)


def test_without_a_card_the_gpu_path_pays_for_none():
    assert stage(Action.GPU, cost(), None).fpga_energy_j == 0.0
    assert stage(Action.FPGA, cost(), None) is None


@pytest.mark.parametrize("action", list(Action))
def test_unknown_stays_unknown(action):
    unknown = StageCost("d", 1)
    assert stage(action, unknown, unknown) is None
    assert stage(Action.FPGA, cost(), unknown) is None
    assert stage(Action.FPGA, unknown, cost()) is None


def test_provenance_is_the_weakest():
    published = cost(provenance=Provenance.PUBLISHED)
    assert stage(Action.FPGA, cost(), published).provenance is Provenance.PUBLISHED


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_durations_are_refused(bad):
    with pytest.raises(ValueError, match="backlog_s"):
        stage(Action.GPU, cost(), cost(), backlog_s=bad)
    with pytest.raises(ValueError, match="overlap_s"):
        stage(Action.GPU, cost(), cost(), overlap_s=bad)


AMOUNT = st.floats(0, 1e6)
COST = st.builds(cost, AMOUNT, AMOUNT, AMOUNT)


@given(st.sampled_from(list(Action)), COST, COST, AMOUNT, AMOUNT)
def test_nothing_is_negative_and_the_window_adds_up(action, gpu, fpga, backlog_s, overlap_s):
    out = stage(action, gpu, fpga, backlog_s, overlap_s)
    assert min(out.critical_s, out.gpu_energy_j, out.fpga_energy_j, out.power_w) >= 0
    assert out.window_s == pytest.approx(out.critical_s + overlap_s)
    assert out.energy_j == out.gpu_energy_j + out.fpga_energy_j
    assert 0 <= out.own_energy_j <= out.energy_j


@given(COST, COST, AMOUNT, AMOUNT, AMOUNT)
def test_the_gpu_action_does_not_depend_on_the_queue(gpu, fpga, one, two, overlap_s):
    a, b = (stage(Action.GPU, gpu, fpga, backlog, overlap_s) for backlog in (one, two))
    assert a == b


@given(st.sampled_from(list(Action)), COST, COST, AMOUNT, AMOUNT, AMOUNT)
def test_a_longer_queue_never_helps_the_critical_path(
    action, gpu, fpga, backlog_s, more, overlap_s
):
    short = stage(action, gpu, fpga, backlog_s, overlap_s)
    long = stage(action, gpu, fpga, backlog_s + more, overlap_s)
    assert long.critical_s >= short.critical_s
    assert long.gpu_energy_j >= short.gpu_energy_j


@given(COST, COST, AMOUNT, AMOUNT, AMOUNT)
def test_more_overlap_never_hurts_and_concurrent_never_loses_to_blocking(
    gpu, fpga, backlog_s, overlap_s, more
):
    a3 = stage(Action.CONCURRENT, gpu, fpga, backlog_s, overlap_s)
    more_a3 = stage(Action.CONCURRENT, gpu, fpga, backlog_s, overlap_s + more)
    a2 = stage(Action.FPGA, gpu, fpga, backlog_s, overlap_s)
    assert more_a3.critical_s <= a3.critical_s
    assert a3.critical_s <= a2.critical_s
    assert a3.energy_j <= a2.energy_j * (1 + 1e-12)
