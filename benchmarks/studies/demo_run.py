"""One whole ``ecorl run --config demo`` in empty folders, and an installation from a clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl.bench.machine import repository
from ecorl.errors import RunError
from ecorl.ledger import LedgerReader
from ecorl.records import EventKind, Stage
from ecorl.report.model import PairedGain, RankFlips
from ecorl.report.training import paired_gains, rank_flips

TARGET = "install"
"""The Makefile's target that makes the environment and nothing else."""

_TIMEOUT_S = 900.0  # five times the target; a run that hangs ends here
_INSTALL_TIMEOUT_S = 1200.0


@dataclass(frozen=True, slots=True)
class DemoRun:
    """What one run of the demo showed.

    Attributes:
        run_s: wall-clock of the whole command: interpreter, kernels, task, training, report.
        train_s: from the first stage of training to the end of the last, s; None without any.
        wait_s: time that the training thread stood at barriers, s; None when a wait is missing.
        gains: paired gains of the held-out evaluations, by name.
        flips: INT8 against float on held-out pairs; None when the run did not count them.
        n_faults: faults in the ledger.
    """

    seed: int
    run_s: float
    train_s: float | None
    wait_s: float | None
    gains: dict[str, PairedGain]
    flips: RankFlips | None
    n_faults: int

    @property
    def wait_share(self) -> float | None:
        """Barrier waits over training time; None when either is missing."""
        if self.train_s is None or self.wait_s is None or self.train_s <= 0:
            return None
        return self.wait_s / self.train_s


def run_demo(
    seed: int,
    folder: Path,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> DemoRun:
    """Run the demo for a seed with nothing prepared: no task, no compiled kernels.

    Args:
        seed: of the whole run.
        folder: an empty folder for the run, its caches and its log.
        overrides: further ``key=value`` settings.
        environment: further environment variables of the command.

    Returns:
        What the ledger of the run says.

    Raises:
        RunError: when the command fails or does not end.
    """
    run_dir = folder / "run"
    settings = [f"seed={seed}", f"run_dir={run_dir}", f"task.cache_dir={folder / 'tasks'}"]
    command = [sys.executable, "-m", "ecorl.cli", "run", "--config", "demo"]
    for item in [*settings, *overrides]:
        command += ["--set", item]
    variables = {**os.environ, **(environment or {}), "ECORL_CACHE": str(folder / "cache")}
    start_s = time.perf_counter()
    run_logged(command, folder / "run.log", timeout_s=_TIMEOUT_S, environment=variables)
    return read_demo(run_dir, seed, time.perf_counter() - start_s)


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    timeout_s: float,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a command with its output in a file.

    Raises:
        RunError: when it cannot be started, fails, or takes longer than `timeout_s`; with the last
            line that it wrote.
    """
    name = " ".join(command[:4])
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("wb") as output:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                env=environment,
                cwd=cwd,
                check=True,
            )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{name} ... did not end in {timeout_s:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else "no output"
        raise RunError(f"{name} ... failed with code {error.returncode}: {last}") from error
    except OSError as error:
        raise RunError(f"{name} ... cannot be run ({error})") from error


def read_demo(run_dir: Path, seed: int, run_s: float) -> DemoRun:
    """What the ledger of a finished run says.

    Raises:
        RunError: when there is no ledger, or the run did not finish.
        LedgerError: when the ledger cannot be read.
    """
    with LedgerReader(run_dir) as reader:
        if not any(event.kind is EventKind.FINISH for event in reader.events()):
            raise RunError(f"{run_dir}: the run did not finish")
        results = [row.result for row in reader.executions()]
        waits = [row.wait_s for row in reader.barriers()]
        evaluations = reader.evaluations()
        n_faults = len(reader.faults())
    starts = [r.t_start_s for r in results if r.stage is Stage.GENERATION]
    ends = [r.t_end_s for r in results if r.stage is Stage.ACTOR_TRAIN]
    known = [wait_s for wait_s in waits if wait_s is not None]
    return DemoRun(
        seed=seed,
        run_s=run_s,
        train_s=max(ends) - min(starts) if starts and ends else None,
        wait_s=sum(known) if len(known) == len(waits) else None,
        gains={gain.name: gain for gain in paired_gains(evaluations)},
        flips=next(iter(rank_flips(evaluations)), None),
        n_faults=n_faults,
    )


# ---------------------------------------------------------------- installation


def install_gap() -> str | None:
    """Tell why an installation cannot be measured from here; None when it can."""
    root = repository()
    if not (root / ".git").exists():
        return f"{root} is not a git checkout"
    makefile = root / "Makefile"
    text = makefile.read_text("utf-8", "replace") if makefile.is_file() else ""
    if not re.search(rf"^{TARGET}\s*:", text, re.M):
        return f"{makefile} has no target {TARGET}"
    tracked = subprocess.run(
        ["git", "ls-files", "--error-unmatch", "Makefile"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    return None if tracked.returncode == 0 else "the Makefile is not committed, a clone lacks it"


def measure_install(folder: Path) -> dict[str, float]:
    """Clone the checkout's last commit and install it, with pip's download cache switched off.

    Args:
        folder: an empty folder for the clone and its environment.

    Returns:
        Wall-clock times ``clone_s`` and ``install_s``, s.

    Raises:
        RunError: when a step fails.
    """
    gap = install_gap()
    if gap is not None:
        raise RunError(gap)
    clone = folder / "clone"
    # Nothing may point the clone at this environment or at a cache.
    dropped = {"VIRTUAL_ENV", "VENV", "PYTHONPATH", "PYTHONHOME"}
    dropped |= {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    bare = {key: value for key, value in os.environ.items() if key not in dropped}
    bare["PIP_NO_CACHE_DIR"] = "1"
    start_s = time.perf_counter()
    source = f"file://{repository()}"
    run_logged(["git", "clone", "--quiet", source, str(clone)], folder / "clone.log", timeout_s=120)
    cloned_s = time.perf_counter()
    log = folder / "install.log"
    run_logged(["make", TARGET], log, timeout_s=_INSTALL_TIMEOUT_S, environment=bare, cwd=clone)
    return {"clone_s": cloned_s - start_s, "install_s": time.perf_counter() - cloned_s}
