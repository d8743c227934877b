"""What `ecorl fpga estimate` and the benchmark read: workloads, sweeps, gaps, declared DSPs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from decoder_shapes import EIGHT, SEVEN, TINY

from ecorl.devices import load_profile
from ecorl.engines.fpga import estimate as estimates
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.engines.fpga.estimate import estimate, placed, workload
from ecorl.errors import ConfigError, SynthesisReportError
from ecorl.records import Stage

U55C, V80 = load_profile("u55c"), load_profile("v80")


def test_a_workload_is_rows_as_even_as_can_be():
    reward = workload("m", TINY, Stage.REWARD, 11, 3)
    assert reward.batch == BatchShape((4, 4, 3), (1, 1, 1), 1)
    reference = workload("m", TINY, Stage.REFERENCE, 11, 3)
    assert reference.batch == BatchShape((4, 4, 3), (3, 3, 2), 500)
    assert not reference.config.is_reward
    assert (reference.n_tokens, reference.batch.results) == (11, 8)


def test_what_is_no_workload_is_one_line(snapshot):
    lines = []
    for stage, tokens, rows in (
        (Stage.REWARD, 2, 3),
        (Stage.REFERENCE, 5, 3),
        (Stage.REWARD, 4097, 1),
        (Stage.REWARD, 10, 0),
        (Stage.ACTOR_TRAIN, 10, 1),
    ):
        with pytest.raises(ConfigError) as caught:
            workload("m", TINY, stage, tokens, rows)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_the_sweep_of_intervals_on_a_7b_model():
    work = workload("7b", SEVEN, Stage.REWARD, 512)
    found = estimate(work, U55C)
    one, two, four = found.runs
    assert [run.ii for run in found.runs] == [1, 2, 4]
    assert one.card == CycleModel(SEVEN.shape, U55C).batch(work.batch)
    assert one.tokens_per_s == pytest.approx(512 / one.card.time_s)
    assert one.tokens_per_j == pytest.approx(512 / one.card.energy_j)
    assert 0.85 <= one.array_efficiency < 1
    # Twice the interval is at most half of the array, and no less than a half of what it was.
    assert one.array_efficiency / 2 <= two.array_efficiency < 0.5
    assert two.array_efficiency / 2 <= four.array_efficiency < 0.25
    assert found.one_channel.array_efficiency < one.array_efficiency
    assert one.forward_efficiency < one.array_efficiency
    assert found.missing == ()
    for kernel in one.card.kernels:
        assert sum(found.port_bytes[kernel.kernel].values()) == kernel.moved_bytes
    # Weights come once for each of 8 blocks of 64 rows, those of the last layer's end but once.
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    last = 8 * 3 * 4096 * 4096 + 4096 * 4096 + 3 * 4096 * 11008 + 16 * 4096
    assert found.port_bytes["gemm_int8"]["w"] == 31 * 8 * layer + last


def test_what_is_not_published_of_a_card_stays_none():
    work = workload("8b", EIGHT, Stage.REFERENCE, 512)
    v80, u55c = estimate(work, V80), estimate(work, U55C)
    assert v80.missing == ("clock_hz", "n_dsp_used", "active_w")
    assert (v80.runs, v80.one_channel) == ((), None)
    # Loop counts are the sources': the same on any card, and fewer than with waits for memory.
    assert v80.ideal_cycles == u55c.ideal_cycles
    for kernel in u55c.runs[0].card.kernels:
        without = kernel.cycles - kernel.stall_cycles
        assert v80.ideal_cycles[kernel.kernel] == pytest.approx(without)
    assert v80.memory_s == pytest.approx(u55c.runs[0].card.memory_bytes / 8.2e11)
    assert v80.link_s == pytest.approx((128 * 512 + 32 * 511) / 2.5e10 + 7 * 3e-5)
    bare = estimate(work, replace(V80, figures={}))
    assert (bare.memory_s, bare.link_s) == (None, None)
    data = json.loads(json.dumps(estimates.as_data([v80], [placed([work], V80)], "x")))
    assert data["estimates"][0]["runs"] == []
    assert data["estimates"][0]["weights_in_one_channel"] is None


def test_a_gpu_is_no_card():
    with pytest.raises(ConfigError) as caught:
        estimate(workload("m", TINY, Stage.REWARD, 8), load_profile("h100_sxm"))
    assert (caught.value.key, caught.value.value) == ("--device", "h100_sxm")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A kernel tree of one's own."""
    monkeypatch.setattr(estimates, "kernel_root", lambda: tmp_path)
    (tmp_path / "gemm_int8").mkdir()
    return tmp_path


def test_dsps_are_summed_over_the_kernels_that_declare_any(root):
    (root / "gemm_int8" / "qor.json").write_text(
        '{"dsp": {"count": 7}, "bram_18k": {"count": 9}, "loops": []}'
    )
    (root / "mha_int8").mkdir()
    (root / "mha_int8" / "qor.json").write_text('{"loops": []}')
    declared = estimates.declared_dsps()
    assert declared == {"gemm_int8": 7, "vector_ops": None, "kv_cache_router": None,
                        "mha_int8": None, "score_aggregator": None}  # fmt: skip
    assert estimates.declared_brams() == {**declared, "gemm_int8": 9}
    (root / "mha_int8" / "qor.json").write_text('{"dsp": {"count": "many"}}')
    with pytest.raises(SynthesisReportError, match=r"mha_int8.qor\.json"):
        estimates.declared_dsps()


def test_the_sources_declare_an_array_of_2048_dsps():
    assert estimates.declared_dsps()["gemm_int8"] == 2048


def test_a_synthesis_report_is_named_and_not_claimed(root, snapshot):
    snapshot(estimates.standing_of_kernels(), "without one")
    (root / "gemm_int8" / "csynth.xml").write_text(
        "<profile><ReportVersion><Version>2024.1</Version></ReportVersion>"
        "<UserAssignments><TopModelName>gemm_int8_krnl</TopModelName></UserAssignments>"
        "<PerformanceEstimates/><AreaEstimates><Resources/></AreaEstimates></profile>"
    )
    snapshot(estimates.standing_of_kernels(), "with one")
    (root / "gemm_int8" / "csynth.xml").write_text("<profile>")
    with pytest.raises(SynthesisReportError):
        estimates.standing_of_kernels()
