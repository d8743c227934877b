"""Trainings in turns, a core that is kept busy, and what becomes of the blocks' times."""

from __future__ import annotations

import contextlib
import os
import time

import psutil
import pytest

from benchmarks.studies.placement import live
from benchmarks.studies.placement.busy_core import BusyCore
from benchmarks.studies.placement.turns import Turns
from ecorl.bench.rounds import MIN_ROUNDS, TimeBox
from ecorl.devices import load_profile
from ecorl.errors import RunError
from ecorl.records import Provenance

# ---------------------------------------------------------------- turns


def trained(steps):
    """A training that makes steps as long as it may, each with a number."""

    def train(turns):
        while turns.step_begins():
            steps.append(len(steps))
            time.sleep(0.01)

    return train


def test_a_training_stands_but_in_its_turns():
    one, other = [], []
    first, second = Turns(trained(one)), Turns(trained(other))
    seen = []
    begin_s = time.perf_counter()
    times = first.run(3, seen.append)
    assert (len(times), seen) == (3, [0, 1, 2])
    assert min(times) >= 0.01
    assert sum(times) <= time.perf_counter() - begin_s
    assert (len(one), len(other)) == (3, 0)
    assert len(second.run(2)) == 2
    assert (len(one), len(other)) == (3, 2)
    standing_s = time.perf_counter()
    time.sleep(0.2)
    assert max(first.run(2)) < time.perf_counter() - standing_s - 0.1
    assert len(one) == 5
    first.end()
    second.end()
    assert (len(one), len(other)) == (5, 2)


def test_a_training_that_fails_or_ends_early_says_so():
    def fails(turns):
        turns.step_begins()
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        Turns(fails).run(2)
    ended = Turns(lambda turns: turns.step_begins())
    with pytest.raises(RunError, match="turn"):
        ended.run(2)


# ---------------------------------------------------------------- a busy core


def cpu_s(process):
    times = process.cpu_times()
    return times.user + times.system


def is_idle(process):
    before_s = cpu_s(process)
    time.sleep(0.3)
    return cpu_s(process) - before_s < 0.02


