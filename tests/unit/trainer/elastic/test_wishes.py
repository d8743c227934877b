from __future__ import annotations

import pytest

from ecorl.errors import ConfigError
from ecorl.trainer.elastic.steering import WidthWishes


def due(wishes, *steps):
    found = []
    for step in steps:
        wishes.take_due(step)
        found.append(wishes.width)
    return found


@pytest.mark.parametrize("widths", [(3, 2), (2, 3), (0, 2)])
def test_of_two_wishes_for_one_step_the_later_one_holds(widths):
    wishes = WidthWishes(1, 4)
    for width in widths:
        wishes.ask(width, at_step=5)
    assert due(wishes, 4, 5) == [1, widths[1]]


@pytest.mark.parametrize("booked", [((0, 5), (2, 8)), ((2, 8), (0, 5))])
def test_nothing_can_be_asked_for_after_a_pause_that_would_never_end(booked, snapshot):
    wishes = WidthWishes(1, 4)
    (first, at_step), second = booked
    wishes.ask(first, at_step)
    with pytest.raises(ConfigError) as caught:
        wishes.ask(*second)
    snapshot(str(caught.value))
    # What was asked for before it still holds.
    assert due(wishes, at_step) == [first]


def test_a_pause_may_come_last_and_ends_by_what_is_due():
    wishes = WidthWishes(1, 4)
    wishes.ask(2, at_step=3)
    wishes.ask(0, at_step=5)
    assert due(wishes, 3, 5) == [2, 0]
    wishes.ask(2, at_step=5)
    wishes.ask(3, at_step=8)
    assert due(wishes, 5, 8) == [2, 3]


def test_a_wish_for_no_step_forgets_those_for_later_ones():
    wishes = WidthWishes(1, 4)
    wishes.ask(2, at_step=3)
    wishes.ask(3)
    assert due(wishes, 3) == [3]
