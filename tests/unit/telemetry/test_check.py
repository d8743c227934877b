import math
from types import SimpleNamespace

import pytest

from ecorl.records import EnergyMethod, PowerSample, Provenance, StageEnergy
from ecorl.telemetry.check import (
    achieved_refresh_s,
    check_readings,
    counter_gap,
    poll_interval_s,
    stopped_seconds,
)
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.integrate import Reading


def fill(power_w, counter_w, n=100, missing=()):
    record = PowerHistory(2.0)
    for i in range(n):
        known = i not in missing
        record.add(
            [
                PowerSample(
                    "gpu0",
                    0.1 * i,
                    power_w if known else None,
                    counter_w * 0.1 * i if known else None,
                    None,
                    Provenance.MEASURED,
                    "test",
                    None if known else "DriverTimeout",
                )
            ]
        )
    return record


def test_gap_between_counter_and_integral():
    check = check_readings(fill(143.0, 100.0), "gpu0", 1.0, 9.0)
    assert check.gap_share == pytest.approx(0.43)
    assert check.counter_j == pytest.approx(800)
    assert check.integral_j == pytest.approx(1144)
    assert check.poll_s == pytest.approx(0.1)
    assert check.missing_share == 0


def test_no_gap_is_stated_from_half_the_facts():
    stopped = check_readings(fill(100.0, 0.0), "gpu0", 1.0, 9.0)
    assert (stopped.gap_share, stopped.counter_j) == (None, None)
    assert (stopped.integral_j, stopped.method) == (
        pytest.approx(800),
        EnergyMethod.INTEGRAL_COUNTER_STOPPED,
    )
    holes = check_readings(fill(100.0, 100.0, missing=range(40, 60)), "gpu0", 1.0, 9.0)
    assert holes.gap_share is None
    assert holes.coverage == pytest.approx(0.75)
    assert holes.missing_share == pytest.approx(20 / 81)
    nothing = check_readings(PowerHistory(), "gpu0", 0.0, 1.0)
    assert (nothing.gap_share, nothing.refresh_s, nothing.missing_share) == (None, None, None)


def test_a_counter_of_zero_is_an_infinite_gap():
    """A window too short to call the counter dead: its 0 J is shown for what it is."""
    check = check_readings(fill(100.0, 0.0, n=14), "gpu0", 0.1, 1.1)
    assert (check.counter_j, check.gap_share) == (0.0, math.inf)


def test_refresh_of_a_slow_instrument_under_fast_polling():
    # A new value every 1 s, polled every 50 ms.
    readings = [Reading(0.05 * i, float(int(0.05 * i + 1e-9)), None) for i in range(200)]
    assert achieved_refresh_s(readings) == pytest.approx(1.0)


def test_refresh_needs_changes_and_ignores_gaps():
    assert achieved_refresh_s([Reading(0.1 * i, 50.0, None) for i in range(100)]) is None
    readings = [Reading(0.1 * i, float(i), None) for i in range(10)]
    readings += [Reading(50.0, None, None)]
    readings += [Reading(100 + 0.1 * i, float(i), None) for i in range(10)]
    assert achieved_refresh_s(readings) == pytest.approx(0.1)


def test_checks_take_the_rows_of_a_ledger_in_any_order():
    rows = [SimpleNamespace(t_s=0.2 * i, power_w=float(i // 2)) for i in range(40)]
    assert achieved_refresh_s(reversed(rows)) == pytest.approx(0.4)
    assert poll_interval_s(reversed(rows)) == pytest.approx(0.2)
    assert poll_interval_s(rows[:1]) is None


COUNTER = EnergyMethod.COUNTER


def energy(device_ids, counter_j, integral_j, method=COUNTER, coverage=1.0, **other):
    fields = {"provenance": Provenance.MEASURED, "n_samples": 9} | other
    return StageEnergy(
        tuple(device_ids.split()), 0.0, 1.0, counter_j, counter_j, counter_j, integral_j,
        coverage=coverage, method=method, **fields,
    )  # fmt: skip


def test_gap_over_executions():
    energies = [
        energy("gpu0", 100.0, 120.0),
        energy("gpu0", 300.0, 320.0),
        None,
        energy("gpu1", 1.0, 100.0),
        energy("gpu0", None, 50.0, EnergyMethod.INTEGRAL_COUNTER_STOPPED),
        energy("gpu0", 50.0, 20.0, coverage=0.4),
        energy("gpu0", 10.0, 40.0, COUNTER, provenance=Provenance.MODELLED),
    ]
    gap = counter_gap("gpu0", energies)
    assert (gap.share, gap.n) == (pytest.approx(0.1), 2)
    assert (gap.n_stopped, gap.n_disputed, gap.device_ids) == (1, 0, ("gpu0",))
    nothing = counter_gap("cpu0", energies)
    assert (nothing.share, nothing.n, nothing.device_ids) == (None, 0, ())


def test_gap_of_devices_whose_energy_is_recorded_together():
    energies = [
        energy("gpu0 gpu1", 200.0, 300.0, EnergyMethod.DISPUTED),
        energy("gpu10 gpu2", 1.0, 9.0),
    ]
    for device_id in ("gpu0", "gpu1"):
        gap = counter_gap(device_id, energies)
        assert (gap.share, gap.n, gap.n_disputed) == (pytest.approx(0.5), 1, 1)
        assert gap.device_ids == ("gpu0", "gpu1")


def test_gap_of_counters_that_say_nothing():
    assert (
        counter_gap("gpu0", [energy("gpu0", 0.0, 9.0), energy("gpu0", 0.0, 1.0)]).share == math.inf
    )
    assert counter_gap("gpu0", [energy("gpu0", 0.0, 0.0)]).share is None


def second(number, counted_j, held_j=400.0, counted_s=1.0, held_s=1.0):
    return SimpleNamespace(
        second=number, counted_s=counted_s, counted_j=counted_j, held_s=held_s, held_j=held_j
    )


def test_seconds_in_which_the_counter_stood_still():
    moving, still = [second(i, 400.0) for i in range(3)], [second(i, 0.0) for i in range(3, 6)]
    assert stopped_seconds(moving) == frozenset()
    assert stopped_seconds([*moving, *still, second(6, 400.0)]) == {3, 4, 5}
    assert stopped_seconds([*moving, *still]) == {3, 4, 5}
    # One second may be one refresh; two halves of a second are no more than one.
    assert stopped_seconds([*moving, still[0], second(4, 800.0), second(5, 0.0)]) == frozenset()
    halves = [second(3, 0.0, 200.0, 0.5, 0.5), second(3, 0.0, 200.0, 0.5, 0.5)]
    assert stopped_seconds(halves) == frozenset()
    # A second without the counter neither ends nor lengthens the stretch.
    assert stopped_seconds([still[0], second(4, 0.0, counted_s=0.0), still[2]]) == {3, 5}
    # At no power a counter has to stand still; unknown power excuses nothing.
    assert stopped_seconds([second(i, 0.0, 0.0) for i in range(9)]) == frozenset()
    assert stopped_seconds([second(i, 0.0, 0.0, held_s=0.0) for i in range(2)]) == {0, 1}
