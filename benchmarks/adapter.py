"""Does ecorl change a training over several processes, and does it lose or double a sample?

Plain TRL GRPO in two processes (torchrun) against the same with ecorl attached: rewards and
reference are answered by an exact engine in workers on a second node of a Ray cluster on this
machine; then once more with faults in those engines. OpenRLHF's own PPO without and with ecorl, in
its own environment, and its remote rewards from the real service. RLVR of ROLL's double without and
with ecorl. Beside it: what a decision of the
scheduler's actor takes, what ecorl needs of the training thread where every stage stays on the GPU
path, and whether joules of a shared device add up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import adapter_frameworks as frameworks
from benchmarks.adapter_training import EXACT, FAULTED, PLAIN
from benchmarks.harness import Figure, run_benchmark
from benchmarks.studies.demo_training import demo_task, demo_trainer
from benchmarks.studies.frameworks.samples import count_samples
from ecorl.bench.machine import repository
from ecorl.bench.stats import spread_of
from ecorl.errors import EngineError
from ecorl.ledger import LedgerReader
from ecorl.records import Action, PowerSample, Provenance, Stage, StageResult
from ecorl.runtime.energy.held_devices import DeviceWindow
from ecorl.runtime.energy.stage_energy import StageAccounts
from ecorl.runtime.overhead import HookTime
from ecorl.telemetry.history import PowerHistory
from roll_adapters.demo.two_machines import two_nodes
from roll_adapters.trl.inputs.quiet import quiet

FIGURES, MEASURED = frameworks.FIGURES, Provenance.MEASURED
N_ROWS, N_STEPS = 16, 8
N_PROCESSES = 2
INFERENCE = (Stage.REWARD, Stage.REFERENCE)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    n_hook_runs, n_hook_steps = (1, 8) if options.quick else (5, 12)
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-adapter-") as name:
        folder = Path(name)
        overrides = [
            f"trainer.steps={N_STEPS}",
            f"trainer.per_device_batch_size={N_ROWS}",
            "trainer.num_generations=4",
            "trainer.save_every=100000",
        ]
        # Models are made before anything is measured, and before two processes want them.
        demo_task(overrides)
        told = _train_in_two_processes(folder, overrides)
        openrlhf = frameworks.train_with_openrlhf(folder / "openrlhf")
        roll = frameworks.train_with_roll(folder / "roll")
        figures = [
            *_equality(folder, told),
            *frameworks.openrlhf_figures(openrlhf),
            *frameworks.roll_figures(roll),
            *_samples(folder, openrlhf, roll),
            frameworks.remote_reward_figure(),
            _decision(told),
            _hook_share(folder / "hooks", overrides, n_hook_runs, n_hook_steps),
            _split_error(),
        ]
    config = {
        "preset": "demo",
        "seed": 42,
        "processes": N_PROCESSES,
        "rows_per_process": N_ROWS,
        "steps": N_STEPS,
        "hook_runs": n_hook_runs,
        "hook_steps": n_hook_steps,
        "nodes": 2,
        "runs": [PLAIN, EXACT, FAULTED],
        "openrlhf_seconds": openrlhf["seconds"],
        "roll_seconds": sum(run.seconds for run in _ended(roll)),
    }
    return config, figures


def _train_in_two_processes(folder: Path, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Run the three trainings; what each process tells of them.

    Raises:
        EngineError: when they do not end well.
    """
    settings = folder / "settings.json"
    settings.write_text(json.dumps({"folder": str(folder), "overrides": list(overrides)}), "utf-8")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local_addr", "127.0.0.1",
        "--nproc_per_node", str(N_PROCESSES), "-m", "benchmarks.adapter_training", str(settings),
    ]  # fmt: skip
    with two_nodes() as joining:
        done = subprocess.run(
            command,
            cwd=repository(),
            env=os.environ | joining | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        cause = done.stderr[done.stderr.find("Traceback") :][:3000]
        raise EngineError(f"the training in two processes failed: {cause}")
    return [
        json.loads((folder / f"rank-{rank}.json").read_text("utf-8")) for rank in range(N_PROCESSES)
    ]


# ---------------------------------------------------------------- figures


def _equality(folder: Path, told: Sequence[dict[str, Any]]) -> list[Figure]:
    """How far the numbers of the attached training are from plain TRL's, and who answered."""
    answered, n_rows = _answered(folder / EXACT)
    exact, faulted = (max(one[arm]["max_abs_diff"] for one in told) for arm in (EXACT, FAULTED))
    return [
        frameworks.equality("adapter.trl_max_abs_diff", exact, answered, n_rows),
        FIGURES.figure("adapter.trl_answered_share", answered / n_rows, n_rows=n_rows),
        FIGURES.figure("adapter.trl_faulted_max_abs_diff", faulted),
    ]


def _answered(run_dir: Path) -> tuple[int, int]:
    """Rows that the engines answered, and rows in all, by the ledger."""
    with LedgerReader(run_dir) as reader:
        rows = [r.result for r in reader.executions() if r.result.stage in INFERENCE]
    engines = [r for r in rows if r.action is not Action.GPU]
    return (
        sum(r.n_sequences - r.n_rows_fallback for r in engines),
        N_PROCESSES * N_ROWS * N_STEPS * len(INFERENCE),
    )


def _ended(roll: Mapping[str, Any]) -> list[Any]:
    """What the processes of the trainings left."""
    return [getattr(run, "result", run) for run in roll.values()]


def _samples(folder: Path, openrlhf: Mapping[str, Any], roll: dict[str, Any]) -> list[Figure]:
    """Samples that are missing from, or counted more than once in, the records of all runs."""
    rows = N_PROCESSES * N_ROWS
    expected = {(step, str(s)): rows for step in range(1, N_STEPS + 1) for s in INFERENCE}
    of_openrlhf = [openrlhf[key] for key in ("lost", "doubled", "n_faults")]
    lost, doubled, n_faults = map(sum, zip(of_openrlhf, frameworks.roll_samples(roll), strict=True))
    for arm in (EXACT, FAULTED):
        with LedgerReader(folder / arm) as reader:
            own_lost, own_doubled = count_samples(reader, expected)
            n_faults += len(reader.faults())
        lost, doubled = lost + own_lost, doubled + own_doubled
    return [
        FIGURES.figure("adapter.lost_samples", float(lost), n_faults=n_faults),
        FIGURES.figure("adapter.doubled_samples", float(doubled), n_faults=n_faults),
    ]


def _decision(told: Sequence[dict[str, Any]]) -> Figure:
    """What the question for one decision at the scheduler's actor takes."""
    times_ms = [1e3 * t for t in told[0][EXACT]["decision_s"] + told[0][FAULTED]["decision_s"]]
    middle = sorted(times_ms)[len(times_ms) // 2] if times_ms else None
    spread = spread_of(times_ms) if times_ms else None
    return FIGURES.figure("runtime.ray_decision_ms", middle, spread)


def _hook_share(folder: Path, overrides: Sequence[str], n_runs: int, n_steps: int) -> Figure:
    """Share of the time of trainings that ecorl itself took on their threads."""
    told = [_hooks(folder / str(run), overrides, n_steps) for run in range(n_runs)]
    shares = [spent.hook_s / train_s for spent, train_s in told]
    median = statistics.median(shares)
    spent, train_s = told[shares.index(min(shares, key=lambda share: abs(share - median)))]
    spread = spread_of(shares) if n_runs > 1 else None
    words = {"n_runs": n_runs, "spent": spent, "train_s": train_s}
    return FIGURES.figure("adapter.hook_share_trl", median, spread, words=words)


def _hooks(run_dir: Path, overrides: Sequence[str], n_steps: int) -> tuple[HookTime, float]:
    """What ecorl's own code took in one training, and how long that lasted, s."""
    settings = (
        f"trainer.steps={n_steps}",
        "trainer.per_device_batch_size=64",
        "trainer.num_generations=8",
        'placement.policy={type="static"}',
        "placement.profile_both_paths=false",
    )
    with quiet():
        trainer, attachment = demo_trainer([*overrides, *settings], run_dir)
        result = trainer.train()
    return attachment.runtime.clock.time, float(result.metrics["train_runtime"])


def _split_error(n_rounds: int = 20) -> Figure:
    """How far the parts of shared devices are from what the devices drew."""
    rng = random.Random(7)
    worst = max(_one_split(rng) for _ in range(n_rounds))
    return FIGURES.figure("runtime.energy_split_error", worst, n_rounds=n_rounds)


def _one_split(rng: random.Random) -> float:
    history, drawn_j, settled = PowerHistory(hold_s=2.0), 0.0, list[StageResult]()
    for device in ("gpu0", "gpu1"):
        energy_j = 0.0
        for i in range(400):
            power_w = rng.uniform(50.0, 700.0)
            history.add([PowerSample(device, i / 10, power_w, energy_j, 0.5, MEASURED, "bench")])
            energy_j += power_w / 10
        drawn_j += history.energy(device, 0.0, 30.0).energy_j or 0.0
    accounts = StageAccounts(_Nowhere(), history, settled.append, clock=lambda: 0.0)
    # One execution holds both devices all the time, so that all they draw belongs to somebody.
    spans = [(0.0, 30.0)] + [_span(rng) for _ in range(12)]
    for serial, (begin_s, end_s) in enumerate(spans):
        windows = [DeviceWindow(d, begin_s, end_s) for d in ("gpu0", "gpu1")]
        accounts.hold(serial, windows)
    for serial, (begin_s, end_s) in sorted(enumerate(spans), key=lambda item: item[1][1]):
        windows = [DeviceWindow(d, begin_s, end_s) for d in ("gpu0", "gpu1")]
        accounts.add(_execution(begin_s, end_s), windows, serial)
    accounts.close(patience_s=0.0)
    parts_j = math.fsum(r.energy.energy_j or 0.0 for r in settled if r.energy)
    return abs(parts_j - drawn_j) / drawn_j


def _span(rng: random.Random) -> tuple[float, float]:
    begin_s = rng.uniform(0.0, 28.0)
    return begin_s, rng.uniform(begin_s + 0.1, 30.0)


class _Nowhere:
    """A record that keeps nothing."""

    def result(self, r: StageResult) -> None:
        """Do nothing."""


def _execution(begin_s: float, end_s: float) -> StageResult:
    return StageResult(
        iteration=1,
        stage=Stage.GENERATION,
        action=Action.GPU,
        device_ids=("gpu0", "gpu1"),
        device="h100_sxm",
        t_start_s=begin_s,
        t_end_s=end_s,
        time_s=end_s - begin_s,
        time_provenance=MEASURED,
        host_time_s=end_s - begin_s,
        wait_s=0.0,
        n_sequences=1,
        n_tokens=1,
        n_output_tokens=1,
        energy=None,
    )


if __name__ == "__main__":
    sys.exit(run_benchmark("adapter", measure))
