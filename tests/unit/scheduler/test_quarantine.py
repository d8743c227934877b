from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.scheduler import Quarantine


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ward(clock):
    return Quarantine(max_faults=3, backoff_s=10.0, max_backoff_s=25.0, clock=clock)


def fail(ward, times=1):
    for _ in range(times):
        assert ward.begin()
        ward.failed("EngineTimeout")


def test_faults_in_a_row_quarantine(ward):
    fail(ward, 2)
    assert ward.available()
    fail(ward)
    assert not ward.available()
    assert not ward.begin()


def test_a_success_between_faults_starts_the_count_anew(ward):
    for _ in range(5):
        fail(ward, 2)
        assert ward.begin()
        ward.succeeded()
    assert ward.available()


def test_one_probe_after_the_back_off(ward, clock):
    fail(ward, 3)
    clock.now_s = 9.9
    assert not ward.available()
    clock.now_s = 10.0
    assert ward.available()
    assert ward.available()  # asking does not use the probe up
    assert ward.begin()
    assert not ward.available()
    assert not ward.begin()
    ward.succeeded()
    assert ward.available()
    fail(ward, 2)
    assert ward.available()  # the count starts anew


def test_a_failed_probe_doubles_the_back_off_up_to_the_limit(ward, clock):
    fail(ward, 3)
    for backoff_s in (10.0, 20.0, 25.0, 25.0):
        clock.now_s += backoff_s - 0.1
        assert not ward.available()
        clock.now_s += 0.1
        fail(ward)


def test_a_probe_without_an_answer_counts_as_failed(ward, clock):
    fail(ward, 3)
    clock.now_s = 10.0
    assert ward.begin()
    clock.now_s = 20.0
    assert not ward.available()
    clock.now_s = 40.0
    assert ward.available()


def test_a_late_success_from_before_does_not_end_the_quarantine(ward):
    fail(ward, 3)
    ward.succeeded()
    assert not ward.available()


def test_a_late_fault_from_before_does_not_prolong_it(ward, clock):
    fail(ward, 3)
    clock.now_s = 5.0
    ward.failed("EngineTimeout")
    clock.now_s = 10.0
    assert ward.available()


def test_exactly_one_thread_gets_the_probe(ward, clock):
    fail(ward, 3)
    clock.now_s = 10.0
    gate, got = threading.Barrier(8), []

    def try_it():
        gate.wait()
        got.append(ward.begin())

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(got) == [False] * 7 + [True]


@given(st.lists(st.sampled_from(["ok", "fault", "tick", "begin"]), max_size=80))
def test_it_always_comes_back(events):
    clock = Clock()
    ward = Quarantine(max_faults=2, backoff_s=1.0, max_backoff_s=4.0, clock=clock)
    for event in events:
        if event == "tick":
            clock.now_s += 1.0
        elif event == "begin":
            assert ward.begin() is not None
        elif event == "ok":
            ward.succeeded()
        else:
            ward.failed("X")
    for _ in range(2):  # at most one forgotten probe, then one back-off
        clock.now_s += 4.0
        if ward.available():
            break
    assert ward.begin()
    ward.succeeded()
    assert ward.available()
