"""How well would the kernels use a U55C? Modelled throughout; no synthesis report stands behind it.

The workload is Llama-2-7B's shape (32 layers of 4,096, 11,008 inside, 32 heads of 128, no shared
key-value heads) as a reward model, one row of 512 tokens. Loop counts are the kernels' own, depths
of pipelines those of simulated RTL; what the cycle model assumes beside them stands in
`ecorl.engines.fpga.cycles.kernels` and `ecorl.engines.fpga.cycles.hbm`. A small model of many rows
stands beside it, where products are short and all else shows.

What the sources keep to is checked as well: findings of the lint, loops whose recurrences miss the
clock, deadlocks of FIFOs at their declared depths, dependences that are closer than their pragmas
state, and vectors on which the simulated RTL differs from the C-simulation. Nothing here depends on
the machine that runs it.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.kernel_checks import rtl_mismatches, run_benches
from ecorl.devices import load_profile
from ecorl.devices.card import ARRAY_MACS
from ecorl.engines.fpga.csim.build import ap_headers
from ecorl.engines.fpga.cycles.hbm import WEIGHT_CHANNELS
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.engines.fpga.estimate import (
    CardEstimate,
    declared_brams,
    declared_dsps,
    estimate,
    standing_of_kernels,
    workload,
)
from ecorl.engines.models.decoder_config import DecoderConfig, Rope
from ecorl.errors import MissingToolError
from ecorl.records import ModelShape, Stage
from hls_kernels.lint import findings, rules
from hls_kernels.lint.recurrences import time_loops

FIGURES = FigureTable("kernels")
N_TOKENS = 512
LLAMA_2_7B = ModelShape(32, 4096, 11008, 32, 32, 128, 32000, 6_738_415_616, 6_607_343_616)
WHAT = "Llama-2-7B's shape, reward of one row of 512 tokens, U55C at 245 MHz, 73 W"
SMOLLM_135M = ModelShape(30, 576, 1536, 9, 3, 64, 49152, 134_515_008, 106_203_456)
N_SMALL_ROWS = 64
U55C_BRAM_18K = 4032
"""AMD DS978: 2,016 block RAMs, each two of 18 Kbit."""

SMALL_BEFORE_S = 29.716
"""Modelled time of the small model with products in order of columns and a vector unit that went
row by row, its latencies assumed: the kernels before both were changed."""

OTHER_W = 100.0
"""A card that draws more than the paper's 73 W, which it gives for 3,136 DSPs."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    config = DecoderConfig(
        "LlamaForSequenceClassification", LLAMA_2_7B, 1e-5, Rope("default", 1e4),
        is_reward=True, tied=False, qkv_bias=False, output_bias=False, max_positions=4096,
    )  # fmt: skip
    profile = load_profile("u55c")
    found = estimate(workload("llama-2-7b", config, Stage.REWARD, N_TOKENS), profile)
    rows = BatchShape((N_TOKENS,) * N_SMALL_ROWS, (1,) * N_SMALL_ROWS, 1)
    small_s = CycleModel(SMOLLM_135M, profile).batch(rows).time_s
    words = {
        "before_s": SMALL_BEFORE_S,
        "time_s": small_s,
        "n_rows": N_SMALL_ROWS,
        "n_tokens": N_TOKENS,
    }
    settings: dict[str, object] = {
        "model": "llama-2-7b", "n_tokens": N_TOKENS, "n_rows": 1, "device": "u55c",
        "weight_channels": WEIGHT_CHANNELS, "standing": standing_of_kernels(),
    }  # fmt: skip
    return settings, [
        *_forward(found),
        FIGURES.figure("kernel.small_model_gain", SMALL_BEFORE_S / small_s, words=words),
        *_declared(found),
        *_sources(),
    ]


