"""Messages between the supervisor and training processes: lines that are good, bad and cut."""

from __future__ import annotations

import socket

import pytest

from roll_adapters.trl.launch.handover import WidthHandover
from roll_adapters.trl.launch.messages import (
    Begin,
    Begun,
    Channel,
    Dropped,
    Ended,
    Failed,
    FilesPrepared,
    Go,
    Left,
    StandbyReady,
    Stayed,
    Wanted,
    line_of,
    message_of,
)

ALL = [
    Begin("by", "/runs/a b", 'name = "x"\n'),
    FilesPrepared(),
    Wanted(2, 1),
    StandbyReady(1),
    Dropped(2, "no\nmemory"),
    Stayed(2),
    Left(2, 7, 12.5, None),
    Go(Left(2, 7, 12.5, 0.25)),
    Go(Left(2, 7, 12.5, 0.25), Dropped(2, "gone")),
    Begun(8),
    Ended("complete"),
    Failed("ConfigError", "seed = 1", "Traceback"),
]


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_a_message_is_one_line_and_comes_back_as_it_was(message):
    line = line_of(message)
    assert line.count(b"\n") == 1
    assert message_of(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"{}",
        b'{"message": "Unheard"}',
        b'{"message": ["StandbyReady"]}',
        b'{"message": "StandbyReady"}',
        b'{"message": "StandbyReady", "serial": "1"}',
        b'{"message": "StandbyReady", "serial": true}',
        b'{"message": "StandbyReady", "serial": 1, "more": 2}',
        b'{"message": "Ended", "how": "gladly"}',
        b'{"message": "Go", "left": {"width": 2}}',
        b'{"message": "Left", "width": 2, "step": 1, "ended_s": "now", "usual_step_s": null}',
    ],
)
def test_a_line_that_is_no_message_is_none(line):
    assert message_of(line) is None


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    channels = Channel(one), Channel(other)
    yield channels
    for channel in channels:
        channel.close()


def test_lines_arrive_in_order_however_they_are_cut(ends):
    here, there = ends
    data = b"".join(map(line_of, ALL))
    for begin in range(0, len(data), 7):
        here._connection.sendall(data[begin : begin + 7])
    assert there.receive() == ALL
    assert there.receive() == []
    here.send(StandbyReady(1))
    here.send(StandbyReady(2))
    assert there.wait() == StandbyReady(1)
    assert there.receive() == [StandbyReady(2)]


def test_an_end_that_is_gone_raises_nothing(ends):
    here, there = ends
    here.send(StandbyReady(1))
    here.close()
    assert not here.send(StandbyReady(2))
    assert there.wait() == StandbyReady(1)
    assert there.wait() is None
    assert not there.is_open
    assert not there.send(StandbyReady(3))


# ---------------------------------------------------------------- rank 0's wishes


def test_what_is_wanted_is_asked_for_once_and_left_for_when_ready(ends):
    here, there = ends
    handover = WidthHandover(here, 1, (1, 2, 4))
    assert not handover.wanted(None)
    assert not handover.wanted(1)
    assert there.receive() == []
    assert not handover.wanted(2)
    assert not handover.wanted(2)
    assert there.receive() == [Wanted(2, 1)]
    there.send(StandbyReady(1))
    assert handover.wanted(2)
    assert handover.target == 2


def test_an_answer_to_an_earlier_wish_counts_for_nothing(ends):
    here, there = ends
    handover = WidthHandover(here, 1, (1, 2))
    handover.wanted(2)
    there.send(StandbyReady(1))
    assert not handover.wanted(1)
    assert not handover.wanted(2)
    assert there.receive() == [Wanted(2, 1), Wanted(1, 2), Wanted(2, 3)]
    there.send(StandbyReady(3))
    assert handover.wanted(2)


def test_what_cannot_be_begun_with_is_told_once(ends):
    here, there = ends
    handover = WidthHandover(here, 1, (1, 2))
    handover.wanted(2)
    there.send(StandbyReady(1))
    there.send(Dropped(2, "gone"))
    assert not handover.wanted(2)
    assert handover.dropped() == [Dropped(2, "gone")]
    assert handover.dropped() == []


def test_a_wish_that_is_taken_back_is_asked_for_anew(ends):
    here, there = ends
    handover = WidthHandover(here, 1, (1, 2))
    handover.wanted(2)
    there.send(StandbyReady(1))
    assert handover.wanted(2)
    handover.take_back("not saved")
    assert handover.dropped() == [Dropped(2, "not saved")]
    assert not handover.wanted(2)
    assert there.receive() == [Wanted(2, 1), Stayed(2), Wanted(2, 2)]


def test_a_width_that_may_not_be_chosen_changes_nothing(ends, caplog):
    here, there = ends
    handover = WidthHandover(here, 2, (1, 2))
    for _ in range(3):
        assert not handover.wanted(3)
        assert not handover.wanted(0)
    assert there.receive() == []
    assert caplog.text.count("trainer.widths") == 1


def test_a_choice_that_goes_to_and_fro_asks_for_nothing(ends):
    here, there = ends
    handover = WidthHandover(here, 1, (1, 2), steady=3)
    for width in (2, 1, 2, 2, 1, 2, 1):
        assert not handover.wanted(width)
    assert there.receive() == []
    for width in (2, 2, 2):
        handover.wanted(width)
    assert [message.width for message in there.receive()] == [2]
    for width in (1, 1, 2, 1, 1):
        handover.wanted(width)
    assert there.receive() == []
    handover.wanted(1)
    assert [message.width for message in there.receive()] == [1]
