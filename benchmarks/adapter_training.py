"""One process of the trainings that `benchmarks.adapter` compares; torchrun starts two of them.

In turn, each a new trainer with the same seed, data and models: plain TRL; attached, with an exact
engine on a worker of a Ray cluster; and the same with faults in that engine. Each process writes
how far the attached trainings' weights and logs are from the plain ones'.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.studies.demo_training import demo_trainer
from ecorl.runtime.processes.ranked import RankedRuntime
from roll_adapters.trl.inputs.quiet import quiet

PLAIN, EXACT, FAULTED = "plain", "exact", "faulted"
FAULTS = (
    '[{kind="raise", calls=[2]}, {kind="nan", calls=[3], rows=[0, 5]}, '
    '{kind="shape", calls=[4]}, {kind="exit", calls=[6]}]'
)
"""By call of each engine: an error, two rows that are no numbers, a wrong shape, a dead worker."""

KEYS = ("loss", "reward", "reward_std", "kl", "grad_norm")


def main(path: str) -> None:
    """Train three times and write what came.

    Args:
        path: of the settings, JSON.
    """
    settings = json.loads(Path(path).read_text("utf-8"))
    folder = Path(settings["folder"])
    outcomes = {arm: _train(arm, settings) for arm in (PLAIN, EXACT, FAULTED)}
    rank = int(os.environ["RANK"])
    told = {
        arm: {
            "max_abs_diff": _max_abs_diff(outcomes[PLAIN], outcomes[arm]),
            "train_s": outcomes[arm]["train_s"],
            "decision_s": outcomes[arm]["decision_s"],
        }
        for arm in outcomes
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(told), "utf-8")


def _train(arm: str, settings: dict[str, Any]) -> dict[str, Any]:
    folder = Path(settings["folder"])
    overrides = [
        *settings["overrides"],
        'runtime={type="ray", address="auto"}',
        'placement.policy={type="static", reward="concurrent", reference="concurrent"}',
        "placement.profile_both_paths=false",
        'engine.offload={type="torch"}',
    ]
    if arm == FAULTED:
        overrides.append(f"engine.faults={FAULTS}")
    decisions: list[float] = []
    with quiet():
        trainer, attachment = demo_trainer(overrides, folder / arm, attached=arm != PLAIN)
        if attachment is not None:
            _time_decisions(attachment.runtime, decisions)
        start_s = time.perf_counter()
        trainer.train()
        train_s = time.perf_counter() - start_s
    log = [{k: row[k] for k in KEYS if k in row} for row in trainer.state.log_history]
    weights = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    return {"log": log, "weights": weights, "train_s": train_s, "decision_s": decisions}


def _time_decisions(runtime: Any, decisions: list[float]) -> None:
    """Time the question for a decision at the scheduler's actor, where this process asks it."""
    if not (isinstance(runtime, RankedRuntime) and runtime.is_head):
        return
    head: Any = runtime.head
    own = head.on_stage_start

    def timed(iteration: Any, work: Any, **options: Any) -> Any:
        start_s = time.perf_counter()
        run = own(iteration, work, **options)
        if head.checkpoint(work.role) is not None:
            decisions.append(time.perf_counter() - start_s)
        return run

    head.on_stage_start = timed


def _max_abs_diff(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Greatest difference of any weight and of any figure in the log."""
    weights = [
        float((value - other["weights"][name]).abs().max())
        for name, value in one["weights"].items()
        if torch.is_floating_point(value)
    ]
    if [row.keys() for row in one["log"]] != [row.keys() for row in other["log"]]:
        return float("inf")
    figures = [
        abs(float(value) - float(theirs[key]))
        for mine, theirs in zip(one["log"], other["log"], strict=True)
        for key, value in mine.items()
    ]
    return max(weights + figures)


if __name__ == "__main__":
    main(sys.argv[1])
