"""What the times of recorded grid data mean: ends of intervals, pairs, and numbers for dates."""

import logging
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ecorl.carbon.feeds.local import ReplayFeed
from ecorl.carbon.pue import read_pue
from ecorl.carbon.traces.reading import read_trace
from ecorl.carbon.traces.stamps import Label, label_of
from ecorl.controllers.rules.prices import read_prices
from ecorl.errors import DataError
from tests.examples import examples
from tests.fakes.recordings import HOUR_S, NEW_YEAR_S, refused, whats, write

# Files are written anew for each example.
on_disk = settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

ENDS = """
    UTC Time at End of Hour|Local Time at End of Hour|Hour Ending|HourEnding|HE|period_end|PeriodEnd
    periodend|INTERVALENDTIME_GMT|GMTIntervalEnd|datetime_ending_utc|endTime|t_end|stop_time|until
    through|to|To (UTC)|valid_to|to_date|ToDate|bis|Datum bis|Zeit (bis)|Ende|Endzeit|Stundenende
    Zeitraumende|fin|Heure de fin|date_fin|jusqu'à|Jusqu'au|Fecha fin|hora_fin|hasta|alle|fine
    Data fine|Fino a|tot|Eind|einddatum|t/m|do|Data do|Godzina do|Koniec okresu|até|Fim|Hora fim
    til|Slut|Sluttid|sluttidspunkt|till|Loppuaika UTC|vége|până la|λήξη|έως|bitiş|до|конец периода
    終了日時|结束时间|종료시간|validto (UTC)|validto|dateto|timeto|datetimeto|periodto|hourto
    intervalto|horodatefin|HRENDING|HEending|5minending|quarterhourending|tsend|tstop|datafinal
"""
BEGINS = """
    time|Timestamp|Datetime (UTC)|date|calendar date|trend time|weekend|legend|blended time|GMT|when
    Date - Heure|Datum|Zeit|Fecha|Hora do dia|Data e ora|Datum von|von|from|start|period_start
    PeriodStart|INTERVALSTARTTIME_GMT|datetime_beginning_utc|time_converted_to_utc|Da|Od|Fra|Från
    Desde|début|Startzeit|Alkuaika UTC|開始日時|unix_time|valid_time|Tijd|Время|made_up_time
    a|Time (AU)|send_time|Shasta|validfrom (UTC)|today|Dato|data
"""
UNCLEAR = """
    period|Period (UTC)|interval|SETTLEMENTDATE|Settlement Period|MTU (UTC)|Zeitraum|Periodo
    von/bis|start - end|from_to
"""


def names(text):
    return [name.strip() for line in text.strip().splitlines() for name in line.split("|")]


def file_of(folder, header, cells, values, delimiter=","):
    rows = [f"{cell}{delimiter}{value}" for cell, value in zip(cells, values, strict=True)]
    return write(folder, "\n".join([header, *rows]))


def hours(n, start=datetime(2025, 6, 1, tzinfo=UTC), step_s=HOUR_S):
    return [start + timedelta(seconds=step_s * i) for i in range(n)]


def sun(moments):
    """A grid that is clean at noon, in UTC."""
    return [round(300 - 20 * max(0, 6 - abs(m.hour + m.minute / 60 - 12)), 3) for m in moments]


# --------------------------------------------------------------------------------- ends and begins


def test_names_say_what_their_times_are():
    assert {name for name in names(ENDS) if label_of(name) is not Label.END} == set()
    assert {name for name in names(BEGINS) if label_of(name) is not Label.BEGIN} == set()
    assert {name for name in names(UNCLEAR) if label_of(name) is not Label.UNCLEAR} == set()


