"""Arithmetic on readings whose truth is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.sensing.traces import (
    TracePoint,
    changes,
    counted_energy,
    deviations,
    held_energy,
    quantile,
    refresh_intervals,
    refresh_period,
    step_response,
    trapezoid_integral,
    value_at,
)


def points(function, end_s, step_s):
    return [TracePoint(i * step_s, function(i * step_s)) for i in range(round(end_s / step_s) + 1)]


@given(st.floats(0.05, 3.9), st.floats(0.05, 3.9), st.floats(-50, 50), st.floats(1, 700))
def test_a_straight_line_is_integrated_exactly(a_s, b_s, slope, base_w):
    start_s, end_s = sorted((a_s, b_s))
    line = points(lambda t: base_w + slope * t, 4.0, 0.1)
    true_j = base_w * (end_s - start_s) + slope * (end_s**2 - start_s**2) / 2
    assert trapezoid_integral(line, start_s, end_s) == pytest.approx(true_j, abs=1e-6)


def test_nothing_is_extrapolated():
    line = points(lambda t: 100.0, 1.0, 0.1)
    assert trapezoid_integral(line, -0.1, 0.5) is None
    assert trapezoid_integral(line, 0.5, 1.1) is None
    assert trapezoid_integral([], 0.0, 1.0) is None
    assert value_at(line, 1.1) is None
    assert value_at([TracePoint(1.0, 7.0)], 1.0) == 7.0
    assert held_energy(line, 0.5, 2.5, hold_s=1.0) is None
    assert held_energy(line, 0.25, 0.75) == pytest.approx(50.0)


def counter(power_w, refresh_s, poll_s, end_s):
    """A counter that stands still between refreshes, read more often."""
    return points(lambda t: power_w * refresh_s * math.floor(t / refresh_s + 1e-9), end_s, poll_s)


def test_a_counter_is_taken_between_its_refreshes():
    readings = counter(500.0, 0.1, 0.01, 3.0)
    assert counted_energy(readings, 0.52, 1.57) == pytest.approx(525.0, rel=1e-6)
    # Before its first refresh and after its last nothing is known.
    assert counted_energy(readings, 0.05, 1.0) is None
    assert counted_energy(readings, 1.0, 3.05) is None


def test_a_counter_that_fell_has_no_rise():
    readings = counter(500.0, 0.1, 0.01, 1.0)
    later = [TracePoint(p.t_s + 1.0, p.value) for p in counter(500.0, 0.1, 0.01, 1.0)]
    assert counted_energy([*readings, *later], 0.5, 1.5) is None


@pytest.mark.parametrize("period_s", [0.02, 0.1, 0.13])
def test_the_period_of_an_instrument_is_found(period_s):
    readings = points(lambda t: float(math.floor(t / period_s) % 97), 10.0, 0.003)
    assert refresh_period(readings) == pytest.approx(period_s, rel=0.005)
    assert all(abs(i - period_s) < 0.007 for i in refresh_intervals(readings))


def test_a_missed_change_is_two_periods():
    readings = [TracePoint(0.1 * i, float(i if i != 50 else 49)) for i in range(100)]
    assert max(refresh_intervals(readings)) == pytest.approx(0.2)
    assert refresh_period(readings) == pytest.approx(0.1)
    assert refresh_period(readings[:3]) is None
    assert changes([TracePoint(0.0, 1.0), TracePoint(0.1, 1.0)]) == []


def test_delay_and_rise_of_a_slow_instrument():
    # Off until 2 s; then a second's average that comes 0.1 s late.
    readings = points(lambda t: 100.0 + 500.0 * min(1.0, max(0.0, t - 2.1)), 5.0, 0.01)
    found = step_response(readings, 1.0, 2.0, 5.0)
    assert found.delay_s == pytest.approx(0.2, abs=0.011)
    assert found.rise_s == pytest.approx(0.8, abs=0.011)


def test_no_step_is_no_answer():
    flat = points(lambda t: 100.0, 5.0, 0.01)
    assert step_response(flat, 1.0, 2.0, 5.0) is None
    assert step_response([], 1.0, 2.0, 5.0) is None


def test_deviations_and_quantiles():
    assert deviations([90.0, 110.0]) == pytest.approx([-0.1, 0.1])
    values = list(range(1, 101))
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50, 99, 100)
    assert quantile([7.0], 0.0) == 7.0
