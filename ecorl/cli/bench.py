"""``ecorl bench``: what placements and other choices take, on the user's models and machine."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ecorl.cli.exits import STOPPED_TEXT, Stopped, help_without_command
from ecorl.cli.options import ConfigOption, OverridesOption, option, with_options
from ecorl.cli.output import make_console, say
from ecorl.errors import ConfigError, TrainingError, UserError

if TYPE_CHECKING:
    from ecorl.bench.tokens_per_joule.plan import BenchPlan
    from ecorl.bench.tokens_per_joule.result import BenchResult
    from ecorl.bench.tokens_per_joule.running.folder import BenchFolder
    from ecorl.config import Config


bench_app = typer.Typer(help="Measure what choices take, on your models and this machine.")


@bench_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Measure what choices take, on your models and this machine."""
    # Read when the libraries are loaded, which the processes of the runs do.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    help_without_command(context)


_ALL = "gpu_only, fpga_sequential, concurrent, lookahead, learned"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the flags ask for; None: as in the folder's plan, else the default."""

    seeds: str | None = option("Seeds of the runs (42,1337,2025).", "N,N,...")
    steps: int | None = option("Steps of a run (40, or the config's).", min=1)
    warm_up: int | None = option("First steps of a run that do not count (8).", min=0)
    placements: str | None = option(f"Placements ({_ALL}).", "NAME,...")
    gears: bool | None = option(
        "Train in a lower numeric format too, where there is one (yes).",
        names=("--gears/--no-gears",),
    )
    supervised: bool | None = option(
        "Train on reference answers too (yes).", names=("--supervised/--no-supervised",)
    )
    engine: Literal["fpga", "torch"] | None = option(
        "What computes offloaded stages: a card, or torch beside the trainer."
    )
    accelerator: str | None = option("Profile of the device that does.", "NAME")
    reward: float | None = option("Held-out reward to reach (the highest that all reach).")
    correct: float | None = option("Share of right answers to reach (likewise).", min=0, max=1)
    out: Path | None = option("Runs and results; gone on with if there.", "FOLDER")
    join: list[Path] | None = option("Run nothing: join these results. Repeatable.", "FILE")
    as_json: bool = option("Print JSON.", names=("--json",), default=False)
    as_csv: bool = option("Print a row for each run.", names=("--csv",), default=False)

    def plan(
        self, folder: BenchFolder, config: str | None, overrides: Sequence[str] | None
    ) -> BenchPlan:
        """Make the plan.

        Raises:
            UserError: for a flag, a config or a folder that cannot be used.
        """
        from ecorl.bench.tokens_per_joule.arms import ADAPTIVE, CLOCKS, GEARS, PLACEMENTS, arms_of
        from ecorl.bench.tokens_per_joule.plan import DEFAULT_SEEDS, BenchPlan, usual_warm_up

        seeds = None if self.seeds is None else _whole_numbers("--seeds", self.seeds)
        placements = None if self.placements is None else tuple(_words(self.placements))
        settings = [*(overrides or ()), *self._settings()]
        before = folder.plan()[0] if folder.is_begun else None
        warm_up = self.warm_up
        if warm_up is None and before is not None:
            warm_up = before.warm_up
        if before is not None and config is None and not settings and self.steps is None:
            base = before.base
        else:
            base = _base(config, settings, self.steps, warm_up)
        if warm_up is None:
            warm_up = usual_warm_up(base.trainer.steps)
        geared = self.gears
        if geared is None:
            geared = before is None or GEARS in before.extras
        if placements is None:
            placements = before.placements if before else tuple(PLACEMENTS)
        arms_of(base, placements, None, ())  # refuses a placement that there is not
        supervised = self.supervised
        if supervised is None:
            supervised = before is None or before.supervised
        return BenchPlan(
            base=base,
            placements=placements,
            extras=(*([GEARS] if geared else []), ADAPTIVE, CLOCKS),
            seeds=seeds or (before.seeds if before else DEFAULT_SEEDS),
            warm_up=warm_up,
            supervised=supervised,
            reward=self.reward if before is None or self.reward is not None else before.reward,
            correct=self.correct if before is None or self.correct is not None else before.correct,
        )

    def _settings(self) -> list[str]:
        """What the flags say of the accelerator, as settings."""
        found, accelerator = [], self.accelerator
        if self.engine is not None:
            found.append(f'engine.offload={{type="{self.engine}"}}')
        if self.engine == "torch" and accelerator is None:
            accelerator = "host_cpu"
        if accelerator is not None:
            found.append(f"devices.accelerator={accelerator}")
        return found