@given(
    name=st.sampled_from(names(ENDS)),
    step_min=st.sampled_from([5, 15, 30, 60]),
    start=st.datetimes(datetime(2024, 1, 1), datetime(2025, 12, 1), timezones=st.just(UTC)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
@example("Datum bis", 15, datetime(2025, 3, 29, 23, tzinfo=UTC), "Europe/Berlin")
@example("Heure de fin", 30, datetime(2025, 10, 25, 23, tzinfo=UTC), "Europe/Paris")
@example("5minending", 5, datetime(2025, 6, 1, tzinfo=UTC), "UTC")
@example("Hour Ending", 60, datetime(2025, 11, 2, 4, tzinfo=UTC), "America/New_York")
@on_disk
def test_ends_of_intervals_give_the_series_of_their_begins(tmp_path, name, step_min, start, zone):
    step = timedelta(minutes=step_min)
    begins = hours(30, start.replace(second=0, microsecond=0), step.total_seconds())
    values = sun(begins)
    local = [moment.astimezone(ZoneInfo(zone)) for moment in begins]
    by_begin = read_trace(file_of(tmp_path, "time;g/kWh", local, values, ";"))
    ends = [(moment + step).astimezone(ZoneInfo(zone)) for moment in begins]
    by_end = read_trace(file_of(tmp_path, f"{name};g/kWh", ends, values, ";"))
    assert by_begin.series.start_s == by_end.series.start_s == begins[0].timestamp()
    assert by_begin.series.step_s == by_end.series.step_s
    assert by_begin.series.values.tolist() == by_end.series.values.tolist() == values
    what = f"the times are ends of intervals, and were moved back by a step of {60 * step_min} s"
    assert whats(by_begin) == []
    assert whats(by_end) == [(2, name, what)]


def test_a_replay_is_clean_in_the_hour_that_is_clean(tmp_path):
    """From recorded ends to what counts: at half past seven the value of the hour from seven on."""
    begins = hours(240)
    ends = [moment + timedelta(hours=1) for moment in begins]
    path = file_of(tmp_path, "UTC Time at End of Hour,gCO2/kWh", ends, sun(begins))
    trace = read_trace(path)
    feed = ReplayFeed(trace, trace.series.start_s, trace.series.start_s)
    told = [feed.read(begins[0].timestamp() + 3600 * h + 1800).g_per_kwh for h in (6, 7, 12, 13)]
    assert told == [300, 280, 180, 200]


def test_a_name_that_may_mean_both_is_refused(tmp_path):
    for name in names(UNCLEAR):
        path = file_of(tmp_path, f"{name},g/kWh", hours(48), sun(hours(48)))
        message = refused(path, "period_start", "period_end")
        assert message.startswith(f"{path}:1: column 1 = '{name}': ")


def test_gaps_and_order_do_not_change_by_how_far_ends_are_moved(tmp_path):
    ends = [moment for number, moment in enumerate(hours(48)) if number not in (7, 20, 21)]
    trace = read_trace(file_of(tmp_path, "bis,g/kWh", ends[::-1], sun(ends[::-1])))
    assert trace.series.start_s == hours(1)[0].timestamp() - HOUR_S
    assert np.flatnonzero(np.isnan(trace.series.values)).tolist() == [7, 20, 21]


def test_ends_of_the_hour_in_which_summer_time_ends_are_ambiguous(tmp_path):
    """In Finland from three to four: as ends both are four."""
    times = [f"2025-10-26 {h:02}:00" for h in (1, 2, 3, 4, 4, 5)]
    path = file_of(tmp_path, "Loppuaika,g/kWh", times, [100, 110, 120, 130, 130, 140])
    assert refused(path, "ambiguous", "summer time").startswith(f"{path}:6: ")


def test_the_hour_24_makes_ends_of_times(tmp_path):
    begins = hours(48)
    for form in ("{:%Y%m%d}{:02}", "{:%Y-%m-%d} {:02}:00", "{:%Y%m%d}{:02}00"):
        cells = [form.format(moment, moment.hour + 1) for moment in begins]
        trace = read_trace(file_of(tmp_path, "time (UTC),g/kWh", cells, sun(begins)))
        assert trace.series.start_s == begins[0].timestamp()
        assert trace.series.values.tolist() == sun(begins)
        assert any("moved back" in what for _, _, what in whats(trace))


# ------------------------------------------------------------------------------------------- pairs


@pytest.mark.parametrize(
    "header",
    [
        "from,to",
        "Datum von,Datum bis",
        "start,end",
        "Da,A",
        "De,À",
        "du,au",
        "validfrom (UTC),validto (UTC)",
        "od,do",
        "fra,til",
    ],
)
def test_pairs_count_by_their_begins(tmp_path, header):
    begins = hours(48, step_s=900)
    for short_s in (0, 1, 60):
        ends = [moment + timedelta(seconds=900 - short_s) for moment in begins]
        cells = [f"{begin},{end}" for begin, end in zip(begins, ends, strict=True)]
        trace = read_trace(file_of(tmp_path, f"{header},g/kWh", cells, sun(begins)))
        assert (trace.series.start_s, trace.series.step_s) == (begins[0].timestamp(), 900)
        assert trace.series.values.tolist() == sun(begins)
        assert trace.repairs == ()
    turned = [f"{end},{begin}" for begin, end in zip(begins, ends, strict=True)]
    header = "to,from,kgCO2/MWh"
    trace = read_trace(file_of(tmp_path, header, turned, sun(begins)))
    assert trace.series.start_s == begins[0].timestamp()


def test_pairs_that_do_not_fit_their_rows_are_refused(tmp_path, snapshot):
    begins = hours(48)
    cells = [f"{m},{m + timedelta(hours=1)}" for m in begins]
    lines = []
    for length_h in (-1, 0, 0.5, 2):
        cells[5] = f"{begins[5]},{begins[5] + timedelta(hours=length_h)}"
        lines.append(refused(file_of(tmp_path, "from,to,g/kWh", cells, sun(begins))))
    snapshot("\n".join(lines))


# ----------------------------------------------------------------------------------------- numbers

COMPACT = {"%Y%m%d%H": 60, "%Y%m%d%H%M": 5, "%Y%m%d%H%M%S": 15, "%Y%m%d": 24 * 60}
NAMES = dict(
    zip(COMPACT, ("YYYYMMDDHH", "YYYYMMDDHHMM", "YYYYMMDDHHMMSS", "YYYYMMDD"), strict=True)
)


@given(
    form=st.sampled_from(sorted(COMPACT)),
    start=st.datetimes(datetime(1970, 1, 2), datetime(2099, 1, 1), timezones=st.just(UTC)),
    n=st.integers(2, 60),
    has_header=st.booleans(),
    has_point=st.booleans(),
)
@example("%Y%m%d%H", datetime(2025, 6, 1, tzinfo=UTC), 24, True, False)
@on_disk
def test_compact_times_round_trip(tmp_path, form, start, n, has_header, has_point):
    """Also where their digits may be seconds or milliseconds since 1970."""
    start = start.replace(hour=0, minute=0, second=0, microsecond=0)
    moments = hours(n, start, 60 * COMPACT[form])
    cells = [f"{moment:{form}}{'.0' * has_point}" for moment in moments]
    header = "time (UTC),g/kWh\n" if has_header else ""
    rows = [f"{cell},{100 + i}" for i, cell in enumerate(cells)]
    trace = read_trace(write(tmp_path, header + "\n".join(rows)))
    assert (trace.series.start_s, trace.series.step_s) == (start.timestamp(), 60 * COMPACT[form])
    assert trace.series.values.tolist() == [100 + i for i in range(n)]
    what = f"the times are read as {NAMES[form]}, the first as {start:%Y-%m-%d %H:%M:%S}"
    assert what in [what for _, _, what in whats(trace)]


@given(
    power=st.sampled_from([0, 3, 6, 9]),
    start=st.datetimes(datetime(2003, 1, 1), datetime(2025, 12, 1), timezones=st.just(UTC)),
    step_s=st.sampled_from([300, 900, 3600]),
)
@on_disk
def test_numbers_since_1970_round_trip(tmp_path, power, start, step_s):
    start = start.replace(second=0, microsecond=0)
    moments = hours(300, start, step_s)
    cells = [str(int(moment.timestamp()) * 10**power) for moment in moments]
    for name, n_told in (("time", 1), ("unix_time", 0)):
        trace = read_trace(file_of(tmp_path, f"{name},g/kWh", cells, sun(moments)))
        assert (trace.series.start_s, trace.series.step_s) == (start.timestamp(), step_s)
        assert trace.series.values.tolist() == sun(moments)
        told = [what for _, _, what in whats(trace) if "since 1970, the first as" in what]
        assert len(told) == n_told


def test_one_wrong_digit_does_not_make_seconds_of_dates(tmp_path, snapshot):
    dates = [f"{moment:%Y%m%d%H}" for moment in hours(48)]
    seconds = [str(1748736000 + 3600 * n) for n in range(48)]
    seconds[5] += "000"
    lines = []
    for cells in (["2025063100", *dates[1:]], ["202506010000", *dates[1:]], seconds):
        lines.append(refused(file_of(tmp_path, "time,g/kWh", cells, sun(hours(48)))))
    snapshot("\n".join(lines))


def test_other_forms_are_refused_by_their_names(tmp_path, snapshot):
    moments, lines = hours(48), []
    for form in (
        "%d.%m.%Y %H:%M",
        "%m/%d/%Y %I:%M:%S %p",
        "%Y/%m/%d %H:%M",
        "%d.%m.%Y %H:%M - %d.%m.%Y 23:59",
        "%Y-%m-%dT%H:%MZ/%Y-%m-%dT23:59Z",
        "%Y%j",
        "%Y-%jT%H:%M",
        "45809.0417",
        "2460827.5",
        "1.74874E+09",
        "%H",
        "HE 7",
        "%Y%m%d1%H",
        "%Y-%m-%d 24:30",
    ):
        cells = [moment.strftime(form) for moment in moments]
        lines.append(refused(file_of(tmp_path, "time,g/kWh", cells, sun(moments))))
    snapshot("\n".join(lines))


# --------------------------------------------------------------------------------------- questions


def test_numbers_that_are_hardly_seconds_are_asked_about(tmp_path, snapshot):
    moments, lines = hours(48, datetime(2025, 6, 11, tzinfo=UTC)), []
    for form in ("%Y%j%H", "%y%m%d%H%M", "%m%d%Y%H", "%d%m%Y%H"):
        cells = [moment.strftime(form) for moment in moments]
        lines.append(refused(file_of(tmp_path, "time,g/kWh", cells, sun(moments))))
    snapshot("\n".join(lines))


def test_seconds_of_less_than_a_day_are_asked_about_unless_the_name_says_seconds(
    tmp_path, snapshot
):
    cells = [str(1748736000 + 3600 * n) for n in range(5)]
    snapshot(refused(file_of(tmp_path, "time,g/kWh", cells, sun(hours(5)))))
    trace = read_trace(file_of(tmp_path, "unix_time,g/kWh", cells, sun(hours(5))))
    assert (trace.series.start_s, trace.repairs) == (1748736000, ())
    # A whole day is one by its last hour.
    cells = [str(1748736000 + 3600 * n) for n in range(24)]
    assert len(read_trace(file_of(tmp_path, "time,g/kWh", cells, sun(hours(24)))).repairs) == 1


def test_dates_in_the_future_are_told_and_taken_at_their_word(tmp_path, snapshot):
    moments = hours(48, datetime(2090, 6, 1, tzinfo=UTC))
    trace = read_trace(file_of(tmp_path, "time,g/kWh", moments, sun(moments)))
    assert trace.series.start_s == moments[0].timestamp()
    ((_, _, what),) = whats(trace)
    snapshot(what)


def test_rows_of_less_than_a_minute_are_taken_at_their_word_where_no_guess_made_them(
    tmp_path, snapshot
):
    moments = hours(9000, step_s=30)
    seconds = [f"{moment.timestamp():.0f}" for moment in moments]
    values = [100 + n % 7 for n in range(9000)]
    lines = [refused(file_of(tmp_path, "time,g/kWh", seconds, values))]
    for name, cells in (("unix_time", seconds), ("time", moments)):
        trace = read_trace(file_of(tmp_path, f"{name},g/kWh", cells, values))
        assert (trace.series.start_s, trace.series.step_s) == (moments[0].timestamp(), 30)
        assert trace.series.values.tolist() == values
        lines += [what for _, _, what in whats(trace)]
    snapshot("\n".join(lines))


def test_begins_by_their_name_have_no_hour_24(tmp_path, snapshot):
    cells = [f"2025-06-01 {hour:02}:00" for hour in range(25)]
    snapshot(refused(file_of(tmp_path, "period_start (UTC),g/kWh", cells, sun(hours(25)))))


# --------------------------------------------------------------------------------- telling the user


def test_repairs_are_told_in_the_log(tmp_path, caplog, snapshot):
    path = file_of(tmp_path, "bis,g/kWh", hours(48), sun(hours(48)))
    with caplog.at_level(logging.WARNING):
        read_trace(path)
    snapshot("\n".join(caplog.messages), "one")
    caplog.clear()
    values = [value if n % 2 else "" for n, value in enumerate(sun(hours(48)))]
    with caplog.at_level(logging.WARNING):
        trace = read_trace(file_of(tmp_path, "bis,g/kWh", hours(48), values))
    assert len(caplog.messages) == 6
    assert f" {len(trace.repairs) - 5} " in caplog.messages[-1]
    snapshot("\n".join(caplog.messages), "many")


def test_prices_are_moved_as_intensities_are_and_a_pue_of_ends_is_refused(tmp_path):
    ends = "\n".join(f"{NEW_YEAR_S + 3600 * n:.0f},1.{n:02}" for n in range(1, 25))
    prices = read_prices(write(tmp_path, f"hour_ending_unix,usd\n{ends}"))
    assert (prices.start_s, prices.values[0]) == (NEW_YEAR_S, 1.01)
    with pytest.raises(DataError, match="column 1 = 'until': "):
        read_pue(write(tmp_path, "until,pue\n2025-01-01T00:00Z,1.2\n"))
    assert read_pue(write(tmp_path, "time,pue\n2025010100,1.2\n")) == [
        (datetime(2025, 1, 1, tzinfo=UTC).timestamp(), 1.2)
    ]
