"""How long does a placement decision take, and what of it is the network?

A decision goes from a telemetry snapshot (`SchedulerState`) to a placement: cost table, state of
the policy, guards, ONNX Runtime with bound buffers, Algorithm 1. Each is timed on its own, over
different states in turn: `p50_us` from states that are there, on one warm table; `run_p50_us` as
in a run (`benchmarks.studies.placement.run_decisions`), from the snapshot on, with other measured
costs in each iteration.
Beside it the same network alone, one state at a time, in ONNX Runtime, NumPy and torch eager, in
turns; one thread each. None has a target: microseconds say as much about the machine as about
ecorl, and ratios over the bare forward pass as much about the network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, missing
from benchmarks.studies.placement.decision import Deciding, deciding, timed
from benchmarks.studies.placement.run_decisions import RunDecisions, timed_decisions
from ecorl.bench.rounds import balanced_order
from ecorl.bench.stats import median, spread_of
from ecorl.policy.training.export import network_from_onnx
from ecorl.policy.training.network import PolicyNetwork, logits_in_numpy
from ecorl.records import Action, Provenance
from ecorl.scheduler.features import N_FEATURES
from ecorl.scheduler.policy_file import PolicyFile, shipped_path

MEASURED = Provenance.MEASURED
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
    figures = []
    for n_gpus, suffix in ((32, ""), (1024, "_n1024")):
        subject = made if n_gpus == 32 else deciding(n_gpus)
        if not subject.asks_the_network():
            ids = (f"decision.p{q}_us{suffix}" for q in (50, 99))
            figures += [
                missing(id, "us", "a guard ends decisions before the network") for id in ids
            ]
            continue
        times = timed(subject.decide, n) * US
        spread = {"n": n, "p10": float(np.percentile(times, 10)), "max": float(times.max())}
        note = f"snapshot to placement, {n_gpus} GPUs, the network asked each time"
        for q in (50, 99):
            value = float(np.percentile(times, q))
            id = f"decision.p{q}_us{suffix}"
            figures.append(Figure(id, value, "us", MEASURED, spread, note=note))
    return figures + _in_a_run(made, n) + _over_forward(made, n), offloaded


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
    taken_us, over = np.concatenate(times) * US, np.concatenate(shares)
    spread = {"n": len(taken_us), "p10": float(np.percentile(taken_us, 10)),
              "max": float(taken_us.max()), "reward_p50": float(np.median(taken_us[0::2])),
              "reference_p50": float(np.median(taken_us[1::2]))}  # fmt: skip
    note = (
        "readings in memory to placement, 32 GPUs: costs so far of an EDI matrix that moves in each"
        " iteration, `StateReader.state` with real lanes, Algorithm 1"
    )
    over_note = note + "; over the median of the network's forward pass in the same block"
    rest = {"n": len(over), "max": float(over.max())}
    return [
        *(Figure(f"decision.run_p{q}_us", float(np.percentile(taken_us, q)), "us", MEASURED,
                 spread, note=note) for q in (50, 99)),
        Figure("decision.run_over_forward_p50", median(medians), "1", MEASURED,
               spread_of(medians), note=over_note + ", median of blocks"),
        Figure("decision.run_over_forward_p99", float(np.percentile(over, 99)), "1", MEASURED,
               rest, note=over_note + ", all decisions together"),
    ]  # fmt: skip


def _over_forward(made: Deciding, n: int) -> list[Figure]:
    """Medians of blocks, a decision and a forward pass in turns."""
    forward, ratios = _forward(), []
    for _ in range(max(n // 500, 5)):
        forward_s = float(np.median(timed(forward, _BLOCK)))
        ratios.append(float(np.median(timed(made.decide, _BLOCK))) / forward_s)
    return [
        Figure("decision.vs_forward", median(ratios), "1", MEASURED, spread_of(ratios),
               note="a decision from a state that is there, over the network's forward pass in "
               "ONNX Runtime"),
    ]  # fmt: skip


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
    medians: dict[str, list[float]] = {name: [] for name in calls}
    for order in balanced_order(list(calls), n_rounds):
        for name in order:
            medians[name].append(float(np.median(timed(calls[name], n))) * US)
    figures = [
        Figure(f"decision.{name}_us", median(values), "us", MEASURED, spread_of(values),
               note="the network alone, one state, tuple or array to logits")
        for name, values in medians.items()
    ]  # fmt: skip
    for peer in ("torch", "numpy"):
        ratios = [a / b for a, b in zip(medians[peer], medians["ort"], strict=True)]
        figures.append(
            Figure(f"decision.ort_vs_{peer}", median(ratios), "1", MEASURED, spread_of(ratios),
                   note=f"time of {peer} over that of ONNX Runtime, round by round")
        )  # fmt: skip
    return figures


def _eager(network: PolicyNetwork, state: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(network(torch.from_numpy(state)))


if __name__ == "__main__":
    sys.exit(run_benchmark("decision", measure))
