"""The conformance suite's own account of joules: it finds one that was counted twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.frameworks.joules import assert_counted_once, together, union

POWER_W = 100.0


def reader(*executions, has_counter=True):
    """Ten seconds of two devices at a constant power, and some executions on them."""
    times = [0.1 * i for i in range(101)]
    samples = [
        SimpleNamespace(
            attempt=1,
            device_id=device,
            t_s=t_s,
            power_w=POWER_W,
            energy_j=POWER_W * t_s if has_counter else None,
            error=None,
        )
        for device in ("gpu0", "gpu1")
        for t_s in times
    ]
    rows = []
    for devices, start_s, end_s, energy_j in executions:
        energy = SimpleNamespace(
            device_ids=devices, t_start_s=start_s, t_end_s=end_s, energy_j=energy_j
        )
        rows.append(SimpleNamespace(attempt=1, result=SimpleNamespace(energy=energy)))
    return SimpleNamespace(raw_samples=lambda: samples, executions=lambda: rows)


@pytest.mark.parametrize("has_counter", [True, False])
def test_shared_time_that_is_split_is_fine_and_counted_twice_it_is_found(has_counter):
    def two(energy_j, devices=("gpu0",)):
        own = (("gpu0",), 1.0, 5.0, energy_j)
        return reader(own, (devices, 1.0, 5.0, energy_j * len(devices)), has_counter=has_counter)

    assert_counted_once(two(200.0))
    with pytest.raises(AssertionError):
        assert_counted_once(two(400.0))
    # A second device, of which only one execution is charged, hides no doubled joule of the first.
    with pytest.raises(AssertionError):
        assert_counted_once(two(410.0, ("gpu0", "gpu1")))


def test_a_run_without_a_metered_execution_proves_nothing():
    for energies in ([], [(("gpu0",), 1.0, 2.0, None)], [(("fpga0",), 1.0, 2.0, 5.0)]):
        with pytest.raises(AssertionError):
            assert_counted_once(reader(*energies))


def test_groups_and_spans_that_touch_are_joined():
    assert together([("a",), ("b", "c"), ("c", "d"), ("a", "e")]) == [{"b", "c", "d"}, {"a", "e"}]
    assert union([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0), (0.5, 0.7)]) == [(0.0, 2.0), (3.0, 4.0)]
