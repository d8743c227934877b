"""The physics benchmark: what it writes, prints and says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from ecorl.bench.figures import as_quick
from ecorl.bench.physics_accounts import ACCOUNTINGS, ALWAYS
from ecorl.bench.physics_map import Axes, break_even_map
from ecorl.bench.physics_passes import PRECISIONS
from ecorl.bench.physics_tables import WIDTH
from ecorl.devices import load_profile

ROOT = Path(__file__).resolve().parents[3]

# ---- the benchmark ------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.fpga_physics")


def test_benchmark_writes_result_map_and_picture(script, tmp_path, capsys):
    options = SimpleNamespace(quick=True, json=tmp_path / "r.json", plot=None)
    config, found = script.measure(options)
    assert {p.name for p in tmp_path.iterdir()} == {"r_map.json", "r.png"}
    assert (tmp_path / "r.png").stat().st_size < 150_000
    printed = capsys.readouterr().out
    assert max(map(len, printed.replace(str(tmp_path), "").splitlines())) <= WIDTH
    assert "31 findings on 23 printed figures" in printed
    assert "idle at 70 W and at 120 W" in printed
    assert config["accountings"][0] == "gpu_there_anyway"
    figures = {f.id: f for f in found}
    assert len(figures) == len(found)
    assert {str(f.provenance) for f in found if f.value is not None} == {"published", "modelled"}
    assert figures["physics.paper_violations"].value == 23
    assert "31 findings on 23 printed figures (3 findings on 2 of them" in (
        figures["physics.paper_violations"].note
    )
    assert figures["physics.u55c_vs_h100_bf16_7b"].value < 0.1
    ideal = figures["physics.u55c_ideal_vs_h100_bf16_7b"].value
    assert ideal == pytest.approx(11.9 / 50.5, rel=0.08)  # by 2 N alone
    bound = figures["physics.u55c_bound_vs_h100_bf16_7b"].value
    assert bound == pytest.approx(ideal * 775 / 300)
    for side in ("u55c", "u55c_ideal"):
        best = f"physics.{side}_best_ratio_duty_1pct"
        assert figures[best].value < figures[f"{best}_idle_120w"].value
    assert figures["physics.model_above_bound"].holds is True
    nowhere = figures["physics.break_even_params_m"]
    assert nowhere.value is None
    assert nowhere.note.startswith("the card wins nowhere: at best 0.")
    assert "not measured" in nowhere.note
    assert figures["physics.bound_break_even_params_m"].value > 20
    assert as_quick(found)[0].id.endswith("@quick")


def test_benchmark_ratio_at_7b_is_that_of_the_map(script, tmp_path):
    axes = Axes(("7b",), (1,), (512,), (0.5,))
    one = break_even_map(load_profile("u55c"), load_profile("h100_sxm"), axes)
    found = script.measure(SimpleNamespace(quick=True, json=None, plot=tmp_path / "p.png"))[1]
    figures = {f.id: f.value for f in found}
    for side, name in (("ours", "u55c"), ("ideal", "u55c_ideal"), ("bound", "u55c_bound")):
        for i, precision in enumerate(PRECISIONS):
            ratio = one.ratio(side)[(0, 0, 0, i, 0, ACCOUNTINGS.index(ALWAYS))]
            id = f"physics.{name}_vs_h100_{precision.name.lower()}_7b"
            assert figures[id] == pytest.approx(ratio)
    assert (tmp_path / "p.png").is_file()


def test_benchmark_says_where_it_cannot_write(script, tmp_path):
    (tmp_path / "file").write_text("")
    bad, good = tmp_path / "file" / "r.json", tmp_path / "r.json"
    with pytest.raises(script.ConfigError, match=r"--json = '\S+r_map.json'"):
        script.measure(SimpleNamespace(quick=True, json=bad, plot=None))
    plot = tmp_path / "file" / "p.png"
    with pytest.raises(script.ConfigError, match=r"--plot = '\S+p.png'"):
        script.measure(SimpleNamespace(quick=True, json=good, plot=plot))
