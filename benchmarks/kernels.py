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

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.kernel_benches import run_benches
from benchmarks.kernel_checks import rtl_mismatches
from ecorl.devices import load_profile
from ecorl.devices.card import ARRAY_MACS
from ecorl.engines.fpga.csim.build import ap_headers
from ecorl.engines.fpga.cycles.hbm import WEIGHT_CHANNELS
from ecorl.engines.fpga.cycles.model import BatchShape, CardTime, CycleModel
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
from ecorl.records import ModelShape, Provenance, Stage
from hls_kernels.lint import findings, rules
from hls_kernels.lint.recurrences import time_loops

MODELLED, MEASURED, EMULATED = Provenance.MODELLED, Provenance.MEASURED, Provenance.EMULATED
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
    small = CycleModel(SMOLLM_135M, profile).batch(
        BatchShape((N_TOKENS,) * N_SMALL_ROWS, (1,) * N_SMALL_ROWS, 1)
    )
    settings: dict[str, object] = {
        "model": "llama-2-7b", "n_tokens": N_TOKENS, "n_rows": 1, "device": "u55c",
        "weight_channels": WEIGHT_CHANNELS, "standing": standing_of_kernels(),
    }  # fmt: skip
    return settings, [
        *_array(found), *_forward(found), _small(small), *_dsps(found), _brams(), *_sources(),
    ]  # fmt: skip


def _array(found: CardEstimate) -> list[Figure]:
    """gemm_int8 alone."""
    by_ii = {run.ii: run for run in found.runs}
    one = by_ii[1]
    gemm = one.card.of("gemm_int8")
    alone = found.one_channel
    assert gemm is not None
    assert alone is not None
    model = CycleModel(LLAMA_2_7B, found.profile)
    peak_tops = 2 * ARRAY_MACS * model.card.n_arrays * model.card.clock_hz / 1e12
    share = "useful products over what its array could do in its time"
    stripe = f"weights in {WEIGHT_CHANNELS} channels, a port each"
    return [
        _figure("kernel.gemm_array_efficiency_ii1", one.array_efficiency,
                f"{share}; {stripe}; {WHAT}", target=Target(low=0.85)),
        _figure("kernel.gemm_array_efficiency_ii2", by_ii[2].array_efficiency,
                f"the same with every loop at twice its interval; {WHAT}"),
        _figure("kernel.gemm_array_efficiency_ii4", by_ii[4].array_efficiency,
                f"the same at four times its interval; {WHAT}"),
        _figure("kernel.gemm_array_efficiency_one_channel", alone.array_efficiency,
                f"{share}; the weights in one channel, as the source's one port has it by itself; "
                f"{WHAT}"),
        _figure("kernel.gemm_stall_share", gemm.stall_cycles / gemm.cycles,
                f"waits for memory over the cycles of gemm_int8; {stripe}; {WHAT}"),
        _figure("kernel.tops_u55c", peak_tops * one.array_efficiency,
                f"of gemm_int8 at the profile's clock; its array's peak is {peak_tops:.3f}; {WHAT}",
                unit="TOP/s"),
    ]  # fmt: skip


def _forward(found: CardEstimate) -> list[Figure]:
    """All kernels, one after the other."""
    one = found.runs[0]
    vector = one.card.of("vector_ops")
    assert vector is not None
    other_w = found.profile.value("active_w") / OTHER_W
    return [
        _figure("kernel.forward_7b_512_s", one.card.time_s, WHAT, unit="s",
                target=Target(high=4.2)),
        _figure("kernel.modelled_tokens_per_s_7b", one.tokens_per_s, WHAT, unit="token/s"),
        _figure("kernel.modelled_tokens_per_j_7b", one.tokens_per_j, WHAT, unit="token/J"),
        _figure("kernel.modelled_tokens_per_j_7b_100w", one.tokens_per_j * other_w,
                f"the same at {OTHER_W:.0f} W", unit="token/J"),
        _figure("kernel.forward_array_efficiency_7b", one.forward_efficiency,
                f"useful products of all kernels over what gemm_int8's array could do; {WHAT}"),
        _figure("kernel.forward_stall_share", one.card.stall_s / one.card.kernel_s,
                f"waits for memory over the time of all kernels; {WHAT}"),
        _figure("kernel.vector_time_share", vector.time_s / one.card.time_s,
                f"vector_ops over the whole time; {WHAT}", target=Target(high=0.16)),
    ]  # fmt: skip


def _small(card: CardTime) -> Figure:
    """A small model of many rows, against the same before products and vector unit changed."""
    note = (
        f"{SMALL_BEFORE_S} s over {card.time_s:.3f} s: SmolLM-135M's shape, rewards of "
        f"{N_SMALL_ROWS} rows of {N_TOKENS} tokens; before: products by columns, a vector unit row "
        "by row, latencies assumed"
    )
    return _figure(
        "kernel.small_model_gain", SMALL_BEFORE_S / card.time_s, note, target=Target(low=2.5)
    )


