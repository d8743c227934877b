"""Measurements of GPUs that others have published, with their source.

``published.csv`` holds figures of decoding from the ML.ENERGY leaderboard, version 3 (data of its
repository ml-energy/leaderboard at commit 0cd52da): dense models in vLLM, steady state, energy by
the GPUs' counters. They are cited, one row a setting; their provenance is published.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ecorl.devices.llama import decoder_shape
from ecorl.records import ModelShape

SOURCE = "ML.ENERGY leaderboard v3 (commit 0cd52da)"

ASSUMED_PROMPT_TOKENS = {"chat": 100.0, "gpqa": 250.0}
"""Mean prompt of each workload, tokens. The data do not tell: short chat prompts, and questions
with four answers to choose from. Between 50 and 250 tokens the fit's errors are the same."""

# layers, hidden, intermediate, heads, key-value heads, head size, vocabulary: as in the models'
# published configurations; embedding and head are not tied.
_SHAPES = {
    "qwen3-8b": (36, 4096, 12288, 32, 8, 128, 151_936),
    "qwen3-14b": (40, 5120, 17408, 40, 8, 128, 151_936),
    "qwen3-32b": (64, 5120, 25600, 64, 8, 128, 151_936),
}


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One setting of decoding in steady state.

    Attributes:
        gpu: name of the GPU's profile.
        model: name of the model, as in `published_shape`.
        workload: ``chat`` (some 600 tokens an answer) or ``gpqa`` (some 7,000).
        n_shards: GPUs that share the model by tensor parallelism.
        batch: rows in flight, a mean.
        output_tokens: of an answer, a mean.
        power_w: of all GPUs, W.
        j_per_token: energy of all GPUs a token decoded, J.
        tokens_per_s: tokens decoded a second.
        inter_token_s: median time between two tokens of a row, s.
    """

    gpu: str
    model: str
    workload: str
    n_shards: int
    batch: float
    output_tokens: float
    power_w: float
    j_per_token: float
    tokens_per_s: float
    inter_token_s: float

    @property
    def curve(self) -> tuple[str, str, str, int]:
        """What its points differ from by the batch alone."""
        return self.gpu, self.model, self.workload, self.n_shards

    @property
    def host_bound(self) -> bool:
        """Whether the host set the pace: 31 to 49 ms between tokens, whatever the model."""
        return self.gpu == "b200_sxm" and self.workload == "gpqa"


@cache
def decode_points() -> tuple[DecodePoint, ...]:
    """All published settings of decoding, in the order of the file."""
    text = Path(__file__).with_name("published.csv").read_text("utf-8")
    return tuple(
        DecodePoint(
            gpu=row["gpu"],
            model=row["model"],
            workload=row["workload"],
            n_shards=int(row["n_shards"]),
            batch=float(row["batch"]),
            output_tokens=float(row["output_tokens"]),
            power_w=float(row["power_w"]),
            j_per_token=float(row["j_per_token"]),
            tokens_per_s=float(row["tokens_per_s"]),
            inter_token_s=float(row["inter_token_ms"]) / 1e3,
        )
        for row in csv.DictReader(text.splitlines())
    )


def published_shape(model: str) -> ModelShape:
    """Look up the shape of a model that the points name.

    Args:
        model: such as ``qwen3-8b``.

    Raises:
        KeyError: for another one.
    """
    return decoder_shape(*_SHAPES[model])
