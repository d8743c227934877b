"""What timing saves: on grids of a known shape, and the figures that the package brings."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.levers import timing_saving, timing_table
from ecorl.carbon.series import Series
from ecorl.operate.levers.known_timings import SLACKS, known_timings, timings_toml

HOURS = np.arange(24 * 85)


def grid(values):
    return Series(1_640_995_200.0, 3600.0, np.broadcast_to(values, HOURS.shape).astype(float))


def test_a_flat_grid_leaves_nothing_to_save():
    found = timing_saving("flat", grid(300.0), 1.25)
    assert found.n_starts >= 1
    assert found.saved_share == pytest.approx(0.0, abs=1e-6)
    assert found.kept_saved_share <= 1e-6


def test_clean_days_are_used_and_kept_machines_cost():
    daily = 300.0 + 200.0 * np.sin(2 * np.pi * HOURS / 24)
    found = timing_saving("daily", grid(daily), 1.5)
    # Two hours of three at the most are needed: what is left out is the dirtiest third.
    assert 0.1 < found.saved_share < 0.35
    assert found.kept_saved_share < found.saved_share
    assert found.low <= found.saved_share <= found.high


def test_widths_reach_from_a_part_to_all():
    table = timing_table(4)
    assert table.widths == (2, 4, 6, 8)
    assert timing_table(1).widths == (8,)


def test_the_package_brings_what_its_benchmark_wrote():
    found = known_timings()
    grids = {one.grid for one in found}
    assert len(found) == len(grids) * len(SLACKS)
    for one in found:
        assert -1.0 < one.saved_share < 1.0
        assert one.low <= one.saved_share <= one.high
        assert one.n_starts >= 3
    assert timings_toml(found).count("[[saving]]") == len(found)
