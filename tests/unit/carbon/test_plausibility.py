import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.plausibility import (
    FORGET_S,
    MAX_G_PER_KWH,
    Doubt,
    doubt_by_itself,
    doubt_of,
    doubts_in,
)
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import read_trace

# Machines that are busy are slow.
timeless = settings(deadline=None)

HOUR_S, DAYS = 3600.0, 14


def calm(n_days=DAYS, seed=0):
    """A grid of gas and coal: 330 to 370 g/kWh over the day, and a little noise."""
    hours = np.arange(24 * n_days)
    noise = np.random.default_rng(seed).normal(0, 3, len(hours))
    return 350 + 20 * np.sin(2 * np.pi * hours / 24) + noise


def sunny(n_days=DAYS, seed=0):
    """A grid that halves within two hours of each morning, and doubles in each evening."""
    hours = np.arange(24 * n_days)
    is_day = (hours % 24 >= 9) & (hours % 24 < 18)
    noise = np.random.default_rng(seed).normal(0, 0.05, len(hours))
    return np.where(is_day, 110.0, 280.0) * np.exp(noise)


def last_of(values, g_per_kwh, missing=()):
    """What is said of a value that follows others, some of which are missing."""
    times_s = HOUR_S * np.arange(len(values))
    is_there = ~np.isin(np.arange(len(values)), missing)
    return doubt_of(HOUR_S * len(values), g_per_kwh, times_s[is_there], values[is_there])


@pytest.mark.parametrize(
    ("g_per_kwh", "doubt"),
    [
        (float("nan"), Doubt.NOT_FINITE),
        (float("inf"), Doubt.NOT_FINITE),
        (float("-inf"), Doubt.NOT_FINITE),
        (-1.0, Doubt.NEGATIVE),
        (0.0, Doubt.ZERO),
        (MAX_G_PER_KWH + 0.1, Doubt.ABOVE_ANY_GRID),
        (MAX_G_PER_KWH, None),
        (0.1, None),
    ],
)
def test_what_no_grid_emits(g_per_kwh, doubt):
    assert doubt_by_itself(g_per_kwh) is doubt
    assert last_of(np.zeros(0), g_per_kwh) is doubt


@pytest.mark.parametrize("g_per_kwh", [43.0, 47.0, 1500.0])
def test_a_value_beyond_the_last_weeks_in_one_jump_is_out_of_keeping(g_per_kwh):
    assert last_of(calm(), g_per_kwh) is Doubt.OUT_OF_KEEPING


def test_a_grid_that_swings_may_swing():
    for g_per_kwh in (74.0, 90.0, 400.0):
        assert last_of(sunny(), g_per_kwh) is None


def test_a_grid_may_leave_its_range_step_by_step():
    """Snow melts: within two days the intensity falls to a sixth, in hours of a tenth at most."""
    falling = 350 * np.exp(-np.arange(48) * 0.04)
    values = np.concatenate(
        [calm() * np.exp(np.random.default_rng(1).normal(0, 0.02, 336)), falling]
    )
    assert falling[-1] < 350 / 6
    assert doubts_in(Series(0.0, HOUR_S, values)) == {}


def test_without_a_past_nothing_is_out_of_keeping():
    assert last_of(calm(2), 43.0) is None
    # So many values, but of six hours only; and weeks, but of few values.
    for step_s, n in ((300.0, 72), (86400.0 / 3, 60)):
        times_s = step_s * np.arange(n)
        assert doubt_of(step_s * n, 43.0, times_s, np.full(n, 350.0)) is None
    assert last_of(calm(3), 43.0) is Doubt.OUT_OF_KEEPING


def test_a_season_that_has_passed_is_no_measure_any_more():
    """Four weeks after the last day of coal its intensity would be news again."""
    melting = 350 * np.exp(-np.arange(48) * 0.04)
    for n_days, doubt in ((21, None), (29, Doubt.OUT_OF_KEEPING)):
        values = np.concatenate([calm(7), melting, calm(n_days) / 7])
        assert last_of(values, 350.0) is doubt
        series = Series(0.0, HOUR_S, np.append(values, 350.0))
        assert doubts_in(series) == ({len(values): doubt} if doubt else {})


def test_a_past_that_holds_bad_rows_itself_does_not_excuse_others():
    values = calm()
    values[[100, 101, 200]] = 43.0, 0.0, np.nan
    values[-10:] = 0.0
    values[-20:-10] = 1e6
    assert last_of(values, 43.0) is Doubt.OUT_OF_KEEPING
    assert last_of(values, 340.0) is None


def test_a_block_of_bad_rows_is_not_believed_for_its_length():
    values = np.concatenate([calm(), [47.0, 47.0, 47.0, 45.0], calm(2)])
    assert doubts_in(Series(0.0, HOUR_S, values)) == dict.fromkeys(
        range(336, 340), Doubt.OUT_OF_KEEPING
    )


