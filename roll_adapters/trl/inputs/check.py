"""`ecorl run --check`: all checks of a run's input, told line by line, and nothing written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console

from ecorl.cli.output import say
from ecorl.config import Config, FilesTask
from roll_adapters.trl.inputs.finding import Finding
from roll_adapters.trl.inputs.start import check_resume, check_start

_KEY_WIDTH = 18
"""Of the column with the keys; a longer key moves its line to the right."""


def check(config: Config, run_dir: Path, resumed: bool, console: Console) -> None:
    """Check what a run is given, print a line for each thing, and leave nothing behind.

    Args:
        config: the run's.
        run_dir: folder of the run.
        resumed: whether the run is there and is to go on.
        console: where the lines go.

    Raises:
        UserError: for the first mistake.
    """
    _tell(check_resume(config, run_dir) if resumed else check_start(config, run_dir), console)
    from roll_adapters.trl.inputs.quiet import quiet  # takes seconds, with torch behind it

    with quiet():
        _tell(_slow(config, console), console)
    say("checked, and nothing was written: leave out --check to begin", console)


def _slow(config: Config, console: Console) -> Iterator[Finding]:
    from roll_adapters.trl.inputs.places import check_places
    from roll_adapters.trl.inputs.tokens import check_tokens

    task = config.task
    if isinstance(task, FilesTask):
        yield from check_tokens(task, config.trainer.max_completion_length, console)
    else:
        made = "its models and prompts are made at the first run, and not checked here"
        yield Finding("task.type", task.type, made)
    yield from check_places(config)


def _tell(findings: Iterable[Finding], console: Console) -> None:
    for found in findings:
        where = f"{found.where}  " if found.where else ""
        say(f"{found.what:<{_KEY_WIDTH}}  {where}{found.text}", console)
