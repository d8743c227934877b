"""How fast and how exact is the INT8 engine on this host?

Speed: rewards of a random-weight Llama at the last token of 32 rows of 256 tokens, one thread
each, in turns: the C-simulation's fast build, ONNX Runtime with dynamic INT8 and in float32, torch
in float32. ONNX Runtime runs torch's export of the model as `quantize_dynamic` leaves it: its
attention is not fused and stays float32, as a user gets it without further work. Each peer gets the
rows in calls of the size that it is fastest with (all at once leaves the processor's caches; the
engine cuts its work into pieces by itself). The peers compute
every position of every layer; the engine leaves out what the last layer's other positions would add
to nothing. `*_all_positions` compares without that short cut. Times are this host's; they say
nothing of a card. torch's float32 products are slow on some CPUs: `fast_vs_ort_fp32` stands beside.

Exactness: results that differ between the builds, and for a row between batches, orders, threads,
cards and with a shared prompt; both must be 0. How faithful INT8 is: `benchmarks.precision`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.studies.bits import compare, one_row_everywhere, strict_against_fast
from benchmarks.studies.peers import (
    InParts,
    ModelSize,
    OrtReward,
    Scorer,
    TorchReward,
    agreement,
    fastest_split,
    make_reward_checkpoint,
    quantise_onnx,
)
from ecorl.bench.rounds import round_ratios, timed_rounds
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.int8_decoder import segments_of
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import Float32, Int64, ScoreBatch
from ecorl.records import Stage

FIGURES = FigureTable("engine")
OURS, ALL, ORT, TORCH = "ours", "ours_all_positions", "ort_int8", "torch_fp32"
ORT_FP32 = "ort_fp32"
MIN_CORRELATION = 0.98
"""Below this a peer does not compute the same thing, and its speed is no comparison; invented."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The model, rows and rounds that are timed."""

    size: ModelSize
    n_rows: int = 32
    length: int = 256
    n_rounds: int = 6
    seed: int = 0

    def ids(self) -> Int64:
        """Random token ids ``[n_rows, length] int64``; the padding token does not occur."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(1, self.size.vocab_size, size=(self.n_rows, self.length))


FULL = Workload(ModelSize())
SMALL = Workload(ModelSize(128, 2, 352, 4, 4, 1000), 8, 64, 4)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    work = SMALL if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-engine-") as folder:
        half_s = None if options.box_s is None else options.box_s / 2
        config, figures = measure_speed(work, Path(folder), half_s)
        figures += measure_prefix(work, Path(folder), half_s)
        figures += measure_bits(work, Path(folder))
    return config, figures


def measure_speed(
    work: Workload, folder: Path, box_s: float | None = None
) -> tuple[dict[str, object], list[Figure]]:
    """Time all arms in turns, after each has shown that it computes the same rewards.

    Args:
        work: model and rows.
        folder: for the checkpoint and its exports.
        box_s: time for the rounds, s; None for no limit.
    """
    checkpoint = folder / "model"
    make_reward_checkpoint(checkpoint, work.size, max_positions=work.length, seed=work.seed)
    ids = work.ids()
    peers, nodes = _peers(checkpoint, work, folder)
    splits = {name: fastest_split(by_rows, ids, 1) for name, by_rows in peers.items()}
    best = {name: InParts(by_rows[splits[name].n_rows], splits[name].n_rows)
            for name, by_rows in peers.items()}  # fmt: skip
    engine = FpgaEngine(checkpoint, Stage.REWARD)
    decoder = Int8Decoder(load_decoder(checkpoint), CsimLibrary.load("fast"))
    rows = tuple(ids)
    names = tuple(map(str, range(work.n_rows)))
    batch = ScoreBatch(names, rows, (0,) * work.n_rows)
    calls: dict[str, Callable[[], Float32]] = {
        OURS: lambda: engine.score(batch).values,
        ALL: lambda: decoder.hidden(rows),
        **{name: partial(best[name].score, ids) for name in (ORT, TORCH, ORT_FP32)},
    }
    exact = best[TORCH].score(ids)
    near = {name: agreement(calls[name](), exact) for name in (OURS, ORT, ORT_FP32)}
    times = timed_rounds(calls, work.n_rounds, box_s)
    engine.close()
    config: dict[str, object] = {
        **asdict(work),
        "n_rounds": len(times[OURS]),
        "threads": 1,
        "ort_nodes": nodes,
        "nearness": near,
        "rows_per_call": {name: asdict(split) for name, split in splits.items()},
    }
    return config, _speed_figures(times, work, near)


def _peers(
    checkpoint: Path, work: Workload, folder: Path
) -> tuple[dict[str, dict[int, Scorer]], dict[str, int]]:
    """Make the peers by rows a call, and count the matrix products of the quantised graph."""
    torch = TorchReward(checkpoint)
    peers: dict[str, dict[int, Scorer]] = {ORT: {}, TORCH: {}, ORT_FP32: {}}
    nodes: dict[str, int] = {}
    for n_rows in sorted({1, 4, work.n_rows}):
        exported, quantised = folder / f"f{n_rows}.onnx", folder / f"q{n_rows}.onnx"
        torch.export(exported, (n_rows, work.length))
        nodes = quantise_onnx(exported, quantised)
        peers[ORT][n_rows], peers[ORT_FP32][n_rows] = OrtReward(quantised), OrtReward(exported)
        peers[TORCH][n_rows] = torch
    return peers, nodes


def _speed_figures(
    times: dict[str, list[float]], work: Workload, near: dict[str, dict[str, float]]
) -> list[Figure]:
    differ = [name for name, one in near.items() if not one["correlation"] >= MIN_CORRELATION]
    n_tokens, figures = work.n_rows * work.length, []
    for id, peer, ours in (
        ("fast_vs_ort", ORT, OURS),
        ("fast_vs_ort_all_positions", ORT, ALL),
        ("fast_vs_ort_fp32", ORT_FP32, OURS),
        ("fast_vs_torch_fp32", TORCH, OURS),
    ):
        if differ:
            why = "an arm's rewards are not the model's: nothing to compare"
            figures.append(FIGURES.figure(f"engine.{id}", None, why=why, judged=False))
        else:
            figures.append(FIGURES.ratio(f"engine.{id}", times[peer], times[ours]))
    for id, arm in (
        ("fast_", OURS),
        ("fast_all_positions_", ALL),
        ("ort_int8_", ORT),
        ("torch_fp32_", TORCH),
        ("ort_fp32_", ORT_FP32),
    ):
        speeds = [n_tokens / time_s for time_s in times[arm]]
        figures.append(FIGURES.median("engine.{arm}tokens_per_s", speeds, arm=id))
    for id, arm in (("int8", OURS), ("ort_int8", ORT)):
        figures.append(FIGURES.figure(f"engine.{id}_error", near[arm]["error"], near[arm]))
    return figures


def measure_bits(work: Workload, folder: Path) -> list[Figure]:
    """Count results that differ where they must not."""
    small, full = folder / "small", folder / "full"
    make_reward_checkpoint(small, SMALL.size, max_positions=SMALL.length, seed=work.seed)
    make_reward_checkpoint(full, work.size, max_positions=work.length, seed=work.seed)
    strict = strict_against_fast(small, tuple(SMALL.ids()))
    rows, counts = grpo_rows(work, 4, work.length // 2)
    rows, counts = rows[:16], counts[:16]
    invariant = one_row_everywhere(full, rows, counts, work.seed)
    return [
        FIGURES.figure(f"engine.{id}_mismatches", found.n_different, {"n": found.n})
        for id, found in (("strict_vs_fast", strict), ("row_invariance", invariant))
    ]


def measure_prefix(work: Workload, folder: Path, box_s: float | None = None) -> list[Figure]:
    """Tokens/s with a shared prompt computed once over tokens/s without, same bits.

    Args:
        work: model and rows.
        folder: for the checkpoint.
        box_s: time for the rounds of all sizes of groups, s; None for no limit.
    """
    checkpoint = folder / "prefix"
    make_reward_checkpoint(checkpoint, work.size, max_positions=work.length, seed=work.seed)
    model = Int8Decoder(load_decoder(checkpoint), CsimLibrary.load("fast"))
    figures, groups = [], (8, 16)
    for group in groups:
        n_prompt = work.length // 2
        rows, counts = grpo_rows(work, group, n_prompt)
        calls = {"shared": partial(model.score, rows, counts), "apart": partial(model.score, rows)}
        words = {
            "group": group,
            "n_prompt": n_prompt,
            "n_completion": work.length - n_prompt,
            "ideal": sum(map(len, rows)) / segments_of(rows, counts).n_tokens,
        }
        ratios: list[float] = []
        if not compare([(calls["shared"](), calls["apart"]())]).n_different:
            times = timed_rounds(calls, work.n_rounds, box_s and box_s / len(groups))
            ratios = round_ratios(times["apart"], times["shared"])
        figures.append(FIGURES.median("engine.prefix_reuse_gain_g{group}", ratios, words=words))
    return figures


def grpo_rows(work: Workload, group: int, n_prompt: int) -> tuple[list[Int64], list[int]]:
    """`work.n_rows` rows in groups that share a prompt, and their completion tokens."""
    rng = np.random.default_rng(work.seed + 1)
    rows = []
    for _ in range(max(1, work.n_rows // group)):
        prompt = rng.integers(1, work.size.vocab_size, n_prompt)
        rest = rng.integers(1, work.size.vocab_size, (group, work.length - n_prompt))
        rows += [np.concatenate([prompt, completion]) for completion in rest]
    return rows, [work.length - n_prompt] * len(rows)


if __name__ == "__main__":
    sys.exit(run_benchmark("engine", measure))
