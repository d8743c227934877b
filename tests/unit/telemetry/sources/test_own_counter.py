"""A GPU's energy counter held against the GPU's own power, on made loads of known truth."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.telemetry.sources.nvml import OwnCounter

POLL_S = 0.1


class Load:
    """Power over time in spans of ms, its energy, and its average over the last second."""

    def __init__(self, power_w, length_s):
        self.drawn_j = [0.0]
        for ms in range(round(1000 * length_s)):
            self.drawn_j.append(self.drawn_j[-1] + 1e-3 * power_w(1e-3 * ms))
        self.power_w, self.length_s = power_w, length_s

    def energy_j(self, t_s):
        return self.drawn_j[round(1000 * t_s)]

    def average_w(self, t_s):
        since_s = max(0.0, t_s - 1.0)
        return (self.energy_j(t_s) - self.energy_j(since_s)) / max(t_s - since_s, 1e-3)


def found_after_s(
    load, counter_j, *, told_w=None, has_average=True, counter_every=1, poll_s=POLL_S, stall=None
):
    """When the counter is found foreign, s; None: never. Polled with jitter, as by the sampler.

    In a stall, from one time to another, nothing is read.
    """
    own, jitter, t_s, n = OwnCounter(), random.Random(5), 1.0, 0
    while t_s < load.length_s:
        power_w = (told_w or load.power_w)(t_s)
        average_w = load.average_w(t_s) if has_average else None
        own.add(t_s, power_w, average_w, counter_j(t_s) if n % counter_every == 0 else None)
        if own.is_foreign:
            return t_s - 1.0
        t_s, n = t_s + poll_s * (1 + jitter.uniform(-0.5, 0.5)), n + 1
        if stall is not None and stall[0] < t_s < stall[1]:
            t_s = stall[1]
    return None


def bursts(t_s):
    """225 W in the mean, in step with a refresh of power by 0.1 s or 0.2 s."""
    return 600.0 if t_s % 0.2 < 0.05 else 100.0


def steps(t_s):
    """Stages of some seconds, and pauses."""
    return (700.0, 120.0, 430.0, 90.0)[int(t_s / 3.7) % 4]


@pytest.mark.parametrize("factor", [0.001, 0.3, 0.55, 0.7, 1.4, 1.7, 3.3, 1000.0])
@pytest.mark.parametrize("power_w", [90.0, 600.0])
def test_the_counter_of_something_else_is_found_at_once_under_a_steady_load(factor, power_w):
    load = Load(lambda t_s: power_w, 10.0)
    assert found_after_s(load, lambda t_s: factor * load.energy_j(t_s)) < 3.5


@pytest.mark.parametrize("factor", [0.5, 1.7])
@pytest.mark.parametrize("power_w", [bursts, steps])
def test_it_is_found_under_loads_that_change(factor, power_w):
    load = Load(power_w, 60.0)
    assert found_after_s(load, lambda t_s: factor * load.energy_j(t_s)) is not None


def test_a_module_whose_processor_draws_little_beside_a_busy_gpu_is_found_when_it_idles():
    load = Load(lambda t_s: 650.0 if t_s < 40 else 90.0, 90.0)
    found_s = found_after_s(load, lambda t_s: load.energy_j(t_s) + 100.0 * t_s)
    assert found_s > 39.0


@pytest.mark.parametrize("told_w", [100.0, 600.0])
def test_bursts_in_step_with_the_refresh_of_power_are_no_reason(told_w):
    """Power says 100 W or 600 W all the time, and the counter 225 W, which is the truth."""
    load = Load(bursts, 60.0)
    assert found_after_s(load, load.energy_j, told_w=lambda t_s: told_w) is None
    # Without an average that could tell, only other units are told.
    assert found_after_s(load, load.energy_j, told_w=lambda t_s: told_w, has_average=False) is None
    wrong = 1000.0
    assert found_after_s(
        load, lambda t_s: wrong * load.energy_j(t_s), told_w=lambda t_s: told_w, has_average=False
    )


@pytest.mark.parametrize("stalled_s", [0.5, 1.4, 1.9])
def test_a_stall_of_the_readings_as_a_load_begins_is_no_reason(stalled_s):
    load = Load(lambda t_s: 70.0 if t_s < 6 else 700.0, 20.0)
    assert found_after_s(load, load.energy_j, stall=(5.95, 6.0 + stalled_s)) is None


@pytest.mark.parametrize("poll_s", [0.5, 0.9, 1.5, 5.0])
@pytest.mark.parametrize("stage_s", [0.9, 3.7])
def test_seldom_readings_never_call_the_own_counter_foreign(poll_s, stage_s):
    load = Load(lambda t_s: (700.0, 120.0, 430.0, 90.0)[int(t_s / stage_s) % 4], 240.0)
    assert found_after_s(load, load.energy_j, poll_s=poll_s) is None
    steady = Load(lambda t_s: 600.0, 30.0)
    if poll_s < 1.0:
        assert found_after_s(steady, lambda t_s: 1.7 * steady.energy_j(t_s), poll_s=poll_s) < 8.0


levels = st.lists(st.floats(15.0, 700.0), min_size=1, max_size=6)


@given(levels, st.floats(0.05, 9.0), st.sampled_from([1, 10]), st.sampled_from([0.02, 0.1, 1.0]))
def test_a_counter_of_its_own_is_never_foreign(powers_w, stage_s, counter_every, refresh_s):
    """Whatever the load, how seldom the counter is read and how slowly it refreshes."""
    load = Load(lambda t_s: powers_w[int(t_s / stage_s) % len(powers_w)], 25.0)

    def counter_j(t_s):
        return load.energy_j(refresh_s * math.floor(t_s / refresh_s + 1e-9))

    assert found_after_s(load, counter_j, counter_every=counter_every) is None


def test_a_counter_that_stands_still_or_starts_again_is_not_judged_by_it():
    load = Load(lambda t_s: 300.0, 60.0)
    assert found_after_s(load, lambda t_s: load.energy_j(min(t_s, 20.0))) is None
    assert (
        found_after_s(load, lambda t_s: load.energy_j(min(t_s, 20.0) if t_s < 50 else t_s)) is None
    )
    assert found_after_s(load, lambda t_s: load.energy_j(t_s if t_s < 20 else t_s - 15)) is None


def test_nothing_is_concluded_across_missing_power():
    own = OwnCounter()
    for i in range(200):
        # Only while power is missing does the counter rise too fast.
        energy_j = 30.0 * i + 5000.0 * ((i + 5) // 10)
        own.add(0.1 * i, None if i % 10 == 5 else 300.0, 300.0, energy_j)
    assert not own.is_foreign
