"""``ecorl plan``: whether to buy or change anything in a job, before any of it is bought or run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecorl.cli.options import option, with_options
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


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is asked, and how the answer is given; None where an option was not given.

    The fields that `PlannedJob` and `PlanTerms` have too are the keys that a config may hold.
    """

    config: Path | None = option(
        "TOML file with the names of options as keys (n_gpus = 8); options go before it.",
        "FILE",
        names=("--config", "-c"),
    )
    gpu: str | None = option(
        f"Where your framework computes: {_GPUS}, or a profile's file.", "PROFILE", "h100_sxm"
    )
    n_gpus: int | None = option("How many of them.", "N", "32")
    card: str | None = option(
        f"Card, or other second device, to offload to: {_CARDS}, or a profile's file.",
        "PROFILE",
        "u55c",
    )
    n_cards: int | None = option("How many of them; 0: none.", "N", "4")
    policy_model: str | None = option(f"Size of actor and reference: {_SIZES}.", "SIZE", "70b")
    inference_model: str | None = option(
        "Size of reward model and critic, out of the same.", "SIZE", "8b"
    )
    algorithm: str | None = option(
        f"Algorithm of the trainer: {_ALGORITHMS}.", "NAME", "grpo and rloo, which ecorl run trains"
    )
    rows: int | None = option("Completions an iteration.", "N", "256")
    prompt: float | None = option("Mean length of a prompt.", "TOKENS", "256")
    length: float | None = option("Mean length of a completion.", "TOKENS", "1024")
    run: Path | None = option(
        "Take the stages' shares of time and energy from the record of this run.",
        "FOLDER",
        "none",
    )
    fitted: Path | None = option(
        "Take the stages' times and energies from a file of ecorl policy calibrate, or from "
        "a result of gpu_stages (.json).",
        "FILE",
        "none",
    )
    share: list[str] | None = option(
        "Share that a stage has in a step's time and energy (generation=0.7); give it for "
        "each of several.",
        "STAGE=SHARE",
        "the model's",
    )
    card_price: float | None = option("Price of one second device.", "MONEY", "unknown")
    kwh_price: float | None = option(
        "Price of a kilowatt-hour, in the same currency.", "MONEY", "unknown"
    )
    g_per_kwh: float | None = option("CO2e of a kilowatt-hour, in grams.", "GRAMS", "unknown")
    card_embodied_kg: float | None = option(
        "CO2e of making one second device, in kilograms.", "KG", "unknown"
    )
    use: float | None = option("Share of the year in which it runs.", "SHARE", "0.8")
    years: float | None = option("Years that a second device serves.", "N", "5")
    slowdown: float | None = option(
        "Share by which a step may take longer to save energy.", "SHARE", "0.02"
    )
    slack: float | None = option(
        "Time that there is for the whole job, over what it takes without a pause.",
        "FACTOR",
        "1.5",
    )
    what_ifs: Path | None = option(
        "Answer for a grid of jobs in place of one: a TOML file whose keys hold lists "
        "(length = [256, 1024]).",
        "FILE",
        "none",
    )
    plot: Path | None = option("Write the picture to this PNG.", "FILE", "none")
    csv: Path | None = option("With --what-ifs: write the rows to this CSV.", "FILE", "none")
    as_json: bool = option("Print JSON in place of text.", names=("--json",), default=False)
    thorough: bool = option(
        "Also play the job in the simulator under several policies, with lengths, queues and "
        "a planner; takes longer.",
        names=("--thorough",),
        default=False,
    )
    calibration: str | None = option(
        "Costs: roofline (modelled from the profiles, bounded by physics), or "
        "paper (as the EcoRL-Sched paper prints them).",
        "NAME",
        "roofline",
    )
    load: float | None = option(
        "With --thorough: share of the cards' time that other jobs take, 0 to below 1.",
        "SHARE",
        "0",
    )
    abilities: str | None = option(
        "With --thorough: what your framework lets ecorl do beyond moving whole batches of "
        "reward and reference: none (as ecorl run), frozen (stream rows, start "
        "training before the answers are in, put the critic's step off), or all "
        "(also the critic on the cards).",
        "NAME",
        "none",
    )
    policy: Path | None = option(
        "With --thorough: policy file of the learned scheduler (ecorl policy export).",
        "FILE",
        "the shipped one",
    )
    iterations: int | None = option(
        "With --thorough: iterations of a simulated episode.", "N", "40", min=2
    )
    seeds: int | None = option("With --thorough: simulated episodes.", "N", "4", min=1)


@with_options
def plan(asked: PlanOptions) -> None:
    """Say whether to buy or change anything in a job to save energy.

    Prints the values that it goes by, one table and one sentence: what each placement on a second
    device would cost, and what clocks, overlap, number formats and timing would save in its place,
    alone and together. Nothing runs; you need neither the GPUs nor the second devices.
    """
    from ecorl.cli.plan.asking import answer

    answer(asked)
