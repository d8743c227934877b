from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.errors import ConfigError, EngineError
from ecorl.scheduler import CompletionBarrier
from tests.examples import examples


@pytest.fixture
def barrier():
    return CompletionBarrier()


def test_rows_are_joined_by_id_not_by_order(barrier):
    ticket = barrier.register(["a", "b", "c"])
    barrier.deliver(ticket, ["c", "a"], np.array([3.0, 1.0], dtype=np.float32))
    barrier.deliver(ticket, ["b"], [2.0])
    out = barrier.wait(ticket, 5.0)
    assert not out.missing
    assert not out.invalid
    assert {k: float(v) for k, v in out.arrived.items()} == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert (out.timed_out, out.fault, out.n_duplicates) == (False, None, 0)
    assert barrier.n_open == 0


def test_rows_of_values_are_checked_for_length(barrier):
    ticket = barrier.register(["a", "b"], [3, 2])
    barrier.deliver(ticket, ["a", "b"], [np.zeros(3), np.zeros(3)])
    out = barrier.wait(ticket, 1.0)
    assert out.arrived["a"].dtype == np.float32
    assert out.arrived["a"].shape == (3,)
    assert "(3,)" in out.invalid["b"]
    assert "(2,)" in out.invalid["b"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "not finite"),
        (np.inf, "not finite"),
        (1e300, "not finite"),
        ([1.0], "shape (1,)"),
        ("abc", "not numbers"),
        (object(), "not numbers"),
        (None, "no value"),
        ([[1.0], [1.0, 2.0]], "not numbers"),
    ],
)
def test_a_bad_value_is_invalid_and_harms_no_other_row(barrier, value, words):
    ticket = barrier.register(["bad", "good"])
    barrier.deliver(ticket, ["bad", "good"], [value, 1.0])
    out = barrier.wait(ticket, 1.0)
    assert words in out.invalid["bad"]
    assert list(out.arrived) == ["good"]
    assert out.missing or out.invalid


def test_the_deadline_ends_the_wait_and_late_rows_are_dropped(barrier):
    ticket = barrier.register(["a", "b"])
    barrier.deliver(ticket, ["a"], [1.0])
    begin_s = time.monotonic()
    out = barrier.wait(ticket, 0.05)
    assert out.timed_out
    assert out.missing == ("b",)
    assert 0.05 <= out.wait_s <= time.monotonic() - begin_s
    again = barrier.register(["a", "b"])  # the next iteration, with the same ids
    barrier.deliver(ticket, ["b", "a"], [9.0, 9.0])
    assert barrier.n_late == 2
    out = barrier.wait(again, 0.0)
    assert out.missing == ("a", "b")
    assert out.arrived == {}


def test_a_fault_ends_the_wait_at_once_with_what_there_is(barrier):
    ticket = barrier.register(["a", "b"])
    barrier.deliver(ticket, ["a"], [1.0])
    barrier.fail(ticket, "EngineCrashed")
    out = barrier.wait(ticket, 600.0)
    assert (out.fault, out.timed_out, out.missing) == ("EngineCrashed", False, ("b",))
    assert list(out.arrived) == ["a"]
    barrier.fail(ticket, "EngineCrashed")  # after the wait: nothing to do


def test_a_waiting_thread_is_woken(barrier):
    ticket = barrier.register(["a"])
    pending, seen_s = barrier._open[ticket.number], []

    def deliver():
        limit_s = time.monotonic() + 240
        while not pending.waited and time.monotonic() < limit_s:
            time.sleep(0.001)
        seen_s.append(time.monotonic())
        # Whoever waits has the lock until it sleeps.
        barrier.deliver(ticket, ["a"], [1.0])

    thread, begin_s = threading.Thread(target=deliver), time.monotonic()
    thread.start()
    out = barrier.wait(ticket, 600.0)
    end_s = time.monotonic()
    thread.join()
    assert not out.missing
    assert not out.invalid
    assert not out.timed_out
    assert begin_s + out.wait_s <= end_s
    assert begin_s < seen_s[0] < end_s


@pytest.mark.parametrize("order", [[1.0, 2.0], [2.0, 1.0], [1.0, np.nan], [np.nan, 1.0]])
def test_contradicting_answers_are_invalid_in_any_order(barrier, order):
    ticket = barrier.register(["a", "b"])
    for value in order:
        barrier.deliver(ticket, ["a"], [value])
    out = barrier.wait(ticket, 0.0)
    assert "a" in out.invalid
    assert "a" not in out.arrived
    assert out.n_duplicates == 1


def test_the_same_answer_twice_is_counted_and_harmless(barrier):
    ticket = barrier.register(["a", "b"])
    barrier.deliver(ticket, ["a", "a", "b"], [1.0, 1.0, 2.0])
    out = barrier.wait(ticket, 0.0)
    assert not out.missing
    assert not out.invalid
    assert out.n_duplicates == 1


