"""The task of a run: where its checkpoints and data files are, and how they are read."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.config import ArithmeticTask, Config, FpgaEngineConfig
from ecorl.engines.fpga.csim.build import csim_library
from ecorl.errors import BuildError, DataError, MissingToolError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Checkpoint folders and data files of a run.

    Attributes:
        eval_prompts: held-out prompts, or None: then there is no evaluation.
        pairs: held-out preference pairs, or None: then rank flips are not counted.
    """

    policy: Path
    reward: Path
    prompts: Path
    eval_prompts: Path | None
    pairs: Path | None


def resolve_task(config: Config, console: Console) -> TaskFiles:
    """Find the files of the configured task; those of the arithmetic task are made when needed.

    Args:
        config: the run's configuration.
        console: where the making of files is shown.

    Raises:
        DataError: when the cache cannot be written.
    """
    task = config.task
    if isinstance(task, ArithmeticTask):
        from roll_adapters.demo.prepare import prepare

        made = prepare(task.cache_dir, config.seed, task.n_eval, console)
        return TaskFiles(made.policy, made.reward, made.prompts, made.eval_prompts, made.pairs)
    return TaskFiles(
        policy=task.policy.expanduser(),
        reward=task.reward.expanduser(),
        prompts=task.prompts.expanduser(),
        eval_prompts=task.eval_prompts.expanduser() if task.eval_prompts else None,
        pairs=task.pairs.expanduser() if task.pairs else None,
    )


def prepare_task(config: Config, console: Console) -> TaskFiles:
    """Find the files of the configured task, check them and build what the run computes with.

    A mistake in one of them then costs no training time.

    Args:
        config: the run's configuration.
        console: where the making of files is shown.

    Raises:
        DataError: when a file cannot be used, or the cache cannot be written.
    """
    files = resolve_task(config, console)
    read_rows(files.prompts, ("prompt",), "task.prompts")
    if files.eval_prompts:
        read_rows(files.eval_prompts, ("prompt",), "task.eval_prompts")
    if files.pairs:
        read_rows(files.pairs, ("prompt", "chosen", "rejected"), "task.pairs")
    _build_kernels(config, console)
    return files


def _build_kernels(config: Config, console: Console) -> None:
    """Compile the C-simulation now: the engine's process, which would do it, shows no progress."""
    offload = config.engine.offload
    if not isinstance(offload, FpgaEngineConfig):
        return
    try:
        csim_library(
            offload.build,
            progress=lambda line: console.print(
                line, highlight=False, markup=False, soft_wrap=True
            ),
        )
    except (MissingToolError, BuildError) as error:
        # An engine that needs it says so when it is started, and the run goes on without it.
        logger.info("the C-simulation was not compiled: %s", error)


def read_rows(path: Path, required: tuple[str, ...], key: str = "") -> list[dict[str, Any]]:
    """Read the rows of a JSON-lines file, each with the required keys as strings.

    Args:
        path: the file.
        required: keys that each row must have.
        key: the config key that names the file, for the message.

    Raises:
        DataError: naming the file, the line and what is wrong with it.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        asked = f" ({key})" if key else ""
        raise DataError(f"{path}{asked}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text file in UTF-8 ({error})") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: needs an object with {', '.join(required)}")
        for name in required:
            if not isinstance(row.get(name), str):
                raise DataError(f'{path}:{number}: needs a string "{name}", not {row.get(name)!r}')
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: holds no rows")
    return rows
