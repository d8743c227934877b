"""Grams and joules of a run, also where a counter is found not to be its device's."""

import pytest

from ecorl.runtime.control.governor import CarbonMeter, CarbonSoFar


def test_each_part_is_priced_at_the_intensity_of_its_time():
    meter = CarbonMeter()
    meter.add(100.0, 0.5)
    meter.add(150.0, None)
    assert meter.add(250.0, 0.1) == CarbonSoFar(pytest.approx(60.0), 50.0)
    assert meter.add(None, 0.1).carbon_g is None


@pytest.mark.parametrize("before", [None, CarbonSoFar(7.0, 30.0)])
def test_a_total_that_falls_scales_what_this_attempt_has_added(before):
    """A counter has told 1.7 times the joules, at two intensities and at an unknown one."""
    drawn_j = 0.0 if before is None else 2000.0
    meter, had = CarbonMeter(before, drawn_j), before or CarbonSoFar(0.0, 0.0)
    meter.add(drawn_j + 1700.0, 0.3)
    meter.add(drawn_j + 3400.0, None)
    meter.add(drawn_j + 5100.0, 0.03)
    found = meter.add(drawn_j + 3000.0, 0.03)
    assert found.carbon_g == pytest.approx(had.carbon_g + 1000 * 0.3 + 1000 * 0.03)
    assert found.unknown_j == pytest.approx(had.unknown_j + 1000.0)
    assert meter.add(drawn_j + 3100.0, 0.3).carbon_g == pytest.approx(found.carbon_g + 30.0)
