"""``ecorl plan``: whether offloading would pay in a job, before any of it is bought or run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecorl.cli.exits import needs_policy_extra
from ecorl.cli.output import make_console, say


def plan(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="TOML file.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Profile.", show_default="h100_sxm")] = None,
    n_gpus: Annotated[int | None, typer.Option(show_default="32")] = None,
    card: Annotated[str | None, typer.Option(help="Profile.", show_default="u55c")] = None,
    n_cards: Annotated[int | None, typer.Option(show_default="4")] = None,
    policy_model: Annotated[
        str | None, typer.Option(help="Size of the actor.", show_default="70b")
    ] = None,
    inference_model: Annotated[
        str | None, typer.Option(help="Size of reward model and critic.", show_default="8b")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(show_default="ppo")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Completions an iteration.", show_default="256")
    ] = None,
    prompt: Annotated[
        float | None, typer.Option(help="Mean prompt, tokens.", show_default="256")
    ] = (None),
    length: Annotated[
        float | None, typer.Option(help="Mean completion, tokens.", show_default="1024")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="roofline, or paper as printed.", show_default="roofline")
    ] = None,
    load: Annotated[
        float | None, typer.Option(help="Other jobs' share of the cards.", show_default="0")
    ] = None,
    abilities: Annotated[
        str | None,
        typer.Option(help="What the framework allows: none, frozen, all.", show_default="none"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--policy", help="Policy file; the shipped one if none.")
    ] = None,
    iterations: Annotated[int, typer.Option(min=2, help="Of an episode.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="Episodes.")] = 4,
) -> None:
    """Estimate what offloading would change in a job, an iteration, under several policies."""
    given = {
        "gpu": gpu, "n_gpus": n_gpus, "card": card, "n_cards": n_cards,
        "policy_model": policy_model, "inference_model": inference_model, "algorithm": algorithm,
        "rows": rows, "prompt": prompt, "length": length, "calibration": calibration,
        "load": load, "abilities": abilities,
    }  # fmt: skip
    with needs_policy_extra():
        from ecorl.cli.policy.training import telling
        from ecorl.policy import job_plan as planning
        from ecorl.report.render.lines import aligned
        from ecorl.report.render.numbers import duration, figure, joules
        from ecorl.scheduler.learned import PolicyFile

        job = planning.planned_job(config, given)
        scenario = job.scenario(iterations)
        learned = PolicyFile(file)
        with telling("planning", make_console(stderr=True)) as tell:
            found = planning.planned(scenario, learned, n_seeds=seeds, tell=tell)
        heads = ("policy", "score", "time", "energy", "GPUs wait", "tokens/J")
        cells = [
            (r.policy, f"{r.score:+.4f}", duration(r.time_s), joules(r.energy_j),
             duration(r.bubble_s), figure(r.tokens_per_j))
            for r in found
        ]  # fmt: skip
        say(f"{job.algorithm}, {job.rows} rows of {job.prompt:g} + {job.length:g} tokens; "
            f"{job.n_gpus} x {scenario.setting.gpu.title}, "
            f"{job.n_cards} x {scenario.setting.card.title}")  # fmt: skip
        say(f"per iteration; all figures are {scenario.table.provenance} ({job.calibration}); "
            f"abilities: {job.abilities}")  # fmt: skip
        for line in ["", *aligned([heads, *cells]), "", planning.verdict(found, scenario)]:
            say(line)
