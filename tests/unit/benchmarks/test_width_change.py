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


def test_the_stall_is_the_longest_gap_over_the_median_and_calibration_does_not_count(snapshot):
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
    figure = width_figure(result(*steps), first=1)
    assert figure.spread["n_steps"] == 7
    assert figure.value == pytest.approx(1.75)
    assert figure.holds is True
    assert figure.spread["at_a_change"] == pytest.approx(1.75)
    snapshot(figure.note)


def test_a_stall_away_from_the_changes_counts_too():
    steps = [(1, 1.0), (1, 0.4), (1, 0.4), (1, 2.0), (2, 0.4), (2, 0.4), (1, 0.4)]
    told = width_figure(result(*steps), first=0)
    assert told.value == pytest.approx(5.0)
    assert told.spread["at_a_change"] == pytest.approx(1.0)


def test_a_stall_of_short_steps_is_not_judged(snapshot):
    steps = [(1, 0.1), (1, 0.1), (2, 0.1), (2, 0.1), (2, 0.1), (1, 0.4), (1, 0.1), (1, 0.1)]
    figure = width_figure(result(*steps), first=0)
    assert figure.target is None
    snapshot(figure.note)
