"""``ecorl plan``: whether offloading would pay in a job, before any of it is bought or run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecorl.cli.exits import needs_policy_extra
from ecorl.cli.output import make_console, say
from ecorl.devices import load_profile, names_of_kind
from ecorl.devices.card import missing_card_figures
from ecorl.devices.llama import MODEL_SIZES
from ecorl.records import Algorithm, DeviceKind

if TYPE_CHECKING:
    from ecorl.policy.job_plan import PlannedJob, PlanRange, PlanRow
    from ecorl.sim.scenario import Scenario

_GPUS = ", ".join(names_of_kind(DeviceKind.GPU, DeviceKind.CPU))
_CARDS = ", ".join(
    [
        *(n for n in names_of_kind(DeviceKind.FPGA) if not missing_card_figures(load_profile(n))),
        *names_of_kind(DeviceKind.GPU, DeviceKind.CPU),
    ]
)
_SIZES = ", ".join(MODEL_SIZES)
_ALGORITHMS = ", ".join(map(str, Algorithm))

_LEGEND = (
    "score: what an iteration gains in time and energy together over leaving the cards idle; "
    "above 0 is better (Eq. 7 of the EcoRL-Sched paper)",
    "bubble: time in which the GPUs wait; tokens/J: completion tokens over the energy of GPUs and "
    "cards",
    "best static: each stage always on the same device; look-ahead: what the next iteration costs "
    "decides; causal planner: the best policy that can be computed without knowing the future",
)


_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="TOML file with the names below as keys (n_gpus = 8); options go before it.",
    ),
]
_Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE",
        show_default="h100_sxm",
        help=f"Where your framework computes: {_GPUS}, or a profile's file.",
    ),
]
_NGpus = Annotated[
    int | None, typer.Option(metavar="N", show_default="32", help="How many of them.")
]
_Card = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE",
        show_default="u55c",
        help=f"Card, or other second device, to offload to: {_CARDS}, or a profile's file.",
    ),
]
_NCards = Annotated[
    int | None,
    typer.Option(metavar="N", show_default="4", help="How many of them; 0: none."),
]
_PolicyModel = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", show_default="70b", help=f"Size of actor and reference: {_SIZES}."
    ),
]
_InferenceModel = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        show_default="8b",
        help="Size of reward model and critic, out of the same.",
    ),
]
_Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="grpo and rloo, which ecorl run trains",
        help=f"Algorithm of the trainer: {_ALGORITHMS}.",
    ),
]
_Rows = Annotated[
    int | None,
    typer.Option(metavar="N", show_default="256", help="Completions an iteration."),
]
_Prompt = Annotated[
    float | None,
    typer.Option(metavar="TOKENS", show_default="256", help="Mean length of a prompt."),
]
_Length = Annotated[
    float | None,
    typer.Option(metavar="TOKENS", show_default="1024", help="Mean length of a completion."),
]
_Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="roofline",
        help="Costs: roofline (modelled from the profiles, bounded by physics), or "
        "paper (as the EcoRL-Sched paper prints them).",
    ),
]
_Load = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        show_default="0",
        help="Share of the cards' time that other jobs take, 0 to below 1.",
    ),
]
_Abilities = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="none",
        help="What your framework lets ecorl do beyond moving whole batches of "
        "reward and reference: none (as ecorl run), frozen (stream rows, start "
        "training before the answers are in, put the critic's step off), or all "
        "(also the critic on the cards).",
    ),
]
_File = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        show_default="the shipped one",
        help="Policy file of the learned scheduler (ecorl policy export).",
    ),
]
_Iterations = Annotated[
    int, typer.Option(min=2, metavar="N", help="Iterations of a simulated episode.")
]
_Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Simulated episodes.")]


def plan(
    config: _Config = None,
    gpu: _Gpu = None,
    n_gpus: _NGpus = None,
    card: _Card = None,
    n_cards: _NCards = None,
    policy_model: _PolicyModel = None,
    inference_model: _InferenceModel = None,
    algorithm: _Algorithm = None,
    rows: _Rows = None,
    prompt: _Prompt = None,
    length: _Length = None,
    calibration: _Calibration = None,
    load: _Load = None,
    abilities: _Abilities = None,
    file: _File = None,
    iterations: _Iterations = 40,
    seeds: _Seeds = 4,
) -> None:
    """Estimate whether offloading to cards would pay in a job.

    Prints the values that it goes by, and for several ways to place the work the time, energy and
    tokens per joule of an iteration. Nothing runs but a simulator; you need neither the GPUs nor
    the cards.
    """  # fmt: skip
    given = {
        "gpu": gpu, "n_gpus": n_gpus, "card": card, "n_cards": n_cards,
        "policy_model": policy_model, "inference_model": inference_model, "algorithm": algorithm,
        "rows": rows, "prompt": prompt, "length": length, "calibration": calibration,
        "load": load, "abilities": abilities,
    }  # fmt: skip
    with needs_policy_extra():
        from ecorl.cli.policy.training import telling
        from ecorl.policy import job_plan as planning
        from ecorl.scheduler.learned import PolicyFile

        job = planning.planned_job(config, given)
        scenarios = job.scenarios(iterations)
        learned = PolicyFile(file)
        for i, (names, scenario) in enumerate(scenarios.items()):
            with telling("planning", make_console(stderr=True)) as tell:
                found = planning.planned(scenario, learned, n_seeds=seeds, tell=tell)
                ends = planning.plan_range(scenario, n_seeds=seeds)
            used = _used(job, names, scenario, f"{seeds} of {iterations} iterations", file)
            for line in [*([""] if i else []), *used, "", *_table(found), ""]:
                say(line)
            _sentences(
                planning.verdict(found, scenario),
                *([] if ends is None else [_range_words(ends, any(scenario.table.card_usable))]),
            )


def _used(
    job: PlannedJob, names: str, scenario: Scenario, episodes: str, file: Path | None
) -> list[str]:
    """The values that a plan goes by, one line each."""
    from ecorl.report.render.lines import aligned
    from ecorl.report.render.numbers import share

    gpu, card = scenario.setting.gpu, scenario.setting.card
    same = " (the same stages at the same costs)" if " and " in names else ""
    alone = job.calibration == "paper"
    others = ["reward model", *(["reference"] if alone else [])]
    others += ["critic"] if names == Algorithm.PPO else []
    actor = "actor" if alone else "actor and reference"
    rows = [
        ("algorithm", f"{names}{same}"),
        ("GPUs" if gpu.kind is DeviceKind.GPU else "hosts",
         f"{job.n_gpus} x {gpu.title} ({job.gpu})"),
        ("cards", f"{job.n_cards} x {card.title} ({job.card}), {share(job.load, 0)} of their "
                  "time taken by other jobs"),
        ("models", f"{job.policy_model}: {actor}; {job.inference_model}: {' and '.join(others)}"),
        ("iteration", f"{job.rows:,} completions; mean prompt {job.prompt:,g}, completion "
                      f"{job.length:,g} tokens"),
        ("costs", f"{job.calibration}, which is {scenario.table.provenance}; abilities of the "
                  f"framework: {job.abilities}"),
        ("policy file", "the shipped one" if file is None else str(file)),
        ("episodes", episodes),
    ]  # fmt: skip
    return ["Values used:", *aligned(rows, text_columns=(0, 1), indent="  ")]


def _table(found: Sequence[PlanRow]) -> list[str]:
    from ecorl.report.render.lines import aligned
    from ecorl.report.render.numbers import duration, figure, joules

    heads = ("an iteration", "score", "time", "energy", "bubble", "tokens/J")
    cells = [
        (r.policy, f"{r.score:+.4f}", duration(r.time_s), joules(r.energy_j),
         duration(r.bubble_s), figure(r.tokens_per_j))
        for r in found
    ]  # fmt: skip
    return aligned([heads, *cells])


def _range_words(ends: PlanRange, possible: bool) -> str:
    """What the intervals of the figures leave open; `possible`: the cards can be used."""
    from ecorl.report.render.numbers import duration, joules

    least, most = (
        f"{duration(row.time_s)} and {joules(row.energy_j)}" for row in (ends.cheap, ends.dear)
    )
    if not possible:
        said = ""
    elif ends.pays[0] == ends.pays[1]:
        said = f" Offloading {'pays' if ends.pays[0] else 'does not pay'} at either end."
    else:
        gains = (
            f"{100 * ends.cheap_gain:.2f} % at the one, {100 * ends.dear_gain:.2f} % at the other"
        )
        said = f" Whether offloading pays hangs on them: its gain by the score is {gains}."
    return (
        "Some of the devices' figures are assumed or fitted and have intervals. With all of them "
        "at the ends where work costs least on the GPUs and most on the cards, an iteration "
        f"without cards takes {least}; at the others, {most}.{said}"
    )


def _sentences(*said: str) -> None:
    from ecorl.report.render.lines import readable_width, wrapped

    console = make_console()
    width = readable_width(console.width)
    for sentence in said:
        for line in [*wrapped(sentence, width, ""), ""]:
            say(line, console)
    for line in [line for sentence in _LEGEND for line in wrapped(sentence, width, "- ")]:
        say(line, console)
