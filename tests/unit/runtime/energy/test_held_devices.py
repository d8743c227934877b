"""Times in which nobody holds a device: all of the time but that of the holders, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ecorl.runtime.energy.held_devices import DeviceWindow, HeldDevices

windows = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), max_size=8)


@given(windows, st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_free_times_are_those_that_no_one_holds(held, marks):
    devices = HeldDevices()
    for serial, (start, length) in enumerate(held):
        devices.hold(serial, [DeviceWindow("gpu0", start, start + length)], ended=True)
    devices.hold(99, [DeviceWindow("gpu1", 0.0, 100.0)], ended=True)
    assert devices.take_free("gpu0", 0.0) == []
    free = [span for mark in sorted(marks) for span in devices.take_free("gpu0", float(mark))]
    seconds = [s for start, end in free for s in range(int(start), int(end))]
    busy = {s for start, length in held for s in range(start, start + length)}
    assert seconds == [s for s in range(max(marks)) if s not in busy]


def test_an_execution_under_way_leaves_nothing_free():
    devices = HeldDevices()
    devices.take_free("gpu0", 0.0)
    devices.hold(1, [DeviceWindow("gpu0", 2.0)], ended=False)
    assert devices.take_free("gpu0", 5.0) == [(0.0, 2.0)]
    assert devices.take_free("gpu0", 9.0) == []


def test_what_is_still_to_be_counted_is_not_forgotten():
    devices = HeldDevices()
    devices.take_free("gpu0", 0.0)
    devices.hold(1, [DeviceWindow("gpu0", 0.0, 3.0)], ended=True)
    devices.trim(50.0)
    assert devices.take_free("gpu0", 4.0) == [(3.0, 4.0)]
    devices.trim(50.0)
    assert devices.pieces("gpu0", [DeviceWindow("gpu0", 0.0, 1.0)]) == [(0.0, 1.0, 1)]