def test_a_level_that_is_held_for_a_day_is_believed_in_the_end():
    n_days = 3
    values = np.concatenate([calm(), calm(n_days) / 8])
    doubts = doubts_in(Series(0.0, HOUR_S, values))
    assert list(doubts) == list(range(336, 336 + int(FORGET_S / HOUR_S)))


def test_a_single_row_between_neighbours_that_agree_is_found_afterwards():
    values = calm()
    values[200] = values[199] * 1.3
    assert last_of(values[:200], values[200]) is None
    assert doubts_in(Series(0.0, HOUR_S, values)) == {200: Doubt.OUT_OF_KEEPING}
    values[201] = values[200]
    assert doubts_in(Series(0.0, HOUR_S, values)) == {}


def test_a_single_row_where_the_grid_moves_anyway_is_left_alone():
    values = sunny()
    values[9 + 24 * 7] = 60.0
    assert doubts_in(Series(0.0, HOUR_S, values)) == {}


def test_missing_values_are_not_doubted():
    values = calm()
    values[::7] = np.nan
    assert doubts_in(Series(0.0, HOUR_S, values)) == {}
    assert doubts_in(Series(0.0, HOUR_S, np.full(100, np.nan))) == {}
    assert doubts_in(Series(0.0, HOUR_S, np.zeros(0))) == {}


grids = st.builds(
    lambda maker, seed: maker(7, seed), st.sampled_from([calm, sunny]), st.integers(0, 999)
)


@given(grids, st.floats(0.01, MAX_G_PER_KWH), st.floats(0.2, 5))
@timeless
def test_only_relations_count(values, g_per_kwh, factor):
    """A grid of twice the intensity is judged alike, as long as no bound of all grids is hit."""
    if g_per_kwh * factor < MAX_G_PER_KWH:
        assert last_of(values, g_per_kwh) is last_of(values * factor, g_per_kwh * factor)


@given(grids, st.integers(0, 7 * 24 - 1))
@timeless
def test_a_value_that_the_past_has_seen_often_is_believed(values, number):
    low, high = np.quantile(values, [0.05, 0.95])
    assert last_of(values, float(np.clip(values[number], low, high))) is None


@given(grids, st.floats(1, 1000), st.integers(80, 160))
@timeless
def test_what_comes_later_changes_nothing_for_a_feed(values, g_per_kwh, number):
    times_s = HOUR_S * np.arange(len(values))
    now_s = HOUR_S * number
    before = doubt_of(now_s, g_per_kwh, times_s[:number], values[:number])
    assert doubt_of(now_s, g_per_kwh, times_s, values) is before


@given(grids, st.lists(st.tuples(st.integers(80, 160), st.floats(1, 3500)), max_size=6))
@timeless
def test_a_recording_is_judged_as_a_feed_would_be_value_by_value(values, faults):
    """The window that is carried along does not change what is found, but for lone rows."""
    for number, g_per_kwh in faults:
        values[number] = g_per_kwh
    times_s, believed, expected = HOUR_S * np.arange(len(values)), values.copy(), set()
    for number, g_per_kwh in enumerate(values):
        if doubt_of(HOUR_S * number, g_per_kwh, times_s[:number], believed[:number]):
            expected.add(number)
            believed[number] = np.nan
    found = set(doubts_in(Series(0.0, HOUR_S, values)))
    assert expected <= found
    for number in found - expected:
        departures = np.abs(np.log(values[number] / believed[[number - 1, number + 1]]))
        assert departures.min() > np.log(1.2)


RECORDED = {
    "CISO": set(),
    "NYIS": set(),
    "BPAT": set(),
    "PJM": {
        # Half of the nuclear power is missing for one hour.
        "2022-02-12T05",
        # Wind of 8,472 MW between 1,913 and 1,384: a row of another day.
        "2022-02-24T05",
        # 0.3 GW are reported, of a grid of 90.
        *(f"2022-10-01T{hour:02d}" for hour in range(5, 9)),
        "2022-10-02T04",
    },
}


@pytest.mark.parametrize("grid", RECORDED)
def test_recorded_years_lose_their_bad_rows_and_no_others(grid):
    folder = os.environ.get("ECORL_TRACES")
    if not folder:
        pytest.skip("ECORL_TRACES names no folder with recorded grid data")
    stated = read_trace(Path(folder) / f"{grid}_2022_hourly.csv").stated
    hours = np.datetime64("2022-01-01T00", "h") + np.arange(len(stated.values))
    assert {str(hours[number]) for number in doubts_in(stated)} == RECORDED[grid]
