"""The estimate of marginal intensities: by hand, within its factors, and where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.studies.carbon.control.harder import marginal_series
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.grid import Fuel, Gas, Scope

FUELS = (Fuel.WIND, Fuel.NUCLEAR, Fuel.HYDRO, Fuel.OIL, Fuel.GAS, Fuel.COAL, Fuel.OTHER)


def recording(**power_mw):
    """A recording with these powers of fuels, an hour each, MW; NaN of any makes a row missing."""
    total_mw = np.sum([np.asarray(mw, np.float64) for mw in power_mw.values()], axis=0)
    total_mw = np.where(total_mw > 0, total_mw, np.nan)
    hours = Series(7200.0, 3600.0, np.where(np.isnan(total_mw), np.nan, 300.0))
    return GridTrace(
        name="X",
        path=Path("X_2022.csv"),
        series=hours,
        scope=Scope.LIFE_CYCLE,
        gas=Gas.CO2E,
        factors="IPCC AR5 medians",
        mix={Fuel(name): np.asarray(mw) / total_mw for name, mw in power_mw.items()},
        renewable=None,
        estimated=None,
        stated=None,
        repairs=(),
        generation_mw=replace(hours, values=total_mw),
    )


def estimated(**power_mw):
    return marginal_series(recording(**power_mw)).values.tolist()


def test_the_margin_is_of_the_fuels_that_moved_with_load():
    found = estimated(
        wind=[500, 100, 900, 900, 900],
        gas=[100, 130, 130, 110, 140],
        coal=[200, 210, 190, 190, 180],
        hydro=[50, 50, 40, 60, 60],
    )
    up = (30 * 490 + 10 * 820) / 40  # gas and coal
    down = (20 * 820 + 10 * 24) / 30  # coal and hydro
    # Then gas falls by what hydro rises by, and nobody follows load; then gas rises and coal falls.
    assert found == pytest.approx([up, up, down, down, 490])


def test_what_moved_against_the_others_does_not_count():
    assert estimated(gas=[100, 80], coal=[100, 105], oil=[10, 5]) == pytest.approx([522, 522])


def test_where_nothing_moved_or_a_value_is_missing_the_one_before_holds_on():
    gas = [5, 5, 5, 9, np.nan, 9, 9]
    found = estimated(gas=gas, coal=[3, 3, 4, 4, 7, 7, 9], nuclear=[1, 70, 3, 9, 2, 7, 13])
    assert found == pytest.approx([820, 820, 820, 490, 490, 490, 820])


def test_intervals_are_those_of_the_recording():
    trace = recording(gas=[1, 2, 4])
    found = marginal_series(trace)
    assert (found.start_s, found.step_s) == (trace.series.start_s, trace.series.step_s)
    assert len(found.values) == len(trace.series.values)


@given(st.lists(st.lists(st.floats(0, 1e5) | st.just(np.nan), min_size=7, max_size=7), max_size=9))
@settings(deadline=None)
def test_estimates_are_all_there_and_within_the_factors_of_fuels_that_follow(rows):
    powers = np.array([*rows, [1.0] * 7, [2.0] * 7]).T
    trace = recording(**{fuel.value: mw for fuel, mw in zip(FUELS, powers, strict=True)})
    values = marginal_series(trace).values
    assert len(values) == len(rows) + 2
    assert ((values >= 24 * (1 - 1e-9)) & (values <= 820 * (1 + 1e-9))).all()


def test_without_a_mix_or_its_generation_there_is_no_estimate():
    trace = recording(gas=[1, 2, 4])
    assert marginal_series(replace(trace, mix=None)) is None
    assert marginal_series(replace(trace, generation_mw=None)) is None


@pytest.mark.parametrize("power_mw", [
    {"wind": [1, 2, 3], "nuclear": [1, 1, 1]},
    {"wind": [1, 2, 3], "gas": [7, 7, 7], "coal": [3, 3, 3]},
    {"gas": [7]},
])  # fmt: skip
def test_where_no_fuel_ever_followed_load_there_is_no_estimate(power_mw):
    assert marginal_series(recording(**power_mw)) is None
