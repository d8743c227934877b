import math
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.carbon.traces.reading import read_trace
from ecorl.grid import Fuel, Gas, Scope
from tests.fakes.recordings import HOUR_S, NEW_YEAR_S, hour, refused, two, weeks, whats, write

EIA = "timestamp,WND,SUN,WAT,OIL,NG,COL,NUC,OTH,avg_CI"
EM = (
    "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),"
    "Carbon intensity gCO₂eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),"
    "Renewable energy percentage (RE%),Data source,Data estimated,Data estimation method"
)
OLD_EM = (
    "Datetime (UTC),Country,Zone Name,Zone Id,Carbon Intensity gCO₂eq/kWh (direct),"
    "Carbon Intensity gCO₂eq/kWh (LCA),Low Carbon Percentage,Renewable Percentage,"
    "Data Source,Data Estimated,Data Estimation Method"
)

# Files are written anew for each example.
on_disk = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# --------------------------------------------------------------------------------------- EIA-930


def test_eia930_is_computed_from_its_mix(tmp_path):
    rows = f"{hour(0)},100,0,200,0,300,400,0,0,500\n{hour(1)},0,0,0,10,0,0,0,90,272\n"
    path = write(tmp_path, f"{EIA}\n{rows}")
    trace = read_trace(path)
    assert trace.series.values.tolist() == pytest.approx([480.9, 272.0])
    assert (trace.series.start_s, trace.series.step_s) == (NEW_YEAR_S, HOUR_S)
    assert (trace.name, trace.path) == ("X", path)
    assert (trace.scope, trace.gas) == (Scope.LIFE_CYCLE, Gas.CO2E)
    assert "AR5" in trace.factors
    assert trace.mix[Fuel.COAL].tolist() == [0.4, 0.0]
    assert trace.renewable.values.tolist() == pytest.approx([0.3, 0.0])
    assert trace.generation_mw.values.tolist() == [1000, 100]
    assert trace.stated.values.tolist() == [500, 272]
    assert (trace.estimated, trace.repairs) == (None, ())


@pytest.mark.parametrize(
    ("column", "fuel", "factor"),
    [
        ("WND", Fuel.WIND, 11), ("SUN", Fuel.SOLAR, 41), ("WAT", Fuel.HYDRO, 24),
        ("OIL", Fuel.OIL, 650), ("NG", Fuel.GAS, 490), ("COL", Fuel.COAL, 820),
        ("NUC", Fuel.NUCLEAR, 12), ("OTH", Fuel.OTHER, 230),
    ],
)  # fmt: skip
def test_each_fuel_has_its_factor(tmp_path, column, fuel, factor):
    other = "COL" if column != "COL" else "NG"
    rows = f"{hour(0)},7,0\n{hour(1)},8,0\n"
    trace = read_trace(write(tmp_path, f"timestamp,{column},{other}\n{rows}"))
    assert trace.series.values.tolist() == pytest.approx([factor, factor])
    assert trace.mix[fuel].tolist() == [1, 1]


def test_without_a_column_of_its_own_nothing_is_compared(tmp_path):
    trace = read_trace(write(tmp_path, f"timestamp,WND,COL\n{hour(0)},1,1\n{hour(1)},1,3\n"))
    assert trace.series.values.tolist() == pytest.approx([415.5, 617.75])
    assert trace.stated is None


@given(st.lists(st.lists(st.floats(0, 1e5), min_size=8, max_size=8), min_size=2, max_size=5))
@on_disk
def test_shares_of_a_mix_are_one_and_its_intensity_lies_among_its_factors(tmp_path, powers):
    rows = [f"{hour(n)},{','.join(map(repr, mw))}" for n, mw in enumerate(powers)]
    path = write(tmp_path, "\n".join([EIA.removesuffix(",avg_CI"), *rows]))
    if not any(sum(mw) for mw in powers):
        refused(path, "no row has an intensity")
        return
    trace = read_trace(path)
    total = np.sum(list(trace.mix.values()), axis=0)
    for mw, share, value in zip(powers, total, trace.series.values, strict=True):
        assert math.isnan(value) == (sum(mw) == 0) == math.isnan(share)
        if sum(mw):
            assert share == pytest.approx(1)
            assert 11 * (1 - 1e-9) <= value <= 820 * (1 + 1e-9)


