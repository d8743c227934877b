"""The time that ecorl itself needs, counted and told."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.runtime.overhead import HookClock, HookTime

SECONDS = st.integers(0, 10**9).map(lambda n: n / 1e6)


@given(SECONDS, st.integers(0, 10**6), SECONDS)
def test_what_the_record_holds_is_read_as_it_was(hook_s, n_events, beside_s):
    spent = HookTime(hook_s, n_events, beside_s)
    assert HookTime.read(str(spent)) == spent


def test_threads_beside_are_named_only_where_there_are_any():
    assert str(HookTime(0.5, 3)) == "0.500000 s in 3 events"
    assert "; 0.250000 s " in str(HookTime(0.5, 3, 0.25))
    with pytest.raises(ValueError, match="'soon'"):
        HookTime.read("soon")


def test_blocks_of_all_threads_and_other_processes_add_up():
    clock = HookClock()

    def block():
        with clock, clock:  # nested: one event
            time.sleep(0.02)

    threads = [threading.Thread(target=block) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.add(HookTime(1.0, 10, 0.5))
    assert clock.time.n_events == 13
    assert clock.time.hook_s >= 1.0 + 3 * 0.02
    assert clock.time.beside_s == 0.5
    assert clock.hook_s == clock.time.hook_s
