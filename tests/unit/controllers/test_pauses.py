"""When a run stood still, by its recorded decisions."""

from __future__ import annotations

from ecorl.control import Command, GearChoice, Why
from ecorl.controllers.waiting import paused_spans
from ecorl.ledger import GearChoiceRow


def row(attempt, t_s, command):
    return GearChoiceRow(attempt, t_s, GearChoice(0.0, command, Why.DIRTY, "c", "words", 0.0))


def test_a_pause_lasts_to_the_next_other_decision_or_to_the_end_of_its_attempt():
    rows = [
        row(1, 5.0, Command.RUN),
        row(1, 7.0, Command.PAUSE),
        row(1, 8.0, Command.PAUSE),  # for another reason
        row(1, 9.5, Command.RUN),
        row(1, 20.0, Command.PAUSE),
        row(2, 2.0, Command.PAUSE),
        row(2, 3.0, Command.STOP),
        row(3, 4.0, Command.PAUSE),
    ]
    # Nothing was recorded of attempt 3 after its decision.
    assert paused_spans(rows, {1: 21.0, 2: 9.0}) == {
        1: [(7.0, 9.5), (20.0, 21.0)],
        2: [(2.0, 3.0)],
    }
    assert paused_spans([], {1: 5.0}) == {}