def test_negative_power_counts_as_none_and_is_told_once_a_fuel(tmp_path, snapshot):
    rows = [f"{hour(n)},{sun},0,0,0,100,0,0,0,490" for n, sun in enumerate([0, -3, -4])]
    trace = read_trace(write(tmp_path, "\n".join([EIA, *rows])))
    assert trace.series.values.tolist() == pytest.approx([490] * 3)
    assert trace.mix[Fuel.WIND].tolist() == [0, 0, 0]
    ((line, column, what),) = whats(trace)
    assert (line, column) == (3, "WND")
    snapshot(what)


def test_rows_without_generation_are_missing_in_all_series(tmp_path, snapshot):
    rows = ("9,0,0,0,1,0,0,0,59", ",,,,,,,,", "0,0,0,0,0,0,0,0,", "0,1,0,0,0,0,0,0,41")
    timed = [f"{hour(n)},{row}" for n, row in enumerate(rows)]
    trace = read_trace(write(tmp_path, "\n".join([EIA, *timed])))
    several = (trace.series, trace.renewable, trace.generation_mw)
    for values in (*(one.values for one in several), trace.mix[Fuel.COAL]):
        assert np.isnan(values).tolist() == [False, True, True, False]
    ((line, _, what),) = whats(trace)
    assert line == 3
    snapshot(what)


def test_a_fuel_that_is_not_there_is_not_one_that_is_missing(tmp_path):
    """An empty column says that the grid has none; an empty cell that nobody knows."""
    trace = read_trace(write(tmp_path, f"timestamp,SUN,OIL,COL\n{hour(0)},,0,1\n{hour(1)},,,1\n"))
    assert trace.series.values.tolist() == pytest.approx([820, math.nan], nan_ok=True)
    assert trace.mix[Fuel.SOLAR][0] == 0
    assert [column for _, column, _ in whats(trace)] == ["SUN", "SUN,OIL,COL"]


def test_a_fuel_without_a_factor_or_twice_is_refused(tmp_path, snapshot):
    lines = []
    for fuel in ("GEO", "WND"):
        path = write(tmp_path, f"timestamp,WND,{fuel},NG\n{hour(0)},1,2,3\n{hour(1)},1,2,3\n")
        lines.append(refused(path))
    snapshot("\n".join(lines))


def test_a_mix_tells_nothing_of_direct_emissions(tmp_path, snapshot):
    path = write(tmp_path, f"timestamp,WND,NG\n{hour(0)},1,2\n")
    snapshot(refused(path, scope=Scope.DIRECT))


# ------------------------------------------------------------------------------ Electricity Maps


@pytest.mark.parametrize("header", [EM, OLD_EM, EM.replace("₂", "\u00e2\u201a\u201a")])
def test_exports_of_electricity_maps(tmp_path, header):
    rows = (
        "2024-01-01 00:00:00,Italy,North Italy,IT-NO,210,299.5,41,30,terna.it,false,",
        "2024-01-01 01:00:00,Italy,North Italy,IT-NO,205,290.5,42,31,terna.it,true,TIME_SLICER",
        "2024-01-01 03:00:00,Italy,North Italy,IT-NO,,,,,,true,",
    )
    path = write(tmp_path, "\n".join([header, *rows]), "IT-NO_2024_hourly.csv")
    trace = read_trace(path)
    assert trace.name == "IT-NO"
    assert trace.series.values.tolist() == pytest.approx(
        [299.5, 290.5, math.nan, math.nan], nan_ok=True
    )
    assert trace.renewable.values[:2].tolist() == pytest.approx([0.3, 0.31])
    assert trace.estimated.tolist() == [False, True, False, True]
    assert (trace.scope, trace.mix, trace.stated) == (Scope.LIFE_CYCLE, None, None)
    assert trace.generation_mw is None
    # The header says UTC, so that nothing is taken for granted.
    assert [(line, column == "Datetime (UTC)") for line, column, _ in whats(trace)] == [
        (4, True), (4, False),
    ]  # fmt: skip
    direct = read_trace(path, Scope.DIRECT)
    assert direct.series.values[:2].tolist() == [210, 205]
    assert direct.scope is Scope.DIRECT
    assert direct.factors != trace.factors