def _forward(found: CardEstimate) -> list[Figure]:
    """gemm_int8 alone, and all kernels one after the other."""
    by_ii = {run.ii: run for run in found.runs}
    one, alone = by_ii[1], found.one_channel
    gemm, vector = one.card.of("gemm_int8"), one.card.of("vector_ops")
    assert gemm is not None
    assert vector is not None
    assert alone is not None
    model = CycleModel(LLAMA_2_7B, found.profile)
    peak_tops = 2 * ARRAY_MACS * model.card.n_arrays * model.card.clock_hz / 1e12
    values = {
        "gemm_array_efficiency_ii1": one.array_efficiency,
        "gemm_array_efficiency_ii2": by_ii[2].array_efficiency,
        "gemm_array_efficiency_ii4": by_ii[4].array_efficiency,
        "gemm_array_efficiency_one_channel": alone.array_efficiency,
        "gemm_stall_share": gemm.stall_cycles / gemm.cycles,
        "tops_u55c": peak_tops * one.array_efficiency,
        "forward_7b_512_s": one.card.time_s,
        "modelled_tokens_per_s_7b": one.tokens_per_s,
        "modelled_tokens_per_j_7b": one.tokens_per_j,
        "modelled_tokens_per_j_7b_100w": one.tokens_per_j
        * (found.profile.value("active_w") / OTHER_W),
        "forward_array_efficiency_7b": one.forward_efficiency,
        "forward_stall_share": one.card.stall_s / one.card.kernel_s,
        "vector_time_share": vector.time_s / one.card.time_s,
    }
    words = {"what": WHAT, "channels": WEIGHT_CHANNELS, "peak_tops": peak_tops, "other_w": OTHER_W}
    return [FIGURES.figure(f"kernel.{name}", value, words=words) for name, value in values.items()]


def _declared(found: CardEstimate) -> list[Figure]:
    """Declared DSPs and block RAMs over those of the card, and over those that its shell leaves."""
    dsps = {name: n for name, n in declared_dsps().items() if n is not None}
    brams = {name: n for name, n in declared_brams().items() if n is not None}
    without = sorted(set(declared_dsps()) - set(dsps))
    note = _listed(dsps) + (f"; none declared yet by {', '.join(without)}" if without else "")
    return [
        FIGURES.figure(f"kernel.{id}", sum(known.values()) / most if known else None, declared=told)
        for id, known, most, told in (
            ("dsp_share_u55c", dsps, found.profile.value("n_dsp"), note),
            ("dsp_share_usable", dsps, found.profile.value("n_dsp_usable"), note),
            ("bram_share_u55c", brams, U55C_BRAM_18K, _listed(brams)),
        )
    ]


def _listed(declared: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in declared.items())


def _sources() -> list[Figure]:
    """What the sources keep to: lint, FIFOs, and the RTL that the depths come from."""
    n, n_different = rtl_mismatches() or (None, None)
    rtl = FIGURES.figure("rtl.lane_mismatches", n_different, n=n)
    return [*_lint(), _least_ii(), *_benches(), rtl]


def _benches() -> list[Figure]:
    """Kernels on the shapes of their benches: FIFOs that stand still, dependences too close."""
    why = None
    try:
        ap_headers()
    except MissingToolError as error:
        why = str(error)
    runs = run_benches("fast" if why else "strict")
    too_close = None if why else sum(run.is_too_close for run in runs)
    deadlocks = sum(run.is_deadlocked for run in runs)
    return [
        FIGURES.figure("kernel.fifo_deadlocks", deadlocks, n_kernels=len(runs)),
        FIGURES.figure("kernel.dependence_violations", too_close, why=why, n_kernels=len(runs)),
    ]


def _lint() -> list[Figure]:
    """Rules of the lint, and findings in the kernels."""
    try:
        asked, found = rules(), findings()
    except ImportError:
        return [FIGURES.figure(f"kernel.lint_{what}", None) for what in ("rules", "findings")]
    return [
        FIGURES.figure("kernel.lint_rules", len(asked), rules=", ".join(asked)),
        FIGURES.figure("kernel.lint_findings", len(found)),
    ]


def _least_ii() -> Figure:
    """Pipelined loops whose recurrences allow no interval as short as their pragma asks for."""
    id = "kernel.least_ii_misses"
    try:
        loops = time_loops()
    except MissingToolError as error:
        return FIGURES.figure(id, None, why=str(error))
    n_missed = sum(loop.is_missed for loop in loops)
    worst = max(loop.delay_ns / loop.source.ii for loop in loops)
    words = {"n_loops": len(loops), "worst": worst, "period_ns": loops[0].period_ns}
    return FIGURES.figure(id, n_missed, words=words)


if __name__ == "__main__":
    sys.exit(run_benchmark("kernels", measure))
