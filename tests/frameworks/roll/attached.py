"""Trainings of ROLL, or of its double, with ecorl: block, record, and what they left."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.ledger import LedgerReader
from tests.frameworks.conformance import TrainedRun
from tests.frameworks.roll import harness
from tests.frameworks.trainings import ROOT, run_to_end

GPU: dict[str, Any] = {"placement": {"policy": {"type": "static"}}}
AWAY: dict[str, Any] = {"placement": {"policy": {"type": "static", "reference": "concurrent"}}}
EXACT: dict[str, Any] = AWAY | {"engine": {"offload": {"type": "plugin", "name": "roll"}}}

COMMAND = (sys.executable, "-m", "roll_adapters.roll", "start")
OURS = ("energy", "power", "device", "carbon")


@dataclass(frozen=True)
class Attached:
    """What a training with ecorl left: ROLL's own results and the run's record."""

    result: harness.Result
    record: Path

    @property
    def numbers(self) -> dict[str, dict[int, float]]:
        """ROLL's scalars, without times and without what ecorl adds."""
        found = self.result.numbers
        return {name: v for name, v in found.items() if name.split("/")[0] not in OURS}

    def read(self) -> LedgerReader:
        return LedgerReader(self.record)

    def rows(self) -> list[Any]:
        """All executions that count, in the order of time."""
        with self.read() as reader:
            found = [row.result for row in reader.executions() if not row.superseded]
        return sorted(found, key=lambda r: r.t_start_s)

    def faults(self) -> set[str]:
        with self.read() as reader:
            return {str(fault.kind) for fault in reader.faults()}

    def trained(self) -> TrainedRun:
        """As the conformance suite takes it."""
        drawn = self.result.metrics.get("energy/total_j", {})
        by_step = {step + 1: value for step, value in drawn.items()}
        return TrainedRun(one_based(self.numbers), self.result.weights, self.record, by_step)


def one_based(numbers: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Numbers by ecorl's steps; ROLL counts them from 0."""
    return {name: {step + 1: v for step, v in own.items()} for name, own in numbers.items()}


def merged(block: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A block with further settings; tables are merged."""
    found = dict(block)
    for key, value in more.items():
        own = found.get(key)
        both = isinstance(own, Mapping) and isinstance(value, Mapping)
        found[key] = merged(own, value) if both else value
    return found


def train(
    cluster: harness.Cluster,
    folder: Path,
    config: Mapping[str, Any],
    block: Mapping[str, Any],
    *,
    beside: Callable[[Path], None] | None = None,
    check: bool = True,
) -> Attached:
    """Run a training with ecorl.

    Args:
        cluster: that it runs on.
        folder: for what it leaves; one that holds a run is gone on with.
        config: ROLL's.
        block: ecorl's settings.
        beside: called in a thread with the folder of the record, to disturb the training.
        check: whether the training must succeed.
    """
    record = folder / "record"
    whole = {**config, "ecorl": {"run_dir": str(record), **block}}
    disturbing = threading.Thread(target=beside or (lambda _: None), args=(record,), daemon=True)
    disturbing.start()
    result = harness.run_training(cluster, folder, whole, command=COMMAND, check=check)
    disturbing.join(timeout=10)
    return Attached(result, record)


def largest_difference(plain: Any, other: Any) -> float:
    """Of all metrics but times and ecorl's own, and of all weights.

    Args:
        plain: an `Attached`, or what a training without ecorl left.
        other: the same.
    """
    ours, theirs = other.numbers, plain.numbers
    assert ours.keys() == theirs.keys()
    worst = 0.0
    for name, values in theirs.items():
        assert ours[name].keys() == values.keys(), name
        for step, value in values.items():
            if not (math.isnan(value) and math.isnan(ours[name][step])):
                worst = max(worst, abs(ours[name][step] - value))
    weights = [getattr(run, "result", run).weights for run in (plain, other)]
    assert weights[0].keys() == weights[1].keys() != set()
    for name, weight in weights[0].items():
        worst = max(worst, float((weights[1][name].float() - weight.float()).abs().max()))
    return worst


SMALL = (
    "max_steps=2", "rollout_batch_size=8", "prompt_length=48", "response_length=12",
    "num_gpus_per_node=4", "actor_train.device_mapping='[0]'", "actor_infer.device_mapping='[0]'",
    "reference.device_mapping='[1]'", "reference.strategy_args.strategy_name=hf_infer",
    "actor_train.strategy_args.strategy_config.fsdp_size=1",
    "actor_train.strategy_args.strategy_config.param_dtype=float32",
    "actor_train.training_args.gradient_accumulation_steps=1",
    "actor_train.training_args.per_device_train_batch_size=4",
    "actor_train.data_args.preprocessing_num_workers=1",
    *(f"{role}.model_args.dtype=fp32" for role in ("actor_train", "actor_infer", "reference")),
    *(f"+{role}.model_args.attn_implementation=sdpa" for role in ("actor_train", "reference")),
)  # fmt: skip
"""What makes a config for real GPUs one for tiny models on fake ones."""


def train_example(
    cluster: harness.Cluster, folder: Path, name: str, env: Mapping[str, str], more: Sequence[str]
) -> Attached:
    """Convert one of the project's examples as a user would, and train with it.

    Args:
        cluster: that it runs on.
        folder: for what it leaves.
        name: of the example.
        env: variables that it reads.
        more: settings of ROLL's beside `SMALL`.
    """
    record = folder / "record"
    example = ROOT / "roll_adapters" / "examples" / "roll" / f"{name}.yaml"
    command = [sys.executable, "-m", "roll_adapters.roll"]
    env = {**cluster.environment, **env}
    converted = folder / f"{name}_ecorl.yaml"
    words = [*command, "convert", str(example), "--output", str(converted)]
    subprocess.run(words, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    words = [
        *command, "start", "--config_path", str(folder), "--config_name", converted.stem,
        "--set", f"run_dir={record}", *SMALL, *more,
    ]  # fmt: skip
    return Attached(harness.Result(folder, *run_to_end(cluster, folder, words, env=env)), record)
