"""Trainings of a framework as processes on the CPU: their environment, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.frameworks.ray_nodes import Cluster

ROOT = Path(__file__).parents[2]
LIMIT_S = 600


def cpu_environment(folder: Path, cpu: Path, **more: str) -> dict[str, str]:
    """Environment of the driver and of Ray's processes.

    Args:
        folder: for their caches.
        cpu: folder with what lets the framework run on the CPU, first on the path.
        **more: of one framework alone.
    """
    path = [cpu, ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONUNBUFFERED": "1",
        # Commands of the environment are looked for, as ninja and ray are.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo",
        "TQDM_DISABLE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **more,
    }


@dataclass(frozen=True)
class Ended:
    """What one training left.

    Attributes:
        folder: the training's.
        code: of the process.
        text: what the driver and its actors printed.
        seconds: of the process.
    """

    folder: Path
    code: int
    text: str
    seconds: float

    @cached_property
    def metrics(self) -> dict[str, dict[int, float]]:
        """All scalars of its TensorBoard files by name and step."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        values: dict[str, dict[int, float]] = {}
        for file in sorted((self.folder / "tensorboard").rglob("events.*")):
            events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
            for name in events.Tags()["scalars"]:
                steps = values.setdefault(name, {})
                steps.update({event.step: event.value for event in events.Scalars(name)})
        return values


def run_to_end(
    where: Cluster,
    folder: Path,
    command: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    check: bool = True,
) -> tuple[int, str, float]:
    """Run a training's driver to its end.

    Args:
        where: the cluster that it runs on.
        folder: the training's, in which the driver runs.
        command: the driver's.
        env: of the driver, besides the cluster's. Ray's workers do not see it.
        check: whether the training must succeed.

    Returns:
        Exit code, what was printed, and the seconds of the process.
    """
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env=where.environment | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    seconds = time.monotonic() - start
    (folder / "output.txt").write_text(done.stdout, "utf-8")
    if check:
        assert done.returncode == 0, done.stdout[-8000:]
    return done.returncode, done.stdout, seconds
