"""What is done to a training while it runs: its record is watched, its processes are found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from ray._private import ray_constants

from ecorl.ledger import LedgerReader
from tests.frameworks.ray_nodes import Cluster


def steps_done(record: Path) -> int:
    """Number of the newest step whose metrics are in the record."""
    with suppress(Exception), LedgerReader(record) as reader:
        return max((m.iteration for m in reader.metrics()), default=0)
    return 0


def await_step(record: Path, step: int, limit_s: float = 200.0) -> None:
    """Wait until a step is in the record."""
    end_s = time.monotonic() + limit_s
    while steps_done(record) < step:
        assert time.monotonic() < end_s, f"step {step} did not come"
        time.sleep(0.05)


def await_checkpoint(record: Path, limit_s: float = 200.0) -> None:
    """Wait until a checkpoint is in the record."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        with suppress(Exception), LedgerReader(record) as reader:
            if reader.checkpoints():
                return
        time.sleep(0.02)
    raise AssertionError("no checkpoint came")


def processes(actor: str, where: Cluster) -> list[psutil.Process]:
    """The processes of a cluster that hold an actor of a class, by what Ray logs of them."""
    found: list[psutil.Process] = []
    for log in where.folder.glob("ray/session_*/logs/worker-*.out"):
        head = log.read_text("utf-8", "replace")[:1000]
        if f"{ray_constants.LOG_PREFIX_ACTOR_NAME}{actor}\n" in head:
            with suppress(psutil.Error):
                found.append(psutil.Process(int(log.stem.rpartition("-")[2])))
    # A number may have gone to another process.
    return [process for process in found if _is_below(process, str(where.folder))]


def _is_below(process: psutil.Process, folder: str) -> bool:
    """Whether what has started a process names a folder in its command."""
    with suppress(psutil.Error):
        return any(folder in word for above in process.parents() for word in above.cmdline())
    return False


def drivers(module: str, near: Path) -> list[psutil.Process]:
    """Processes that run a module in or below a folder."""
    own = [found for found, words in _all() if "-m" in words and module in words]
    return [found for found in own if near in (_folder(found), *_folder(found).parents)]


def _folder(process: psutil.Process) -> Path:
    """Where a process runs; the root for one that has just ended."""
    with suppress(psutil.Error):
        return Path(process.cwd())
    return Path("/")


def _all() -> Iterator[tuple[psutil.Process, list[str]]]:
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"]:
            yield process, process.info["cmdline"]
