"""An iteration has one deadline, however often and for however many stages it is waited for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.runtime.handles import Iteration
from ecorl.runtime.scheduling import iterations
from ecorl.runtime.scheduling.iterations import IterationState


@given(st.lists(st.floats(0.0, 30.0), max_size=6), st.floats(0.0, 60.0))
def test_all_waits_of_an_iteration_share_its_deadline(waits_s, deadline_s):
    state, now_s = IterationState(Iteration(1, 0, 1)), 100.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iterations, "time", SimpleNamespace(monotonic=lambda: now_s))
        assert state.time_left_s(deadline_s) == pytest.approx(deadline_s)
        for wait_s in waits_s:
            now_s += wait_s
            left_s = max(0.0, deadline_s - (now_s - 100.0))
            assert state.time_left_s(deadline_s) == pytest.approx(left_s)


def test_the_deadline_begins_with_the_first_wait_of_each_iteration(monkeypatch):
    clock = iter((10.0, 12.0, 50.0))
    monkeypatch.setattr(iterations, "time", SimpleNamespace(monotonic=clock.__next__))
    one, another = (IterationState(Iteration(number, 0, number)) for number in (1, 2))
    assert one.time_left_s(5.0) == 5.0
    assert another.time_left_s(5.0) == 5.0
    assert one.time_left_s(5.0) == 0.0
