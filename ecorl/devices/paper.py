"""The calibration of the EcoRL-Sched paper, as printed. Published figures, not ours.

The paper prints for INT8 inference of a 7 B model on the Alveo U55C 142 tokens/ms, 73 W and
13.7 tokens/J, and for the H100 4.8 tokens/J, with a latency of 5.9 ms where the card takes 7.1 ms
(Table 2, Table 3, Fig. 3C). These do not agree with one another (142,000 tokens/s at 73 W would be
1,945 tokens/J) nor with physics: 142 tokens/ms of a 7 B model are 1,988 TOPS, 647 times the peak
of the 3,136 DSPs in use. They are kept to replay the paper's own argument, always flagged, and
never mixed with the roofline.

Size: the paper prints one model size; time and energy are taken as proportional to parameters.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

from ecorl.records import Stage

_PRINTED = tomllib.loads((resources.files("ecorl.devices") / "paper.toml").read_text("utf-8"))
_U55C, _H100 = _PRINTED["u55c"], _PRINTED["h100_sxm"]

REFERENCE_PARAMS: float = _PRINTED["model"]["params"]
U55C_TOKENS_PER_S: float = _U55C["tokens_per_s"]
U55C_POWER_W: float = _U55C["power_w"]
U55C_TOKENS_PER_J: float = _U55C["tokens_per_j"]
H100_TOKENS_PER_J: float = _H100["tokens_per_j"]
H100_TOKENS_PER_S: float = U55C_TOKENS_PER_S * _U55C["batch_ms"] / _H100["batch_ms"]
"""From the two printed latencies of one batch."""

_NOTE = (
    "as printed in the EcoRL-Sched paper, scaled by model size; tokens/ms, W and tokens/J "
    "there contradict one another"
)


@dataclass(frozen=True, slots=True)
class PaperFigures:
    """Printed throughput and efficiency of one device, scaled to a model size.

    Attributes:
        tokens_per_s: tokens per second of one device.
        tokens_per_j: tokens per joule.
        power_w: power of one device as printed, W; None where none is printed.
        note: what to know about the figures.
    """

    tokens_per_s: float
    tokens_per_j: float
    power_w: float | None
    note: str


def paper_figures(stage: Stage, device: str, n_params: float) -> PaperFigures | None:
    """What the paper prints for a stage on a device, or None where it prints nothing.

    Args:
        stage: only reward and reference inference have printed figures.
        device: ``u55c`` or ``h100_sxm``.
        n_params: active parameters of the model that runs.
    """
    if stage not in (Stage.REWARD, Stage.REFERENCE) or n_params <= 0:
        return None
    scale = REFERENCE_PARAMS / n_params
    if device == "u55c":
        return PaperFigures(
            U55C_TOKENS_PER_S * scale, U55C_TOKENS_PER_J * scale, U55C_POWER_W, _NOTE
        )
    if device == "h100_sxm":
        return PaperFigures(H100_TOKENS_PER_S * scale, H100_TOKENS_PER_J * scale, None, _NOTE)
    return None
