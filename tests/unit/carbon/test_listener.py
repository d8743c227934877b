"""The listener's newest answer is there at once, and is not believed for longer than it holds."""

from __future__ import annotations

import threading

import pytest

from ecorl.carbon.chain import FeedChain
from ecorl.carbon.listener import SILENT_FOR, Listener
from ecorl.errors import FeedUnreachable
from tests.fakes.scripted_feed import HOUR_S, ScriptedFeed, average

NOW_S = 1.7e9
STALE_S = 600.0
LIMIT_S = 240.0


class Clocks:
    """A wall clock and a steady one that the test moves."""

    def __init__(self):
        self.wall_s, self.steady_s = NOW_S, 50.0

    def move(self, by_s):
        self.wall_s += by_s
        self.steady_s += by_s


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def listen(clocks):
    """Starts a listener to a feed; waits until it has had so many answers."""
    started = []

    def start(feed, n_answers, interval_s=0.001):
        answers, enough = [], threading.Event()

        def tell(answer):
            answers.append(answer)
            if len(answers) >= n_answers:
                enough.set()

        listener = Listener(
            FeedChain([feed], STALE_S),
            interval_s,
            tell,
            wall=lambda: clocks.wall_s,
            steady=lambda: clocks.steady_s,
        )
        started.append(listener)
        listener.start()
        assert enough.wait(LIMIT_S)
        return listener, answers

    yield start
    for listener in started:
        listener.close()


def test_before_the_first_answer_nothing_is_known(clocks, snapshot):
    heard = Listener(FeedChain([ScriptedFeed("a")], STALE_S), 60.0).heard()
    assert heard.value is None
    snapshot(heard.why)


def test_the_newest_answer_counts(listen):
    values = [average("a", NOW_S, g) for g in (100.0, 110.0)]
    feed = ScriptedFeed("a", [*values, *[lambda _: values[-1]] * 100_000])
    listener, answers = listen(feed, 2)
    assert listener.heard().value == values[-1]
    assert [answer.value for answer in answers[:2]] == values


def test_a_value_that_gets_too_old_is_unknown_though_nobody_says_so(listen, clocks):
    value = average("a", NOW_S)
    listener, _ = listen(ScriptedFeed("a", [value]), 1, interval_s=3600.0)
    assert listener.heard().value == value
    clocks.move(HOUR_S + STALE_S)
    assert listener.heard().value == value
    clocks.move(1.0)
    assert listener.heard().value is None
    assert "too old" in listener.heard().why


def test_a_wall_clock_that_jumps_makes_no_value_fresh_for_ever(listen, clocks):
    value = average("a", NOW_S)
    listener, _ = listen(ScriptedFeed("a", [value]), 1, interval_s=300.0)
    clocks.steady_s += SILENT_FOR * 300.0 + 1
    clocks.wall_s -= 86400.0
    assert listener.heard().value is None
    assert " 901 s" in listener.heard().why


def test_why_nothing_is_known_is_told(listen):
    listener, _ = listen(ScriptedFeed("a", [FeedUnreachable("the wire is cut")]), 1, 3600.0)
    assert listener.heard().why == "a: the wire is cut"


def test_a_feed_that_hangs_holds_nobody_up(clocks):
    release = threading.Event()

    def hang(now_s):
        release.wait(LIMIT_S)
        return average("a", now_s)

    feed = ScriptedFeed("a", [hang])
    listener = Listener(FeedChain([feed], STALE_S), 60.0)
    listener.start()
    assert listener.heard().value is None
    listener.close(timeout_s=0.01)
    release.set()
    listener.close(timeout_s=LIMIT_S)
