"""The intensity over a run's time, and what the run's energy emitted."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.timeline import IntensityTimeline, PueTimeline, timelines
from ecorl.config import AccountingConfig
from ecorl.grid import AverageIntensity, Basis, Fuel, Gas, MarginalIntensity, Scope
from ecorl.ledger import AttemptRow, IntensityRow, PueRow
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


def timeline(*rows, attempts=(ATTEMPT,), ends_s=ENDS_S, pue=None, **kwargs):
    """With a PUE of 1 throughout where nothing else is said."""
    pue = pue or PueTimeline((), (), 1.0)
    return IntensityTimeline(rows, attempts, ends_s, pue, **kwargs)


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


PUES = st.lists(st.tuples(st.floats(10, 5000), st.none() | st.floats(1, 3)), max_size=4)


@given(STEPS, PUES, PIECES)
def test_sums_agree_with_a_walk_over_the_steps(steps, pues, pieces):
    """Grams of energy x intensity x PUE, cut where either changes."""
    rows, spans, t_s = [], [], 0.0
    for length_s, g_per_kwh in steps:
        given = None if g_per_kwh is None else value(t_s, length_s, g_per_kwh)
        rows.append(row(t_s, given))
        spans.append((t_s, t_s + length_s, g_per_kwh))
        t_s += length_s
    pue_spans, at_s = [(-1.0, 700.0, None)], 700.0
    pue_rows = []
    for length_s, ratio in pues:
        pue_rows.append(PueRow(1, BEGAN_S + at_s, ratio))
        pue_spans.append((at_s, at_s + length_s, ratio))
        at_s += length_s
    pue_spans[-1] = (pue_spans[-1][0], 1e9, pue_spans[-1][2])
    pue = PueTimeline(pue_rows, [ATTEMPT], None)
    line = timeline(*rows, ends_s={1: BEGAN_S + t_s}, pue=pue)
    parts = [(start, start + length, energy) for start, length, energy in pieces]
    found = emitted(line, *parts)
    grams = known_j = facility_j = 0.0
    for start, end, energy in parts:
        for low, high, g_per_kwh in spans:
            for from_s, to_s, ratio in pue_spans:
                both_s = min(end, high, to_s) - max(start, low, from_s)
                if both_s > 0 and g_per_kwh is not None and ratio is not None:
                    drawn_j = energy * both_s / (end - start)
                    grams += drawn_j * ratio * g_per_kwh / 3.6e6
                    known_j += drawn_j
                    facility_j += drawn_j * ratio
    # Seconds since 1970 have steps of a quarter of a microsecond.
    total_j = math.fsum(energy for _, _, energy in parts)
    assert (found.carbon_g or 0.0) == pytest.approx(grams, rel=1e-5, abs=1e-5)
    assert found.known_j == pytest.approx(known_j, rel=1e-5, abs=1e-3)
    assert found.facility_j == pytest.approx(facility_j, rel=1e-5, abs=1e-3)
    assert found.known_j + found.unknown_j == pytest.approx(total_j, rel=1e-9)


@given(PIECES, st.floats(0, 3000), st.floats(1, 3))
def test_constants_give_energy_times_constants(pieces, g_per_kwh, pue):
    """However the time is cut: at each half-hour of a feed that tells the same, and not at all."""
    same = [row(1800.0 * i, value(1800.0 * i, g_per_kwh=g_per_kwh)) for i in range(14)]
    stated = row(0, value(-1e6, 1e7, g_per_kwh))
    ratio = PueTimeline((), (), pue)
    lines = [timeline(*same, pue=ratio), timeline(stated, pue=ratio)]
    parts = [(start, start + length, energy) for start, length, energy in pieces]
    total_j = math.fsum(energy for _, _, energy in parts)
    for line in lines:
        found = emitted(line, *parts)
        assert found.carbon_g == pytest.approx(total_j / 3.6e6 * pue * g_per_kwh, rel=1e-9)
        assert found.unknown_j == 0.0


def test_energy_that_is_drawn_at_once_has_the_intensity_of_its_instant():
    line = timeline(row(0, value(0, 1800.0, 100.0)), row(1800, value(1800, 1800.0, 400.0)))
    assert emitted(line, (1800, 1800, 3.6e6)).carbon_g == pytest.approx(400.0)


# ---------------------------------------------------------------- power usage effectiveness


def test_the_pue_counts_from_each_of_its_times_on():
    rows = [PueRow(1, BEGAN_S - 50, 1.5), PueRow(1, BEGAN_S + 100, None),
            PueRow(1, BEGAN_S + 200, 1.1)]  # fmt: skip
    line = timeline(row(0, value(0, 1000.0, 100.0)), pue=PueTimeline(rows, [ATTEMPT], 1.2))
    found = emitted(line, (0, 300, 3.6e6 * 3))
    # 100 s at 1.5, 100 s without one, 100 s at 1.1; each a kilowatt-hour.
    assert found.carbon_g == pytest.approx(150.0 + 110.0, rel=1e-9)
    assert (found.known_j, found.unknown_j) == pytest.approx((7.2e6, 3.6e6), rel=1e-9)
    assert found.facility_j == pytest.approx(3.6e6 * 2.6, rel=1e-9)
    start_s, end_s = np.array([BEGAN_S]), np.array([BEGAN_S + 300])
    assert line.pue_times_s(start_s, end_s) == pytest.approx({1.5: 100.0, None: 100.0, 1.1: 100.0})


def test_each_attempt_has_the_pue_that_it_recorded():
    attempts = [ATTEMPT, AttemptRow(2, 0, BEGAN_S + 1000, 0.0, 2, 2.0),
                AttemptRow(3, 0, BEGAN_S + 2000, 0.0, 2, 2.0)]  # fmt: skip
    rows = [PueRow(1, BEGAN_S, 1.1), PueRow(1, BEGAN_S + 1500, 1.9),
            PueRow(3, BEGAN_S, 1.3), PueRow(3, BEGAN_S + 2500, 1.4)]  # fmt: skip
    pue = PueTimeline(rows, attempts, 1.2)
    times_s = BEGAN_S + np.array([-1.0, 0, 999, 1000, 1600, 2000, 2499, 2500])
    found = [None if math.isnan(v) else v for v in pue.at(times_s)]
    assert found == [None, 1.1, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4]


# ---------------------------------------------------------------- what counted


def test_energy_counts_by_the_mix_of_its_time():
    mixed = replace(value(0, 100.0), mix={Fuel.WIND: 0.25, Fuel.GAS: 0.75})
    line = timeline(row(0, mixed), row(100, value(100, 100.0)))
    found = emitted(line, (0, 200, 80.0))
    assert (found.mixed_j, found.renewable_j) == pytest.approx((40.0, 10.0))


def test_times_by_value_add_up():
    line = timeline(row(0, value(0, 100.0)), row(100, None), row(150, value(150, 50.0)),
                    ends_s={1: BEGAN_S + 200})  # fmt: skip
    start_s, end_s = BEGAN_S + np.array([0.0, 120.0]), BEGAN_S + np.array([110.0, 240.0])
    assert line.times_s(start_s, end_s).tolist() == pytest.approx([100.0, 50.0, 10 + 30 + 40])


def test_values_of_several_feeds_are_told_by_their_own_names():
    other = replace(value(1800, g_per_kwh=7.0), feed="g")
    line = timeline(row(0, value(0)), row(1800, other))
    assert {v.feed for v in line.values} == {"f", "g"}
    assert line.at(BEGAN_S + 1801) == other


# ---------------------------------------------------------------- of a record


def record(attempts=(ATTEMPT,), rows=(), pues=(), length_s=1e4):
    """What a reader tells, in short."""
    return SimpleNamespace(
        attempts=lambda: list(attempts),
        last_times=lambda: {a.attempt: a.monotonic_anchor_s + length_s for a in attempts},
        intensities=lambda: list(rows),
        pues=lambda: list(pues),
    )


CONSTANTS = AccountingConfig(pue=1.5, intensity_g_per_kwh=200.0, source="mine")


def test_without_a_config_and_without_rows_nothing_is_known():
    assert emitted(timelines(record(), None).average, (0, 1, 36.0)).carbon_g is None


def test_without_a_config_the_pue_is_unknown():
    found = timelines(record(rows=[row(0, value(0))]), None).average
    assert found.at(BEGAN_S).g_per_kwh == 100.0
    assert emitted(found, (0, 1, 36.0)).carbon_g is None


def test_a_record_with_rows_goes_by_them_alone():
    found = timelines(record(rows=[row(100, value(100))]), CONSTANTS).average
    assert emitted(found, (0, 100, 36.0)).carbon_g is None
    assert emitted(found, (100, 200, 3.6e6)).carbon_g == pytest.approx(150.0)


def test_an_attempt_without_a_row_has_no_intensity():
    """Killed before its feeds had answered, and gone on with."""
    again = AttemptRow(2, 3, BEGAN_S + 50_000, 9.0, 2, 2.0)
    rows = [IntensityRow(2, 9.0 + 60, AverageIntensity, value(50_060))]
    line = timelines(record([ATTEMPT, again], rows), CONSTANTS).average
    assert [at(line, t) for t in (0, 49_999, 50_000, 50_060)] == [None, None, None, 100.0]


def test_marginal_values_stand_apart_from_averages():
    marginal = MarginalIntensity("m", BEGAN_S, 1800.0, 900.0, Gas.CO2, Basis.LOCATION,
                                 Scope.DIRECT, "its own", True, BEGAN_S,
                                 Provenance.PUBLISHED)  # fmt: skip
    rows = [row(0, value(0)), IntensityRow(1, 500.0, MarginalIntensity, marginal)]
    found = timelines(record(rows=rows), CONSTANTS)
    grams = [emitted(one, (0, 10, 3.6e6)).carbon_g for one in (found.average, found.marginal)]
    assert grams == pytest.approx([150.0, 1350.0])
