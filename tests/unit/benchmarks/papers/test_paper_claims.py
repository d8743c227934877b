"""The paper's claims beside the simulator: complete, as printed, and never a mix of provenance."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pytest

from benchmarks import paper_scheduler
from benchmarks.paper_scheduler import CALIBRATIONS, QUICK, document, figures, report
from benchmarks.studies.frameworks.stage_orders import RLHFUSE
from benchmarks.studies.papers import systems as paper_systems
from benchmarks.studies.papers.claims import markdown
from benchmarks.studies.papers.scheduler_claims import CLAIMS, SLIPS, message_for, strong_scaling
from benchmarks.studies.papers.simulated import saturation
from benchmarks.studies.papers.systems import POLICIES, Case, cluster_of, policy_maker
from ecorl.errors import ConfigError
from ecorl.records import Provenance, Stage
from ecorl.sim.scenario import Scenario
from ecorl.stages.figures import GPU

ROOT = Path(__file__).resolve().parents[4]

PRINTED = {
    "idle_sequential": (0.2, 0.4),
    "bubble_rlhfuse": 0.147,
    "bubble_ecorl": 0.061,
    "ladder_rlhfuse": 18.6,
    "ladder_power_monitor": 20.1,
    "ladder_fpga": 24.8,
    "ladder_async": 26.4,
    "ladder_adaptive": 28.7,
    "energy_cut": 0.384,
    "throughput": 1.63,
    "throughput_vs_dschat": 3.97,
    "throughput_vs_rlhfuse": 1.38,
    "oracle_share": 0.83,
    "reward_1b_speedup": 6.7,
    "reward_7b_speedup": 9.4,
    "reward_13b_speedup": 10.1,
    "reward_1b_gain": 9.3,
    "reward_7b_gain": 14.5,
    "reward_13b_gain": 16.8,
    "batch_128_speedup": 7.1,
    "batch_256_speedup": 9.4,
    "batch_1024_speedup": 8.8,
    "batch_128_gain": 9.4,
    "batch_256_gain": 14.5,
    "batch_1024_gain": 13.1,
    "cards_throughput_70b": 8.0,
    "cards_energy_70b": 4.0,
    "cards_throughput_405b": 16.0,
    "cards_energy_405b": 8.0,
    "l_max": 2048.0,
    "energy_cut_grpo": (0.25, 0.35),
    "scaling_ecorl": 0.72,
    "scaling_baseline": 0.31,
}


@pytest.fixture(scope="module")
def found():
    return report(QUICK._replace(n_iterations=3), POLICIES["lookahead"])


@pytest.fixture(scope="module")
def by_id(found):
    made = figures(found)
    assert len({f.id for f in made}) == len(made)
    return {f.id: f for f in made}


def small(calibration="paper", **changes):
    sizes = MappingProxyType({Stage.GENERATION: "70b"})
    changes = {"n_iterations": 5, "sizes": sizes} | changes
    return Scenario("x", calibration, **changes)


def test_printed_values_are_the_papers():
    claims = {c.id: c.printed for c in CLAIMS}
    assert {id: claims[id] for id in PRINTED} == PRINTED


def test_every_claim_has_its_figures(by_id):
    for claim in CLAIMS:
        ends = ("_low", "_high") if isinstance(claim.printed, tuple) else ("",)
        for end in ends:
            figure = by_id[f"paper.{claim.id}.printed{end}"]
            assert (figure.value is None) == (claim.printed is None)
            assert figure.provenance in (Provenance.PUBLISHED, None)
        for calibration in CALIBRATIONS:
            figure = by_id[f"paper.{claim.id}.{calibration}"]
            assert figure.provenance is (None if figure.value is None else Provenance.MODELLED)
    for slip in SLIPS:
        for name in ("printed", "derived"):
            assert by_id[f"paper.{slip.id}.{name}"].provenance is Provenance.PUBLISHED


def test_every_figure_has_a_value_or_a_reason(by_id):
    for figure in by_id.values():
        assert figure.note
        assert figure.target is None
        assert figure.value is None or math.isfinite(figure.value)
    assert by_id["paper.l_max.roofline"].value is None
    assert by_id["paper.l_max.paper"].value == pytest.approx(2048.0, rel=0.05)


def test_every_claim_has_a_reason():
    for claim in (*CLAIMS, *SLIPS):
        assert len(claim.why) > 10
        assert claim.text
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)


def test_the_calibration_that_is_made_from_a_claim_gives_it_back(by_id):
    assert by_id["paper.scaling_baseline.paper"].value == pytest.approx(0.31, abs=0.01)
    assert by_id["paper.card_advantage_1b.paper"].value == pytest.approx(13.7 / 4.8)


def test_the_ladder_starts_where_measuring_changes_nothing(by_id):
    for calibration in CALIBRATIONS:
        first = by_id[f"paper.ladder_rlhfuse.{calibration}"].value
        assert by_id[f"paper.ladder_power_monitor.{calibration}"].value == first


@pytest.mark.parametrize(
    ("id", "derived"),
    [
        ("amdahl_energy", 1.11),
        ("amdahl_speed", 1.266),
        ("two_passes", 6.85),
        ("cut_from_ratio", 0.784),
        ("cut_from_co2", 0.4035),
        ("tokens_per_sample", 12_325.0),
        ("rows_per_iteration", 1095.0),
        ("training_ops", 3.36),
        ("waterfall", 28.7),
        ("state_size", 72.0),
        ("card_latency_ms", 7.1),
    ],
)
def test_slips_are_computed(id, derived):
    (slip,) = [s for s in SLIPS if s.id == f"slip_{id}"]
    assert slip.derived == pytest.approx(derived, rel=0.002)


def test_strong_scaling_by_the_papers_formula():
    assert strong_scaling(1.0) == pytest.approx(0.31)
    assert strong_scaling(0.0) == pytest.approx(1.0)
    assert strong_scaling(message_for(0.72)) == pytest.approx(0.72)
    # The same from the formula itself, with C = 1 and a from the baseline.
    a = (1 - 0.31) / (0.31 * 64 * 2 * 1023 / 1024 - 2 * 15 / 16)
    few, many = (1 / 16 * 16 + 0.77 * a * 2 * 15 / 16), (16 / 1024 + 0.77 * a * 2 * 1023 / 1024)
    assert strong_scaling(0.77) == pytest.approx(16 * few / (1024 * many))


def test_always_gpu_in_the_placement_simulator_is_deepspeed_chat_with_idle_cards():
    for calibration in CALIBRATIONS:
        case = Case(small(calibration), 2, 1)
        rates = case.played(lambda trace: lambda simulation: np.full(trace.n, GPU)).rates
        np.testing.assert_allclose(rates.time_s, case.sequential.time_s, rtol=1e-9)
        np.testing.assert_allclose(rates.busy_s, case.sequential.busy_s, rtol=1e-9)
        idle_j = case.trace.actual.card_idle_w[0] * rates.time_s
        np.testing.assert_allclose(rates.energy_j - idle_j, case.sequential.energy_j, rtol=1e-9)


def test_the_best_placement_is_never_worse_than_none():
    for calibration in CALIBRATIONS:
        case = Case(small(calibration), 2, 1)
        least_j, least_s = case.fused
        plain = case.framework(RLHFUSE)
        card_j = case.trace.actual.card_idle_w[0] * plain.time_s
        assert (least_j.energy_j <= (plain.energy_j + card_j) * (1 + 1e-9)).all()
        assert (least_s.time_s <= plain.time_s * (1 + 1e-9)).all()
    without = Case(small(n_cards=0), 2, 1)
    np.testing.assert_allclose(
        without.fused[1].time_s, without.framework(RLHFUSE).time_s, rtol=1e-9
    )


def test_sweeps_see_the_same_lengths():
    one, other = Case(small(), 2, 1), Case(small(n_cards=8), 2, 1)
    np.testing.assert_array_equal(one.trace.length, other.trace.length)
    assert one.tokens == pytest.approx(256 * one.trace.length.sum(axis=0))


def test_cluster_of_the_paper_setting():
    cluster = cluster_of(small("roofline"))
    assert (cluster.n_copies, cluster.pipeline_bubble) == (16.0, pytest.approx(3 / 11))
    assert cluster.reshard_s == pytest.approx(5.6, rel=0.02)
    assert cluster_of(small("paper")).reshard_s == 0.0


def test_saturation_takes_the_fewest_cards_that_are_enough(snapshot):
    counts = (0, 1, 2, 4, 8)
    assert saturation(counts, [1.0, 1.5, 1.985, 2.0, 1.9]).value == 2.0
    found = saturation(counts, [1.0] * 5, "on 96 GPUs")
    assert found.value == 0.0
    snapshot(found.note)


def test_both_tables_hold_every_row(found):
    text = markdown(document(found, "a setting"))
    for claim in CLAIMS:
        assert f"| {claim.text} |" in text
    for slip in SLIPS:
        assert slip.text in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == len(CLAIMS) + len(SLIPS) + 4
    assert "nan" not in text.lower().split()
    claims, printed = (t.terminal() for t in document(found, "") if not isinstance(t, str))
    assert (claims.row_count, printed.row_count) == (len(CLAIMS), len(SLIPS))


def test_the_quick_pass_runs_and_keeps_both_files(tmp_path, monkeypatch, capsys, found):
    monkeypatch.syspath_prepend(str(ROOT))
    script = importlib.import_module("benchmarks.paper_scheduler")
    monkeypatch.setattr(script, "report", lambda passes, policy: found)
    path = tmp_path / "paper.json"
    code = script.run_benchmark(
        script.NAME, script.measure, ["--quick", "--json", str(path)], script.options
    )
    assert code == 0
    data = json.loads(path.read_text())
    assert data["config"]["policy"] == "planner"
    assert all(f["id"].endswith("@quick") for f in data["figures"])
    assert "RLHFuse" in path.with_suffix(".md").read_text()
    assert "under roofline" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys, found):
    monkeypatch.syspath_prepend(str(ROOT))
    script = importlib.import_module("benchmarks.paper_scheduler")
    monkeypatch.setattr(script, "report", lambda passes, policy: found)
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "paper.json"
    code = script.run_benchmark(
        script.NAME, script.measure, ["--quick", "--json", str(path)], script.options
    )
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


class AlwaysConcurrent:
    """A policy file that likes a3 best."""

    asked: ClassVar[list[Path | None]] = []
    energy_margin = None

    def __init__(self, path):
        self.asked.append(path)

    def batch(self, states):
        return np.tile(np.array([0.0, 0.5, 1.0], dtype=np.float32), (len(states), 1))


def test_a_policy_comes_by_name_or_file(monkeypatch):
    monkeypatch.setattr(paper_systems, "PolicyFile", AlwaysConcurrent)
    case = Case(small(n_iterations=2, length_scale=0.5), 2, 1)
    assert case.played(policy_maker("learned")).offloaded == 1.0
    policy_maker("some.onnx")
    assert AlwaysConcurrent.asked == [None, Path("some.onnx")]
    assert policy_maker("greedy") is POLICIES["greedy"]
    with pytest.raises(ConfigError, match="lookahead"):
        policy_maker("best")


def test_a_file_that_is_no_policy_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        policy_maker(str(tmp_path / "none.onnx"))


def test_the_policy_is_the_callers(monkeypatch):
    asked = []

    def make(trace):
        asked.append(trace.n)
        return lambda simulation: np.zeros(trace.n, dtype=np.int64)

    monkeypatch.setattr(paper_scheduler, "CALIBRATIONS", ("paper",))
    outcomes = report(QUICK._replace(n_iterations=2, card_counts=(0, 4)), make)["paper"]
    assert asked
    assert outcomes["oracle_share"].value == pytest.approx(0.0, abs=1e-9)
    assert outcomes["throughput_policy"].value == pytest.approx(1.0)
