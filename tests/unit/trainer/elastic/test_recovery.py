"""A training goes on whatever its members do, and stands for as short as it can meanwhile."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

pytest.importorskip("ray")

from ecorl.trainer.elastic.records import ElasticFault, Patience, Point
from tests.elastic_runs import training
from tests.local_members import dies, falls_silent, naps, use_local_members
from tests.toy_task import ToyTask

PATIENCE = Patience(ping_s=0.3)


@pytest.fixture
def local(monkeypatch):
    return use_local_members(monkeypatch)


def drill(plans):
    """Calls what is planned for a (point, member) at the nth time, from 0; None: each time."""
    calls = Counter()

    def at(point, member, step):
        act, nth = plans.get((point, member), (None, None))
        calls[point, member] += 1
        if act is not None and nth in (None, calls[point, member] - 1):
            act()

    return at


def seen(result):
    return [(one.kind, one.who) for one in result.faults]


def longest_gap_s(result):
    return max(b.ended_s - a.ended_s for a, b in itertools.pairwise(result.steps))


def out_of_memory():
    raise MemoryError("no room for the moments")


def test_survivors_lose_a_member_that_falls_silent_while_they_meet(local, tmp_path):
    plans = {
        (Point.MEETING, "member-1"): (falls_silent, 1),
        (Point.COMPUTING, "member-3"): (dies, 2),
    }
    options = {"drill": drill(plans), "patience": PATIENCE, "timeout_s": 1.0}
    with training(tmp_path, ToyTask(), width=3, **options) as trainer:
        result = trainer.train(6)
        assert [one.name for one in trainer._crew.members][:1] == ["member-2"]
    assert result.is_complete
    lost = [who for kind, who in seen(result) if kind is ElasticFault.MEMBER_LOST]
    assert lost == ["member-3", "member-1"]


def test_a_member_alone_that_falls_silent_is_lost(local, tmp_path):
    plans = {(Point.COMPUTING, "member-1"): (falls_silent, 2)}
    patience = Patience(ping_s=0.1)
    with training(tmp_path, ToyTask(), drill=drill(plans), patience=patience) as trainer:
        result = trainer.train(4)
    assert seen(result)[0] == (ElasticFault.MEMBER_LOST, "member-1")
    assert result.is_complete


def test_what_a_joiner_raises_while_it_is_given_the_state_is_its_own_end(local, tmp_path):
    plans = {(Point.SHARING, "member-2"): (out_of_memory, 0)}
    options = {"drill": drill(plans), "patience": PATIENCE, "timeout_s": 1.0}
    with training(tmp_path, ToyTask(), **options) as trainer:
        trainer.set_width(2, at_step=2)
        result = trainer.train(4)
    assert result.widths == [1, 1, 2, 2]
    assert (ElasticFault.JOINER_LOST, "member-2") in seen(result)


def test_a_joiner_that_is_stuck_with_the_state_is_not_waited_for(local, tmp_path):
    plans = {(Point.SHARING, "member-2"): (lambda: naps(30.0), 0)}
    options = {"drill": drill(plans), "patience": PATIENCE, "timeout_s": 0.5}
    with training(tmp_path, ToyTask(), **options) as trainer:
        trainer.set_width(2, at_step=2)
        result = trainer.train(4)
    assert result.widths == [1, 1, 2, 2]
    assert (ElasticFault.JOINER_LOST, "member-2") in seen(result)
    assert longest_gap_s(result) < 5.0
