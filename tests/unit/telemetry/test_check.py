import pytest

from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.check import achieved_refresh_s, check_readings
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
    assert check_readings(fill(100.0, 0.0), "gpu0", 1.0, 9.0).gap_share is None
    holes = check_readings(fill(100.0, 100.0, missing=range(40, 60)), "gpu0", 1.0, 9.0)
    assert holes.gap_share is None
    assert holes.coverage == pytest.approx(0.75)
    assert holes.missing_share == pytest.approx(20 / 81)
    nothing = check_readings(PowerHistory(), "gpu0", 0.0, 1.0)
    assert (nothing.gap_share, nothing.refresh_s, nothing.missing_share) == (None, None, None)


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
