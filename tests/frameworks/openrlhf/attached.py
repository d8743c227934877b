"""Trainings of OpenRLHF with ecorl: config, record, and how far from a plain one they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.ledger import LedgerReader
from tests.frameworks.openrlhf import harness
from tests.frameworks.watching import await_step

GPU = 'placement.policy = {type = "static"}\n'
AWAY = 'placement.policy = {type = "static", reward = "concurrent", reference = "concurrent"}\n'
EXACT = AWAY + 'engine.offload = {type = "plugin", name = "openrlhf"}\n'

TIMES = re.compile(r"/(timing|energy|power|device|carbon)/")


@dataclass(frozen=True)
class Attached:
    """What a training with ecorl left: OpenRLHF's own results and the run's record."""

    result: harness.Result
    record: Path

    @property
    def numbers(self) -> dict[str, dict[int, float]]:
        """OpenRLHF's scalars, without times and without what ecorl adds."""
        return {name: v for name, v in self.result.metrics.items() if not TIMES.search(name)}

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


def train(
    cluster: harness.Cluster,
    tiny: Any,
    folder: Path,
    config: str,
    changes: dict[str, Any] | None = None,
    *,
    beside: Callable[[Path], None] | None = None,
    **options: Any,
) -> Attached:
    """Run a training with ecorl.

    Args:
        cluster: that it runs on.
        tiny: models and prompts.
        folder: for what it leaves; one that holds a run is gone on with.
        config: lines of TOML.
        changes: OpenRLHF's flags.
        beside: called in a thread with the folder of the record, to disturb the training.
        **options: of `harness.run_training`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record, file = folder / "record", folder / "ecorl.toml"
    file.write_text(f"run_dir = {json.dumps(str(record))}\n{config}", "utf-8")
    command = (sys.executable, "-m", "roll_adapters.openrlhf", "--ecorl.config", str(file))
    disturbing = threading.Thread(target=beside or (lambda _: None), args=(record,), daemon=True)
    disturbing.start()
    result = harness.run_training(cluster, tiny, folder, changes, command=command, **options)
    disturbing.join(timeout=10)
    return Attached(result, record)


@contextmanager
def held(
    cluster: harness.Cluster, n_steps: int, disturb: Callable[[Path], None]
) -> Iterator[Callable[[Path], None]]:
    """Have trainings stand after some steps until they were disturbed.

    Args:
        cluster: the cluster that they run on.
        n_steps: steps after which nothing is generated.
        disturb: called with the folder of the record when all of them are in it.

    Yields:
        What is to run beside a training.
    """
    hold = Path(cluster.environment[harness.HOLD])
    hold.write_text(str(n_steps * harness.N_ROWS), "utf-8")

    def beside(record: Path) -> None:
        await_step(record, n_steps)
        disturb(record)
        hold.unlink()

    try:
        yield beside
    finally:
        hold.unlink(missing_ok=True)


def largest_difference(plain: harness.Result, attached: Attached) -> float:
    """Of all metrics but times, and of all weights."""
    ours, theirs = attached.numbers, plain.numbers
    assert ours.keys() == theirs.keys()
    worst = 0.0
    for name, values in theirs.items():
        assert ours[name].keys() == values.keys(), name
        worst = max(worst, *(abs(ours[name][step] - value) for step, value in values.items()))
    assert attached.result.weights.keys() == plain.weights.keys() != set()
    for name, weight in plain.weights.items():
        difference = (attached.result.weights[name].float() - weight.float()).abs().max()
        worst = max(worst, float(difference))
    return worst


def toml(value: Any) -> str:
    """A value of a config as it stands in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@contextmanager
def reward_service(folder: Path, model: Path, port: int):
    """Serve a reward model; yields a function that kills the service and starts it again."""
    command = [
        sys.executable, "-m", "ecorl.cli", "fpga", "serve", "--model", str(model),
        "--port", str(port), "--threads", "1",
    ]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with (folder / "service.log").open("ab") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))

    def restart() -> None:
        started[-1].kill()
        started[-1].wait()
        start()

    start()
    try:
        yield restart
    finally:
        started[-1].terminate()
        started[-1].wait(timeout=60)
