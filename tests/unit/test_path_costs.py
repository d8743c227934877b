"""What a path is expected to cost next, by what it has cost so far."""

from dataclasses import replace

import pytest

from ecorl.records import PathCost, Provenance, Stage
from ecorl.statistics import expected

COST = PathCost(
    Stage.REWARD, 0.5, 10.0, 9, Provenance.MEASURED,
    recent_s_per_token=0.8, recent_j_per_token=16.0,
    n_recent=8, spread=0.3, age=4, mean_length=10.0, later_s_per_token=0.4,
)  # fmt: skip


def test_what_is_expected_is_the_recent_power_for_the_expected_time():
    time_s = expected(0.8, 0.4, 0.3, 4)
    assert 0.4 < time_s < 0.8
    assert COST.expected_per_token == (time_s, pytest.approx(20.0 * time_s))


def test_nothing_is_expected_of_a_path_without_recent_figures():
    unread = PathCost(Stage.REWARD, 0.5, 10.0, 1, Provenance.MEASURED)
    assert unread.expected_per_token == (None, None)
    unmetered = replace(COST, energy_j_per_token=None, recent_j_per_token=None)
    assert unmetered.expected_per_token == (COST.expected_per_token[0], None)


def test_without_the_mean_of_all_the_recent_figures_stand():
    alone = replace(COST, later_s_per_token=None)
    assert alone.expected_per_token == (0.8, 16.0)
