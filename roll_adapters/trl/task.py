"""The task of a run: where its checkpoints and data files are, and how they are read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ecorl.config import ArithmeticTask, Config, FilesTask, FpgaEngineConfig
from ecorl.engines.fpga.csim.build import csim_library
from ecorl.errors import BuildError, MissingToolError

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
    """Find the files of the configured task, check their texts, build what the run computes with.

    A mistake in one of them then costs no training time.

    Args:
        config: the run's configuration.
        console: where the making of files is shown.

    Raises:
        DataError: when a text cannot be used, or the cache cannot be written.
        CheckpointError: when a tokenizer cannot be used.
    """
    from roll_adapters.trl.inputs.tokens import check_tokens  # brings torch

    files = resolve_task(config, console)
    if isinstance(config.task, FilesTask):
        for _ in check_tokens(config.task, config.trainer.max_completion_length, console):
            pass  # of interest to `ecorl run --check` alone
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
