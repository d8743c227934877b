"""Times in words, rows of a forecast, and what a terminal of 80 columns shows."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.cli.carbon.forecast import rows_of_hours, show_forecast
from ecorl.cli.carbon.now import ask_grid, show_now
from ecorl.cli.carbon.times import length, moment, paragraph, span, zone_name
from ecorl.config import parse_config
from tests.fakes.grid_answers import NOON_S, NOW_S

HOUR_S = 3600.0


@pytest.fixture
def zone(monkeypatch):
    def use(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (45, "45 s"), (60, "1 min"), (3600, "1 h"), (15_600, "4 h 20 min"),
     (86_400, "24 h"), (172_800, "2 d"), (180_060, "2 d 2 h 1 min")],
)  # fmt: skip
def test_lengths_of_time(seconds, text):
    assert length(seconds) == text


def test_times_in_utc_are_told_once(zone):
    zone("UTC")
    assert zone_name(NOW_S) == "UTC"
    assert moment(NOON_S + 30 * HOUR_S, NOW_S) == "tomorrow 18:00 (UTC)"
    assert span(NOON_S, NOON_S + HOUR_S, NOW_S) == "today 12:00 to 13:00 (UTC)"
    assert span(NOON_S, NOON_S + 60, NOW_S) == "today 12:00:00 to 12:01:00 (UTC)"
    far = span(NOON_S + 11 * HOUR_S, NOON_S + 65 * HOUR_S, NOW_S)
    assert far == "today 23:00 to Sun 18 Jan 05:00 (UTC)"
    assert moment(NOON_S - 400 * 24 * HOUR_S, NOW_S) == "11 Dec 2024 12:00 (UTC)"


def test_other_zones_are_told_beside_utc(zone):
    zone("Asia/Kolkata")
    assert zone_name(NOW_S) == "UTC+05:30"
    told = span(NOON_S + 6 * HOUR_S, NOON_S + 7 * HOUR_S, NOW_S)
    assert told == "today 23:30 to tomorrow 00:30 (UTC+05:30), today 18:00 to 19:00 UTC"


def forecast(n, step_s, start_s=NOON_S):
    middle = np.arange(n, dtype=np.float64)
    return Forecast("made up", NOW_S, start_s, step_s, middle, middle - 1, middle + 1)


def test_rows_are_hours_of_the_clock():
    found = forecast(60, 1800.0, NOON_S + 1800)
    rows = rows_of_hours(found, None, 4.0, 48)
    assert [row.middle_g_per_kwh for row in rows[:3]] == [0.0, 1.5, 3.5]
    assert [(row.start_s - NOON_S) / HOUR_S for row in rows[:3]] == [0.5, 1, 2]
    assert (rows[1].low_g_per_kwh, rows[1].high_g_per_kwh) == (0.5, 2.5)
    assert [row.is_clean for row in rows[:4]] == [True, True, True, False]
    assert len(rows) == 31
    assert rows[-1].end_s == NOON_S + 30.5 * HOUR_S
    assert rows[0].renewable_share is None


def test_rows_of_a_forecast_off_the_clock_begin_with_it():
    rows = rows_of_hours(forecast(24, HOUR_S, NOON_S + 7.5), None, None, 5)
    assert [row.start_s for row in rows] == [NOON_S + 7.5 + i * HOUR_S for i in range(5)]
    assert {row.is_clean for row in rows} == {None}


def test_a_missing_hour_stays_missing():
    found = forecast(48, HOUR_S)
    found.middle[1] = np.nan
    rows = rows_of_hours(found, None, 10.0, 3)
    assert [row.middle_g_per_kwh for row in rows] == [0.0, None, 2.0]
    assert rows[1].is_clean is None


SYNTHETIC = """
[carbon]
threshold_g_per_kwh = 250.0
[[carbon.feeds]]
type = "synthetic"
"""


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("text", [SYNTHETIC, ""])
def test_no_line_is_wider_than_the_terminal(zone, width, name, text):
    zone(name)
    grid = ask_grid(parse_config(text, "test"), looks_ahead=True)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    show_now(grid, console)
    show_forecast(grid, 48, console)
    assert all(len(line) <= width for line in out.getvalue().splitlines())
    if width >= 80:
        assert sum("█" in line for line in out.getvalue().splitlines()) == (48 if text else 0)


def test_the_renewable_share_has_a_column_where_it_is_known(zone):
    zone("UTC")
    grid = ask_grid(parse_config(SYNTHETIC, "test"), looks_ahead=True)
    known = grid.outlook.forecast
    share = Forecast("made up", NOW_S, known.start_s, 4 * HOUR_S, np.full(4, 0.42))
    out = io.StringIO()
    show_forecast(replace(grid, renewable=share), 24, Console(file=out, width=80))
    assert "made up" in out.getvalue()
    assert out.getvalue().count("42 %") == 4
    assert re.search(r"^from .* renewable +clean$", out.getvalue(), re.M)


def test_off_a_terminal_each_fact_is_one_line_without_bars(zone):
    zone("UTC")
    grid = ask_grid(parse_config(SYNTHETIC, "test"), looks_ahead=True)
    out = io.StringIO()
    show_forecast(grid, 24, Console(file=out, width=40))
    assert "█" not in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\u00a0" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 1 + 1 + 25 + 1 + 1


def test_a_number_and_its_unit_stay_on_one_line():
    out = io.StringIO()
    console = Console(file=out, width=20, force_terminal=True, color_system=None)
    paragraph("It will be so for 21 h, they say: 43.6 %.", console)
    assert out.getvalue() == "It will be so for\n21 h, they say:\n43.6 %.\n"
