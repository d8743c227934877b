"""The intensity over a run's time, and what the run's energy emitted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.timeline import IntensityTimeline
from ecorl.grid import AverageIntensity, Basis, Gas, Scope
from ecorl.ledger import AttemptRow, IntensityRow
from ecorl.records import Provenance

BEGAN_S = 1_700_000_000.0
ATTEMPT = AttemptRow(1, 0, BEGAN_S, 500.0, 1, 2.0)
ENDS_S = {1: BEGAN_S + 1e5}


def value(start_s, length_s=1800.0, g_per_kwh=100.0, fetched_s=None):
    """Of an interval that begins so many seconds after the run."""
    fetched_s = start_s if fetched_s is None else fetched_s
    return AverageIntensity(
        "f", BEGAN_S + start_s, length_s, g_per_kwh, Gas.CO2E, Basis.LOCATION, Scope.LIFE_CYCLE,
        "its own", None, BEGAN_S + fetched_s, Provenance.PUBLISHED,
    )  # fmt: skip


def row(heard_s, given, attempt=1):
    return IntensityRow(attempt, 500.0 + heard_s, AverageIntensity, given)


def timeline(*rows, attempts=(ATTEMPT,), ends_s=ENDS_S):
    return IntensityTimeline(rows, attempts, ends_s)


def at(line, t_s):
    found = line.at(BEGAN_S + t_s)
    return None if found is None else found.g_per_kwh


def emitted(line, *parts):
    """Of (begin, end, joules), in seconds after the run's begin."""
    start_s, end_s, energy_j = np.array(parts, np.float64).T
    return line.emitted(BEGAN_S + start_s, BEGAN_S + end_s, energy_j)


def test_a_value_holds_for_its_interval_also_before_it_was_heard():
    line = timeline(row(10, value(-600, g_per_kwh=50.0)), row(1300, value(1200, g_per_kwh=80.0)))
    assert [at(line, t) for t in (-601, -600, 0, 1199, 1200, 1250, 2999)] == [
        None, 50.0, 50.0, 50.0, 80.0, 80.0, 80.0,
    ]  # fmt: skip


def test_a_late_feed_counts_until_the_run_says_otherwise():
    line = timeline(row(0, value(0, 1800.0, 50.0)), row(4000, None), row(9000, value(9000)))
    assert [at(line, t) for t in (1799, 1800, 3999, 4000, 8999, 9000)] == [
        50.0, 50.0, 50.0, None, None, 100.0,
    ]  # fmt: skip


def test_what_is_told_later_of_an_interval_counts():
    first, corrected = value(0, fetched_s=10), value(0, g_per_kwh=70.0, fetched_s=900)
    assert at(timeline(row(10, first), row(900, corrected)), 5) == 70.0


def test_each_attempt_has_its_own_clock():
    again = AttemptRow(2, 3, BEGAN_S + 50_000, 9.0, 2, 2.0)
    rows = (row(0, value(0)), IntensityRow(2, 9.0, AverageIntensity, value(50_000, 60.0, 30.0)))
    line = timeline(*rows, attempts=(ATTEMPT, again), ends_s={1: BEGAN_S + 5000, 2: BEGAN_S + 6e4})
    assert [at(line, t) for t in (4999, 5000, 49_999, 50_000, 59_999, 60_000)] == [
        100.0, None, None, 30.0, 30.0, None,
    ]  # fmt: skip


def test_nothing_is_known_without_a_row():
    line = timeline()
    assert at(line, 0) is None
    found = emitted(line, (0, 1, 36.0))
    assert (found.carbon_g, found.known_j, found.unknown_j) == (None, 0.0, 36.0)


def test_emissions_are_the_integral_of_power_times_intensity():
    line = timeline(row(0, value(0, 1800.0, 100.0)), row(1800, value(1800, 1800.0, 400.0)))
    # 3.6 MJ are a kilowatt-hour.
    whole = emitted(line, (0, 1800, 3.6e6), (1800, 3600, 3.6e6))
    assert whole.carbon_g == pytest.approx(500.0, rel=1e-12)
    across = emitted(line, (900, 2700, 3.6e6))
    assert across.carbon_g == pytest.approx(250.0, rel=1e-12)
    assert across.unknown_j == 0.0


def test_energy_under_an_unknown_intensity_is_told_apart():
    line = timeline(row(0, value(0, 1000.0, 100.0)), row(1000, None))
    found = emitted(line, (0, 2000, 7.2e6))
    assert found.carbon_g == pytest.approx(100.0, rel=1e-12)
    assert (found.known_j, found.unknown_j) == pytest.approx((3.6e6, 3.6e6), rel=1e-12)


STEPS = st.lists(
    st.tuples(st.floats(60, 4000), st.none() | st.floats(1, 1500)), min_size=1, max_size=8
)
PIECES = st.lists(
    st.tuples(st.floats(0, 20_000), st.floats(0.5, 3000), st.floats(0, 1e6)), min_size=1
)


@given(STEPS, PIECES)
def test_sums_agree_with_a_walk_over_the_steps(steps, pieces):
    rows, spans, t_s = [], [], 0.0
    for length_s, g_per_kwh in steps:
        given = None if g_per_kwh is None else value(t_s, length_s, g_per_kwh)
        rows.append(row(t_s, given))
        spans.append((t_s, t_s + length_s, g_per_kwh))
        t_s += length_s
    line = timeline(*rows, ends_s={1: BEGAN_S + t_s})
    parts = [(start, start + length, energy) for start, length, energy in pieces]
    found = emitted(line, *parts)
    grams = known_j = 0.0
    for start, end, energy in parts:
        for low, high, g_per_kwh in spans:
            share = max(0.0, min(end, high) - max(start, low)) / (end - start)
            if g_per_kwh is not None:
                grams += energy * share * g_per_kwh / 3.6e6
                known_j += energy * share
    # Seconds since 1970 have steps of a quarter of a microsecond.
    total_j = math.fsum(energy for _, _, energy in parts)
    assert (found.carbon_g or 0.0) == pytest.approx(grams, rel=1e-5, abs=1e-5)
    assert found.known_j == pytest.approx(known_j, rel=1e-5, abs=1e-3)
    assert found.known_j + found.unknown_j == pytest.approx(total_j, rel=1e-9)


def test_values_of_several_feeds_are_told_by_their_own_names():
    other = replace(value(1800, g_per_kwh=7.0), feed="g")
    line = timeline(row(0, value(0)), row(1800, other))
    assert {v.feed for v in line.values} == {"f", "g"}
    assert line.at(BEGAN_S + 1801) == other
