"""Claims about training that follows the grid: as printed, by hand, and along small series."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.paper_carbon import document, figures, gears_found, report
from benchmarks.studies.carbon.control.scenario import Study, hour_means
from benchmarks.studies.papers.carbon_claims import CLAIMS
from benchmarks.studies.papers.control_found import (
    bounds,
    by_grid,
    control_found,
    cuts,
    modelled,
    power_of,
    shifted_jobs,
    unshielded,
)
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.catalogue import build
from ecorl.controllers.problem.training import HOUR_S
from ecorl.records import Provenance
from tests.fakes.grid_series import grid

HOURLY = Study(epoch_s=HOUR_S)
OURS = [claim for claim in CLAIMS if claim.source in ("gear", "carl")]


@pytest.fixture(scope="module")
def months():
    """A grid that is long enough for one start of the study."""
    return grid(92, seed=3, noise=20.0)


def test_printed_values_are_the_sources_of_both_papers():
    printed = {claim.id: claim.printed for claim in OURS}
    wanted = {
        "gear_cut_13b": 0.444, "gear_cut_70b": 0.519, "gear_width_fixed": (0.22, 0.25),
        "gear_caiso": (0.52, 0.55), "gear_miso": 0.40, "gear_across": (0.44, 0.52),
        "gear_spot_13b": (0.36, 0.39), "gear_throughput_70b": 0.02, "gear_nccl": 0.004,
        "gear_fp8_time": 0.37, "gear_regret": 0.5, "gear_deficit": -0.5, "gear_variance": 4.0,
        "gear_perplexity_13b": 5.93 / 5.68, "gear_perplexity_70b": 4.37 / 4.23,
        "carl_cut": 0.347, "carl_energy": 0.22, "carl_delay": 0.035, "carl_pue": 0.291,
        "carl_cue": 0.357, "carl_cars": 5.0, "carl_demand": 1000.0,
    }  # fmt: skip
    assert {id: printed[id] for id in wanted} == wanted


@pytest.mark.parametrize(
    ("id", "value"),
    [
        ("gear_cut_13b", 1 - 18.9 / 42.6),
        ("gear_cut_70b", 1 - 91.1 / 189.3),
        ("gear_spot_13b", 1 - 18.9 / 29.8),
        ("gear_spot_70b", 1 - 91.1 / 134.5),
        ("gear_spot_static_70b", 1 - 134.5 / 189.3),
        ("gear_throughput_13b", 26 / 540),
        ("gear_throughput_70b", 3 / 111),
        # 150e9 tokens at 107k a second are 389.4 h; 512 x 0.875 kW make 174.5 MWh of them.
        ("gear_intensity_70b", 189.3e6 / 174_455),
        ("gear_nccl", 0.0007),
        ("gear_shift", 108e3 * 0.14733),
        ("carl_cut", 1 - 111.1 * 0.27 / (142.5 * 0.42)),
        ("carl_timing", 1 - 0.24107 / 0.26582),
        ("carl_facility", 1 - 111.1 * 1.12 / (142.5 * 1.58)),
        ("carl_pue_fixed", 1 + 0.58 * 142.5 / 111.1),
        ("carl_overhead", 1 - 13.332 / 82.65),
        ("carl_power", 1 - 0.77965 / 1.028),
    ],
)
def test_what_follows_from_both_papers_is_computed(id, value):
    (claim,) = [one for one in OURS if one.id == id]
    assert claim.derived == pytest.approx(value, rel=1e-3)


def test_a_part_of_the_time_in_fp8_by_hand():
    # Of 100 s, 37 in FP8 train 53.65 of BF16's seconds; 63 + 53.65 for 26,455 + 44,100 J a GPU.
    assert modelled()["gear_width_fixed"] == pytest.approx(1 - 705.55 / 116.65 / 7.0, rel=1e-4)


def test_powers_are_found():
    lengths = (7.0, 30.0, 120.0)
    for power in (-0.5, 0.5, 1.0):
        assert power_of(lengths, [3.0 * n**power for n in lengths]) == pytest.approx(power)


# ---------------------------------------------------------------------------------- along a grid


def test_on_a_level_grid_only_joules_count():
    level = Series(0.0, HOUR_S, np.full(92 * 24, 250.0))
    found = cuts(HOURLY, level, [60]) | bounds(HOURLY, level, [60])
    kwh = {
        gear: HOURLY.table().only((gear,)).power_w[0, -1] / rate
        for gear, rate in ((Gear.BF16, 1.0), (Gear.FP8, 1.45))
    }
    by_joules = 1 - kwh[Gear.FP8] / kwh[Gear.BF16]
    # What is drawn in pauses makes all of them a little less, and narrow widths a little more.
    assert found["gear_width_fixed"] == pytest.approx(by_joules, abs=0.02)
    assert found["gear_cut_70b"] == pytest.approx(by_joules, abs=0.03)
    assert found["gear_cut_same_throughput"] == pytest.approx(by_joules, abs=0.04)
    assert 0.0 < found["gear_cut_37"] < found["gear_cut_same_throughput"]
    assert found["gear_spot_static_70b"] == pytest.approx(0.0, abs=0.05)
    assert shifted_jobs(level, 60, 175)["carl_cut_best"] == pytest.approx(0.0, abs=1e-9)


def test_nobody_saves_more_than_the_optimum_of_the_same_jobs(months):
    found = shifted_jobs(months, 60, 100)
    assert found["carl_cut"] <= found["carl_cut_best"] + 1e-9
    assert found["carl_cut_best"] > 0.0


def test_without_a_shield_tokens_are_missing(months):
    problem = HOURLY.problem(months.start_s + 60 * 86400.0)
    left = unshielded(build("soft-q-printed", problem), problem, months)
    assert 0.1 * problem.tokens < left < 0.9 * problem.tokens
    racing = replace(problem, tokens=0.5 * problem.tokens)
    assert unshielded(build("race", racing), racing, months) == 0.0


def test_a_recording_in_short_intervals_is_played_by_its_hours(months):
    fine = Series(months.start_s, HOUR_S / 4, np.repeat(months.values, 4))
    assert np.allclose(hour_means(fine).values, months.values)
    assert hour_means(months) is months
    found = control_found({"FINE": fine, "SHORT": grid(40), "COARSE": grid(400, step_s=7200.0)},
                          is_quick=True)  # fmt: skip
    plain, n = by_grid(months, is_quick=True)
    assert set(found) == {"FINE"}
    of_grid, n_of_grid = found["FINE"]
    assert n_of_grid == n == 1
    assert of_grid == pytest.approx(plain)
    assert set(plain) <= {claim.id for claim in OURS}


def test_a_claim_about_some_grids_has_no_figure_of_others(months):
    found = report({"CISO": months, "MISO": months}, is_quick=True)
    made = {f.id: f for f in figures(found)}
    assert "paper_carbon.gear_caiso.grid_CISO" in made
    assert "paper_carbon.gear_caiso.grid_MISO" not in made
    assert "paper_carbon.gear_miso.grid_MISO" in made
    assert "paper_carbon.gear_miso.ours" not in made
    untested = made["paper_carbon.gear_variance.ours"]
    assert untested.value is None
    assert "benchmarks.trainer" in untested.note
    # Every claim of both papers has something beside it, or the reason why it has nothing.
    for claim in OURS:
        beside = claim.derived is not None or claim.id in found.ours or found.grids(claim)
        assert beside or claim.needs_training or found.is_untested(claim)


def test_what_trainings_with_gears_gave_stands_beside_the_claim(tmp_path, snapshot):
    path = tmp_path / "trainer.json"
    spread = {
        "perplexity_ratio": {"0": 1.01, "1": 0.99, "2": 1.002},
        "norm_variance_ratio": {"0": 1.1, "1": 1.0, "2": 4.0},
    }
    figure = {"id": "optim.no_gamma_loss_ratio", "spread": spread}
    result = {"commit": "abc", "config": {"recipe": {"n_steps": 7}}, "figures": [figure]}
    path.write_text(json.dumps(result), "utf-8")
    by_claim, standing = gears_found(path)
    assert by_claim == {
        "gear_variance": 1.1, "gear_perplexity_13b": 1.002, "gear_perplexity_70b": 1.002
    }  # fmt: skip
    snapshot(standing)
    made = {f.id: f for f in figures(report({}, by_claim))}
    beside = made["paper_carbon.gear_variance.ours"]
    assert (beside.value, beside.provenance) == (1.1, Provenance.EMULATED)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"figures": [{"id": "another"}]}',
    '{"commit": null, "figures": [{"id": "optim.no_gamma_loss_ratio", "spread": null}]}',
])  # fmt: skip
def test_a_result_without_such_figures_tells_nothing(tmp_path, text):
    path = tmp_path / "trainer.json"
    path.write_text(text, "utf-8")
    assert gears_found(path) == ({}, "")
    assert gears_found(tmp_path / "missing.json") == ({}, "")


def test_without_recordings_the_table_says_what_is_missing():
    found = report({})
    assert found.n_starts == {}
    tables = [part for part in document(found, "") if not isinstance(part, str)]
    cells = {row[0]: row for table in tables for row in table.rows}
    (miso,) = (row for text, row in cells.items() if text.startswith("Cut on MISO"))
    assert "MISO" in miso[4]
    assert miso[5] == ""
