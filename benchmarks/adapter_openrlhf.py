"""Figures of `benchmarks.adapter` that come from OpenRLHF itself, in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.frameworks.text_serving import measure_text_ratio
from ecorl.bench.machine import repository
from ecorl.errors import EngineError
from ecorl.records import Provenance

MEASURED = Provenance.MEASURED
RUN = ("tests/frameworks/run.sh", "openrlhf")
LEAST_ANSWERED = 0.99
"""Share of rows that the workers must have answered for the equality to count."""

LIMIT_S = 300.0
"""Longest time of both trainings, s: four times what the slowest known machine needs."""


def train_with_openrlhf(folder: Path) -> dict[str, Any]:
    """Run OpenRLHF without and with ecorl; what the runs tell.

    Args:
        folder: for what they leave.

    Raises:
        EngineError: when they do not end well.
    """
    folder.mkdir(parents=True)
    command = [*RUN, "-m", "benchmarks.adapter_openrlhf_training", str(folder)]
    # Another environment than this one: nothing of it may be found there.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command, cwd=repository(), env=env, capture_output=True, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"OpenRLHF took longer than {LIMIT_S:g} s") from error
    if done.returncode != 0:
        raise EngineError(f"the trainings with OpenRLHF failed: {done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads((folder / "told.json").read_text("utf-8"))
    return told


def openrlhf_figures(told: dict[str, Any]) -> list[Figure]:
    """Equality, and ecorl's own time.

    Args:
        told: from `train_with_openrlhf`.
    """
    answered, n_rows = told["answered"], told["n_rows"]
    name = "adapter.openrlhf_max_abs_diff"
    figure = missing(name, "1", f"the workers answered only {answered} of {n_rows} rows")
    if answered >= LEAST_ANSWERED * n_rows:
        note = (
            "PPO/GAE with critic, exact engine on Ray workers against plain OpenRLHF; all metrics "
            f"but times, and weights; the workers answered {answered} of {n_rows} rows"
        )
        target = Target(high=1e-6)
        figure = Figure(name, told["max_abs_diff"], "1", MEASURED, target=target, note=note)
    step_s = told["steps_s"] / told["n_steps"]
    share = Figure(
        "adapter.hook_share_openrlhf",
        told["hook_s"] / told["steps_s"],
        "1",
        MEASURED,
        target=Target(high=0.01),
        note=f"{told['hook_s']:.4f} s in {told['n_events']} events of all processes, in "
        f"{told['n_steps']} steps of {step_s:.3f} s; reward and reference on workers; threads of "
        f"ecorl's own needed {told['beside_s']:.4f} s of a processor beside them",
    )
    return [figure, share]


def remote_reward_figure() -> Figure:
    """Tokens per second of the service for many one-sample clients, over one client."""
    told = measure_text_ratio()
    name = "adapter.openrlhf_remote_reward_ratio"
    return Figure(name, told["openrlhf_remote_reward_ratio"], "1", MEASURED,
                  told["spread"], note="32 one-sample clients over one, alternating")  # fmt: skip
