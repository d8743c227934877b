"""A counter that is read seldom: its rise is spread by power; nothing is lost or counted twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.records import LOSS_ERRORS, PowerSample, Provenance
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.sampling.filters import CounterFill

WAIT_S = 1.5


def sample(t_s, power_w=None, energy_j=None, error=None):
    return PowerSample("gpu0", t_s, power_w, energy_j, None, Provenance.MEASURED, "test", error)


def passed(*samples):
    """What comes out for each sample, and what is left at the end."""
    fill = CounterFill(WAIT_S)
    found = [fill.add(one) for one in samples]
    return found, fill.release()


def energies(samples):
    return [one.energy_j for one in samples]


def test_between_two_readings_the_power_says_when_the_counter_rose():
    # It rises by 80 J while the readings hold 10 + 10 + 60 + 0 J.
    rows = [sample(0.0, 100, 1000), sample(0.1, 100), sample(0.2, 600), sample(0.3, 0),
            sample(0.4, 50, 1080)]  # fmt: skip
    found, rest = passed(*rows)
    assert [len(out) for out in found] == [1, 0, 0, 0, 4]
    assert energies(found[-1]) == pytest.approx([1010, 1020, 1080, 1080])
    assert [one.power_w for one in found[-1]] == [100, 600, 0, 50]
    assert rest == []
    # A counter that says twice as much rises in the same way.
    found, _ = passed(*rows[:-1], sample(0.4, 50, 1160))
    assert energies(found[-1]) == pytest.approx([1020, 1040, 1160, 1160])


@pytest.mark.parametrize("powers", [(100, 100, None, 0), (0, 0, 0, 0), (None, None, None, None)])
def test_where_power_does_not_tell_the_counter_rises_evenly(powers):
    rows = [sample(t / 10, power_w) for t, power_w in enumerate(powers)]
    found, _ = passed(sample(0.0, powers[0], 1000), *rows[1:], sample(0.4, 50, 1080))
    assert energies(found[-1]) == pytest.approx([1020, 1040, 1060, 1080])


def test_without_a_counter_nothing_waits():
    found, rest = passed(*(sample(t / 10, 100) for t in range(5)))
    assert [len(out) for out in found] == [1] * 5
    assert rest == []


def test_a_counter_that_no_longer_answers_is_not_waited_for():
    found, rest = passed(sample(0.0, 100, 0), *(sample(t / 10, 100) for t in range(1, 20)))
    assert [len(out) for out in found] == [1] + [0] * 15 + [16, 1, 1, 1]
    assert set(energies(found[16])) == {None}
    assert rest == []


@pytest.mark.parametrize("error", sorted(LOSS_ERRORS))
def test_no_rise_is_spread_over_a_loss(error):
    found, rest = passed(sample(0.0, 100, 50), sample(0.1, 100), sample(0.2, None, None, error),
                         sample(0.3, 100), sample(0.4, 100, 90), sample(0.5, 100))  # fmt: skip
    assert [energies(out) for out in found] == [[50], [], [None, None], [None], [90], []]
    assert energies(rest) == [None]


def test_no_rise_is_spread_where_the_counter_fell():
    found, _ = passed(sample(0.0, 100, 50), sample(0.1, 100), sample(0.2, 100, 3))
    assert energies(found[-1]) == [None, 3]


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 0.5), st.none() | st.floats(0, 1000), st.floats(0, 500), st.booleans()
        ),
        min_size=2,
        max_size=40,
    ),
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(sorted),
)
def test_windows_add_up_to_what_the_counter_says(rows, shares):
    """Samples of a device whose counter is read now and then, and windows in any place."""
    fill, history = CounterFill(30.0), PowerHistory(hold_s=2.0)
    t_s, counter_j, truth, out = 0.0, 0.0, [], []
    for number, (step_s, power_w, rise_j, is_read) in enumerate(rows):
        t_s, counter_j = t_s + step_s, counter_j + rise_j
        is_read = is_read or number in (0, len(rows) - 1)
        out += fill.add(sample(t_s, power_w, counter_j if is_read else None))
        if is_read:
            truth.append((t_s, counter_j))
    assert fill.release() == []
    assert [one.t_s for one in out] == sorted({one.t_s for one in out})
    assert len(out) == len(rows)
    assert all(a.energy_j <= b.energy_j + 1e-6 for a, b in pairwise(out))
    history.add(out)
    for (begin_s, begin_j), (end_s, end_j) in pairwise(truth):
        found = history.energy("gpu0", begin_s, end_s).counter_energy_j
        assert found == pytest.approx(end_j - begin_j, abs=1e-6)
    (first_s, _), (last_s, _) = truth[0], truth[-1]
    a, b, c = (first_s + share * (last_s - first_s) for share in shares)
    if a < b < c:
        parts = [history.energy("gpu0", *w).counter_energy_j for w in ((a, b), (b, c), (a, c))]
        assert parts[0] + parts[1] == pytest.approx(parts[2], abs=1e-6)
