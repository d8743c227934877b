from __future__ import annotations

import math

import pytest

from ecorl.devices import (
    bound_memory_bytes_per_s,
    bound_ops_per_s,
    card_peak_ops,
    check_throughput,
    load_profile,
)
from ecorl.errors import PhysicalBoundError
from ecorl.records import Provenance

U55C, H100, HOST = load_profile("u55c"), load_profile("h100_sxm"), load_profile("host_cpu")


def test_peaks_of_the_card():
    assert card_peak_ops(3136, 245e6) == pytest.approx(3.07e12, rel=2e-3)
    assert card_peak_ops(9024, 300e6) == pytest.approx(10.8e12, rel=3e-3)
    assert bound_ops_per_s(U55C) == pytest.approx(10.8288e12)
    assert bound_ops_per_s(U55C, 4) == pytest.approx(4 * 10.8288e12)


def test_the_printed_142_tokens_per_ms_are_flagged_when_published_and_refused_otherwise():
    tokens, ops = 142_000, 142_000 * 14e9
    published = check_throughput(U55C, ops, None, 1.0, Provenance.PUBLISHED)
    assert published.exceeds
    assert published.ops_share == pytest.approx(1988e12 / 10.8288e12, rel=1e-6)
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
