"""The trainings of `benchmarks.adapter` with OpenRLHF itself, on the CPU, in its own environment.

    tests/frameworks/run.sh openrlhf -m benchmarks.adapter_openrlhf_training FOLDER

Plain PPO with critic, reward model and reference, and the same with ecorl: an exact engine on
accelerator workers answers reward and reference, and a few of its values are spoilt. What was found
stands in FOLDER/told.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, Stage
from ecorl.runtime.overhead import HookTime
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import EXACT, Attached, largest_difference, train
from tests.frameworks.tiny import make_tiny

N_ROWS, STEPS_AN_EPISODE, EPISODES = 32, 2, 4
N_STEPS = STEPS_AN_EPISODE * EPISODES
INFERENCE = (Stage.REWARD, Stage.REFERENCE)

# Two values of each engine are spoilt: 4 of 512 rows, so that the workers still answer 99 %.
CONFIG = EXACT + 'engine.faults = [{kind = "nan", calls = [3], rows = [2, 17]}]\n'


def main(folder: Path) -> None:
    """Run both trainings and write what they tell."""
    tiny = make_tiny(folder / "tiny")
    changes: dict[str, Any] = {
        "train.num_episodes": EPISODES,
        "rollout.batch_size": N_ROWS,
        "train.batch_size": N_ROWS,
        "data.max_samples": N_ROWS * STEPS_AN_EPISODE,
    }
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as ray,
        harness.cluster(Path(ray)) as cluster,
    ):
        plain = harness.run_training(cluster, tiny, folder / "plain", changes)
        run = train(cluster, tiny, folder / "exact", CONFIG, changes)
    with run.read() as reader:
        told = {**_samples(reader), **_hooks(reader, run)}
    told["max_abs_diff"] = largest_difference(plain, run)
    told["seconds"] = {"plain": plain.seconds, "exact": run.result.seconds}
    (folder / "told.json").write_text(json.dumps(told), "utf-8")


def _samples(reader: LedgerReader) -> dict[str, Any]:
    """Who answered how many rows, and whether each was answered once."""
    steps = range(1, N_STEPS + 1)
    expected = {(step, str(stage)): N_ROWS for step in steps for stage in INFERENCE}
    lost, doubled = count_samples(reader, expected)
    rows = [row.result for row in reader.executions() if row.result.stage in INFERENCE]
    away = [r for r in rows if r.action is not Action.GPU]
    return {
        "answered": sum(r.n_sequences - r.n_rows_fallback for r in away),
        "n_rows": sum(expected.values()),
        "lost": lost,
        "doubled": doubled,
        "n_faults": len(reader.faults()),
    }


def _hooks(reader: LedgerReader, run: Attached) -> dict[str, float]:
    """What ecorl needed in the driver and the trainer's processes, and what the steps took."""
    told = next(e.detail for e in reader.events() if e.kind is EventKind.HOOK_CLOCK)
    spent = HookTime.read(told)
    steps = run.result.metrics["train/timing/step_total"].values()
    return {
        "hook_s": spent.hook_s,
        "n_events": spent.n_events,
        "beside_s": spent.beside_s,
        "steps_s": sum(steps),
        "n_steps": len(steps),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
