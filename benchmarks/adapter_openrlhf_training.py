"""The trainings of `benchmarks.adapter` with OpenRLHF itself, on the CPU, in its own environment.

    tests/frameworks/openrlhf/run.sh -m benchmarks.adapter_openrlhf_training FOLDER

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

from ecorl.bench.frameworks.samples import count_samples
from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, Stage
from tests.frameworks.openrlhf import harness
from tests.frameworks.openrlhf.attached import EXACT, Attached, largest_difference, train
from tests.frameworks.openrlhf.tiny import make_tiny

EPISODES = 2
N_STEPS = EPISODES * 8
INFERENCE = (Stage.REWARD, Stage.REFERENCE)

# One value of each engine is spoilt: 2 of 256 rows, so that the workers still answer 99 %.
CONFIG = EXACT + 'engine.faults = [{kind = "nan", calls = [3], rows = [2]}]\n'


def main(folder: Path) -> None:
    """Run both trainings and write what they tell."""
    tiny = make_tiny(folder / "tiny")
    changes: dict[str, Any] = {"train.num_episodes": EPISODES}
    with (
        tempfile.TemporaryDirectory(prefix="ecorl-", ignore_cleanup_errors=True) as ray,
        harness.cluster(Path(ray)) as cluster,
    ):
        n_steps = N_STEPS // EPISODES
        plain = harness.run_training(cluster, tiny, folder / "plain", changes, n_steps=n_steps)
        run = train(cluster, tiny, folder / "exact", CONFIG, changes, n_steps=n_steps)
    with run.read() as reader:
        told = {**_samples(reader), **_hooks(reader, run)}
    told["max_abs_diff"] = largest_difference(plain, run)
    told["seconds"] = {"plain": plain.seconds, "exact": run.result.seconds}
    (folder / "told.json").write_text(json.dumps(told), "utf-8")


def _samples(reader: LedgerReader) -> dict[str, Any]:
    """Who answered how many rows, and whether each was answered once."""
    expected = {
        (step, str(stage)): harness.N_ROWS for step in range(1, N_STEPS + 1) for stage in INFERENCE
    }
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
    clock = next(e.detail for e in reader.events() if e.kind is EventKind.HOOK_CLOCK)
    steps = run.result.metrics["train/timing/step_total"].values()
    return {
        "hook_s": float(clock.split()[0]),
        "n_events": int(clock.split()[3]),
        "steps_s": sum(steps),
        "n_steps": len(steps),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
