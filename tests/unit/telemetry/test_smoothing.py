import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.sampling.filters import Ema, Smoother

values = st.floats(0, 1e4)
steps = st.floats(1e-3, 100)


@given(st.lists(st.tuples(steps, values), min_size=1, max_size=50), st.floats(0.01, 100))
def test_stays_between_the_least_and_the_largest(updates, tau_s):
    ema, t_s = Ema(tau_s), 0.0
    for step, value in updates:
        t_s += step
        ema.update(t_s, value)
    seen = [value for _, value in updates]
    assert min(seen) <= ema.value <= max(seen)


@given(values, values, steps, steps, st.floats(0.01, 100))
def test_a_level_held_for_two_steps_is_one_longer_step(start, level, first, second, tau_s):
    """Time-aware: how often one reads does not matter."""
    often, seldom = Ema(tau_s), Ema(tau_s)
    for ema in (often, seldom):
        ema.update(0.0, start)
    often.update(first, level)
    often.update(first + second, level)
    seldom.update(first + second, level)
    assert often.value == pytest.approx(seldom.value, rel=1e-6, abs=1e-6)


def test_alpha_is_that_of_the_time_constant():
    ema = Ema(2.0)
    ema.update(0.0, 0.0)
    assert ema.update(3.0, 1.0) == pytest.approx(1 - math.exp(-1.5))


def test_missing_and_old_values_change_nothing():
    ema = Ema(1.0)
    assert ema.update(0.0, None) is None
    ema.update(1.0, 50.0)
    for t_s, value in ((2.0, None), (2.0, float("nan")), (1.0, 99.0), (0.5, 99.0)):
        assert ema.update(t_s, value) == 50.0
    assert ema.t_s == 1.0


@pytest.mark.parametrize("tau_s", [0.0, -1.0])
def test_time_constant_is_positive(tau_s):
    with pytest.raises(ValueError, match="above 0"):
        Ema(tau_s)


def sample(t_s, power_w, utilisation=None):
    return PowerSample("gpu0", t_s, power_w, None, utilisation, Provenance.REPLAYED, "test", None)


def test_stale_power_is_missing_not_the_last_value():
    smoother = Smoother("gpu0", Provenance.MEASURED, 1.0, 2.0)
    before = smoother.at(5.0)
    assert (before.power_w, before.utilisation, before.age_s) == (None, None, None)
    smoother.add(sample(10.0, 100.0, 0.5))
    fresh = smoother.at(12.0)
    assert (fresh.power_w, fresh.utilisation, fresh.age_s) == (100.0, 0.5, 2.0)
    assert fresh.provenance == Provenance.REPLAYED
    smoother.add(sample(12.05, None))
    stale = smoother.at(12.1)
    assert (stale.power_w, stale.utilisation) == (None, None)
    assert stale.age_s == pytest.approx(2.1)
    smoother.add(sample(13.0, 200.0))
    assert 100 < smoother.at(13.0).power_w < 200
    assert smoother.at(13.0).utilisation is None