def _dsps(found: CardEstimate) -> list[Figure]:
    """Declared DSPs over those of the card, and over those that its shell leaves."""
    known = {name: n for name, n in declared_dsps().items() if n is not None}
    of_card, usable = Target(high=0.49), Target(high=0.53)
    if not known:
        why = "no qor.json declares DSPs"
        return [missing("kernel.dsp_share_u55c", "1", why, of_card),
                missing("kernel.dsp_share_usable", "1", why, usable)]  # fmt: skip
    without = sorted(set(declared_dsps()) - set(known))
    note = "declared in qor.json: " + ", ".join(f"{name} {n:,}" for name, n in known.items())
    note += f"; none declared yet by {', '.join(without)}" if without else ""
    n, profile = sum(known.values()), found.profile
    return [
        _figure("kernel.dsp_share_u55c", n / profile.value("n_dsp"),
                f"over the card's DSPs; {note}", target=of_card),
        _figure("kernel.dsp_share_usable", n / profile.value("n_dsp_usable"),
                f"over the DSPs that the card's shell leaves; {note}", target=usable),
    ]  # fmt: skip


def _brams() -> Figure:
    """Declared block RAMs over those of the card."""
    known = {name: n for name, n in declared_brams().items() if n is not None}
    most = Target(high=0.3)
    if not known:
        return missing("kernel.bram_share_u55c", "1", "no qor.json declares block RAMs", most)
    note = "declared in qor.json, of 18 Kbit: "
    note += ", ".join(f"{name} {n:,}" for name, n in known.items())
    return _figure("kernel.bram_share_u55c", sum(known.values()) / U55C_BRAM_18K, note, target=most)


def _sources() -> list[Figure]:
    """What the sources keep to: lint, FIFOs, and the RTL that the depths come from."""
    none = Target(high=0)
    found = [*_lint(), _least_ii(), *_benches()]
    compared = rtl_mismatches()
    if compared is None:
        return [*found, missing("rtl.lane_mismatches", "1", "no Verilator here", none)]
    note = f"results of {compared[0]:,} random operands that differ from the C-simulation's"
    return [
        *found,
        Figure("rtl.lane_mismatches", compared[1], "1", EMULATED, target=none, note=note),
    ]


def _benches() -> list[Figure]:
    """Kernels on the shapes of their benches: FIFOs that stand still, dependences too close."""
    none, too_close_id = Target(high=0), "kernel.dependence_violations"
    try:
        ap_headers()
    except MissingToolError as error:
        runs = run_benches("fast")
        too_close = missing(too_close_id, "1", str(error), none)
    else:
        runs = run_benches("strict")
        n = sum(run.is_too_close for run in runs)
        note = f"of {len(runs)} kernels' benches, those in which an iteration came closer to an "
        note += "earlier one than a DEPENDENCE pragma states; strict build"
        too_close = Figure(too_close_id, n, "1", EMULATED, target=none, note=note)
    n = sum(run.is_deadlocked for run in runs)
    note = f"benches of {len(runs)} kernels, processes side by side, FIFOs of the declared depth"
    return [Figure("kernel.fifo_deadlocks", n, "1", EMULATED, target=none, note=note), too_close]


def _lint() -> list[Figure]:
    """Rules of the lint, and findings in the kernels."""
    none = Target(high=0)
    try:
        asked, found = rules(), findings()
    except ImportError:
        why = "libclang is not installed"
        return [
            missing("kernel.lint_rules", "1", why),
            missing("kernel.lint_findings", "1", why, none),
        ]
    note = "in all kernels"
    return [
        Figure("kernel.lint_rules", len(asked), "1", MEASURED, note=", ".join(asked)),
        Figure("kernel.lint_findings", len(found), "1", MEASURED, target=none, note=note),
    ]


def _least_ii() -> Figure:
    """Pipelined loops whose recurrences allow no interval as short as their pragma asks for."""
    name, none = "kernel.least_ii_misses", Target(high=0)
    try:
        loops = time_loops()
    except MissingToolError as error:
        return missing(name, "1", str(error), none)
    worst = max(loop.delay_ns / loop.source.ii for loop in loops)
    note = (
        f"of {len(loops)} pipelined loops; worst recurrence {worst:.2f} ns a cycle of "
        f"{loops[0].period_ns:.2f}, operators' delays assumed"
    )
    return _figure(name, sum(loop.is_missed for loop in loops), note, target=none)


def _figure(
    id: str, value: float, note: str, unit: str = "1", target: Target | None = None
) -> Figure:
    return Figure(id, value, unit, MODELLED, target=target, note=note)


if __name__ == "__main__":
    sys.exit(run_benchmark("kernels", measure))