def awaited(condition, limit_s=240.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture
def core():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no cores to choose here")
    return max(os.sched_getaffinity(0))


def test_a_core_is_taken_when_it_is_said_and_left_when_it_is_said(core):
    with contextlib.closing(BusyCore(core, 600.0)) as busy:
        process = psutil.Process(busy._process.pid)
        awaited(lambda: process.cpu_affinity() == [core])
        busy.switch(True)
        begin_s = cpu_s(process)
        awaited(lambda: cpu_s(process) > begin_s + 0.2)
        busy.switch(False)
        awaited(lambda: is_idle(process))
        assert busy.is_running
    assert not busy.is_running
    busy.close()


def test_it_ends_by_itself_at_its_limit(core):
    with contextlib.closing(BusyCore(core, 0.2)) as busy:
        awaited(lambda: not busy.is_running)


# ---------------------------------------------------------------- blocks


class Busy:
    on = False

    def switch(self, on):
        self.on = on


class Arm:
    """A training whose steps take as long as is said, quiet and contended."""

    def __init__(self, busy, quiet_s, contended_s):
        self.busy, self.step_s, self.n_blocks = busy, (quiet_s, contended_s), 0

    def run(self, n_steps, at_step):
        self.n_blocks += 1
        found = []
        for step in range(n_steps):
            at_step(step)
            found.append(9.0 if step == 0 else self.step_s[self.busy.on])
        return found


def measured(times, n_rounds=8):
    busy = Busy()
    arms = {name: Arm(busy, *of_arm) for name, of_arm in times.items()}
    bench = live.LiveBench(arms, 4, busy)
    bench.warm_up(12)
    assert all(arm.n_blocks == 3 for arm in arms.values())
    blocks = bench.measure(n_rounds, 2, TimeBox(0.0))
    assert not busy.on
    return blocks


TIMES = {
    "learned": (0.8, 1.0), "lookahead": (0.8, 1.6), "static_host": (1.0, 1.0),
    "static_card": (0.9, 1.8),
}  # fmt: skip


def test_half_of_a_block_is_contended_and_its_first_step_is_not_timed():
    assert [i for i in range(13) if live.is_contended(i, 12)] == [4, 5, 6, 7, 8, 9]
    blocks = measured(TIMES)
    assert blocks.tuning_s == {
        "static_host": [1.0, 1.0], "static_card": pytest.approx([1.35, 1.35]),
    }  # fmt: skip
    assert blocks.best == "static_host"
    assert list(blocks.step_s) == ["learned", "static_host", "lookahead"]
    assert all(len(found) == MIN_ROUNDS for found in blocks.step_s.values())
    assert (blocks.quiet_s["learned"][0], blocks.contended_s["learned"][0]) == (0.8, 1.0)


def test_the_figures_are_ratios_of_rounds_and_the_end_of_their_interval():
    figures = {f.id: f for f in live.live_figures(measured(TIMES))}
    assert figures["policy.live_step_ratio"].value == pytest.approx(0.9)
    assert figures["policy.live_step_ratio"].spread["n"] == MIN_ROUNDS
    assert figures["policy.live_lookahead_ratio"].value == pytest.approx(1.2)
    high = figures["policy.live_step_ratio_high"]
    assert (high.value, high.holds) == (pytest.approx(0.9), True)
    assert figures["policy.live_static_step_s"].value == pytest.approx(1.0)
    assert figures["policy.live_host_disturbance"].value == pytest.approx(1.0)
    assert {f.provenance for f in figures.values() if f.value is not None} == {Provenance.MEASURED}
    slow = {f.id: f for f in live.live_figures(measured({**TIMES, "learned": (1.0, 1.2)}))}
    assert slow["policy.live_step_ratio_high"].holds is False


def test_the_best_fixed_placement_may_be_the_card():
    blocks = measured({**TIMES, "static_card": (0.5, 0.9)})
    assert blocks.best == "static_card"
    found = {f.id: f.value for f in live.live_figures(blocks)}
    assert found["policy.live_static_step_s"] == pytest.approx(0.7)
    assert found["policy.live_host_disturbance"] == pytest.approx(1.0)


def test_what_is_trained_twice_is_averaged_and_compared_with_itself():
    once = {f.id: f for f in live.live_figures(measured(TIMES))}
    assert once["policy.live_again_ratio"].value is None
    twice = {**TIMES, "learned_again": (1.0, 1.2), "static_host_again": (1.1, 1.1)}
    assert twice.keys() == live.arms_of(again=True).keys()
    assert live.arms_of(again=False) == live.POLICIES
    blocks = measured(twice)
    assert list(blocks.step_s)[3:] == ["learned_again", "static_host_again"]
    found = {f.id: f for f in live.live_figures(blocks)}
    assert found["policy.live_step_ratio"].value == pytest.approx((0.9 + 1.1) / (1.0 + 1.1))
    assert found["policy.live_again_ratio"].value == pytest.approx(1.1)
    card = {f.id: f for f in live.live_figures(measured({**twice, "static_card": (0.5, 0.9)}))}
    assert card["policy.live_again_ratio"].value is None


def test_missing_figures_have_the_same_ids():
    found = live.live_figures(measured(TIMES))
    assert [f.id for f in live.missing_figures("why")] == [f.id for f in found]
    few = {f.id: f for f in live.live_figures(measured(TIMES, n_rounds=2))}
    assert few["policy.live_step_ratio_high"].value is None


def test_the_profile_claims_to_be_faster_than_this_host(tmp_path):
    live.write_wrong_profile(tmp_path / "wrong.toml")
    host, wrong = load_profile("host_cpu"), load_profile(str(tmp_path / "wrong.toml"))
    assert (wrong.name, wrong.kind) == ("second_core", host.kind)
    for key in ("peak_fp32_flops", "memory_bytes_per_s"):
        assert wrong.value(key) == pytest.approx(live.CLAIM * host.value(key))
        assert "wrong" in wrong.figure(key).source
    assert wrong.value("launch_s") == pytest.approx(host.value("launch_s") / live.CLAIM)
    assert wrong.value("active_w") == host.value("active_w")


def test_one_core_is_no_measurement(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert live.cores_gap()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert (live.cores_gap(), live.own_cores()) == (None, (3, 5))
