"""Counters that are not believed: one that stands still, one far from the power readings."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.records import LOSS_ERRORS, PowerSample, Provenance
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.integrate import (
    DISPUTED_AFTER_S,
    DISPUTED_FACTOR,
    STOPPED_AFTER_S,
    CounterVerdict,
    Reading,
    judge_counter,
    standstill_s,
)
from ecorl.telemetry.sources import specs

STEP_S = 0.1


def record(power_w, counter_w, length_s=20.0, provenance=Provenance.MEASURED):
    """Readings every 0.1 s of power and of a counter that counts ``counter_w``, both of time."""
    track, energy_j = PowerHistory(2.0), 50.0
    for i in range(round(length_s / STEP_S) + 1):
        t_s = STEP_S * i
        power = power_w(t_s)
        track.add([PowerSample("gpu0", t_s, power, energy_j, None, provenance, "test")])
        energy_j += STEP_S * counter_w(t_s)
    return track


def steady(figure):
    return lambda t_s: figure


# ---------------------------------------------------------------- a counter that stands still


def test_a_dead_counter_at_power_is_missing_and_the_integral_decides():
    energy = record(steady(400.0), steady(0.0)).energy("gpu0", 5.0, 15.0)
    assert energy.counter_energy_j is None
    assert (energy.energy_j, energy.mean_power_w) == (pytest.approx(4000), pytest.approx(400))
    assert (energy.method, energy.coverage) == ("integral_counter_stopped", pytest.approx(1.0))


def test_a_short_stage_under_a_dead_counter_is_not_free_either():
    """20 ms say nothing about a counter; the seconds before do."""
    energy = record(steady(400.0), steady(0.0)).energy("gpu0", 7.03, 7.05)
    assert (energy.energy_j, energy.method) == (pytest.approx(8.0), "integral_counter_stopped")


def test_a_counter_that_dies_in_the_window_is_not_a_lower_energy():
    track = record(steady(400.0), lambda t_s: 400.0 if t_s < 12 else 0.0)
    assert track.energy("gpu0", 5.0, 11.0).method == "counter"
    energy = track.energy("gpu0", 5.0, 15.0)
    assert (energy.energy_j, energy.method) == (pytest.approx(4000), "integral_counter_stopped")


def test_a_counter_that_comes_back_is_used_again():
    track = record(steady(400.0), lambda t_s: 0.0 if 5 <= t_s < 15 else 400.0)
    energy = track.energy("gpu0", 16.0, 17.0)
    assert (energy.method, energy.energy_j) == ("counter", pytest.approx(400))


def test_a_dead_counter_without_power_readings_gives_no_energy():
    energy = record(steady(None), steady(0.0)).energy("gpu0", 5.0, 15.0)
    assert (energy.energy_j, energy.counter_energy_j, energy.method) == (None, None, "none")


def test_a_counter_may_stand_still_at_no_power():
    energy = record(steady(0.0), steady(0.0)).energy("gpu0", 5.0, 15.0)
    assert (energy.energy_j, energy.counter_energy_j, energy.method) == (0.0, 0.0, "counter")


def test_a_slow_counter_is_not_a_dead_one():
    """Refreshed once a second, as in recordings: its sums over stages of any length are right."""
    track = PowerHistory(2.0)
    for i in range(201):
        t_s = STEP_S * i
        counter_j = 400.0 * math.floor(t_s + 1e-9)
        track.add([PowerSample("gpu0", t_s, 400.0, counter_j, None, Provenance.MEASURED, "test")])
    stages = [track.energy("gpu0", 2 + 0.3 * k, 2 + 0.3 * (k + 1)) for k in range(50)]
    assert {e.method for e in stages} == {"counter"}
    assert sum(e.energy_j for e in stages) == pytest.approx(400.0 * 15, rel=0.05)


def test_a_figure_does_not_change_after_it_was_read():
    whole = record(steady(400.0), lambda t_s: 400.0 if t_s < 10 else 0.0)
    # What is known when the reading behind the window has come.
    early = record(steady(400.0), lambda t_s: 400.0 if t_s < 10 else 0.0, length_s=10.6)
    for start_s, end_s in ((9.0, 10.5), (10.2, 10.5), (3.0, 10.55)):
        assert early.energy("gpu0", start_s, end_s) == whole.energy("gpu0", start_s, end_s)


def test_standstill_ends_where_the_device_was_lost():
    readings = [Reading(0.0, 100, 5.0), Reading(1.0, 100, 5.0), Reading(1.5, None, None, True)]
    readings += [Reading(2.0, 100, 5.0), Reading(4.0, 100, 5.0), Reading(5.0, 100, 9.0)]
    assert standstill_s(readings, 0.2, 0.4, 2.0) == pytest.approx(1.0)
    assert standstill_s(readings, 0.2, 4.5, 2.0) == pytest.approx(2.0)
    assert standstill_s(readings, 4.2, 4.5, 2.0) == 0.0


# ---------------------------------------------------------------- two figures too far apart


@pytest.mark.parametrize("counter_w", [400.0 / 3.2, 400.0 * 3.2, 400e3, 0.4])
def test_neither_is_used_where_they_lie_too_far_apart(counter_w):
    track = record(steady(400.0), steady(counter_w))
    for start_s, end_s in ((5.0, 15.0), (12.0, 12.02)):
        energy = track.energy("gpu0", start_s, end_s)
        length_s = end_s - start_s
        assert (energy.energy_j, energy.mean_power_w, energy.method) == (None, None, "disputed")
        assert energy.counter_energy_j == pytest.approx(counter_w * length_s)
        assert energy.integral_energy_j == pytest.approx(400 * length_s)


@pytest.mark.parametrize("counter_w", [400.0 / 2.3, 400.0 * 2.3])
def test_a_bias_that_integrals_are_known_to_have_leaves_the_counter(counter_w):
    energy = record(steady(400.0), steady(counter_w)).energy("gpu0", 5.0, 15.0)
    assert (energy.method, energy.energy_j) == ("counter", pytest.approx(10 * counter_w))


def test_short_recordings_are_not_judged():
    track = record(steady(400.0), steady(4000.0), length_s=DISPUTED_AFTER_S - 0.5)
    assert track.energy("gpu0", 0.5, 4.0).method == "counter"


def test_readings_with_holes_judge_no_counter():
    track = record(lambda t_s: 400.0 if t_s % 4 < 1 else None, steady(4000.0))
    assert track.energy("gpu0", 5.0, 15.0).method == "counter"


def test_a_step_of_load_under_readings_that_average_is_no_dispute():
    """From 15 W to 700 W at t = 12 s, told by a reading that averages over the last second."""

    def averaged_w(t_s):
        return 15.0 + 685.0 * min(1.0, max(0.0, t_s - 12.0))

    track = record(averaged_w, lambda t_s: 700.0 if t_s > 11.95 else 15.0)
    for end_s in (12.1, 12.3, 12.6, 13.0, 14.0):
        assert track.energy("gpu0", 12.0, end_s).method == "counter"


def test_a_model_is_not_judged_by_its_own_power():
    for counter_w in (0.0, 4000.0):
        track = record(steady(400.0), steady(counter_w), provenance=Provenance.MODELLED)
        energy = track.energy("gpu0", 5.0, 15.0)
        assert (energy.method, energy.energy_j) == ("model", pytest.approx(10 * counter_w))


positive = st.floats(1e-3, 1e9)


@given(positive, positive, st.floats(DISPUTED_AFTER_S, 1e5))
def test_the_verdict_is_symmetric_and_follows_the_factor(counter_j, integral_j, length_s):
    verdict = judge_counter(counter_j, integral_j, 1.0, length_s)
    assert verdict is judge_counter(integral_j, counter_j, 1.0, length_s)
    apart = max(counter_j / integral_j, integral_j / counter_j)
    if abs(apart - DISPUTED_FACTOR) > 1e-6:
        assert (verdict is CounterVerdict.DISPUTED) == (apart > DISPUTED_FACTOR)
    assert judge_counter(counter_j, integral_j, 0.9, length_s) is CounterVerdict.FINE
    assert judge_counter(counter_j, integral_j, 1.0, 0.99 * DISPUTED_AFTER_S) is CounterVerdict.FINE


@pytest.mark.parametrize(
    ("counter_j", "integral_j", "coverage", "length_s", "verdict"),
    [
        (None, 5.0, 1.0, 9.0, CounterVerdict.FINE),
        (0.0, 5.0, 1.0, STOPPED_AFTER_S, CounterVerdict.FINE),
        (0.0, 5.0, 1.0, STOPPED_AFTER_S + 0.01, CounterVerdict.STOPPED),
        (0.0, None, 0.0, 9.0, CounterVerdict.STOPPED),
        (0.0, 0.0, 0.5, 9.0, CounterVerdict.STOPPED),
        (0.0, 0.0, 1.0, 9.0, CounterVerdict.FINE),
        (5.0, 0.0, 1.0, 9.0, CounterVerdict.DISPUTED),
        (5.0, None, 0.0, 9.0, CounterVerdict.FINE),
    ],
)
def test_verdicts(counter_j, integral_j, coverage, length_s, verdict):
    assert judge_counter(counter_j, integral_j, coverage, length_s) is verdict


def test_the_sampler_s_own_faults_are_losses_too():
    """Their names stand in the records, below the telemetry that writes them."""
    assert {specs.COUNTER_RESET, specs.COUNTER_STOPPED, specs.SAMPLER_LOST} < LOSS_ERRORS
