"""The demo's long pass: every seed and variant once, each result kept as it comes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.studies.demo_run import DemoRun
from ecorl.errors import RunError
from ecorl.report.model import PairedGain, RankFlips

ROOT = Path(__file__).resolve().parents[3]
N_RUNS = 16
SOURCES = "c0ffee"


@pytest.fixture
def demo(monkeypatch, require_tool):
    require_tool("trl")
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("benchmarks.demo")
    monkeypatch.setattr(module, "commit", lambda: SOURCES)
    return module


def result_of(seed, gain=0.3, before=0.2):
    gains = {
        name: PairedGain(name, "before", "after", before, before + gain, gain, 0.03, 256, None)
        for name in ("reward", "correct")
    }
    flips = RankFlips("held_out", 2048, 20, 0.01, (0.006, 0.015), 0, None, None, None)
    return DemoRun(seed, 60.0 + seed, 20.0, 1.0, gains, flips, 0)


class Runner:
    """Stands for `run_demo`; remembers what was asked, and fails where it is told to."""

    def __init__(self, fails_at=None, **worse):
        self.asked, self._fails_at, self._worse = [], fails_at, worse

    def __call__(self, seed, folder, overrides, environment):
        if len(self.asked) == self._fails_at:
            raise RunError("the run did not finish")
        self.asked.append((seed, overrides, dict(environment)))
        return result_of(seed, **(self._worse if seed == 2025 else {}))


def run_long(demo, monkeypatch, path, runner, quick=False):
    monkeypatch.setattr(demo, "run_demo", runner)
    options = SimpleNamespace(quick=quick, install=False, long=True, json=path)
    config, figures = demo.measure(options)
    return config, {f.id: f for f in figures}


def test_ten_seeds_and_three_of_them_with_each_variant(demo, monkeypatch, tmp_path):
    runner = Runner()
    run_long(demo, monkeypatch, tmp_path / "long.json", runner)
    plain = [seed for seed, overrides, environment in runner.asked if not environment]
    assert sorted(plain) == sorted({11, 42, 1337, 2025, 7, 1, 2, 3, 4, 5})
    assert set(demo.SEEDS) <= set(plain)
    threads = [a for a in runner.asked if a[2].get("OMP_NUM_THREADS") == "2"]
    vectors = [a for a in runner.asked if a[2].get("ATEN_CPU_CAPABILITY") == "avx2"]
    for asked in (threads, vectors):
        assert [seed for seed, *_ in asked] == [11, 42, 1337]
    # The trainer sets its threads itself: the variable alone would be no variant.
    assert all(overrides == ("trainer.num_threads=2",) for _, overrides, _ in threads)
    assert all(a[2]["ONEDNN_MAX_CPU_ISA"] == "AVX2" and a[1] == () for a in vectors)
    assert len(runner.asked) == N_RUNS


def test_the_worst_run_is_the_figure_and_all_stand_in_its_spread(demo, monkeypatch, tmp_path):
    runner = Runner(gain=0.06, before=0.29)
    _, figures = run_long(demo, monkeypatch, tmp_path / "long.json", runner)
    figure = figures["demo.long_correct_gain_se"]
    assert figure.value == pytest.approx(2.0)
    assert figure.holds is False
    assert len(figure.spread) == N_RUNS
    assert figure.spread["1337, AVX2"] == {
        "before": 0.2, "after": 0.5, "gain": 0.3, "standard_error": 0.03, "n": 256,
        "gain_se": pytest.approx(10.0),
    }  # fmt: skip
    assert figures["demo.long_correct_before"].value == pytest.approx(0.29)
    assert figures["demo.long_run_s"].value == 60.0 + 2025
    assert figures["demo.long_faults"].value == 0
    assert figures["demo.long_rank_flip_share"].provenance == "emulated"
    assert not set(figures) & {"demo.correct_gain_se", "demo.run_s"}


def test_a_pass_that_was_cut_off_has_lost_nothing_and_goes_on(demo, monkeypatch, tmp_path):
    path = tmp_path / "long.json"
    with pytest.raises(RunError):
        run_long(demo, monkeypatch, path, Runner(fails_at=5))
    kept = json.loads(path.read_text())
    assert kept["commit"] == SOURCES
    assert list(kept["config"]["runs"]) == [str(seed) for seed in demo.LONG_SEEDS[:5]]
    unfinished = {f["id"]: f for f in kept["figures"]}["demo.long_correct_gain_se"]
    assert (unfinished["value"], unfinished["holds"]) == (None, None)
    assert "5 of 16" in unfinished["note"]
    assert len(unfinished["spread"]) == 5

    runner = Runner()
    config, figures = run_long(demo, monkeypatch, path, runner)
    assert len(runner.asked) == N_RUNS - 5
    assert len(config["runs"]) == N_RUNS
    assert figures["demo.long_correct_gain_se"].value == pytest.approx(10.0)
    assert len(json.loads(path.read_text())["config"]["runs"]) == N_RUNS


@pytest.mark.parametrize("sources", ["another", None, f"{SOURCES}-dirty"])
def test_results_of_other_sources_are_not_gone_on_with(demo, monkeypatch, tmp_path, sources):
    path = tmp_path / "long.json"
    run_long(demo, monkeypatch, path, Runner())
    monkeypatch.setattr(demo, "commit", lambda: sources)
    runner = Runner()
    run_long(demo, monkeypatch, path, runner)
    assert len(runner.asked) == N_RUNS


def test_results_of_other_variants_or_another_machine_are_not_gone_on_with(
    demo, monkeypatch, tmp_path
):
    path = tmp_path / "long.json"
    for change in ("variants", "device"):
        run_long(demo, monkeypatch, path, Runner())
        kept = json.loads(path.read_text())
        if change == "device":
            kept["device"]["n_cores"] += 1
        else:
            kept["config"]["variants"][0]["environment"] = {}
        path.write_text(json.dumps(kept))
        runner = Runner()
        run_long(demo, monkeypatch, path, runner)
        assert len(runner.asked) == N_RUNS, change


def test_a_quick_long_pass_takes_one_run_and_keeps_nothing(demo, monkeypatch, tmp_path):
    runner = Runner()
    _, figures = run_long(demo, monkeypatch, tmp_path / "long.json", runner, quick=True)
    assert len(runner.asked) == 1
    assert list(tmp_path.iterdir()) == []
    assert figures["demo.long_correct_gain_se"].value is not None


def test_a_run_without_a_spread_makes_the_figure_missing(demo, monkeypatch, tmp_path):
    path = tmp_path / "long.json"
    monkeypatch.setattr(
        demo, "gain_in_errors", lambda gain: None if gain.mean_before == 0.29 else 10.0
    )
    _, figures = run_long(demo, monkeypatch, path, Runner(before=0.29))
    figure = figures["demo.long_correct_gain_se"]
    assert figure.value is None
    assert "15 of " in figure.note
