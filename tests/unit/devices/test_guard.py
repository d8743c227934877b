from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.devices import (
    bound_memory_bytes_per_s,
    bound_ops_per_s,
    card_peak_ops,
    check_execution,
    check_throughput,
    load_profile,
)
from ecorl.devices.work import least_ops
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.errors import PhysicalBoundError
from ecorl.records import ModelShape, Provenance, Stage, StageWork
from tests.examples import examples

U55C, H100, HOST = load_profile("u55c"), load_profile("h100_sxm"), load_profile("host_cpu")


def test_peaks_of_the_card():
    assert card_peak_ops(3136, 245e6) == pytest.approx(3.07e12, rel=2e-3)
    assert card_peak_ops(9024, 300e6) == pytest.approx(10.8e12, rel=3e-3)
    # The bound is the silicon's: a design above the usual 300 MHz is unusual, not impossible.
    assert bound_ops_per_s(U55C) == pytest.approx(4 * 9024 * 775e6)
    assert bound_ops_per_s(U55C, 4) == pytest.approx(16 * 9024 * 775e6)


def test_the_printed_142_tokens_per_ms_are_flagged_when_published_and_refused_otherwise():
    tokens, ops = 142_000, 142_000 * 14e9
    published = check_throughput(U55C, ops, None, 1.0, Provenance.PUBLISHED)
    assert published.exceeds
    assert published.ops_share == pytest.approx(1988e12 / (4 * 9024 * 775e6), rel=1e-6)
    assert ops / card_peak_ops(3136, 245e6) == pytest.approx(647, rel=1e-3)
    assert tokens == 142_000
    for provenance in set(Provenance) - {Provenance.PUBLISHED}:
        with pytest.raises(PhysicalBoundError, match="u55c"):
            check_throughput(U55C, ops, None, 1.0, provenance)


def test_the_printed_7_1_ms_cannot_stream_7_gb():
    with pytest.raises(PhysicalBoundError, match="bandwidth"):
        check_throughput(U55C, None, 7e9, 7.1e-3, Provenance.MEASURED)
    ok = check_throughput(U55C, None, 7e9, 7e9 / 460e9, Provenance.MEASURED)
    assert ok.memory_share == pytest.approx(1.0)


@pytest.mark.parametrize("provenance", [Provenance.MEASURED, Provenance.EMULATED])
def test_a_figure_at_the_bound_passes_and_just_above_does_not(provenance):
    bound = bound_ops_per_s(U55C)
    assert not check_throughput(U55C, bound, None, 1.0, provenance).exceeds
    with pytest.raises(PhysicalBoundError):
        check_throughput(U55C, bound * 1.0001, None, 1.0, provenance)


def test_gpu_bound_is_its_largest_peak():
    assert bound_ops_per_s(H100) == 1979e12
    assert bound_memory_bytes_per_s(H100, 2) == 2 * 3.35e12


def test_an_assumed_bandwidth_refuses_nothing():
    assert bound_memory_bytes_per_s(HOST) is None
    check = check_throughput(HOST, None, 1e15, 1.0, Provenance.MEASURED)
    assert check.memory_share is None
    assert not check.exceeds


def test_a_cpu_may_boost_above_its_nominal_clock_but_not_beyond_any_clock():
    peak = HOST.value("peak_int8_ops")
    if HOST.value("clock_hz") < HOST.value("clock_max_hz"):
        assert not check_throughput(HOST, peak * 1.01, None, 1.0, Provenance.MEASURED).exceeds
    with pytest.raises(PhysicalBoundError):
        check_throughput(HOST, peak * 100, None, 1.0, Provenance.MEASURED)


def test_no_time_and_bad_times():
    with pytest.raises(PhysicalBoundError):
        check_throughput(U55C, 1.0, None, 0.0, Provenance.MEASURED)
    assert check_throughput(U55C, 0.0, 0.0, 0.0, Provenance.MEASURED).ops_share == 0.0
    for bad in (-1.0, math.nan):
        with pytest.raises(PhysicalBoundError):
            check_throughput(U55C, 1.0, None, bad, Provenance.MEASURED)


