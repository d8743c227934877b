"""What a lock of a GPU's clock does to time and power: physics, and clocks that were measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ecorl.devices import load_profile
from ecorl.devices.clocks import LEAST_CLOCK, ClockCurve, LockedRatios, clock_curves

RESULTS = Path(__file__).parents[3] / "benchmarks/results/nvidia-h100-80gb-hbm3/gpu_stages.json"

clocks = st.floats(LEAST_CLOCK, 1.0)
shares = st.floats(0.0, 1.0)
ROUNDING = 1e-12


@given(lock=clocks, natural=clocks, static_share=shares, knee=shares)
def test_a_lock_is_never_faster_and_never_draws_less_than_what_does_not_follow_the_clock(
    lock, natural, static_share, knee
):
    found = ClockCurve(static_share, knee).locked(lock, natural)
    assert 1.0 <= found.memory_time <= found.compute_time + ROUNDING
    assert static_share - ROUNDING <= found.power <= 1.0


@given(lock=clocks, natural=clocks, static_share=shares, knee=shares)
@example(lock=1.0, natural=0.686300081339918, static_share=0.0, knee=0.0)
def test_a_lock_at_or_above_the_natural_clock_changes_nothing(lock, natural, static_share, knee):
    curve = ClockCurve(static_share, knee)
    above = max(lock, natural)
    assert curve.locked(above, natural) == LockedRatios(1.0, 1.0, 1.0)
    # Bit for bit in an array too, whose powers NumPy rounds otherwise.
    assert curve.locked(np.array([above, lock]), natural).power[0] == 1.0


@given(lock=clocks, natural=clocks, static_share=shares, other_share=shares, knee=shares,
       other_knee=shares)  # fmt: skip
def test_less_that_follows_the_clock_and_a_higher_knee_never_save_more(
    lock, natural, static_share, other_share, knee, other_knee
):
    least = ClockCurve(max(static_share, other_share), max(knee, other_knee))
    most = ClockCurve(min(static_share, other_share), min(knee, other_knee))
    at_least, at_most = (curve.locked(lock, natural) for curve in (least, most))
    assert at_most.power <= at_least.power + ROUNDING
    assert at_most.memory_time <= at_least.memory_time
    assert at_most.compute_time == at_least.compute_time


def test_memory_keeps_its_speed_down_to_the_knee_and_arithmetic_does_not():
    found = ClockCurve(0.4, knee=0.7).locked(np.array([0.9, 0.7, 0.5]), natural=0.8)
    np.testing.assert_allclose(found.memory_time, [1.0, 1.0, 0.7 / 0.5])
    np.testing.assert_allclose(found.compute_time, [1.0, 0.8 / 0.7, 0.8 / 0.5])
    np.testing.assert_allclose(
        found.power[1:], [(0.4 + 0.6 * f**3) / (0.4 + 0.6 * 0.8**3) for f in (0.7, 0.5)]
    )


@given(static_share=shares, power_share=shares)
def test_the_clock_under_a_limit_meets_it(static_share, power_share):
    curve = ClockCurve(static_share)
    clock = curve.under_limit(power_share)
    assert LEAST_CLOCK <= clock <= 1.0
    if clock > LEAST_CLOCK:
        assert curve.power(clock) == pytest.approx(power_share)
    else:
        assert power_share <= curve.power(LEAST_CLOCK) + ROUNDING


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "h200", "a100_sxm", "l4"])
def test_the_ends_of_what_is_known_are_in_their_order(gpu):
    curves = clock_curves(load_profile(gpu))
    ends = (curves.low, curves.usual, curves.high)
    assert [c.static_share for c in ends] == sorted((c.static_share for c in ends), reverse=True)
    assert [c.knee for c in ends] == sorted((c.knee for c in ends), reverse=True)
    assert [c.most_share is None for c in ends] == [False, True, True]


@pytest.mark.parametrize(
    ("key", "stages"),
    [("scoring_clock_hz", ("reward", "reference")), ("training_clock_hz", ("actor_train",))],
)
def test_the_h100_s_clocks_are_those_that_were_measured_under_its_limit(key, stages):
    workloads = json.loads(RESULTS.read_text("utf-8"))["config"]["workloads"]
    read = [
        clock
        for name, found in workloads.items()
        if name.partition(".")[0] in stages
        for clock in found["sm_clock_hz"]
    ]
    figure = load_profile("h100_sxm").figure(key)
    assert (figure.low, figure.high) == (min(read), max(read))
    assert figure.value == statistics.median(read)
    decoding = [c for name, w in workloads.items() if "decode.b" in name for c in w["sm_clock_hz"]]
    assert load_profile("h100_sxm").value("clock_max_hz") == max(decoding)
