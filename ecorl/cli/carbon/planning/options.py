"""Options of the planning commands; this module imports nothing that takes long."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ecorl.controllers.planning.modelled import EXPONENT, FP8_GAIN
from ecorl.devices.llama import MODEL_SIZES

GPU, WORKERS, MODEL = "h100_sxm", 8, "8b"
"""Of a modelled table, where neither option nor config says."""

TableOption = Annotated[
    Path | None,
    typer.Option(
        help="TOML of power and throughput by width and gear, as `ecorl carbon profile` writes it; "
        "else carbon.control.table, else one is modelled from the next options."
    ),
]
GpuOption = Annotated[
    str | None, typer.Option(help=f"Of a modelled table: profile of a worker (default: {GPU}).")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help=f"Of a modelled table: workers at most (default: {WORKERS})."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        help=f"Of a modelled table: size that is trained, {', '.join(MODEL_SIZES)} "
        f"(default: {MODEL})."
    ),
]
Fp8GainOption = Annotated[
    float | None,
    typer.Option(
        help=f"Of a modelled table: throughput of FP8 over BF16 (default: {FP8_GAIN:g}, published "
        "for 8 B by torchao)."
    ),
]
ScalingOption = Annotated[
    float | None,
    typer.Option(
        help="Of a modelled table: power of the width with which throughput grows "
        f"(default: {EXPONENT:g}, assumed)."
    ),
]
TokensOption = Annotated[
    float | None, typer.Option(help="Tokens to train; else carbon.control.tokens.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATE", help="When the last token has to be trained, e.g. 2026-03-01T08:00Z; UTC."
    ),
]
PlotOption = Annotated[
    Path | None, typer.Option(help="PNG of the intensity, and of width and gear over time.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ForecastKind(StrEnum):
    """What controllers are told of the time ahead."""

    NONE = "none"
    KIND = "kind"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class TableTerms:
    """What the options say about the table; None: nothing.

    Attributes:
        path: of a table.
        gpu: profile of a worker, for a modelled table.
        workers: its largest width.
        model: size of the model that is trained.
        fp8_gain: throughput of FP8 over BF16.
        scaling: power of the width with which throughput grows.
    """

    path: Path | None = None
    gpu: str | None = None
    workers: int | None = None
    model: str | None = None
    fp8_gain: float | None = None
    scaling: float | None = None


@dataclass(frozen=True, slots=True)
class SpanTerms:
    """What the options say about time and budget; None: nothing.

    Attributes:
        tokens: to train.
        deadline: date of the hard deadline.
        days: the same, from the start on.
        start: date of the begin.
        soft_deadline: date by which training should be over.
        slack: time there is over the least time that the tokens take.
        every_days: from one start to the next.
    """

    tokens: float | None = None
    deadline: str | None = None
    days: float | None = None
    start: str | None = None
    soft_deadline: str | None = None
    slack: float | None = None
    every_days: float | None = None