def test_v80_bound_uses_three_products_a_dsp():
    v80 = load_profile("v80")
    assert bound_ops_per_s(v80) == pytest.approx(6 * 10848 * 1.07e9)


# ---------------------------------------------------------------- one execution

LLAMA_7B = ModelShape(32, 4096, 11008, 32, 32, 128, 32000, 6_738_415_616, 6_607_343_616)
FLAT = ModelShape(1, 64, 128, 4, 4, 16, 128_000, 16_425_000, 8_233_000)
"""One layer under a vocabulary of 128,000: nearly all of it is the head."""
WORK = StageWork(Stage.REWARD, 32, 32 * 256, 32 * 128, 256, LLAMA_7B)


def modelled(work, lengths, wanted):
    head_rows = 1 if work.stage is Stage.REWARD else work.model.vocab_size
    return CycleModel(work.model, U55C).batch(BatchShape(tuple(lengths), tuple(wanted), head_rows))


def test_the_programs_own_cycle_model_is_never_refused_for_a_large_head():
    work = StageWork(Stage.REFERENCE, 8, 8 * 2000, 8 * 8, 2000, FLAT)
    card = modelled(work, [2000] * 8, [8] * 8)
    check = check_execution(U55C, work, card.time_s, card.energy_j, Provenance.MODELLED)
    assert not check.exceeds
    assert check.ops_share < 0.2
    assert check.power_share == pytest.approx(73 / 150)


@settings(max_examples=examples(80), deadline=None)
@given(
    lengths=st.lists(st.integers(2, 400), min_size=1, max_size=12),
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    inner=st.integers(1, 300),
    vocab=st.sampled_from([1, 500, 128_000]),
    stage=st.sampled_from([Stage.REWARD, Stage.REFERENCE]),
    data=st.data(),
)
def test_the_least_work_is_within_what_the_kernels_do(
    lengths, layers, heads, inner, vocab, stage, data
):
    hidden = 16 * heads
    active = layers * hidden * (4 * hidden + 3 * inner + 2) + vocab * hidden + hidden
    model = ModelShape(layers, hidden, inner, heads, heads, 16, vocab, active, active)
    outputs = [data.draw(st.integers(0, n - 1)) for n in lengths]
    work = StageWork(stage, len(lengths), sum(lengths), sum(outputs), max(lengths), model)
    wanted = [1] * len(lengths) if stage is Stage.REWARD else outputs
    card = modelled(work, lengths, wanted)
    assert least_ops(work, model) <= 2.0 * card.macs
    check_execution(U55C, work, card.time_s, card.energy_j, Provenance.MODELLED)


def test_least_work_by_hand():
    # One layer of 64 x (4 x 64 + 3 x 128) = 40,960 products, a head of 128,000 x 64: over the 64
    # wanted tokens alone. No layer comes before, so no attention is counted.
    work = StageWork(Stage.REFERENCE, 8, 8 * 2000, 8 * 8, 2000, FLAT)
    assert least_ops(work, FLAT) == 2 * 64 * (40_960 + 128_000 * 64)
    # Two layers: the first over all tokens that have one behind them, with causal attention.
    deep = replace(FLAT, n_layers=2, n_params_active=FLAT.n_params_active + 41_000)
    before = 8 * 1999 * (40_960 + 64 * 2000)
    assert least_ops(work, deep) == 2 * (before + 64 * (40_960 + 128_000 * 64))
    reward = replace(work, stage=Stage.REWARD, n_sequences=8)
    assert least_ops(reward, FLAT) == 2 * 8 * (40_960 + 64)
    assert least_ops(replace(work, n_output_tokens=0), FLAT) == 0
    # A model whose tokens use but a part of it (experts) multiplies with no more than that part.
    sparse = replace(LLAMA_7B, n_params_active=10_000)
    assert least_ops(WORK, sparse) < 2 * 8192 * 10_000 + 2 * 8192 * 4096 * 31 * 257


