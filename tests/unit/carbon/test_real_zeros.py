"""Zeros that a grid tells: which count, and what is made of an hour whose value is in doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.chain import FeedChain
from ecorl.carbon.feeds.local import ReplayFeed
from ecorl.carbon.plausibility import Doubt, doubts_in, explains_zero, zeros_that_count
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import read_trace
from ecorl.errors import FeedUnreachable
from ecorl.grid import Basis, Fuel, Gas, MarginalIntensity, Scope
from ecorl.kinds import Provenance
from tests.fakes.scripted_feed import HOUR_S, ScriptedFeed, average

NOW_S = 1.7e9
STALE_S = 2 * HOUR_S
WINDY = {Fuel.WIND: 0.954, Fuel.SOLAR: 0.046}
GASSY = {Fuel.WIND: 0.4, Fuel.GAS: 0.6}
UNDECIDED = {Fuel.WIND: 0.9, Fuel.BIOMASS: 0.1}


def direct(number, g_per_kwh, mix=None, feed="a"):
    """The value of an hour in the direct scope; hour 0 is the one under way at `NOW_S`."""
    value = average(feed, NOW_S + HOUR_S * number, g_per_kwh)
    return replace(value, scope=Scope.DIRECT, mix=mix)


def asked(values, history=()):
    """What a chain of one feed says in each hour of its values: the intensity or the reason."""
    chain = FeedChain([ScriptedFeed("a", values, history)], STALE_S)
    chain.recall(values[0].start_s)
    told = []
    for value in values:
        answer = chain.ask(value.start_s)
        is_new = answer.value is value
        told.append(value.g_per_kwh if is_new else str(answer.refusals[0].reason))
    return told


@pytest.mark.parametrize(("scope", "mix", "expected"), [
    (Scope.DIRECT, WINDY, True), (Scope.DIRECT, GASSY, False), (Scope.DIRECT, UNDECIDED, None),
    (Scope.DIRECT, None, None), (Scope.LIFE_CYCLE, WINDY, False), (Scope.LIFE_CYCLE, None, False),
])  # fmt: skip
def test_a_mix_explains_a_zero_in_the_direct_scope_alone(scope, mix, expected):
    assert explains_zero(scope, mix) is expected


def counting(values, explained, step_s=HOUR_S):
    values = np.array(values, np.float64)
    return zeros_that_count(step_s * np.arange(len(values)), values, explained)


def test_zeros_count_by_their_mix_or_in_a_row_that_lasts():
    nan = float("nan")
    assert counting([0, 5, 0, 0, 5], [True] + [None] * 4) == {0}
    assert counting([5, 0, nan, 0, 0], [None] * 5) == {1, 3, 4}
    assert counting([0, 0, 0], [None, False, None]) == set()
    assert counting([0, 0, 0], [False] * 3) == set()
    assert counting([0] * 12, [None] * 12, 300.0) == set()
    assert counting([0] * 13, [None] * 13, 300.0) == set(range(13))


def test_a_row_of_zeros_counts_as_a_whole_by_what_was_before_it():
    # What does not count is no past by which later rows would.
    values = [300, 310, 0, 0, 0, 300, 0, 0, 0, 305]
    assert counting(values, [None] * 10) == set()
    # A single mix that explains one of them makes the others the grid's too.
    assert counting(values, [*[None] * 7, True, None, None]) == {6, 7, 8}
    assert counting([300, 120, 40, 20, 0, 0, 0], [None] * 7) == {4, 5, 6}


@pytest.mark.parametrize("n_zeros", [3, 8, 40])
@pytest.mark.parametrize("hour", [12, 17, 20])
@pytest.mark.parametrize(("low", "high"), [(200, 500), (150, 450), (100, 400)])
def test_a_source_that_dies_in_a_grid_of_sunshine_is_missing(low, high, hour, n_zeros):
    """Its changes each morning are as large as one to 0 seems."""
    numbers = np.arange(24 * 30)
    values = high - (high - low) * np.maximum(0, np.sin((numbers % 24 - 6) / 12 * np.pi))
    dead = slice(24 * 20 + hour, 24 * 20 + hour + n_zeros)
    values[dead] = 0.0
    doubts = doubts_in(Series(0.0, HOUR_S, values), Scope.DIRECT)
    assert doubts == dict.fromkeys(range(dead.start, dead.stop), Doubt.ZERO)
    told = [direct(int(n), float(values[n])) for n in numbers[: dead.stop + 1]]
    # The feed that was dead as the run began has told it already.
    for begin in (dead.start, dead.start + 2):
        assert asked(told[begin:], told[:begin]) == [
            *["zero"] * (dead.stop - begin),
            values[dead.stop],
        ]


@pytest.mark.parametrize("mix", [WINDY, GASSY])
def test_a_zero_of_a_feed_counts_where_its_mix_explains_it(mix):
    expected = 0.0 if mix is WINDY else "zero"
    assert asked([direct(0, 0.0, mix)]) == [expected]
    # Weeks of coal before it do not matter then, and no row of zeros helps against a mix of gas.
    coal = [direct(n, 350.0 + n % 5) for n in range(-200, 0)]
    assert asked([direct(n, 0.0, mix) for n in range(4)], coal) == [expected] * 4


def test_zeros_without_a_mix_count_from_the_third_in_a_row():
    assert asked([direct(n, 0.0) for n in range(4)]) == ["zero", "zero", 0.0, 0.0]
    assert asked([direct(n, g) for n, g in enumerate((0, 9, 0, 0, 9))]) == [
        "zero", 9, "zero", "zero", 9,
    ]  # fmt: skip
    assert asked([direct(0, 0.0)], [direct(n, 0.0) for n in (-2, -1)]) == [0.0]
    # The same hour read three times is one zero.
    assert asked([direct(0, 0.0)] * 3) == ["zero"] * 3


def test_a_dead_source_in_a_grid_of_coal_is_no_row_of_zeros():
    coal = [direct(n, 350.0 + n % 5) for n in range(-200, 0)]
    told = asked([direct(n, 0.0) for n in range(5)], coal)
    assert told == ["zero"] * 5


def test_small_values_beside_zeros_are_no_jumps():
    """A windy region comes down from 30 to 0 within hours, and goes up again."""
    week = [direct(n, 30.0 + n % 3) for n in range(-200, 0)]
    values = [direct(n, g) for n, g in enumerate((20, 5, 1, 0, 0, 0, 1, 12, 30))]
    assert asked(values, week) == [20, 5, 1, "zero", "zero", 0, 1, 12, 30]


def test_over_the_life_cycle_no_zero_counts():
    values = [replace(direct(n, 0.0, WINDY), scope=Scope.LIFE_CYCLE) for n in range(5)]
    assert asked(values) == ["zero"] * 5


def test_a_marginal_plant_changes_at_once_but_burns_nothing_only_where_it_did_before():
    def moer(number, g_per_kwh):
        start_s = NOW_S + 300.0 * number
        return MarginalIntensity(
            "a", start_s, 300.0, g_per_kwh, Gas.CO2, Basis.LOCATION, Scope.DIRECT, "model", True,
            start_s, Provenance.PUBLISHED,
        )  # fmt: skip

    values = [moer(n, g) for n, g in enumerate((400, 3, *[0] * 14, 400))]
    gas = [moer(n, 400.0 + n % 7) for n in range(-2000, 0)]
    assert asked(values, gas) == [400, 3, *["zero"] * 14, 400]
    # Where it did so before, for an hour a dead source is no less likely.
    windy = [moer(n, 400.0 if n % 7 else 20.0) for n in range(-2000, 0)]
    assert asked(values, windy) == [400, 3, *["zero"] * 12, 0, 0, 400]


def test_a_recording_is_judged_with_what_came_after():
    values = np.array([30.0, 0, 30, 20, 0, 0, 0, 20])
    assert doubts_in(Series(0.0, HOUR_S, values), Scope.DIRECT) == {1: Doubt.ZERO}
    explained = [None, True, *[None] * 6]
    assert doubts_in(Series(0.0, HOUR_S, values), Scope.DIRECT, explained) == {}
    assert list(doubts_in(Series(0.0, HOUR_S, values))) == [1, 4, 5, 6]


@given(st.lists(st.integers(0, 49), min_size=1, max_size=300))
def test_no_row_of_zeros_in_a_clean_grid_is_doubted(levels):
    """Whatever a grid below 50 g/kWh does, only its short rows of zeros are in doubt."""
    values = np.repeat(np.array(levels, np.float64), 3)
    doubts = doubts_in(Series(0.0, HOUR_S, values), Scope.DIRECT)
    assert not [number for number in doubts if values[number] == 0]


# ---------------------------------------------------------------- never dirtier than each reading


def days(n_days=10):
    """Hours of a grid between 260 and 340 g/kWh."""
    hours = range(-24 * n_days, 0)
    return [average("a", NOW_S + HOUR_S * n, 300 + 40 * np.sin(n / 24 * 2 * np.pi)) for n in hours]


def test_a_clean_hour_in_doubt_is_unknown_and_not_what_was_before():
    clean = average("a", NOW_S + HOUR_S, 40.0)
    feed = ScriptedFeed("a", [average("a", NOW_S, 300.0), clean, FeedUnreachable("no")], days())
    chain = FeedChain([feed], STALE_S)
    chain.recall(NOW_S)
    assert chain.ask(NOW_S).value.g_per_kwh == 300.0
    assert chain.ask(NOW_S + HOUR_S).value is None
    # Nor is it while the feed does not answer.
    assert chain.ask(NOW_S + 1.2 * HOUR_S).value is None


def test_a_late_feed_does_not_stand_in_for_a_clean_hour_in_doubt():
    late = [average("b", NOW_S - HOUR_S, 300.0), average("b", NOW_S, 210.0)]
    clean = [average("a", NOW_S, 40.0)] * 2
    chain = FeedChain([ScriptedFeed("a", clean, days()), ScriptedFeed("b", late)], STALE_S)
    chain.recall(NOW_S)
    answer = chain.ask(NOW_S)
    assert answer.value is None
    assert [str(r.reason) for r in answer.refusals] == ["out_of_keeping", "dirtier"]
    # Of the same hour it is a reading like the other.
    assert chain.ask(NOW_S + 60).value is late[1]


def test_a_dead_source_does_not_keep_a_late_feed_from_counting():
    late = average("b", NOW_S - HOUR_S, 300.0)
    chain = FeedChain(
        [ScriptedFeed("a", [average("a", NOW_S, 0.0)]), ScriptedFeed("b", [late])], STALE_S
    )
    assert chain.ask(NOW_S).value is late


def test_a_reading_that_is_no_grid_s_does_not_keep_a_late_feed_from_counting():
    late = replace(direct(-1, 100.0), feed="b")
    chain = FeedChain(
        [ScriptedFeed("a", [direct(0, -1.0)] * 2), ScriptedFeed("b", [late])], STALE_S
    )
    assert chain.ask(NOW_S).value is late
    # Nor from being held while it does not answer.
    assert chain.ask(NOW_S + 60).value is late
    # A 0 of the chimneys alone may be one.
    zero = FeedChain([ScriptedFeed("a", [direct(0, 0.0)]), ScriptedFeed("b", [late])], STALE_S)
    assert zero.ask(NOW_S).value is None


@pytest.mark.parametrize(("other", "counts"), [
    ({}, False), ({"scope": Scope.LIFE_CYCLE}, True), ({"gas": Gas.CO2}, True),
])  # fmt: skip
def test_readings_of_other_emissions_say_nothing_of_each_other(other, counts):
    late = replace(direct(-1, 100.0), feed="b", **other)
    doubted = [direct(n, 300.0 + n % 5) for n in range(-200, 0)]
    first = ScriptedFeed("a", [direct(0, 40.0)], doubted)
    chain = FeedChain([first, ScriptedFeed("b", [late])], STALE_S)
    chain.recall(NOW_S)
    assert chain.ask(NOW_S).value is (late if counts else None)


def test_a_replayed_hour_in_doubt_is_unknown(tmp_path: Path):
    rows = [f"{NOW_S + n * HOUR_S:.0f},{43 if n == 150 else 350 + n % 5}" for n in range(200)]
    path = tmp_path / "a.csv"
    path.write_text("time,g_per_kwh\n" + "\n".join(rows))
    trace = read_trace(path)
    assert trace.doubted == {150: 43.0}
    chain = FeedChain([ReplayFeed(trace, NOW_S, NOW_S)], STALE_S)
    told = [chain.ask(NOW_S + n * HOUR_S).value for n in (149, 150, 151)]
    assert [v and v.g_per_kwh for v in told] == [354.0, None, 351.0]


READINGS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 40.0, 200.0, 300.0, 340.0, 2000.0, 5000.0]),
              st.sampled_from([None, 0.0, 30.0, 310.0, 900.0]), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip


@given(READINGS, st.sampled_from(Scope))
def test_no_hour_is_dirtier_than_every_reading_of_it(hours, scope):
    """Two feeds tell what they like each hour; the second may have nothing, or be an hour late."""
    first, second = ScriptedFeed("a", (), days()), ScriptedFeed("b")
    chain = FeedChain([first, second], STALE_S)
    chain.recall(NOW_S)
    for number, (one, other, is_late) in enumerate(hours):
        now_s = NOW_S + HOUR_S * number
        readings = [replace(average("a", now_s, one), scope=scope)]
        first.answers.append(readings[0])
        if other is not None:
            told = replace(average("b", now_s - HOUR_S * is_late, other), scope=scope)
            second.answers.append(told)
            readings += [] if is_late else [told]
        value = chain.ask(now_s).value
        first.answers.clear()
        second.answers.clear()
        # A 0 over the life cycle is a dead source's, for which a late feed may stand in.
        real = [v.g_per_kwh for v in readings if v.g_per_kwh > 0 or v.scope is Scope.DIRECT]
        if value is not None and real:
            assert value.g_per_kwh <= max(real)
