"""The demo's training with TRL, built for a benchmark that watches it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.config import Config, load_config
from ecorl.engines.fpga.csim.cache import cache_folder
from roll_adapters.trl.task import TaskFiles, resolve_task
from roll_adapters.trl.trainer import build_trainer
from roll_adapters.trl_hooks import attach


def demo_task(overrides: Sequence[str]) -> tuple[Config, TaskFiles]:
    """The demo's config and its models and prompts, which are made where they are not there yet.

    Args:
        overrides: settings, ``key=value``.
    """
    cache = f"task.cache_dir={cache_folder().parent / 'tasks'}"
    config = load_config("demo", [cache, *overrides])
    return config, resolve_task(config, Console(file=sys.stderr))


def demo_trainer(
    overrides: Sequence[str], run_dir: Path, *, attached: bool = True
) -> tuple[Any, Any]:
    """Build the demo's trainer.

    Args:
        overrides: settings, ``key=value``.
        run_dir: folder of the run.
        attached: whether ecorl is attached.

    Returns:
        The trainer, and its attachment or None.
    """
    config, files = demo_task([*overrides, f"run_dir={run_dir}"])
    trainer = build_trainer(config, files, run_dir / "checkpoints")
    return trainer, attach(trainer, config, run_dir=run_dir) if attached else None