def test_bad_rows_of_exports_are_refused(tmp_path, snapshot):
    first = "2024-01-01 00:00:00,Italy,North Italy,IT-NO,210,299,41,30,terna.it,false,"
    lines = []
    for row in (
        "IT-SO,210,299,41,30,x,false,",
        "IT-NO,210,299,41,130,x,false,",
        "IT-NO,210,299,41,30,x,perhaps,",
        "IT-NO,210,much,41,30,x,false,",
    ):
        text = f"{EM}\n{first}\n2024-01-01 01:00:00,Italy,Italy,{row}\n"
        lines.append(refused(write(tmp_path, text)))
    snapshot("\n".join(lines))


def test_an_export_without_the_intensity_that_is_asked_for_is_refused(tmp_path, snapshot):
    header = "Datetime (UTC),Zone id,Carbon intensity gCO₂eq/kWh (direct)"
    snapshot(refused(write(tmp_path, f"{header}\n2024-01-01,X,1\n")))


# ----------------------------------------------------------------------------------- two columns


@pytest.mark.parametrize(
    ("name", "factor", "gas"),
    [
        ("g_per_kwh", 1, Gas.CO2E),
        ("carbon_intensity_g_per_kwh", 1, Gas.CO2E),
        ("gCO2/kWh", 1, Gas.CO2),
        ("gCO2e/kWh", 1, Gas.CO2E),
        ("Intensity (gCO₂eq/kWh)", 1, Gas.CO2E),
        ("kgCO2/MWh", 1, Gas.CO2),
        ("kg CO2e / MWh", 1, Gas.CO2E),
        ("lbs/MWh", 0.45359237, Gas.CO2E),
        ("lb_per_mwh", 0.45359237, Gas.CO2E),
        ("lbs CO2/MWh", 0.45359237, Gas.CO2),
    ],
)
def test_units_are_converted(tmp_path, name, factor, gas):
    trace = read_trace(write(tmp_path, two([100, 200], f"time,{name}")))
    assert trace.series.values.tolist() == pytest.approx([100 * factor, 200 * factor])
    assert (trace.gas, trace.repairs) == (gas, ())


def test_unknown_units_and_marginal_intensities_are_refused(tmp_path, snapshot):
    unknown = ("gr/kWh", "gC/kWh", "price [EUR]", "load_mw", "MWh", "CO2/kWh", "g/kg", "share %")
    names = (*unknown, "moer_g_per_kwh", "lrmer_co2e kg/MWh")
    paths = (write(tmp_path, two([100, 200], f"time,{name}")) for name in names)
    snapshot("\n".join(refused(path) for path in paths))


def test_without_a_unit_grams_are_assumed_and_told(tmp_path, snapshot):
    headless = read_trace(write(tmp_path, two([100, 200], "").lstrip("\n")))
    assert headless.series.values.tolist() == [100, 200]
    ((_, _, what),) = whats(headless)
    assert whats(headless) == [(1, "value", what)]
    assert whats(read_trace(write(tmp_path, two([100, 200], "when,intensity")))) == [
        (2, "intensity", what)
    ]
    snapshot(what)


def test_the_scope_of_two_columns_is_the_callers_word(tmp_path):
    path = write(tmp_path, two([100, 200]))
    assert read_trace(path).scope is Scope.LIFE_CYCLE
    assert read_trace(path, Scope.DIRECT).scope is Scope.DIRECT


