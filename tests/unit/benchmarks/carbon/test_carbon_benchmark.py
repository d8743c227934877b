"""The carbon benchmark on small made-up recordings, and without any."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.carbon.scores import LEADS_H, ForecastScores, LeadScore
from benchmarks.studies.carbon.traces import (
    KNOWN_GRIDS,
    VARIABLE,
    WHY_MISSING,
    recorded_grids,
)
from ecorl.carbon.series import Series
from ecorl.errors import ConfigError, DataError
from tests.fakes.grid_series import grid
from tests.fakes.recordings import two, weeks, write

ROOT = Path(__file__).resolve().parents[4]
PER_GRID = ("forecast_mape24", "forecast_coverage", "wait_saving")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delenv(VARIABLE, raising=False)
    return importlib.import_module("benchmarks.carbon")


def run(script, *words):
    return script.run_benchmark("carbon", script.measure, list(words), script.options)


def by_id(path):
    data = json.loads(path.read_text())
    figures = {f["id"]: f for f in data["figures"]}
    assert len(figures) == len(data["figures"])
    return figures, data["config"]


def test_each_recording_has_its_figures(script, tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, seed in (("A", 1), ("B", 2)):
        values = grid(70, seed=seed, noise=60.0).values.round(2).tolist()
        write(folder, two(values), f"{name}_2022_hourly.csv")
    path = tmp_path / "r.json"
    words = ("--every-days", "7", "--json", str(path))
    assert run(script, *words, "--traces", str(folder)) == 0
    figures, config = by_id(path)
    wanted = {f"carbon.{figure}_{name}" for figure in PER_GRID for name in "AB"}
    assert set(figures) == wanted | {"carbon.integration_error", "carbon.pause_weights_equal"}
    assert figures["carbon.pause_weights_equal"]["value"] == 1.0
    assert figures["carbon.pause_weights_equal"]["spread"]["n_pauses"] >= 1
    assert figures["carbon.integration_error"]["holds"] is True
    assert config["traces"]["A"]["n"] == 70 * 24
    mape = figures["carbon.forecast_mape24_A"]
    assert float(mape["target"].removeprefix("<= ")) == pytest.approx(
        min(mape["spread"]["simple_rules"].values()), rel=1e-5
    )
    assert set(mape["spread"]["by_lead_h"]) == {str(lead) for lead in LEADS_H}
    saving = figures["carbon.wait_saving_B"]
    bound = saving["spread"]["by_rule"]["best_start"]["share"]
    assert 0.0 < saving["value"] < bound
    low, high = saving["spread"]["interval_95"]
    assert low < saving["value"] < high
    assert "inventory" in saving["note"]


def test_a_quick_pass_without_recordings_says_what_is_missing(script, tmp_path, capsys):
    path = tmp_path / "r.json"
    assert run(script, "--quick", "--check", "--json", str(path)) == 0
    figures, _ = by_id(path)
    assert figures["carbon.integration_error@quick"]["value"] < 1e-6
    for name in KNOWN_GRIDS:
        for figure in PER_GRID:
            gap = figures[f"carbon.{figure}_{name}@quick"]
            assert gap["value"] is None
            assert VARIABLE in gap["note"]
    assert WHY_MISSING in capsys.readouterr().out


def test_recordings_that_are_too_short_or_too_coarse_give_reasons(script):
    short = script.grid_figures("S", grid(20), script.Plan())
    coarse = script.grid_figures("C", grid(200, step_s=7200.0), script.Plan())
    odd = script.grid_figures("O", grid(90, step_s=2400.0), script.Plan())
    for found, why in ((short, "20 days are too few"), (coarse, "7200 s"), (odd, "2400 s")):
        assert [f.value for f in found] == [None] * 3
        assert all(why in f.note for f in found)


def test_half_hours_are_scored_by_the_hour(script):
    series = grid(50, step_s=1800.0, noise=40.0)
    plan = script.Plan(every_days=5, every_h=6.0, origins_every_h=49)
    found = {f.id: f for f in script.grid_figures("H", series, plan)}
    saving = found["carbon.wait_saving_H"]
    assert 0.0 < saving.value < saving.spread["by_rule"]["best_start"]["share"]
    scores = found["carbon.forecast_coverage_H"].spread
    assert scores["n"] == 2 * found["carbon.forecast_mape24_H"].spread["n_origins"]


def test_a_series_without_values_at_the_right_times_has_no_score(script):
    scores = ForecastScores(1, tuple(_lead(lead) for lead in LEADS_H), {"rule": None})
    assert scores.strongest_rule is None
    assert script._mape_figure("X", scores).value is None
    assert script._coverage_figure("X", scores).value is None
    assert script._saving_figure("X", None).value is None


def _lead(lead_h):
    return LeadScore(lead_h, 0, 0, None, None, None, None, None, None)


def test_a_small_saving_is_called_so(script):
    series = grid(60, noise=1.0)
    calm = Series(series.start_s, series.step_s, 300.0 + (series.values - 300.0) / 50.0)
    (*_, figure) = script.grid_figures("X", calm, script.Plan())
    assert figure.value < script.SMALL
    assert "small" in figure.note


@pytest.mark.parametrize("words", [("--every-days", "0"), ("--every-days", "x")])
def test_wrong_numbers_of_days_are_refused(script, words):
    with pytest.raises(SystemExit):
        run(script, *words)


# ------------------------------------------------------------------------------ the folder


def named(folder=None):
    return argparse.Namespace(traces=folder)


def test_the_folder_comes_by_option_or_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert recorded_grids(named()) == {}
    write(tmp_path, two(weeks()), "CISO_2022.csv")
    for folder in (None, tmp_path):
        monkeypatch.setenv(VARIABLE, str(tmp_path) if folder is None else "/nowhere")
        (name,) = recorded_grids(named(folder))
        assert name == "CISO"


def test_a_folder_that_does_not_serve_is_named(script, tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match=r"none'") as caught:
        recorded_grids(named(tmp_path / "none"))
    assert caught.value.key == "--traces"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=VARIABLE):
        recorded_grids(named())
    for year in (2021, 2022):
        write(tmp_path, two(weeks()), f"PJM_{year}.csv")
    with pytest.raises(ConfigError, match="PJM"):
        recorded_grids(named())
    assert run(script, "--traces", str(tmp_path / "none")) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_recording_that_cannot_be_read_is_an_error(tmp_path):
    write(tmp_path, "a,b,c,d\n1,2,3,4\n", "X_1.csv")
    with pytest.raises(DataError):
        recorded_grids(named(tmp_path))


def test_the_whole_list_holds_them():
    everything = importlib.import_module("benchmarks.__main__")
    for name in ("carbon", "paper_carbon"):
        assert name in everything.NAMES
        assert np.isfinite(everything.BOX_S[name])
