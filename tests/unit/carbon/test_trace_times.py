"""Times of recorded grid data: offsets, summer time, order, doubles, gaps and steps."""

import math
from datetime import timedelta, timezone
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.carbon.traces.reading import read_trace
from tests.fakes.recordings import HOUR_S, NEW_YEAR_S, hour, refused, two, whats, write

# Files are written anew for each example.
on_disk = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.lists(st.integers(-26, 28), min_size=24, max_size=24))
@on_disk
def test_offsets_are_honoured(tmp_path, half_hours):
    """Each row may have an offset of its own, as in a file of local time with its offsets."""
    rows = [
        f"{hour(n, timezone(timedelta(minutes=30 * o)))},{100 + n}"
        for n, o in enumerate(half_hours)
    ]
    trace = read_trace(write(tmp_path, "\n".join(["time,g_per_kwh", *rows])))
    assert trace.series.start_s == NEW_YEAR_S
    assert trace.series.values.tolist() == [100 + n for n in range(24)]
    assert trace.repairs == ()


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("time", ("2022-01-01T00:00:00Z", "2022-01-01T01:00Z")),
        ("time", ("2022-01-01 00:00:00.000+00:00", "2021-12-31 20:00:00-05:00")),
        ("time", ("20220101T0000Z", "20220101T01Z")),
        ("unix_time", ("1640995200", "1640998800.0")),
        ("Epoch (ms)", ("1640995200000", "1640998800000")),
    ],
)
def test_forms_of_times(tmp_path, name, times):
    trace = read_trace(write(tmp_path, f"{name},g_per_kwh\n{times[0]},100\n{times[1]},200\n"))
    assert (trace.series.start_s, trace.series.step_s) == (NEW_YEAR_S, HOUR_S)
    assert trace.repairs == ()


def test_what_is_no_time_is_refused(tmp_path, snapshot):
    lines = []
    for time in ("", "yesterday", "01/02/2022 00:00", "2022-02-30", "1640998800000"):
        path = write(tmp_path, f"time,g_per_kwh\n2022-01-01 00:00Z,1\n{time},1\n")
        lines.append(refused(path))
    snapshot("\n".join(lines))


def test_times_without_an_offset_are_utc_and_told(tmp_path, snapshot):
    text = "{},g_per_kwh\n2022-01-01 00:00,100\n2022-01-01 01:00,200\n"
    trace = read_trace(write(tmp_path, text.format("time")))
    assert trace.series.start_s == NEW_YEAR_S
    ((line, column, what),) = whats(trace)
    assert (line, column) == (2, "time")
    snapshot(what)
    for name in ("time (UTC)", "time_utc", "GMT"):
        assert read_trace(write(tmp_path, text.format(name))).repairs == ()


def test_times_with_and_without_an_offset_do_not_mix(tmp_path, snapshot):
    path = write(tmp_path, "time,g_per_kwh\n2022-01-01 00:00,1\n2022-01-01 01:00Z,1\n")
    snapshot(refused(path))


SPRING = ["2022-03-27 00:00", "2022-03-27 01:00", "2022-03-27 03:00", "2022-03-27 04:00"]
AUTUMN = ["2022-10-30 01:00", "2022-10-30 02:00", "2022-10-30 02:00", "2022-10-30 03:00"]


def local(times, name="time", values=(100, 110, 120, 130)):
    return "\n".join(
        [f"{name},g_per_kwh", *(f"{t},{v}" for t, v in zip(times, values, strict=True))]
    )


def test_summer_time_without_offsets_is_ambiguous(tmp_path, snapshot):
    doubled = local(AUTUMN, values=(100, 110, 110, 120))
    texts = (local(SPRING), local(AUTUMN), doubled)
    snapshot("\n".join(refused(write(tmp_path, text)) for text in texts))


def test_summer_time_with_offsets_is_not(tmp_path):
    for times, offsets in (
        (SPRING, ("+01:00", "+01:00", "+02:00", "+02:00")),
        (AUTUMN, ("+02:00", "+02:00", "+01:00", "+01:00")),
    ):
        full = [time + offset for time, offset in zip(times, offsets, strict=True)]
        trace = read_trace(write(tmp_path, local(full)))
        assert trace.series.values.tolist() == [100, 110, 120, 130]
        assert trace.repairs == ()


