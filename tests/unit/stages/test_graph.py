from __future__ import annotations

import pytest

from ecorl.records import Algorithm, Stage
from ecorl.stages.graph import may_leave_gpu, stage_graph

G, RW, RF, C, A, CT = list(Stage)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("with_reference", [None, True, False])
def test_graphs_are_acyclic_and_ordered(algorithm, with_reference):
    graph = stage_graph(algorithm, with_reference)
    order = graph.stages
    assert set(order) == set(graph.needs)
    for one in order:
        assert all(order.index(n) < order.index(one) for n in graph.needs[one])
    assert order[0] is G
    assert (CT in order) is (algorithm is Algorithm.PPO)


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


def test_only_frozen_models_leave_the_gpu():
    assert [s for s in Stage if may_leave_gpu(s)] == [RW, RF]