@pytest.mark.parametrize(("values", "median"), [([0.4, 0.5], 0.45), ([4000, 9000], 6500)])
def test_values_that_no_grid_emits_are_in_another_unit(tmp_path, values, median):
    path = write(tmp_path, two(values))
    message = refused(path, f" {median:g}", "1 to 3000")
    assert message.startswith(f"{path}:2: g_per_kwh = '{values[0]}': ")


def test_a_column_without_values_is_refused(tmp_path, snapshot):
    # The median of the last one is a grid's, none of its values is.
    columns = (["", "nan"], [0.0, 5000.0, -1, -1, 9000], [-1.0, 5000.0])
    snapshot("\n".join(refused(write(tmp_path, two(values))) for values in columns))


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "NA", "n/a", "null", "None", "-"])
def test_what_is_missing_stays_missing_and_is_told(tmp_path, cell):
    trace = read_trace(write(tmp_path, two([100, cell, 300])))
    assert np.isnan(trace.series.values).tolist() == [False, True, False]
    ((line, column, _),) = whats(trace)
    assert (line, column) == (3, "g_per_kwh")


def test_cells_that_are_no_numbers_are_refused(tmp_path, snapshot):
    cells = ("high", "1_0", "1 000", "inf", "1e999")
    snapshot("\n".join(refused(write(tmp_path, two([100, 200, cell]))) for cell in cells))


# ---------------------------------------------------------------------------------- form of files


@given(st.lists(st.floats(10, 2000), min_size=2, max_size=30), st.sampled_from(["\t", ";", ","]))
@on_disk
def test_delimiter_and_decimal_comma_change_nothing(tmp_path, values, delimiter):
    rows = [["time", "g_per_kwh"], *([hour(n), repr(v)] for n, v in enumerate(values))]
    if delimiter != ",":
        rows = [[time, value.replace(".", ",")] for time, value in rows]
    trace = read_trace(write(tmp_path, "\r\n".join(delimiter.join(row) for row in rows)))
    assert trace.series.values.tolist() == values


def test_an_eia_file_with_semicolons(tmp_path):
    text = f"{EIA}\n{hour(0)},1,0,0,0,1.5,0,0,0,298.4\n{hour(1)},1,0,0,0,1.5,0,0,0,298.4\n"
    changed = text.replace(",", ";").replace(".", ",")
    plain, european = read_trace(write(tmp_path, text)), read_trace(write(tmp_path, changed))
    assert plain.series.values.tolist() == european.series.values.tolist()
    assert plain.stated.values.tolist() == european.stated.values.tolist()


def test_blank_lines_and_the_mark_before_the_text_are_no_content(tmp_path):
    mix = f"timestamp,WND,COL\n{hour(0)},1,1\n{hour(1)},1,1\n"
    assert read_trace(write(tmp_path, b"\xef\xbb\xbf" + mix.encode())).mix is not None
    text = two([100, 200, "x"]).replace("\n", "\n\n")
    refused(write(tmp_path, b"\xef\xbb\xbf" + text.encode()), ":7: ", " = 'x'")


def test_files_that_are_no_recordings_are_refused(tmp_path, snapshot):
    lines = [refused(tmp_path / "none.csv")]
    for content in (
        b"",
        b"time,g_per_kwh\n",
        b"time,g_per_kwh\n2022-01-01,1,2\n",
        b"time|g_per_kwh\n2022-01-01|1\n",
        b'"a\nb",c,d\n1,1,1\n',
        b"time,a,b\n2022-01-01,1,1\n",
        b"time,g_per_kwh\n2022-01-01,\xff\n",
        b"time,g_per_kwh\n2022-01-01,100\n",
        b'time,g_per_kwh\n2022-01-01,"' + b"1" * 200_000,
    ):
        lines.append(refused(write(tmp_path, content)))
    snapshot("\n".join(lines))


# ----------------------------------------------------------------------------------------- spikes