def test_unknown_ids_are_reported_and_ignored(barrier):
    ticket = barrier.register(["a"])
    barrier.deliver(ticket, ["x", "a"], [5.0, 1.0])
    out = barrier.wait(ticket, 0.0)
    assert out.unknown_ids == ("x",)
    assert list(out.arrived) == ["a"]


def test_values_that_cannot_be_joined_are_all_invalid(barrier):
    ticket = barrier.register(["a", "b"])
    barrier.deliver(ticket, ["a", "b"], [1.0])
    out = barrier.wait(ticket, 0.0)
    assert set(out.invalid) == {"a", "b"}
    assert out.arrived == {}


def test_results_are_copies(barrier):
    ticket = barrier.register(["a"], [2])
    row = np.ones(2, dtype=np.float32)
    barrier.deliver(ticket, ["a"], [row])
    row[:] = 7.0
    assert barrier.wait(ticket, 0.0).arrived["a"].tolist() == [1.0, 1.0]


def test_an_empty_batch_is_complete(barrier):
    out = barrier.wait(barrier.register([]), 0.0)
    assert not out.missing
    assert not out.invalid
    assert not out.timed_out


def test_misuse_is_refused(barrier):
    with pytest.raises(EngineError, match="twice"):
        barrier.register(["a", "a"])
    with pytest.raises(EngineError, match="row lengths"):
        barrier.register(["a"], [1, 2])
    ticket = barrier.register(["a"])
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            barrier.wait(ticket, bad)
    barrier.wait(ticket, 0.0)
    with pytest.raises(EngineError, match="before"):
        barrier.wait(ticket, 0.0)


CHUNK = st.lists(
    st.tuples(st.sampled_from("abcdxy"), st.sampled_from([0.0, 1.0, float("nan")])), max_size=5
)


@given(st.lists(CHUNK, max_size=5), st.booleans(), st.sampled_from([0.0, 0.002]))
@settings(max_examples=examples(150), deadline=None)
def test_each_id_is_answered_exactly_once_under_any_interleaving(chunks, fails, deadline_s):
    barrier = CompletionBarrier()
    ids = ("a", "b", "c", "d")
    ticket = barrier.register(ids)
    gate = threading.Barrier(len(chunks) + 1 + fails)

    def deliver(chunk):
        gate.wait()
        barrier.deliver(ticket, [i for i, _ in chunk], [v for _, v in chunk])

    def fail():
        gate.wait()
        barrier.fail(ticket, "EngineCrashed")

    threads = [threading.Thread(target=deliver, args=(chunk,)) for chunk in chunks]
    if fails:
        threads.append(threading.Thread(target=fail))
    for t in threads:
        t.start()
    gate.wait()
    out = barrier.wait(ticket, deadline_s)
    snapshot = (dict(out.arrived), dict(out.invalid), out.missing)
    for t in threads:
        t.join()
    assert (out.arrived, out.invalid, out.missing) == snapshot  # nothing changes after the wait
    assert sorted([*out.arrived, *out.invalid, *out.missing]) == sorted(ids)
    given_values = {i: {v for chunk in chunks for j, v in chunk if j == i} for i in ids}
    for sample_id, value in out.arrived.items():
        assert float(value) in given_values[sample_id]
    n_given = sum(len(chunk) for chunk in chunks)
    n_first = len(out.arrived) + len(out.invalid)
    assert n_first + out.n_duplicates + len(out.unknown_ids) + barrier.n_late == n_given


@given(st.permutations([("a", 1.0), ("b", 2.0), ("b", 2.0), ("c", 1.0), ("c", 2.0), ("d", 4.0)]))
@settings(deadline=None)
def test_the_verdict_does_not_depend_on_the_order_of_delivery(rows):
    # "e" never comes, so that the ticket stays open until all have been delivered.
    barrier = CompletionBarrier()
    ticket = barrier.register(["a", "b", "c", "d", "e"])
    for sample_id, value in rows:
        barrier.deliver(ticket, [sample_id], [value])
    out = barrier.wait(ticket, 0.0)
    assert {k: float(v) for k, v in out.arrived.items()} == {"a": 1.0, "b": 2.0, "d": 4.0}
    assert list(out.invalid) == ["c"]
    assert out.missing == ("e",)


def test_two_stages_of_one_iteration_keep_apart(barrier):
    reward, reference = barrier.register(["a"]), barrier.register(["a"], [2])
    barrier.deliver(reference, ["a"], [[0.1, 0.2]])
    barrier.deliver(reward, ["a"], [5.0])
    assert float(barrier.wait(reward, 0.0).arrived["a"]) == 5.0
    assert barrier.wait(reference, 0.0).arrived["a"].shape == (2,)


def test_waiting_measures_time_not_work(barrier):
    ticket = barrier.register(["a"])
    barrier.deliver(ticket, ["a"], [1.0])
    start_s = time.monotonic()
    out = barrier.wait(ticket, 10.0)
    assert out.wait_s <= time.monotonic() - start_s
