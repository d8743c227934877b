"""The files of a task as a benchmark takes them: the same for all of its runs, whatever their seed.

The arithmetic task is made for one seed, so that seeds vary the training and not the models. Its
prompts are written with their answers beside them, for supervised training of the same policy.
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from ecorl.config import ArithmeticTask, Config, FilesTask
from roll_adapters.demo.arithmetic import answer_to
from roll_adapters.trl.inputs.rows import PROMPT_KEYS, read_rows
from roll_adapters.trl.task import prepare_task

PROMPTS_FILE = "prompts.jsonl"


def benchmark_files(config: Config, folder: Path, console: Console) -> FilesTask:
    """Make or find the files of a task, and build what its runs compute with.

    Preference pairs are left out: what INT8 does to their order is no matter of energy.

    Args:
        config: the runs' configuration.
        folder: where what has to be written goes; it is made where that is the case.
        console: where the making of files is shown.

    Returns:
        The task as files, with absolute paths.

    Raises:
        UserError: for a file that cannot be used.
    """
    files = prepare_task(config, console)
    prompts = files.prompts
    if isinstance(config.task, ArithmeticTask):
        prompts = folder / PROMPTS_FILE
        rows = read_rows(files.prompts, PROMPT_KEYS)
        told = [{"prompt": row["prompt"], "answer": answer_to(row["prompt"])} for row in rows]
        folder.mkdir(parents=True, exist_ok=True)
        prompts.write_text("".join(f"{json.dumps(row)}\n" for row in told), "utf-8")
    return FilesTask(
        policy=files.policy.absolute(),
        reward=files.reward.absolute(),
        prompts=prompts.absolute(),
        eval_prompts=None if files.eval_prompts is None else files.eval_prompts.absolute(),
    )