def test_rows_that_no_grid_emits_become_missing_and_are_told(tmp_path, snapshot):
    values = weeks()
    values[100:105] = 0, -5, 4000, 43, 43
    trace = read_trace(write(tmp_path, two(values)))
    assert np.flatnonzero(np.isnan(trace.series.values)).tolist() == [100, 101, 102, 103, 104]
    assert [line for line, _, _ in whats(trace)] == [102, 103, 104, 105, 106]
    snapshot("\n".join(what for _, _, what in whats(trace)))


def test_a_row_that_is_not_believed_is_not_believed_in_its_mix(tmp_path):
    rows = [f"{hour(n)},{n % 24},0,0,0,{800 + n % 7},200,0,0,500" for n in range(240)]
    rows[150] = f"{hour(150)},248,0,18,0,21,0,0,0,46.9"
    # Half of the gas is not reported for an hour, which makes coal of the rest.
    rows[200] = f"{hour(200)},0,0,0,0,5,200,0,0,500"
    trace = read_trace(write(tmp_path, "\n".join([EIA, *rows])))
    for values in (trace.series.values, trace.renewable.values, trace.mix[Fuel.WIND]):
        assert np.flatnonzero(np.isnan(values)).tolist() == [150, 200]
    assert [line for line, _, _ in whats(trace)] == [152, 202]
    # What the file says is left as it says it.
    assert trace.stated.values[150] == 46.9


def test_defects_of_all_kinds_in_one_file(tmp_path):
    """Unsorted, doubled, with a gap, a missing value and a spike: one answer, five repairs."""
    values = weeks()
    rows = [f"{hour(n)},{v}" for n, v in enumerate(values)]
    rows[150], rows[160] = f"{hour(150)},43", f"{hour(160)},"
    rows = [*rows[:30], rows[20], *rows[30:40], *rows[42:]]
    rows[200], rows[201] = rows[201], rows[200]
    trace = read_trace(write(tmp_path, "\n".join(["time,g_per_kwh", *rows])))
    expected = np.array(values)
    expected[[40, 41, 150, 160]] = np.nan
    np.testing.assert_array_equal(trace.series.values, expected)
    lines = [line for line, _, _ in whats(trace)]
    assert lines == sorted(lines)
    kinds = ("sorted", "dropped", "not there", "keeping", "no value")
    assert sorted(k for k in kinds for _, _, what in whats(trace) if k in what) == sorted(kinds)


def test_repairs_are_the_same_whatever_the_chance(tmp_path):
    values = weeks()
    values[77] = 43
    rows = two(values).splitlines()
    random.Random(1).shuffle(body := rows[1:])
    left, right = (
        read_trace(write(tmp_path, "\n".join(rows))),
        read_trace(write(tmp_path, "\n".join([rows[0], *body]))),
    )
    np.testing.assert_array_equal(left.series.values, right.series.values)
    spikes = [[r.what for r in t.repairs if "keeping" in r.what] for t in (left, right)]
    assert spikes[0] == spikes[1] != []


# ----------------------------------------------------------------------------- recorded years


@pytest.mark.parametrize(
    ("grid", "n_missing"), [("CISO", 3), ("PJM", 23), ("NYIS", 0), ("BPAT", 0)]
)
def test_recorded_years_agree_with_their_own_column(grid, n_missing):
    folder = os.environ.get("ECORL_TRACES")
    if not folder:
        pytest.skip("ECORL_TRACES names no folder with recorded grid data")
    trace = read_trace(Path(folder) / f"{grid}_2022_hourly.csv")
    assert trace.name == grid
    assert (trace.series.start_s, trace.series.step_s) == (NEW_YEAR_S, HOUR_S)
    assert len(trace.series.values) == 8760
    assert np.isnan(trace.stated.values).sum() == n_missing
    assert np.nanmax(np.abs(trace.series.values - trace.stated.values)) < 1e-9
    assert len(trace.repairs) == {"CISO": 3, "PJM": 9, "NYIS": 0, "BPAT": 0}[grid]
