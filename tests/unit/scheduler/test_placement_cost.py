from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.devices import StageCost
from ecorl.records import Action, Provenance
from ecorl.scheduler.costs import placement_cost


def cost(time_s=1.0, energy_j=100.0, idle_w=10.0, provenance=Provenance.MODELLED):
    return StageCost(
        "d", 1, time_s=time_s, energy_j=energy_j, idle_power_w=idle_w, provenance=provenance
    )


def test_the_three_actions_by_hand():
    gpu, fpga = cost(1.0, 700.0, 70.0), cost(4.0, 292.0, 21.0)
    a1, a2, a3 = (placement_cost(action, gpu, fpga, 2.0, 3.0) for action in Action)
    assert (a1.time_s, a1.wait_s, a1.energy_j) == (1.0, 0.0, 700.0)
    assert (a2.time_s, a2.wait_s, a2.energy_j) == (6.0, 6.0, 420.0 + 292.0)
    assert (a3.time_s, a3.wait_s, a3.energy_j) == (3.0, 3.0, 210.0 + 292.0)
    hidden = placement_cost(Action.CONCURRENT, gpu, fpga, 0.0, 10.0)
    assert (hidden.time_s, hidden.energy_j) == (0.0, 292.0)


@pytest.mark.parametrize("action", list(Action))
def test_unknown_stays_unknown(action):
    unknown = StageCost("d", 1)
    assert placement_cost(action, unknown, unknown, 0.0, 0.0) is None
    assert placement_cost(action, cost(), unknown, 0.0, 0.0) is None
    assert placement_cost(action, unknown, cost(), 0.0, 0.0) is None


@pytest.mark.parametrize("action", list(Action))
def test_provenance_is_the_weakest(action):
    published = cost(provenance=Provenance.PUBLISHED)
    made = placement_cost(action, cost(), published, 0.0, 0.0)
    assert made.provenance is Provenance.PUBLISHED


AMOUNT = st.floats(0, 1e6)
COST = st.builds(cost, AMOUNT, AMOUNT, AMOUNT)


@given(st.sampled_from(list(Action)), COST, COST, AMOUNT, AMOUNT)
def test_nothing_is_negative(action, gpu, fpga, backlog_s, overlap_s):
    out = placement_cost(action, gpu, fpga, backlog_s, overlap_s)
    assert min(out.time_s, out.energy_j, out.wait_s) >= 0


@given(COST, COST, AMOUNT, AMOUNT, AMOUNT)
def test_the_gpu_action_does_not_depend_on_the_queue(gpu, fpga, one, two, overlap_s):
    a, b = (placement_cost(Action.GPU, gpu, fpga, backlog, overlap_s) for backlog in (one, two))
    assert a == b


@given(st.sampled_from(list(Action)), COST, COST, AMOUNT, AMOUNT, AMOUNT)
def test_a_longer_queue_never_helps(action, gpu, fpga, backlog_s, more, overlap_s):
    short = placement_cost(action, gpu, fpga, backlog_s, overlap_s)
    long = placement_cost(action, gpu, fpga, backlog_s + more, overlap_s)
    assert long.time_s >= short.time_s
    assert long.energy_j >= short.energy_j


@given(COST, COST, AMOUNT, AMOUNT, AMOUNT)
def test_more_overlap_never_hurts_and_concurrent_never_loses_to_blocking(
    gpu, fpga, backlog_s, overlap_s, more
):
    a3 = placement_cost(Action.CONCURRENT, gpu, fpga, backlog_s, overlap_s)
    more_a3 = placement_cost(Action.CONCURRENT, gpu, fpga, backlog_s, overlap_s + more)
    a2 = placement_cost(Action.FPGA, gpu, fpga, backlog_s, overlap_s)
    assert more_a3.time_s <= a3.time_s
    assert a3.time_s <= a2.time_s
    assert a3.energy_j <= a2.energy_j * (1 + 1e-12)
