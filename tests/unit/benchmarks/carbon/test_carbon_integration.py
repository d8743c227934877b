"""The closed form of a made-up run's emissions, and both paths of a run beside it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.carbon import integration
from benchmarks.studies.carbon.integration import (
    FEED_STEP_S,
    LEAD_S,
    PUE_STEPS,
    READINGS_EVERY_S,
    SPEED,
    GridPiece,
    MadeUpRun,
    by_ledger,
    by_timeline,
    exact_g,
    feed_values,
    integration_errors,
    made_run,
    readings,
)
from ecorl.carbon.timeline import Emitted

STEP_S = FEED_STEP_S / SPEED


def walked_g(made, dt_s=0.5):
    """The sum by small steps of time, each at the values of its middle."""
    total = 0.0
    for piece in made.pieces:
        edges = np.append(np.arange(piece.start_s, piece.end_s, dt_s), piece.end_s)
        middle = (edges[1:] + edges[:-1]) / 2
        numbers = ((middle + LEAD_S) // STEP_S).astype(int)
        begins = np.array([start_s for start_s, _ in PUE_STEPS])
        pue = np.array([p for _, p in PUE_STEPS])[np.searchsorted(begins, middle, "right") - 1]
        total += np.sum(np.array(made.g_per_kwh)[numbers] * pue * np.diff(edges)) * piece.power_w
    return total / 3.6e6


def test_the_closed_form_is_the_sum_by_small_steps():
    made = made_run(6, 3)
    assert float(exact_g(made)) == pytest.approx(walked_g(made), rel=2e-4)


def test_one_piece_within_one_interval_is_power_times_time():
    made = MadeUpRun((250.0,), (GridPiece(0.0, 360.0, 1000.0),))
    assert float(exact_g(made)) == pytest.approx(0.1 * 250.0 * 1.2, rel=1e-12)


def test_a_run_lies_within_its_feed():
    for seed in range(5):
        made = made_run(8, seed)
        values = feed_values(made, 1.7e9)
        assert [v.g_per_kwh for v in values] == list(made.g_per_kwh)
        assert values[0].start_s == pytest.approx(1.7e9 - LEAD_S)
        assert values[-1].end_s > 1.7e9 + made.pieces[-1].end_s
        ends = [piece.end_s for piece in made.pieces[:-1]]
        assert ends == [piece.start_s for piece in made.pieces[1:]]


def test_readings_hold_until_the_next():
    samples = readings([GridPiece(0.0, 2.0, 100.0), GridPiece(2.0, 2.5, 50.0)], 10.0)
    found = [(s.t_s, s.power_w) for s in samples]
    assert found == [(10.0, 100.0), (10.0 + READINGS_EVERY_S, 100.0),
                     (10.0 + 2 * READINGS_EVERY_S, 100.0), (12.0, 50.0), (12.5, 0.0)]  # fmt: skip


def test_both_paths_give_the_closed_form():
    made = made_run(4, 2)
    exact = float(exact_g(made))
    for found in (by_timeline(made), by_ledger(made)):
        assert found.carbon_g == pytest.approx(exact, rel=1e-8)
        assert found.unknown_j == 0.0


def test_an_error_is_seen():
    found = integration_errors(4, 2)
    assert max(found["timeline"], found["ledger"]) < 1e-8
    assert 0.0 < found["restless"] < 1e-3
    made = made_run(4, 2)
    wrong = by_timeline(made._replace(g_per_kwh=tuple(1.01 * g for g in made.g_per_kwh)))
    assert integration._error(wrong, made) == pytest.approx(0.01, rel=1e-6)
    assert integration._error(Emitted(None, 0.0, 1.0), made) == 1.0
