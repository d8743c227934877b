"""How long does a placement decision take, and what of it is the network?

A decision goes from a telemetry snapshot (`SchedulerState`) to a placement: cost table, state of
the policy, guards, ONNX Runtime with bound buffers, Algorithm 1. Each is timed on its own, over
different states in turn: `p50_us` from states that are there, on one warm table; `run_p50_us` as
in a run (`benchmarks.studies.placement.decisions`), from the snapshot on, with other measured
costs in each iteration.
Beside it the same network alone, one state at a time, in ONNX Runtime, NumPy and torch eager, in
turns; one thread each. None has a target: microseconds say as much about the machine as about
ecorl, and ratios over the bare forward pass as much about the network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from benchmarks.harness import Figure, FigureTable, in_turns, run_benchmark
from benchmarks.studies.placement.decisions import (
    Deciding,
    RunDecisions,
    deciding,
    timed,
    timed_decisions,
)
from ecorl.policy.training.export import network_from_onnx
from ecorl.policy.training.network import PolicyNetwork, logits_in_numpy
from ecorl.records import Action
from ecorl.scheduler.features import N_FEATURES
from ecorl.scheduler.policy_file import PolicyFile, shipped_path
from ecorl.scheduler.tables import Float64

FIGURES = FigureTable("decision")
US = 1e6
_BLOCK = 100
"""Decisions, and forward passes, that are timed in a row before the other has its turn."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    n, n_rounds = (500, 2) if options.quick else (20_000, 6)
    figures, offloaded = _decisions(n)
    figures += _networks(max(n // 10, 100), n_rounds)
    config: dict[str, object] = {
        "n_decisions": n,
        "n_rounds": n_rounds,
        "threads": 1,
        "offloaded_share": offloaded,
    }
    return config, figures


def _decisions(n: int) -> tuple[list[Figure], float]:
    made = deciding()
    actions = [made.decide(i) for i in range(len(made.states))]
    offloaded = float(np.mean([a is not Action.GPU for a in actions]))
    figures, key = [], "decision.p{q}_us{suffix}"
    for n_gpus, suffix in ((32, ""), (1024, "_n1024")):
        subject = made if n_gpus == 32 else deciding(n_gpus)
        words = {"suffix": suffix, "n_gpus": n_gpus}
        if subject.asks_the_network():
            figures += _percentiles(key, timed(subject.decide, n), words=words)
        else:
            figures += [FIGURES.figure(key, None, q=q, words=words) for q in (50, 99)]
    return [*figures, *_in_a_run(made, n), _over_forward(made, n)], offloaded


def _percentiles(
    key: str,
    times: Float64,
    beside: Mapping[str, object] | None = None,
    words: Mapping[str, object] | None = None,
) -> list[Figure]:
    """The figures of times in s, ``[n]``: their median and their 99th percentile."""
    us = times * US
    known = {"n": len(us), "p10": float(np.percentile(us, 10)), "max": float(us.max())}
    spread = {**known, **(beside or {})}
    return [
        FIGURES.figure(key, float(np.percentile(us, q)), spread, q=q, words=words) for q in (50, 99)
    ]


def _in_a_run(made: Deciding, n: int) -> list[Figure]:
    """Decisions as in a run beside the bare forward pass, in blocks that take turns."""
    run, forward = RunDecisions(made), _forward()
    timed_decisions(run, 0, 2 * len(made.states))  # tables are made when a size first comes
    medians, shares, times = [], [], []
    for block in range(max(n // _BLOCK, 10)):
        forward_s = float(np.median(timed(forward, _BLOCK)))
        taken_s = timed_decisions(run, (block + 10) * _BLOCK, _BLOCK)
        times.append(taken_s)
        shares.append(taken_s / forward_s)
        medians.append(float(np.median(taken_s)) / forward_s)
    taken_s, over = np.concatenate(times), np.concatenate(shares)
    by_stage = {
        "reward_p50": float(np.median(taken_s[0::2] * US)),
        "reference_p50": float(np.median(taken_s[1::2] * US)),
    }
    p99, rest = float(np.percentile(over, 99)), {"n": len(over), "max": float(over.max())}
    return [
        *_percentiles("decision.run_p{q}_us", taken_s, by_stage),
        FIGURES.median("decision.run_over_forward_p50", medians),
        FIGURES.figure("decision.run_over_forward_p99", p99, rest),
    ]


def _over_forward(made: Deciding, n: int) -> Figure:
    """Medians of blocks, a decision and a forward pass in turns."""
    forward, ratios = _forward(), []
    for _ in range(max(n // 500, 5)):
        forward_s = float(np.median(timed(forward, _BLOCK)))
        ratios.append(float(np.median(timed(made.decide, _BLOCK))) / forward_s)
    return FIGURES.median("decision.vs_forward", ratios)


def _forward() -> Callable[[int], object]:
    """The bare forward pass: a state of floats into the network, its logits out."""
    file = PolicyFile()
    row = tuple(np.random.default_rng(0).normal(size=N_FEATURES).tolist())
    return lambda _: file.logits(row)


def _networks(n: int, n_rounds: int) -> list[Figure]:
    """The network alone: medians a round, arms in turns."""
    torch.set_num_threads(1)
    file, network = PolicyFile(), network_from_onnx(shipped_path())
    arrays = network.arrays()
    states = np.random.default_rng(0).normal(size=(256, N_FEATURES)).astype(np.float32)
    rows = [tuple(map(float, row)) for row in states]
    calls = {
        "ort": lambda i: file.logits(rows[i % 256]),
        "numpy": lambda i: logits_in_numpy(arrays, states[i % 256 : i % 256 + 1]),
        "torch": lambda i: _eager(network, states[i % 256 : i % 256 + 1]),
    }
    for call in calls.values():
        timed(call, 50)

    def median_us(call: Callable[[int], object]) -> float:
        return float(np.median(timed(call, n))) * US

    arms = {name: partial(median_us, call) for name, call in calls.items()}
    medians = in_turns(arms, n_rounds)
    return [
        *(FIGURES.median("decision.{name}_us", us, name=name) for name, us in medians.items()),
        *(
            FIGURES.ratio("decision.ort_vs_{peer}", medians[peer], medians["ort"], peer=peer)
            for peer in ("torch", "numpy")
        ),
    ]


def _eager(network: PolicyNetwork, state: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(network(torch.from_numpy(state)))


if __name__ == "__main__":
    sys.exit(run_benchmark("decision", measure))
