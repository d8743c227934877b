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

from rich.console import Console

from benchmarks.adapter_openrlhf import (
    openrlhf_figures,
    remote_reward_figure,
    train_with_openrlhf,
)
from benchmarks.adapter_roll import roll_figures, roll_samples, train_with_roll
from benchmarks.adapter_training import EXACT, FAULTED, PLAIN
from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.frameworks.samples import count_samples
from ecorl.bench.machine import repository
from ecorl.bench.stats import spread_of
from ecorl.config import load_config
from ecorl.engines.fpga.csim.cache import cache_folder
from ecorl.errors import EngineError
from ecorl.ledger import LedgerReader
from ecorl.records import (
    Action,
    PowerSample,
    Provenance,
    Stage,
    StageResult,
)
from ecorl.runtime.energy.held_devices import DeviceWindow
from ecorl.runtime.energy.stage_energy import StageAccounts
from ecorl.runtime.overhead import HookTime
from ecorl.telemetry.history import PowerHistory
from roll_adapters.demo.two_machines import two_nodes
from roll_adapters.trl.inputs.quiet import quiet
from roll_adapters.trl.task import resolve_task
from roll_adapters.trl.trainer import build_trainer
from roll_adapters.trl_hooks import attach

MEASURED = Provenance.MEASURED
N_ROWS, N_STEPS = 16, 8
N_PROCESSES = 2
INFERENCE = (Stage.REWARD, Stage.REFERENCE)
LEAST_ANSWERED = 0.99
"""Share of rows that the workers must have answered for the equality to count."""


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
            f"task.cache_dir={cache_folder().parent / 'tasks'}",
        ]
        # Models are made before anything is measured, and before two processes want them.
        resolve_task(load_config("demo", overrides), Console(file=sys.stderr))
        told = _train_in_two_processes(folder, overrides)
        openrlhf = train_with_openrlhf(folder / "openrlhf")
        roll = train_with_roll(folder / "roll")
        figures = [
            *_equality(folder, told),
            *openrlhf_figures(openrlhf),
            *roll_figures(roll),
            *_samples(folder, openrlhf, roll),
            remote_reward_figure(),
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
    share = answered / n_rows if n_rows else 0.0
    who = (
        f"two processes, exact engine on Ray workers against plain TRL with two; weights and logs; "
        f"the workers answered {answered} of {n_rows} rows"
    )
    name = "adapter.trl_max_abs_diff"
    figure = missing(name, "1", f"the workers answered only {answered} of {n_rows} rows")
    if share >= LEAST_ANSWERED:
        worst = max(one[EXACT]["max_abs_diff"] for one in told)
        figure = Figure(name, worst, "1", MEASURED, target=Target(high=1e-6), note=who)
    return [
        figure,
        Figure("adapter.trl_answered_share", share, "1", MEASURED,
               target=Target(low=LEAST_ANSWERED),
               note=f"of {n_rows} reward and reference rows, by the ledger"),
        Figure("adapter.trl_faulted_max_abs_diff", max(o[FAULTED]["max_abs_diff"] for o in told),
               "1", MEASURED, target=Target(high=1e-6),
               note="the same with faults in the engines: their rows come from the exact path"),
    ]  # fmt: skip


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
    lost, doubled, n_faults = map(sum, zip(of_openrlhf, roll_samples(roll), strict=True))
    for arm in (EXACT, FAULTED):
        with LedgerReader(folder / arm) as reader:
            own_lost, own_doubled = count_samples(reader, expected)
            n_faults += len(reader.faults())
        lost, doubled = lost + own_lost, doubled + own_doubled
    note = (
        f"rewards and references of 2 runs of TRL, one of OpenRLHF and 2 of ROLL's double with "
        f"{n_faults} faults, by the ledger"
    )
    return [
        Figure("adapter.lost_samples", float(lost), "1", MEASURED, target=Target(high=0),
               note=note),
        Figure("adapter.doubled_samples", float(doubled), "1", MEASURED, target=Target(high=0),
               note=note),
    ]  # fmt: skip


def _decision(told: Sequence[dict[str, Any]]) -> Figure:
    """What the question for one decision at the scheduler's actor takes."""
    times_ms = [1e3 * t for t in told[0][EXACT]["decision_s"] + told[0][FAULTED]["decision_s"]]
    if not times_ms:
        return missing("runtime.ray_decision_ms", "ms", "no decision was asked for")
    return Figure("runtime.ray_decision_ms", sorted(times_ms)[len(times_ms) // 2], "ms", MEASURED,
                  spread_of(times_ms),
                  note="median round trip of one decision at the actor")  # fmt: skip


def _hook_share(folder: Path, overrides: Sequence[str], n_runs: int, n_steps: int) -> Figure:
    """Share of the time of trainings that ecorl itself took on their threads."""
    told = [_hooks(folder / str(run), overrides, n_steps) for run in range(n_runs)]
    shares = [spent.hook_s / train_s for spent, train_s in told]
    median = statistics.median(shares)
    spent, train_s = told[shares.index(min(shares, key=lambda share: abs(share - median)))]
    return Figure("adapter.hook_share_trl", median, "1", MEASURED,
                  spread_of(shares) if n_runs > 1 else None, target=Target(high=0.01),
                  note=f"median of {n_runs} trainings; one: {spent.hook_s:.4f} s in "
                  f"{spent.n_events} events of {train_s:.2f} s; every stage on the GPU path, one "
                  "process, batches of the demo")  # fmt: skip


def _hooks(run_dir: Path, overrides: Sequence[str], n_steps: int) -> tuple[HookTime, float]:
    """What ecorl's own code took in one training, and how long that lasted, s."""
    config = load_config(
        "demo",
        [
            *overrides,
            f"trainer.steps={n_steps}",
            "trainer.per_device_batch_size=64",
            "trainer.num_generations=8",
            'placement.policy={type="static"}',
            "placement.profile_both_paths=false",
            f"run_dir={run_dir}",
        ],
    )
    with quiet():
        files = resolve_task(config, Console(file=sys.stderr))
        trainer = build_trainer(config, files, run_dir / "checkpoints")
        attachment = attach(trainer, config, run_dir=run_dir)
        result = trainer.train()
    return attachment.runtime.clock.time, float(result.metrics["train_runtime"])


def _split_error(n_rounds: int = 20) -> Figure:
    """How far the parts of shared devices are from what the devices drew."""
    rng, worst = random.Random(7), 0.0
    for _ in range(n_rounds):
        worst = max(worst, _one_split(rng))
    note = (
        "greatest relative difference, overlapping executions on two devices of known power, "
        f"{n_rounds} random schedules; rounding alone is below 1e-12"
    )
    name, limit = "runtime.energy_split_error", Target(high=1e-9)
    return Figure(name, worst, "1", Provenance.EMULATED, target=limit, note=note)


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
