from __future__ import annotations

from types import SimpleNamespace

from ecorl.runtime.handles import Iteration
from ecorl.runtime.scheduling.iterations import IterationState


def test_the_deadline_of_each_iteration_runs_from_its_own_first_wait(monkeypatch):
    clock = SimpleNamespace(now_s=10.0)
    looks = SimpleNamespace(monotonic=lambda: clock.now_s)
    monkeypatch.setattr("ecorl.runtime.scheduling.iterations.time", looks)
    one, other = (IterationState(Iteration(number, 0, number)) for number in (1, 2))
    assert one.time_left_s(2.0) == 2.0
    clock.now_s = 11.5
    assert (one.time_left_s(2.0), other.time_left_s(2.0)) == (0.5, 2.0)
    clock.now_s = 12.5
    assert (one.time_left_s(2.0), other.time_left_s(2.0)) == (0.0, 1.0)
