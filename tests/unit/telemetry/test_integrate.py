"""Energy of a window: exact cases, properties, and bias on a wave of known truth."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ecorl.records import MIN_COVERAGE, PowerSample, Provenance
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.integrate import Reading, counter_difference, hold_integral
from ecorl.telemetry.sampling.sampler_main import step_s

HOLD_S = 2.0


def sample(t_s, power_w=None, energy_j=None, error=None, device_id="gpu0"):
    return PowerSample(device_id, t_s, power_w, energy_j, None, Provenance.MEASURED, "test", error)


def history(*samples, hold_s=HOLD_S, capacity=1000):
    record = PowerHistory(hold_s, capacity)
    record.add(samples)
    return record


# ---------------------------------------------------------------- exact cases


def test_counter_is_interpolated_at_both_ends():
    record = history(sample(0, 1, 0), sample(1, 1, 100), sample(2, 1, 300))
    energy = record.energy("gpu0", 0.5, 1.5)
    assert energy.counter_energy_j == pytest.approx(50 + 100)
    assert energy.method == "counter"
    assert energy.energy_j == energy.counter_energy_j
    assert energy.mean_power_w == pytest.approx(150)
    # The readings said 1 W: both figures stand, each for itself.
    assert energy.integral_energy_j == pytest.approx(1.0)
    assert (energy.n_samples, energy.coverage) == (1, pytest.approx(1.0))


def test_a_stage_shorter_than_the_polling():
    record = history(sample(0.0, 100, 0), sample(0.1, 100, 10))
    energy = record.energy("gpu0", 0.04, 0.06)
    assert energy.energy_j == pytest.approx(2.0)
    assert (energy.n_samples, energy.coverage) == (0, pytest.approx(1.0))


def test_integral_holds_each_reading_until_the_next():
    record = history(sample(0, 100), sample(1, 200), sample(2, 400))
    energy = record.energy("gpu0", 0.5, 2.5)
    assert energy.energy_j == pytest.approx(100 * 0.5 + 200 + 400 * 0.5)
    assert energy.method == "integral"
    assert energy.counter_energy_j is None


def test_repeated_readings_are_not_removed():
    # A refresh of 1 s polled every 0.1 s: with the repeats removed a trapezoid would slope.
    readings = [sample(0.1 * i, 100.0 if i < 10 else 600.0) for i in range(20)]
    energy = history(*readings).energy("gpu0", 0.0, 2.0)
    assert energy.energy_j == pytest.approx(100 + 600)


def test_a_missing_reading_breaks_the_hold():
    record = history(sample(0, 100), sample(1, None, error="DeviceLost"), sample(1.5, 100))
    energy = record.energy("gpu0", 0, 2)
    assert energy.coverage == pytest.approx(0.75)
    assert energy.integral_energy_j == pytest.approx(150)
    assert energy.energy_j is None
    assert energy.mean_power_w is None
    assert energy.method == "none"


def test_partial_coverage_is_used_near_one_and_never_extrapolated():
    record = history(sample(0, 100), sample(0.96, None), hold_s=5)
    energy = record.energy("gpu0", 0, 1)
    assert energy.coverage == pytest.approx(0.96)
    assert energy.energy_j == pytest.approx(96)
    record = history(sample(0, 100), sample(MIN_COVERAGE - 0.01, None), hold_s=5)
    assert record.energy("gpu0", 0, 1).energy_j is None


def test_no_coverage_no_energy():
    record = history(sample(0, None, error="DeviceLost"), sample(1, None, error="DeviceLost"))
    for device in ("gpu0", "unknown"):
        energy = record.energy(device, 0, 1)
        assert (energy.energy_j, energy.integral_energy_j, energy.counter_energy_j) == (
            None,
            None,
            None,
        )
        assert (energy.coverage, energy.n_samples, energy.method) == (0.0, 0, "none")


def test_the_hold_is_bounded():
    energy = history(sample(0, 100), hold_s=2).energy("gpu0", 0, 10)
    assert energy.integral_energy_j == pytest.approx(200)
    assert energy.energy_j is None


def test_counter_waits_for_the_reading_after_the_window():
    record = history(sample(0, 100, 0), sample(1, 100, 100))
    assert record.watermark_s("gpu0") == 1
    assert record.energy("gpu0", 0, 1.5).counter_energy_j is None
    record.add([sample(2, 100, 200)])
    assert record.energy("gpu0", 0, 1.5).counter_energy_j == pytest.approx(150)


def test_counter_that_starts_again_is_not_used():
    record = history(sample(0, 10, 1000), sample(1, 10, 3), sample(2, 10, 13))
    energy = record.energy("gpu0", 0, 2)
    assert energy.counter_energy_j is None
    assert (energy.method, energy.energy_j) == ("integral", pytest.approx(20))
    assert record.energy("gpu0", 1, 2).counter_energy_j == pytest.approx(10)


def test_counter_is_not_bridged_over_a_lost_device():
    # The new counter has already passed the old value: only the loss tells.
    lost = [sample(0, 10, 5), sample(1, None, error="DeviceLost"), sample(2, 10, 50)]
    assert history(*lost).energy("gpu0", 0, 2).counter_energy_j is None
    for error in ("SamplerLost", "CounterReset", "CounterStopped"):
        lost[1] = sample(1, None, error=error)
        assert history(*lost).energy("gpu0", 0, 2).counter_energy_j is None
    refused = [sample(0, 10, 5), sample(1, None, error="DriverTimeout"), sample(2, 10, 50)]
    assert history(*refused).energy("gpu0", 0, 2).counter_energy_j == pytest.approx(45)


def test_counter_is_not_interpolated_over_a_wide_gap():
    record = history(sample(0, 10, 0), sample(10, 10, 100), hold_s=2)
    assert record.energy("gpu0", 4, 6).counter_energy_j is None
    assert record.energy("gpu0", 0, 10).counter_energy_j == pytest.approx(100)


def test_late_samples_are_dropped():
    record = history(sample(0, 100), sample(2, 100))
    assert record.add([sample(1, 9999)]) == ()
    assert record.energy("gpu0", 0, 2).energy_j == pytest.approx(200)


def test_readings_at_the_edges_belong_to_the_neighbours_as_well():
    record = history(*(sample(0.1 * i, 100, 10.0 * i) for i in range(11)))
    inside = {(0.2, 0.5): 2, (0.2, 0.49): 2, (0.21, 0.5): 2, (0.2, 0.4): 1, (0.21, 0.29): 0}
    for (start_s, end_s), n in inside.items():
        record_energy = record.energy("gpu0", start_s * (1 + 1e-12), end_s * (1 - 1e-12))
        assert (record_energy.n_samples, record_energy.resolved) == (n, n >= 2)


def test_a_stage_shorter_than_the_polling_says_that_it_is_not_resolved():
    """20 ms at 700 W and 80 ms at 100 W, polled every 100 ms: both come out at the mean, 220 W."""
    readings = [sample(0.1 * i + 0.05, 100, 22.0 * i) for i in range(30)]
    record = history(*readings)
    for start_s, end_s in ((1.0, 1.02), (1.02, 1.1)):
        energy = record.energy("gpu0", start_s, end_s)
        assert energy.mean_power_w == pytest.approx(220)
        assert (energy.coverage, energy.resolved) == (pytest.approx(1.0), False)
    assert record.energy("gpu0", 1.0, 2.0).resolved


def test_not_a_number_and_negative_are_missing():
    record = history(sample(0, float("nan")), sample(0.5, float("inf")), sample(1, -5.0))
    assert record.energy("gpu0", 0, 1.5).coverage == 0


def test_figures_beyond_all_bounds_are_missing():
    beyond = 2**53 / 1e3 * (1 + 1e-9)
    record = history(sample(0, 1e17, 5.0), sample(1, 100, beyond), sample(2, 1e6, 7.0))
    assert [r.power_w for r in record.readings("gpu0", 0, 2)] == [None, 100, 1e6]
    assert [r.energy_j for r in record.readings("gpu0", 0, 2)] == [5.0, None, 7.0]


def test_an_empty_window_and_a_window_that_ends_before_it_starts():
    record = history(sample(0, 100, 0), sample(1, 100, 100))
    assert record.energy("gpu0", 0.5, 0.5).energy_j is None
    with pytest.raises(ValueError, match="before"):
        record.energy("gpu0", 1, 0)


def test_the_record_is_bounded():
    record = history(*(sample(i, 1.0) for i in range(1000)), capacity=10)
    assert 10 <= len(record.readings("gpu0", 0, 2000)) <= 20
    assert record.energy("gpu0", 0, 1000).coverage < 0.05
    assert record.energy("gpu0", 995, 999).energy_j == pytest.approx(4)


# ---------------------------------------------------------------- properties

powers = st.one_of(st.none(), st.floats(1, 1000))


@st.composite
def recordings(draw, missing=True):
    steps = draw(st.lists(st.floats(0.01, 1.5), min_size=3, max_size=30))
    t_s, energy_j, readings = 0.0, 0.0, []
    for step in steps:
        power_w = draw(powers if missing else st.floats(1, 1000))
        readings.append(Reading(t_s, power_w, energy_j))
        t_s += step
        energy_j += step * draw(st.floats(1, 1000))
    return readings


windows = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(sorted)


@given(recordings(), windows)
def test_both_figures_add_up_over_adjacent_windows(readings, shares):
    a, b, c = (share * readings[-1].t_s for share in shares)
    assume(a < b < c)
    parts = [hold_integral(readings, *w, HOLD_S) for w in ((a, b), (b, c), (a, c))]
    assert parts[0].energy_j + parts[1].energy_j == pytest.approx(parts[2].energy_j, abs=1e-6)
    assert parts[0].covered_s + parts[1].covered_s == pytest.approx(parts[2].covered_s, abs=1e-9)
    counts = [counter_difference(readings, *w, HOLD_S) for w in ((a, b), (b, c), (a, c))]
    assert None not in counts
    assert counts[0] + counts[1] == pytest.approx(counts[2], abs=1e-6)


@given(recordings(), windows)
def test_the_integral_lies_between_the_least_and_the_largest_power(readings, shares):
    a, _, c = (share * readings[-1].t_s for share in shares)
    assume(a < c)
    integral = hold_integral(readings, a, c, HOLD_S)
    known = [r.power_w for r in readings if r.power_w is not None]
    assert 0 <= integral.covered_s <= (c - a) * (1 + 1e-9)
    if integral.covered_s:
        low, high = min(known) * integral.covered_s, max(known) * integral.covered_s
        assert low * (1 - 1e-9) <= integral.energy_j <= high * (1 + 1e-9)


@given(recordings(), windows)
def test_missing_is_never_zero(readings, shares):
    """Energy is None or at least the least power ever read times the time covered."""
    a, _, c = (share * readings[-1].t_s for share in shares)
    assume(c - a > 1e-3)
    record = history(*(sample(r.t_s, r.power_w) for r in readings))
    energy = record.energy("gpu0", a, c)
    if energy.energy_j is None:
        assert energy.coverage < MIN_COVERAGE
        assert energy.mean_power_w is None
    else:
        assert energy.energy_j >= 1.0 * energy.coverage * (c - a) * (1 - 1e-9)
    if energy.coverage == 0:
        assert energy.integral_energy_j is None


@given(recordings(missing=False), windows, st.integers(0, 2**31))
def test_taking_readings_away_never_adds_energy(readings, shares, seed):
    a, _, c = (share * readings[-1].t_s for share in shares)
    assume(a < c)
    rng = random.Random(seed)
    fewer = [r if rng.random() < 0.5 else Reading(r.t_s, None, None) for r in readings]
    whole = hold_integral(readings, a, c, HOLD_S)
    part = hold_integral(fewer, a, c, HOLD_S)
    assert part.energy_j <= whole.energy_j + 1e-9
    assert part.covered_s <= whole.covered_s + 1e-9


# ---------------------------------------------------------------- bias on a known wave


def wave_w(t_s, period_s):
    return 600.0 if t_s % period_s < 0.25 * period_s else 100.0


def wave_j(t_s, period_s):
    whole, phase_s = divmod(t_s, period_s)
    return 100.0 * t_s + 500.0 * (whole * 0.25 * period_s + min(phase_s, 0.25 * period_s))


@pytest.mark.parametrize("period_s", [0.2, 2.0])
def test_bias_with_jittered_polling(period_s):
    """600 W for a quarter of each period, 100 W for the rest, polled as the sampler does, 60 s."""
    rng, t_s, readings = random.Random(7), 0.0, []
    while t_s < 61:
        readings.append(sample(t_s, wave_w(t_s, period_s), wave_j(t_s, period_s)))
        t_s += step_s(0.1, rng)
    energy = history(*readings).energy("gpu0", 0.37, 60.37)
    truth_j = wave_j(60.37, period_s) - wave_j(0.37, period_s)
    # Interpolation errs by at most 500 W over a quarter of one step (0.15 s) at each end.
    assert abs(energy.counter_energy_j - truth_j) <= 2 * 500 * 0.15 / 4
    # Each reading sees the peak with probability 1/4 and stands for 0.1 s +- 29 %. Independent
    # ones give the integral of n = 600 a relative spread of
    # 500 * sqrt(3/16) * sqrt(1 + 0.29^2) / 225 / sqrt(600) = 4 %; the bound is three times that.
    assert abs(energy.integral_energy_j - truth_j) / truth_j < 0.12


@pytest.mark.parametrize(
    ("interval_s", "low_s", "high_s"), [(0.1, 0.05, 0.15), (0.05, 0.05, 0.075)]
)
def test_jitter_keeps_the_pace_and_the_shortest_step(interval_s, low_s, high_s):
    rng = random.Random(3)
    steps_s = [step_s(interval_s, rng) for _ in range(2000)]
    assert low_s <= min(steps_s) < max(steps_s) <= high_s
    if interval_s == 0.1:
        assert sum(steps_s) / len(steps_s) == pytest.approx(interval_s, rel=0.03)


def test_polling_without_jitter_locks_to_the_load():
    readings = [sample(0.1 * i + 0.06, wave_w(0.1 * i + 0.06, 0.2)) for i in range(700)]
    energy = history(*readings).energy("gpu0", 1.0, 61.0)
    truth_j = wave_j(61.0, 0.2) - wave_j(1.0, 0.2)
    assert abs(energy.integral_energy_j - truth_j) / truth_j > 0.5