def test_a_missing_hour_is_a_gap_where_no_clock_is_changed(tmp_path):
    """In UTC, on another day, or for longer than an hour."""
    utc = read_trace(write(tmp_path, local(SPRING, "time (UTC)")))
    monday = read_trace(write(tmp_path, local([t.replace("27", "28") for t in SPRING])))
    long = [*SPRING[:2], "2022-03-27 04:00", "2022-03-27 05:00"]
    for trace, n in ((utc, 1), (monday, 1), (read_trace(write(tmp_path, local(long))), 2)):
        assert np.isnan(trace.series.values).sum() == n
        assert any("not there" in what for _, _, what in whats(trace))


# ---------------------------------------------------------------------- order, doubles, gaps, steps


@given(st.lists(st.floats(10, 2000), min_size=2, max_size=30), st.randoms())
@on_disk
def test_the_order_of_rows_changes_nothing_but_is_told(tmp_path, values, chance):
    numbers = list(range(len(values)))
    chance.shuffle(numbers)
    trace = read_trace(write(tmp_path, two([values[n] for n in numbers], numbers=numbers)))
    assert trace.series.values.tolist() == values
    backwards = [i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1]]
    assert [line for line, _, _ in whats(trace)] == [i + 2 for i in backwards[:1]]
    assert all("were sorted" in what for _, _, what in whats(trace))


@given(st.lists(st.floats(10, 2000), min_size=6, max_size=30), st.data())
@on_disk
def test_gaps_become_missing_and_are_told(tmp_path, values, data):
    inside = st.sets(st.integers(1, len(values) - 2), max_size=len(values) // 2 - 1)
    gone = data.draw(inside)
    kept = [n for n in range(len(values)) if n not in gone]
    # The usual step must still be the usual one.
    if sum(b - a == 1 for a, b in pairwise(kept)) * 2 < len(kept):
        return
    trace = read_trace(write(tmp_path, two([values[n] for n in kept], numbers=kept)))
    assert [n for n, v in enumerate(trace.series.values) if math.isnan(v)] == sorted(gone)
    assert trace.series.end_s == NEW_YEAR_S + len(values) * HOUR_S
    ends = [i for i in range(1, len(kept)) if kept[i] - kept[i - 1] > 1]
    assert [line for line, _, _ in whats(trace)] == [i + 2 for i in ends]


def test_a_row_that_is_there_twice_is_dropped(tmp_path, snapshot):
    trace = read_trace(write(tmp_path, two([100, 200, 200, 300], numbers=[0, 1, 1, 2])))
    assert trace.series.values.tolist() == [100, 200, 300]
    ((line, column, what),) = whats(trace)
    assert (line, column) == (4, "time")
    snapshot(what)


def test_a_row_without_a_value_says_nothing_against_another(tmp_path):
    trace = read_trace(write(tmp_path, two([100, "", 200, 200, ""], numbers=[0, 1, 1, 1, 2])))
    assert trace.series.values.tolist() == pytest.approx([100, 200, math.nan], nan_ok=True)
    assert [line for line, _, what in whats(trace) if "dropped" in what] == [3, 5]


def test_rows_that_contradict_each_other_are_refused(tmp_path, snapshot):
    line = refused(write(tmp_path, two([100, 200, 300, 201], numbers=[0, 1, 2, 1])))
    mix = f"timestamp,WND,NG\n{hour(0)},1,1\n{hour(1)},1,1\n{hour(1)},2,2\n"
    snapshot(f"{line}\n{refused(write(tmp_path, mix))}")


def test_steps_that_do_not_fit_are_refused(tmp_path, snapshot):
    """Nor does a slow drift of the clock, and a wrong year is no gap."""
    times = [NEW_YEAR_S + n * 3600 + (n // 3) * 2.5 for n in range(12)]
    texts = (
        two([100] * 6, numbers=[0, 1, 2, 3.5, 4.5, 5.5]),
        "\n".join(["unix_time,g_per_kwh", *(f"{t},100" for t in times)]),
        two([100] * 4, numbers=[0, 1, 2, 24 * 365 * 80]),
    )
    snapshot("\n".join(refused(write(tmp_path, text)) for text in texts))