@bench_app.command("tokens-per-joule")
@with_options
def tokens_per_joule(
    *, config: ConfigOption = None, overrides: OverridesOption = None, asked: BenchOptions
) -> None:
    """Compare placements by the output tokens that a joule buys.

    The same training with the same seeds and prompts, from the untrained policy each time: where
    nothing leaves, where rewards and reference leave for the accelerator, and where a policy
    chooses; each in a lower numeric format as well, where this machine has one. It says how many
    tokens and samples a joule buys, where the joules went, and what it took to a given held-out
    quality. A simulated card's joules are modelled and stand apart from this machine's.

    Without --config small models are made and trained. All runs, and the results as JSON, CSV and a
    page, are left in a folder; Ctrl-C and a second call with that folder go on where it ended.
    """
    from ecorl.bench.tokens_per_joule.running.folder import BenchFolder

    as_json, as_csv, out = asked.as_json, asked.as_csv, asked.out
    if as_json and as_csv:
        raise UserError("--json and --csv go one at a time")
    if asked.join:
        _show(_joined(asked.join, out), as_json, as_csv)
        return
    now = time.strftime("%Y%m%d-%H%M%S")
    folder = BenchFolder((out or Path(f"runs/tokens-per-joule-{now}")).expanduser())
    plan = asked.plan(folder, config, overrides)
    _show(_run(plan, folder), as_json, as_csv, folder)


def _base(
    config: str | None, settings: Sequence[str], steps: int | None, warm_up: int | None
) -> Config:
    """The config that all arms share."""
    from ecorl.bench.tokens_per_joule.plan import DEFAULT_STEPS, default_config, users_config

    if config is not None:
        return users_config(config, settings, steps)
    return default_config(steps or DEFAULT_STEPS, warm_up, settings)


def _whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise ConfigError(flag, text, "whole numbers with commas between them, such as 42,1337")
    return tuple(map(int, words))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


# ---------------------------------------------------------------- running and showing


def _run(plan: BenchPlan, folder: BenchFolder) -> BenchResult:
    from ecorl.bench.tokens_per_joule.benchmark import run_plan

    console = make_console(file=sys.stderr)
    try:
        result = run_plan(plan, folder, lambda line: say(line, console))
    except KeyboardInterrupt as error:
        again = shlex.join(["ecorl", "bench", "tokens-per-joule", "--out", str(folder.path)])
        raise Stopped(f"{STOPPED_TEXT}; go on with: {again}") from error
    if not any(not run.missing for run in result.runs):
        why = next((run.missing for run in result.runs), "there was nothing to run")
        raise TrainingError(f"no run finished: {why}; {folder.path / 'logs'} says more")
    return result


def _joined(files: Sequence[Path], out: Path | None) -> BenchResult:
    from ecorl.bench.tokens_per_joule.benchmark import write_results
    from ecorl.bench.tokens_per_joule.result import joined, read_result
    from ecorl.bench.tokens_per_joule.running.folder import BenchFolder

    paths = [path.expanduser() for path in files]
    result = joined([read_result(path) for path in paths], list(map(str, paths)))
    if out is not None:
        write_results(BenchFolder(out.expanduser()), result)
    return result


def _show(
    result: BenchResult, as_json: bool, as_csv: bool, folder: BenchFolder | None = None
) -> None:
    from ecorl.bench.tokens_per_joule.result import result_json
    from ecorl.bench.tokens_per_joule.running.folder import HTML_FILE
    from ecorl.bench.tokens_per_joule.telling.page import result_csv, text_lines

    if as_json or as_csv:
        typer.echo(result_json(result) if as_json else result_csv(result), nl=False)
        return
    console = make_console()
    for line in text_lines(result, console.width):
        say(line, console)
    if folder is not None:
        say("", console)
        say(f"results: {folder.path / HTML_FILE} (and .json, .csv)", console)
