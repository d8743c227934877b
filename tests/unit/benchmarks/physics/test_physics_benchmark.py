"""The physics benchmark, and whether its committed results are those of today's models.

Nothing in the results depends on a machine, so a change of the cycle model, of a profile or of a
shape that leaves them behind fails here. A run of ``python -m benchmarks.fpga_physics`` mends it.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.harness.figures import as_quick
from benchmarks.studies.physics.map import SIDES, Axes, card_passes, charge_passes
from benchmarks.studies.physics.map_files import as_data
from benchmarks.studies.physics.passes import ACCOUNTINGS, ALWAYS, PRECISIONS
from benchmarks.studies.physics.ranges import POWERS, SCORING_MFU, ranged_map
from benchmarks.studies.physics.tables import WIDTH
from ecorl.devices import load_profile

ROOT = Path(__file__).resolve().parents[4]
RESULTS = ROOT / "benchmarks" / "results" / "amd-epyc-2core"
SOME = Axes(("20m", "360m", "7b"), (1, 64), (32, 512), (0.1, 0.5))
DIGITS = 6e-3
"""The map keeps three digits: 1.00 may stand for 1.005."""


# ---- the benchmark ------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.fpga_physics")


def test_benchmark_writes_result_map_and_picture(script, tmp_path, capsys, snapshot):
    options = SimpleNamespace(quick=True, json=tmp_path / "r.json", plot=None)
    config, found = script.measure(options)
    assert {p.name for p in tmp_path.iterdir()} == {"r_map.json", "r.png"}
    assert (tmp_path / "r.png").stat().st_size < 150_000
    printed = capsys.readouterr().out
    assert max(map(len, printed.replace(str(tmp_path), "").splitlines())) <= WIDTH
    assert " 70 W " in printed
    assert config["accountings"][0] == "gpu_there_anyway"
    figures = {f.id: f for f in found}
    assert len(figures) == len(found)
    assert {str(f.provenance) for f in found if f.value is not None} == {"published", "modelled"}
    assert figures["physics.paper_violations"].value == 23
    snapshot(figures["physics.paper_violations"].note)
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
    snapshot(nowhere.note, "break-even")
    assert figures["physics.bound_break_even_params_m"].value > 20
    assert as_quick(found)[0].id.endswith("@quick")


WITHOUT_THE_GPU = {"model_above_bound"} | {
    f"{card}_tokens_per_j_7b" for card in ("u55c", "u55c_ideal", "u55c_bound")
}
BY_THE_MFU = {f"paper_{row}.ours" for row in ("h100_tokens_per_j", "h100_ms", "forward_ms")}


def test_what_rests_on_the_gpu_has_its_interval(script):
    figures = script.measure(SimpleNamespace(quick=True, json=None, plot=None))[1]
    for figure in figures:
        name = figure.id.removeprefix("physics.")
        if name in WITHOUT_THE_GPU or name.startswith(("paper_", "violation_")):
            assert (figure.spread is not None) is (name in BY_THE_MFU), name
            continue
        low, high, of = (figure.spread[key] for key in ("low", "high", "of"))
        assert set(of) <= {*POWERS, SCORING_MFU}
        if figure.value is not None:
            assert high is not None
            assert figure.value <= high
            assert low is None or low <= figure.value
        if "7b" in name and "break_even_mfu" not in name:
            assert of == ["idle_w", SCORING_MFU], name
            assert low < figure.value < high
    line = next(f.line() for f in figures if f.id == "physics.u55c_ideal_vs_h100_bf16_7b")
    assert "0.2074 to 0.3123" in line


def test_benchmark_ratio_at_7b_is_that_of_the_map(script, tmp_path):
    axes = Axes(("7b",), (1,), (512,), (0.5,))
    one = charge_passes(card_passes(load_profile("u55c"), axes), load_profile("h100_sxm"), axes)
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
    with pytest.raises(script.ConfigError, match=r"r_map\.json") as caught:
        script.measure(SimpleNamespace(quick=True, json=bad, plot=None))
    assert caught.value.key == "--json"
    plot = tmp_path / "file" / "p.png"
    with pytest.raises(script.ConfigError, match=r"p\.png") as caught:
        script.measure(SimpleNamespace(quick=True, json=good, plot=plot))
    assert caught.value.key == "--plot"


# ---- the committed results -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed():
    return json.loads((RESULTS / "fpga_physics_map.json").read_text())


@pytest.fixture(scope="module")
def some():
    return as_data(
        ranged_map(card_passes(load_profile("u55c"), SOME), load_profile("h100_sxm"), SOME)
    )


def _same_cells(axes, values):
    """The cells of `SOME`, of an array that begins with size, rows and tokens."""
    found = np.array(values, dtype=object if isinstance(_first(values), str) else float)
    for axis, (name, wanted) in enumerate(
        (("size", SOME.sizes), ("rows", SOME.rows), ("tokens", SOME.tokens), ("", ()),
         ("mfu", SOME.mfus))
    ):  # fmt: skip
        if wanted and axis < found.ndim:
            found = np.take(found, [axes[name].index(one) for one in wanted], axis=axis)
    return found


def _first(values):
    while isinstance(values, list):
        values = values[0]
    return values


def test_the_committed_map_spans_what_the_benchmark_spans(committed, some):
    axes, whole = committed["axes"], Axes()
    assert set(committed) == set(some)
    assert committed["order"] == some["order"]
    for name, wanted in zip(("size", "rows", "tokens", "mfu"), whole, strict=True):
        assert axes[name] == list(wanted)
    for name in ("precision", "accounting"):
        assert axes[name] == some["axes"][name]


def test_cells_of_the_committed_map_are_those_of_the_models(committed, some):
    pairs = [(committed["gpu_mj_per_token"], some["gpu_mj_per_token"])]
    for key in ("card_mj_per_token", "ratio", "ratio_low", "ratio_high"):
        assert set(committed[key]) == set(SIDES)
        pairs += [(committed[key][side], some[key][side]) for side in SIDES]
    for stored, fresh in pairs:
        np.testing.assert_allclose(_same_cells(committed["axes"], stored), fresh, rtol=DIGITS)


def test_what_rules_the_committed_cells_is_what_rules_now(committed, some):
    pairs = [(committed[key], some[key]) for key in ("gpu_rules", "card_parts")]
    pairs += [(committed["card_rules"][side], some["card_rules"][side]) for side in SIDES]
    for stored, fresh in pairs:
        assert _same_cells(committed["axes"], stored).tolist() == fresh


def test_committed_figures_are_those_of_the_models(script, tmp_path):
    options = SimpleNamespace(quick=False, json=tmp_path / "r.json", plot=None)
    fresh = {figure.id: figure for figure in script.measure(options)[1]}
    stored = {
        one["id"]: one for one in json.loads((RESULTS / "fpga_physics.json").read_text())["figures"]
    }
    assert set(stored) == set(fresh)
    for id, figure in fresh.items():
        value = None if figure.value is None else pytest.approx(figure.value, rel=1e-6)
        assert stored[id]["value"] == value, id
        assert stored[id]["note"] == figure.note, id
        assert (stored[id]["spread"] is None) is (figure.spread is None), id
        if figure.spread is not None:
            assert stored[id]["spread"]["of"] == figure.spread["of"], id
            for end in ("low", "high"):
                value = figure.spread[end]
                value = None if value is None else pytest.approx(value, rel=1e-6)
                assert stored[id]["spread"][end] == value, id
