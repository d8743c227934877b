"""``ecorl plan``: whether to buy or change anything in a job, before any of it is bought or run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecorl.devices import load_profile, names_of_kind
from ecorl.devices.card import missing_card_figures
from ecorl.devices.llama import MODEL_SIZES
from ecorl.records import Algorithm, DeviceKind

_GPUS = ", ".join(names_of_kind(DeviceKind.GPU, DeviceKind.CPU))
_CARDS = ", ".join(
    [
        *(n for n in names_of_kind(DeviceKind.FPGA) if not missing_card_figures(load_profile(n))),
        *names_of_kind(DeviceKind.GPU, DeviceKind.CPU),
    ]
)
_SIZES = ", ".join(MODEL_SIZES)
_ALGORITHMS = ", ".join(map(str, Algorithm))

_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="TOML file with the names of options as keys (n_gpus = 8); options go before it.",
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
        help="With --thorough: share of the cards' time that other jobs take, 0 to below 1.",
    ),
]
_Abilities = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="none",
        help="With --thorough: what your framework lets ecorl do beyond moving whole batches of "
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
        help="With --thorough: policy file of the learned scheduler (ecorl policy export).",
    ),
]
_Iterations = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="N", show_default="40",
        help="With --thorough: iterations of a simulated episode.",
    ),
]  # fmt: skip
_Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", show_default="4", help="With --thorough: simulated episodes."),
]
_Thorough = Annotated[
    bool,
    typer.Option(
        "--thorough",
        help="Also play the job in the simulator under several policies, with lengths, queues and "
        "a planner; takes longer.",
    ),
]
_Run = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="FOLDER", show_default="none",
        help="Take the stages' shares of time and energy from the record of this run.",
    ),
]  # fmt: skip
_Fitted = Annotated[
    Path | None,
    typer.Option(
        "--fitted", metavar="FILE", show_default="none",
        help="Take the stages' times and energies from a file of ecorl policy calibrate, or from "
        "a result of gpu_stages (.json).",
    ),
]  # fmt: skip
_Shares = Annotated[
    list[str] | None,
    typer.Option(
        "--share", metavar="STAGE=SHARE", show_default="the model's",
        help="Share that a stage has in a step's time and energy (generation=0.7); give it for "
        "each of several.",
    ),
]  # fmt: skip
_CardPrice = Annotated[
    float | None,
    typer.Option(metavar="MONEY", show_default="unknown", help="Price of one second device."),
]
_KwhPrice = Annotated[
    float | None,
    typer.Option(
        metavar="MONEY", show_default="unknown",
        help="Price of a kilowatt-hour, in the same currency.",
    ),
]  # fmt: skip
_Intensity = Annotated[
    float | None,
    typer.Option(
        "--g-per-kwh", metavar="GRAMS", show_default="unknown",
        help="CO2e of a kilowatt-hour, in grams.",
    ),
]  # fmt: skip
_Embodied = Annotated[
    float | None,
    typer.Option(
        metavar="KG", show_default="unknown",
        help="CO2e of making one second device, in kilograms.",
    ),
]  # fmt: skip
_Use = Annotated[
    float | None,
    typer.Option(metavar="SHARE", show_default="0.8", help="Share of the year in which it runs."),
]
_Years = Annotated[
    float | None,
    typer.Option(metavar="N", show_default="5", help="Years that a second device serves."),
]
_Slowdown = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", show_default="0.02",
        help="Share by which a step may take longer to save energy.",
    ),
]  # fmt: skip
_Slack = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR", show_default="1.5",
        help="Time that there is for the whole job, over what it takes without a pause.",
    ),
]  # fmt: skip
_WhatIfs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", show_default="none",
        help="Answer for a grid of jobs in place of one: a TOML file whose keys hold lists "
        "(length = [256, 1024]).",
    ),
]  # fmt: skip
_Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", show_default="none", help="Write the picture to this PNG."),
]
_Csv = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", show_default="none", help="With --what-ifs: write the rows to this CSV."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")]


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
    run: _Run = None,
    fitted: _Fitted = None,
    share: _Shares = None,
    card_price: _CardPrice = None,
    kwh_price: _KwhPrice = None,
    g_per_kwh: _Intensity = None,
    card_embodied_kg: _Embodied = None,
    use: _Use = None,
    years: _Years = None,
    slowdown: _Slowdown = None,
    slack: _Slack = None,
    what_ifs: _WhatIfs = None,
    plot: _Plot = None,
    csv: _Csv = None,
    as_json: _Json = False,
    thorough: _Thorough = False,
    calibration: _Calibration = None,
    load: _Load = None,
    abilities: _Abilities = None,
    file: _File = None,
    iterations: _Iterations = None,
    seeds: _Seeds = None,
) -> None:
    """Say whether to buy or change anything in a job to save energy.

    Prints the values that it goes by, one table and one sentence: what each placement on a second
    device would cost, and what clocks, overlap, number formats and timing would save in its place,
    alone and together. Nothing runs; you need neither the GPUs nor the second devices.
    """  # fmt: skip
    from ecorl.cli.plan.asking import PlanOutput, PlanQuestion, answer

    question = PlanQuestion(
        config=config,
        job={
            "gpu": gpu, "n_gpus": n_gpus, "card": card, "n_cards": n_cards,
            "policy_model": policy_model, "inference_model": inference_model,
            "algorithm": algorithm, "rows": rows, "prompt": prompt, "length": length,
            "calibration": calibration, "load": load, "abilities": abilities,
        },
        terms={
            "card_price": card_price, "kwh_price": kwh_price, "g_per_kwh": g_per_kwh,
            "card_embodied_kg": card_embodied_kg, "use": use, "years": years,
            "slowdown": slowdown, "slack": slack,
        },
        run=run, fitted=fitted, shares=tuple(share or ()),
    )  # fmt: skip
    asked = PlanOutput(what_ifs, plot, csv, as_json, thorough, file, iterations, seeds)
    answer(question, asked)
