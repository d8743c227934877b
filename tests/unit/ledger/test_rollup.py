"""Roll-ups add up to the integral of the readings, cut and merged wherever it may be."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.ledger.rollup import PowerRollup
from ecorl.records import LOSS_ERRORS
from ecorl.telemetry.integrate import Reading, hold_integral

HOLD_S = 2.0


def reading(t_s, power_w=None, energy_j=None, error=None):
    return SimpleNamespace(t_s=t_s, power_w=power_w, energy_j=energy_j, error=error)


@st.composite
def series(draw):
    """Readings 0.05 to 6 s apart, some missing; a counter that may be missing, fall, be reset."""
    steps = st.sampled_from([0.05, 0.1, 0.5, 0.95, 1.0, 2.0, 3.0, 6.0]) | st.floats(0.01, 4.0)
    t_s, counter_j = draw(st.floats(-5, 1e6)), 1000.0
    found = []
    for _ in range(draw(st.integers(1, 25))):
        t_s += draw(steps)
        power_w = draw(st.none() | st.floats(0, 500))
        counter_j += draw(st.floats(0, 500))
        if draw(st.integers(0, 6)) == 0:
            counter_j = draw(st.floats(0, 10))
        energy_j = draw(st.sampled_from([None, counter_j, counter_j, counter_j]))
        lost = power_w is None and energy_j is None and draw(st.booleans())
        found.append(reading(t_s, power_w, energy_j, "DeviceLost" if lost else None))
    return found


def totals(rows):
    names = ("n", "n_missing", "held_us", "held_mj", "counted_us", "counted_mj", "alone_us",
             "alone_mj", "n_breaks")  # fmt: skip
    return {name: sum(getattr(row, name) for row in rows) for name in names}


def close_to(expected, n_rows):
    """Equal but for half a unit of rounding in each row."""
    return {k: pytest.approx(v, abs=0.5 * n_rows + 1, rel=1e-9) for k, v in expected.items()}


def rolled(readings, until_s, cuts=()):
    """All rows; before the readings with an index in ``cuts`` everything is taken."""
    gatherer, rows = PowerRollup(HOLD_S), []
    for i, one in enumerate(readings):
        rows += gatherer.take(everything=i in cuts)
        gatherer.add(one)
    gatherer.hold_until(until_s)
    return rows + gatherer.take(everything=True)


def as_telemetry(readings):
    return [Reading(r.t_s, r.power_w, r.energy_j, r.error in LOSS_ERRORS) for r in readings]


@given(series(), st.floats(0, 5), st.sets(st.integers(0, 25)))
def test_held_energy_is_the_zero_order_hold(readings, more_s, cuts):
    end_s = readings[-1].t_s + more_s
    rows = rolled(readings, end_s, cuts)
    integral = hold_integral(as_telemetry(readings), readings[0].t_s, end_s, HOLD_S)
    found = totals(rows)
    assert found["held_mj"] == pytest.approx(1e3 * integral.energy_j, abs=len(rows))
    assert found["held_us"] == pytest.approx(1e6 * integral.covered_s, abs=len(rows))
    assert found["n"] + found["n_missing"] == len(readings)
    by_second: dict[int, int] = {}
    for row in rows:
        by_second[row.second] = by_second.get(row.second, 0) + row.held_us
    assert max(by_second.values()) <= 1_000_000 + len(rows)


@given(series(), st.floats(0, 5), st.sets(st.integers(0, 25)))
def test_counted_and_alone_share_the_time_between_them(readings, more_s, cuts):
    end_s = readings[-1].t_s + more_s
    rows = rolled(readings, end_s, cuts)
    counted_s = counted_j = 0.0
    n_breaks = 0
    bridged = []
    last = None
    for one in as_telemetry(readings):
        if one.energy_j is None and not one.reset:
            continue
        if last is not None:
            if one.energy_j is not None and one.energy_j >= last.energy_j:
                counted_s += one.t_s - last.t_s
                counted_j += one.energy_j - last.energy_j
                bridged.append((last.t_s, one.t_s))
            else:
                n_breaks += 1
        last = None if one.energy_j is None else one
    parts = [hold_integral(as_telemetry(readings), *span, HOLD_S) for span in bridged]
    held = hold_integral(as_telemetry(readings), readings[0].t_s, end_s, HOLD_S)
    found = totals(rows)
    slack = {"abs": len(rows) + 1, "rel": 1e-9}
    assert found["n_breaks"] == n_breaks
    assert found["counted_us"] == pytest.approx(1e6 * counted_s, **slack)
    assert found["counted_mj"] == pytest.approx(1e3 * counted_j, **slack)
    alone_s = held.covered_s - math.fsum(p.covered_s for p in parts)
    alone_j = held.energy_j - math.fsum(p.energy_j for p in parts)
    assert found["alone_us"] == pytest.approx(1e6 * alone_s, **slack)
    assert found["alone_mj"] == pytest.approx(1e3 * alone_j, **slack)


@given(series(), st.integers(0, 25), st.integers(0, 25), st.sets(st.integers(0, 25)))
def test_one_who_goes_on_from_the_rows_loses_and_doubles_nothing(readings, cut, more, flushed):
    """A process that dies: its rows, the newest reading behind them, the readings since then."""
    gatherer, rows = PowerRollup(HOLD_S), []
    for i, one in enumerate(readings[: cut + 1]):
        gatherer.add(one)
        rows += gatherer.take(everything=i in flushed)
    after = gatherer.open_reading()
    again = PowerRollup(HOLD_S, after)
    for one in readings:
        if after is None or one.t_s > after.t_s:
            again.add(one)
    again.hold_until(readings[-1].t_s + more)
    rows += again.take(everything=True)
    whole = totals(rolled(readings, readings[-1].t_s + more))
    found = totals(rows)
    for name in ("n", "n_missing"):
        assert found[name] == whole[name]
    for name in ("held_us", "held_mj"):
        assert found[name] == pytest.approx(whole[name], abs=len(rows) + 1)
    if all(r.energy_j is not None for r in readings):
        assert found == close_to(whole, len(rows))
    # Whatever is not counted any more is alone: the time is never covered twice.
    seconds = {row.second for row in rows}
    covered = found["counted_us"] + found["alone_us"]
    assert covered <= 1_000_000 * len(seconds) + len(rows)


def test_a_late_reading_is_counted_and_holds_nothing():
    rows = rolled([reading(1.0, 100.0), reading(3.0, 50.0), reading(1.5, 900.0)], 3.0)
    assert totals(rows)["n"] == 3
    assert totals(rows)["held_mj"] == 200_000


@pytest.mark.parametrize("t_s", [math.nan, math.inf, -math.inf, 1e300])
def test_a_reading_at_no_time_is_refused(t_s):
    with pytest.raises(ValueError, match="t_s"):
        PowerRollup().add(reading(t_s, 1.0))


def test_a_reset_in_a_reading_that_has_a_counter_is_one():
    rows = rolled(
        [reading(0.0, 1.0, 5.0), reading(0.5, 1.0, 9.0, "CounterReset"), reading(0.9, 1.0, 10.0)],
        0.9,
    )
    found = totals(rows)
    assert (found["counted_us"], found["counted_mj"], found["n_breaks"]) == (400_000, 1000, 1)
    assert (found["alone_us"], found["alone_mj"]) == (500_000, 500)


def test_a_counter_that_was_away_for_long_fills_no_rows():
    rows = rolled([reading(0.0, 1.0, 5.0), reading(1e6, 1.0, 7.0)], 1e6)
    assert len(rows) < 10
    assert (totals(rows)["counted_mj"], totals(rows)["n_breaks"]) == (0, 1)
