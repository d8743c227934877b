from __future__ import annotations

import threading

import pytest

from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.errors import ConfigError
from ecorl.trainer.elastic.records import ElasticFault, ElasticOptions, Patience
from ecorl.trainer.elastic.steering import Bearing, Heading, Steering, WidthWishes

GONE, NEAR = ElasticFault.CONTROL_GONE, ElasticFault.DEADLINE_NEAR


def choice(width=None, command=Command.RUN, gear=None, look_again_s=0.0):
    return GearChoice(0.0, command, Why.PRICED, "list", "", look_again_s, width=width, gear=gear)


class Listed:
    """Answers what stands in a list; an error there is raised."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def decide(self, now_s, steps_done, steps_left):
        self.asked.append((now_s, steps_done, steps_left))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def steering(controller, first_width=1, **options):
    told = []
    options.setdefault("patience", Patience(decide_s=5.0))
    options = ElasticOptions(max_width=4, **options)
    made = Steering(controller, first_width, options, lambda *fault: told.append(fault))
    return made, told


def at(now_s=0.0, n_done=10, n_left=90, pace_s=1.0, width=2):
    return Bearing(now_s, n_done, n_left, pace_s, width)


def test_it_goes_by_what_the_controller_says():
    controller = Listed(
        choice(2, gear=Gear.BF16),
        choice(9),
        choice(command=Command.PAUSE),
        choice(),
        choice(command=Command.STOP),
    )
    steers, told = steering(controller)
    assert steers.hear(at(now_s=5.0, n_done=3)) == Heading(2, Gear.BF16)
    assert steers.hear(at()) == Heading(4, Gear.BF16)  # at most max_width, the gear stays
    assert steers.hear(at()).width == 0
    assert steers.hear(at()).width == 4  # on as it was before the pause
    assert steers.hear(at()).stops
    assert controller.asked[0] == (5.0, 3, 90)
    assert told == []


@pytest.mark.parametrize("fault", [ValueError("no grid"), None])
def test_the_last_choice_holds_while_the_controller_is_gone(fault):
    steers, told = steering(Listed(choice(3, gear=Gear.FP8), fault, fault, choice(1), fault))
    for _ in range(3):
        assert steers.hear(at()) == Heading(3, Gear.FP8)
    assert [kind for kind, _, _ in told] == [GONE]  # once, not at each step
    assert steers.hear(at()).width == 1
    assert steers.hear(at()).width == 1
    assert len(told) == 2


def test_a_controller_that_hangs_is_not_waited_for_and_heard_when_it_is_back():
    goes_on, asked = threading.Event(), []

    class Hangs:
        def decide(self, now_s, steps_done, steps_left):
            asked.append(steps_done)
            goes_on.wait(240)
            return choice(3)

    steers, told = steering(Hangs(), patience=Patience(decide_s=0.01))
    assert steers.hear(at(n_done=1)).width == 1
    assert steers.hear(at(n_done=2)).width == 1
    assert asked == [1]  # one question at a time
    goes_on.set()
    steers._decide_s = 240.0
    assert steers.hear(at(n_done=3)).width == 3
    assert [kind for kind, _, _ in told] == [GONE]


def test_without_a_controller_the_deadline_is_met_by_the_largest_width():
    gone = [RuntimeError("gone")] * 5
    steers, told = steering(Listed(choice(2), *gone, choice(2)), deadline_s=1000.0)
    assert steers.hear(at(now_s=0.0)).width == 2
    assert steers.hear(at(now_s=900.0, n_left=90)).width == 2  # 90 s of work, 100 s left
    assert steers.hear(at(now_s=915.0, n_left=90)).width == 4
    # It is faster now, and stays so: the promise would fall again at the next mishap.
    assert steers.hear(at(now_s=930.0, n_left=50, pace_s=0.6, width=4)).width == 4
    assert [kind for kind, _, _ in told] == [GONE, NEAR]
    steers.hear(at(now_s=931.0, width=4))
    steers.hear(at(now_s=932.0, width=4))
    assert steers.hear(at(now_s=933.0, width=4)).width == 2  # the controller is back


def test_a_pause_does_not_last_for_ever_because_the_controller_is_gone():
    paused = choice(command=Command.PAUSE, look_again_s=50.0)
    steers, _ = steering(Listed(choice(3), paused, None, None))
    steers.hear(at())
    steers.hear(at())
    assert steers.hear(at(now_s=49.0, width=0)).width == 0
    assert steers.hear(at(now_s=51.0, width=0)).width == 3
    # With a deadline it ends when the steps that are left need the time.
    steers, _ = steering(Listed(choice(3), paused, None, None), deadline_s=1000.0)
    steers.hear(at())
    steers.hear(at())
    assert steers.hear(at(now_s=905.0, width=0)).width == 0
    assert steers.hear(at(now_s=915.0, width=0)).width == 4


def test_a_pause_before_the_first_step_ends_at_once_when_nobody_knows_the_pace():
    paused = choice(command=Command.PAUSE, look_again_s=900.0)
    steers, _ = steering(Listed(paused, None), deadline_s=1000.0)
    assert steers.hear(at(pace_s=None, width=0)).width == 0
    assert steers.hear(at(pace_s=None, width=0)).width == 4


def test_wishes_for_now_and_for_later_steps():
    wishes = WidthWishes(1, max_width=4)
    wishes.ask(3, at_step=8)
    wishes.ask(2, at_step=5)
    assert wishes.goal(1) == 2  # the next one is prepared
    assert wishes.goal(0) == 1  # what is wanted now comes first
    wishes.take_due(4)
    assert (wishes.width, wishes.is_waited_for) == (1, False)
    wishes.take_due(5)
    assert (wishes.width, wishes.is_waited_for) == (2, True)
    wishes.is_met()
    assert not wishes.is_waited_for
    assert wishes.goal(2) == 3
    wishes.ask(4)  # forgets what was booked
    wishes.take_due(100)
    assert wishes.width == 4


@pytest.mark.parametrize("width", [-1, 5])
def test_a_width_that_cannot_be_is_refused(width):
    for ask in (lambda: WidthWishes(width, max_width=4), lambda: WidthWishes(1, 4).ask(width)):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert caught.value.value == width
        assert "max_width = 4" in caught.value.allowed


class Keeper(Listed):
    """Remembers something."""

    kept: object = 3

    def memory(self):
        return {"kept": self.kept}

    def recall(self, memory):
        self.kept = memory["kept"]


def test_a_controller_s_memory_is_kept_and_recalled_where_it_has_one():
    steers, told = steering(Keeper())
    assert steers.memory() == {"kept": 3}
    controller = Keeper()
    other, _ = steering(controller)
    other.recall({"kept": 5})
    other.recall(None)  # an old checkpoint has none
    assert controller.kept == 5
    without, _ = steering(Listed())
    without.recall({"kept": 5})
    assert without.memory() is None
    assert told == []


def test_a_memory_that_fails_is_told_and_does_not_end_the_training():
    controller = Keeper()
    controller.kept = object()  # nothing that JSON can hold
    steers, told = steering(controller)
    assert steers.memory() is None
    steers.recall({})
    assert [kind for kind, _, _ in told] == [GONE, GONE]
    assert told[1][2].endswith(": KeyError: 'kept'")
