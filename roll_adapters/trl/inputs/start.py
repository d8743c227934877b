"""What can be known of a run's input without torch: cheap, and checked before anything is written.

No module that this one imports brings torch, transformers or TRL, which take many seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ecorl.config import Config, FilesTask
from ecorl.errors import CheckpointError, ConfigError, DataError, RunError
from ecorl.records import Algorithm
from ecorl.runtime.runs.record import check_unused, check_writable
from roll_adapters.trl.inputs.finding import Finding
from roll_adapters.trl.inputs.folders import check_policy, check_reward
from roll_adapters.trl.inputs.rows import PAIR_KEYS, PROMPT_KEYS, numbered_rows
from roll_adapters.trl.inputs.settings import check_settings

ALGORITHMS = (Algorithm.GRPO, Algorithm.RLOO)
"""Those of which TRL has a trainer for us."""


def check_start(config: Config, run_dir: Path) -> Iterator[Finding]:
    """Check all that a fresh run is given; each thing that is good is told when it is known.

    Args:
        config: the run's.
        run_dir: folder of the run.

    Raises:
        UserError: for the first mistake.
    """
    check_algorithm(config)
    check_one_process()
    check_writable(run_dir)
    check_unused(run_dir)
    yield Finding("run_dir", str(run_dir), "new, can be written")
    yield from _check_given(config)


def check_resume(config: Config, run_dir: Path) -> Iterator[Finding]:
    """Check that what a run was begun with is still where its record says.

    Args:
        config: the run's, of its record.
        run_dir: folder of the run.

    Raises:
        UserError: for the first mistake.
    """
    check_one_process()
    yield Finding("run_dir", str(run_dir), "holds a run that can go on")
    try:
        yield from _check_given(config)
    except (CheckpointError, ConfigError, DataError) as error:
        hint = "a run keeps its own config: put the file or folder back in its place, or a link"
        raise RunError(f"{error}; {hint}") from error


def check_algorithm(config: Config) -> None:
    """Check that TRL has the configured algorithm.

    Raises:
        ConfigError: when it has not.
    """
    if config.algorithm_enum not in ALGORITHMS:
        allowed = f"{' or '.join(repr(str(name)) for name in ALGORITHMS)} with adapter = 'trl'"
        raise ConfigError("algorithm", config.algorithm, allowed)


def check_one_process() -> None:
    """Refuse to be one of several processes: each would make a run of its own.

    Raises:
        ConfigError: when a launcher has started several.
    """
    n_processes = os.environ.get("WORLD_SIZE", "1")
    if n_processes != "1":
        allowed = (
            "1: `ecorl run` starts the processes of trainer.widths itself, and for a script that "
            "calls attach use torchrun instead"
        )
        raise ConfigError("WORLD_SIZE", n_processes, allowed)


def _check_given(config: Config) -> Iterator[Finding]:
    try:
        yield from _check_files(config)
    except OSError as error:
        # Where a path cannot even be looked at: no right to, or no name of a file.
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _check_files(config: Config) -> Iterator[Finding]:
    task = config.task
    if isinstance(task, FilesTask):
        yield Finding("task.policy", str(task.policy), str(check_policy(task.policy.expanduser())))
        yield Finding("task.reward", str(task.reward), str(check_reward(task.reward.expanduser())))
        _check_rows(config, task)
    yield from check_settings(config)


def _check_rows(config: Config, task: FilesTask) -> None:
    """Check the form of the files; their texts need the tokenizers, which come later."""
    for key, path, required in (
        ("task.prompts", task.prompts, PROMPT_KEYS),
        ("task.eval_prompts", task.eval_prompts, PROMPT_KEYS),
        ("task.pairs", task.pairs, PAIR_KEYS),
    ):
        if path is None:
            continue
        n_rows = len(numbered_rows(path.expanduser(), required, key))
        if key == "task.prompts":
            _check_enough(path, n_rows, config)


def _check_enough(path: Path, n_rows: int, config: Config) -> None:
    """Refuse fewer prompts than one step takes."""
    t = config.trainer
    n_unique = t.per_device_batch_size // t.num_generations
    if n_rows < n_unique:
        raise DataError(
            f"{path}: holds {n_rows} prompts, a step needs {n_unique} "
            f"(trainer.per_device_batch_size = {t.per_device_batch_size} / "
            f"trainer.num_generations = {t.num_generations})"
        )
