from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl import units

AMOUNT = st.floats(0, 1e15)


def test_known_figures():
    assert units.watts_from_milliwatts(350_500) == 350.5
    assert units.joules_from_millijoules(1_500) == 1.5
    assert units.joules_from_microjoules(2_500_000) == 2.5
    assert units.hertz_from_megahertz(1_980) == 1.98e9
    assert units.kwh_from_joules(3_600_000) == 1.0
    # 10 kWh of IT energy, 1.2 as much from the grid, at 450 g/kWh
    assert units.carbon_g(36e6, 1.2, 450.0) == pytest.approx(5400.0)


@given(AMOUNT)
def test_conversions_agree_with_each_other(amount):
    assert units.joules_from_microjoules(amount * 1000) == pytest.approx(
        units.joules_from_millijoules(amount)
    )
    assert units.kwh_from_joules(amount) * units.JOULES_PER_KWH == pytest.approx(amount)


@given(AMOUNT, AMOUNT, st.floats(1, 3), st.floats(0, 3000))
def test_carbon_adds_up_and_grows_with_each_factor(first_j, second_j, pue, intensity):
    whole = units.carbon_g(first_j + second_j, pue, intensity)
    parts = units.carbon_g(first_j, pue, intensity) + units.carbon_g(second_j, pue, intensity)
    assert whole == pytest.approx(parts)
    assert units.carbon_g(first_j, pue, intensity) >= units.carbon_g(first_j, 1.0, intensity)
    assert units.carbon_g(first_j, pue, 0.0) == 0.0