def test_the_printed_latency_of_7_1_ms_is_refused_for_its_bytes_alone(snapshot):
    one_row = StageWork(Stage.REWARD, 1, 2, 1, 2, LLAMA_7B)
    with pytest.raises(PhysicalBoundError) as error:
        check_execution(U55C, one_row, 7.1e-3, 0.5, Provenance.EMULATED)
    snapshot(str(error.value))
    share = (LLAMA_7B.n_params_active - U55C.value("onchip_bytes")) / 7.1e-3 / 460e9
    check = check_execution(U55C, one_row, 7.1e-3, 0.5, Provenance.PUBLISHED)
    assert check.memory_share == pytest.approx(share)
    assert 1.9 < share < 2.1
    assert not check_execution(U55C, one_row, 15e-3, 1.0, Provenance.EMULATED).exceeds
    # Four cards have four times the bandwidth and hold the weights in parts.
    assert not check_execution(U55C, one_row, 7.1e-3, 0.5, Provenance.EMULATED, 4).exceeds


def test_weights_that_fit_on_chip_need_not_be_streamed():
    small = replace(LLAMA_7B, n_layers=1, vocab_size=100, n_params_active=40_000_000)
    one_row = StageWork(Stage.REWARD, 1, 2, 1, 2, small)
    assert check_execution(U55C, one_row, 5e-5, 0.001, Provenance.MODELLED).memory_share == 0.0


def test_a_card_that_says_nothing_of_its_memory_on_chip_is_given_the_benefit():
    figures = {k: v for k, v in U55C.figures.items() if k != "onchip_bytes"}
    unknown = replace(U55C, figures=figures)
    small = replace(LLAMA_7B, n_layers=1, vocab_size=100, n_params_active=200_000_000)
    one_row = StageWork(Stage.REWARD, 1, 2, 1, 2, small)
    check_execution(unknown, one_row, 3e-4, 0.01, Provenance.MODELLED)
    with pytest.raises(PhysicalBoundError, match="bandwidth"):
        check_execution(U55C, one_row, 3e-4, 0.01, Provenance.MODELLED)
    with pytest.raises(PhysicalBoundError, match="bandwidth"):
        check_execution(unknown, replace(one_row, model=LLAMA_7B), 7.1e-3, 0.5, Provenance.MODELLED)


def test_an_energy_that_cannot_be_is_refused(snapshot):
    lines = []
    for energy_j in (-1.0, math.nan, math.inf, 0.0, 1501.0):
        for work in (WORK, replace(WORK, model=None)):
            with pytest.raises(PhysicalBoundError) as error:
                check_execution(U55C, work, 10.0, energy_j, Provenance.MEASURED)
            lines.append(str(error.value))
    snapshot("\n".join(lines))


def test_energy_at_the_limit_and_energy_that_is_not_known_pass():
    free = replace(WORK, model=None)
    assert check_execution(U55C, free, 10.0, 1500.0, Provenance.MEASURED).power_share == 1.0
    assert check_execution(U55C, free, 10.0, 2900.0, Provenance.MEASURED, 2).power_share < 1.0
    check = check_execution(U55C, free, 10.0, None, Provenance.MEASURED)
    assert (check.ops_share, check.memory_share, check.power_share) == (None, None, None)
    assert check_execution(U55C, free, 10.0, 9e9, Provenance.PUBLISHED).exceeds
    figures = {k: v for k, v in U55C.figures.items() if k != "tdp_w"}
    no_limit = replace(U55C, figures=figures)
    assert check_execution(no_limit, free, 1.0, 1e6, Provenance.MEASURED).power_share is None


def test_no_work_takes_no_time_and_no_energy():
    nothing = StageWork(Stage.REWARD, 0, 0, 0, 0, LLAMA_7B)
    check = check_execution(U55C, nothing, 0.0, 0.0, Provenance.MODELLED)
    assert (check.ops_share, check.memory_share, check.exceeds) == (0.0, 0.0, False)
    with pytest.raises(PhysicalBoundError, match="peak"):
        check_execution(U55C, WORK, 0.0, 1.0, Provenance.MODELLED)
    with pytest.raises(PhysicalBoundError, match="nan"):
        check_execution(U55C, WORK, math.nan, 1.0, Provenance.MODELLED)
    with pytest.raises(PhysicalBoundError, match="inf"):
        check_execution(U55C, WORK, math.inf, 1.0, Provenance.MODELLED)
