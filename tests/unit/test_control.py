"""What a decision asks of a step."""

from __future__ import annotations

import pytest

from ecorl.control import Command, Gear, GearChoice, Why


@pytest.mark.parametrize(
    ("chosen", "why", "width", "gear"),
    [
        (2, Why.PRICED, 2, Gear.FP8),
        # The second worker is still to come: in FP8 one alone would use up tokens meant for two.
        (2, Why.PRICED, 1, None),
        (1, Why.PRICED, 2, None),
        (2, Why.SHIELDED, 1, Gear.FP8),
        (None, Why.TIMING, 1, Gear.FP8),
        (2, Why.PRICED, None, Gear.FP8),
    ],
)
def test_a_gear_is_shifted_to_at_the_width_that_it_was_chosen_with(chosen, why, width, gear):
    choice = GearChoice(0.0, Command.RUN, why, "it", "as told", 1.0, width=chosen, gear=Gear.FP8)
    assert choice.gear_at(width) is gear
