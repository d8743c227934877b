"""The first feed counts whose value is fresh and can be believed; else nothing is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.chain import AHEAD_S, FeedChain, Refusal
from ecorl.carbon.feeds.local import SyntheticFeed
from ecorl.errors import FeedMalformed, FeedRefused, FeedUnreachable
from tests.fakes.scripted_feed import HOUR_S, ScriptedFeed, average

NOW_S = 1.7e9
STALE_S = 2 * HOUR_S


def chain(*feeds):
    return FeedChain(feeds, STALE_S)


def reasons(answer):
    return [(refusal.feed, refusal.reason) for refusal in answer.refusals]


def test_the_first_feed_counts_and_the_others_are_not_asked():
    first, second = ScriptedFeed("a", [average("a", NOW_S)]), ScriptedFeed("b")
    answer = chain(first, second).ask(NOW_S + 60)
    assert answer.value == average("a", NOW_S)
    assert answer.refusals == ()
    assert second.asked_s == []


@pytest.mark.parametrize(
    "error", [FeedUnreachable("no way"), FeedMalformed("what?"), FeedRefused("no", None)]
)
def test_the_next_feed_takes_over_where_one_fails(error):
    answer = chain(ScriptedFeed("a", [error]), ScriptedFeed("b", [average("b", NOW_S)])).ask(NOW_S)
    assert answer.value is not None
    assert answer.value.feed == "b"
    assert answer.refusals == (Refusal("a", type(error).__name__, str(error)),)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (average(start_s=NOW_S, g_per_kwh=0.0), "zero"),
        (average(start_s=NOW_S, g_per_kwh=-5.0), "negative"),
        (average(start_s=NOW_S, g_per_kwh=math.nan), "not_finite"),
        (average(start_s=NOW_S, g_per_kwh=math.inf), "not_finite"),
        (average(start_s=NOW_S, g_per_kwh=3001.0), "above_any_grid"),
        (average(start_s=NOW_S - STALE_S - HOUR_S - 1), "stale"),
        (average(start_s=NOW_S + AHEAD_S + 1), "ahead"),
    ],
)
def test_what_cannot_be_believed_is_dropped_and_nothing_takes_its_place(value, reason):
    answer = chain(ScriptedFeed("a", [value])).ask(NOW_S)
    assert answer.value is None
    assert reasons(answer) == [("a", reason)]


def test_a_value_counts_up_to_the_limit():
    oldest, farthest = average(start_s=NOW_S - STALE_S - HOUR_S), average(start_s=NOW_S + AHEAD_S)
    for value in (oldest, farthest):
        assert chain(ScriptedFeed("a", [value])).ask(NOW_S).value == value


def test_a_feed_that_goes_back_in_time_is_passed_over():
    feed = ScriptedFeed("a", [average(start_s=NOW_S), average(start_s=NOW_S - HOUR_S)])
    asked = chain(feed)
    assert asked.ask(NOW_S).value is not None
    assert reasons(asked.ask(NOW_S + 60)) == [("a", "backwards")]


def test_a_value_that_is_corrected_replaces_the_one_before():
    values = [average(start_s=NOW_S, g_per_kwh=g) for g in (100.0, 120.0)]
    asked = chain(ScriptedFeed("a", values))
    assert [asked.ask(NOW_S + i).value for i in range(2)] == values


def test_a_source_that_asks_for_rest_is_left_alone_and_asked_again_later():
    feed = ScriptedFeed("a", [FeedRefused("too many", 300.0), average(start_s=NOW_S)])
    asked = chain(feed)
    assert reasons(asked.ask(NOW_S)) == [("a", "FeedRefused")]
    assert reasons(asked.ask(NOW_S + 299)) == [("a", "resting")]
    assert asked.ask(NOW_S + 300).value == average(start_s=NOW_S)
    assert feed.asked_s == [NOW_S, NOW_S + 300]


def history(n_days=10):
    """Hours of a grid between 260 and 340 g/kWh."""
    times_s = NOW_S - HOUR_S * np.arange(24 * n_days, 0, -1)
    levels = 300 + 40 * np.sin(2 * np.pi * times_s / 86400)
    pairs = zip(times_s.tolist(), levels.tolist(), strict=True)
    return [average("a", start_s, g_per_kwh) for start_s, g_per_kwh in pairs]


def test_a_first_value_is_judged_by_what_the_feed_tells_of_its_last_weeks():
    bad = average("a", NOW_S, 40.0)
    blind = chain(ScriptedFeed("a", [bad]))
    assert blind.ask(NOW_S).value == bad
    knowing = chain(ScriptedFeed("a", [bad, average("a", NOW_S, 310.0)], history()))
    knowing.recall(NOW_S)
    assert reasons(knowing.ask(NOW_S)) == [("a", "out_of_keeping")]
    assert knowing.ask(NOW_S + 60).value is not None


def test_where_time_is_played_faster_a_year_of_the_grid_is_remembered():
    feed = SyntheticFeed(speed=3600.0, began_s=NOW_S)
    asked = chain(feed)
    asked.recall(NOW_S)
    a_year = 365 * feed.info.day_s
    (first, *_, last) = asked.past(feed.info.name)
    assert first.start_s == pytest.approx(NOW_S - a_year, abs=feed.info.interval_s)
    assert last.end_s <= NOW_S
    later_s = NOW_S + 20 * feed.info.interval_s
    newest = asked.ask(later_s).value
    assert newest is not None
    assert asked.past(feed.info.name)[0].start_s >= newest.start_s - a_year


def test_a_feed_without_a_history_is_judged_by_its_own_values():
    values = [*history(), average("a", NOW_S, 40.0)]
    asked = chain(ScriptedFeed("a", values, FeedUnreachable("no")))
    asked.recall(NOW_S)
    answers = [asked.ask(value.start_s) for value in values]
    assert all(answer.value is not None for answer in answers[:-1])
    assert reasons(answers[-1]) == [("a", "out_of_keeping")]


def test_two_feeds_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        chain(ScriptedFeed("a"), ScriptedFeed("a"))


VALUES = st.builds(
    average,
    feed=st.just("a"),
    start_s=st.floats(NOW_S - 1e6, NOW_S + 1e6),
    g_per_kwh=st.floats(),
    interval_s=st.floats(1, 1e5),
)


@given(st.lists(VALUES, max_size=20), st.lists(st.floats(0, 1e5), min_size=1, max_size=20))
def test_whatever_a_feed_says_what_counts_is_fresh_positive_and_finite(values, waits_s):
    asked, now_s = chain(ScriptedFeed("a", values)), NOW_S
    for wait_s in waits_s:
        now_s += wait_s
        answer = asked.ask(now_s)
        # What was believed before may outlast a question that brought nothing.
        assert answer.value is not None or len(answer.refusals) == 1
        if answer.value is not None:
            assert 0 < answer.value.g_per_kwh <= 3000
            assert answer.value.start_s <= now_s + AHEAD_S
            assert now_s <= answer.value.end_s + STALE_S


def test_a_value_that_is_fresh_outlasts_questions_without_an_answer():
    first, second = average("a", NOW_S, interval_s=1000.0), average("b", NOW_S, interval_s=1000.0)
    silent = FeedUnreachable("nobody answers")
    asked = chain(ScriptedFeed("a", [first, silent, silent]), ScriptedFeed("b", [second]))
    assert asked.ask(NOW_S).value is first
    # The next feed goes before what the first one said earlier.
    assert asked.ask(NOW_S + 10).value is second
    later = asked.ask(NOW_S + 20)
    assert later.value is first
    assert [r.feed for r in later.refusals] == ["a", "b"]
    assert asked.ask(NOW_S + 1000 + STALE_S + 1).value is None
