from __future__ import annotations

import pytest

from benchmarks.studies.trainer.elastic import width_figure
from ecorl.trainer.elastic.records import StepDone, TrainingResult, WidthChange


def result(*steps):
    """A training of steps of (width, time since the one before)."""
    done, now_s = [], 0.0
    for number, (width, time_s) in enumerate(steps):
        now_s += time_s
        done.append(StepDone(number, 1.0, width, (0,), now_s, time_s))
    changes = (WidthChange(0, 0, 1, 9.0, 9.0), WidthChange(4, 1, 2, 3.0, 0.0))
    return TrainingResult(0, tuple(done), changes, (), 0, True)


def test_the_stall_is_the_longest_gap_over_the_median_and_calibration_does_not_count():
    steps = [
        (1, 9.0),
        (1, 8.0),
        (1, 0.4),
        (1, 0.4),
        (2, 0.7),
        (2, 0.2),
        (2, 0.2),
        (1, 0.5),
        (1, 0.4),
    ]
    told = width_figure(result(*steps), first=1)
    assert told.spread["n_steps"] == 7
    assert told.value == pytest.approx(1.75)
    assert told.holds is True
    assert told.spread["at_a_change"] == pytest.approx(1.75)
    assert "median step of 0.400 s (0.400 s at 1, 0.200 s at 2)" in told.note
    assert told.note.endswith("the second was ready after 3.0 s of training")


def test_a_stall_away_from_the_changes_counts_too():
    steps = [(1, 1.0), (1, 0.4), (1, 0.4), (1, 2.0), (2, 0.4), (2, 0.4), (1, 0.4)]
    told = width_figure(result(*steps), first=0)
    assert told.value == pytest.approx(5.0)
    assert told.spread["at_a_change"] == pytest.approx(1.0)


def test_a_stall_of_short_steps_is_not_judged():
    steps = [(1, 0.1), (1, 0.1), (2, 0.1), (2, 0.1), (2, 0.1), (1, 0.4), (1, 0.1), (1, 0.1)]
    told = width_figure(result(*steps), first=0)
    assert told.target is None
    assert told.note.endswith("not judged: the median is not in 0.25 to 0.5 s")
