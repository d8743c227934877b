"""Plants outlier channels into a checkpoint without changing the function it computes.

Large models have a few channels that are tens of times as large as the rest; small trained ones
have none. A channel that one map makes and another reads (see `ecorl.engines.models.equalise`) can
be given such a size: the first is multiplied, the second divided.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from ecorl.engines.models.checkpoint import DecoderCheckpoint
from ecorl.engines.models.equalise import DecoderFactors, LayerFactors, ScaledCheckpoint, scaled
from ecorl.engines.protocol import Float32

PLACES = ("norm", "up", "values", "keys")
"""Behind the norms; products of gate and up; values; keys."""

ONE_IN = 64
"""One channel in so many is an outlier, at least one a layer (or head); assumed: published counts
for large models lie around a few in a thousand, and few channels are what equalisation is for."""


def plant(
    checkpoint: DecoderCheckpoint, places: tuple[str, ...], size: float = 50.0, seed: int = 0
) -> ScaledCheckpoint:
    """Plant outlier channels of the given size into every layer of a checkpoint.

    Args:
        checkpoint: the model.
        places: some of `PLACES`.
        size: by how much an outlier is larger than it was.
        seed: of the choice of channels.

    Raises:
        ValueError: for a place that there is not.
    """
    unknown = sorted(set(places) - set(PLACES))
    if unknown:
        raise ValueError(f"place {unknown[0]!r}: allowed is one of {PLACES}")
    s, rng = checkpoint.config.shape, np.random.default_rng(seed)

    def factors(place: str, *shape: int) -> Float32:
        """Divisors ``[..., k]``: 1, and ``1 / size`` for the outliers of each last axis."""
        found = np.ones(shape, np.float32)
        n = max(1, shape[-1] // ONE_IN)
        for row in found.reshape(-1, shape[-1]):
            chosen = rng.choice(shape[-1], n, replace=False)  # drawn in any case: same elsewhere
            if place in places:
                row[chosen] = 1 / size
        return found

    layers = tuple(
        LayerFactors(
            attention=factors("norm", s.hidden_size),
            keys=factors("keys", s.n_kv_heads, s.head_dim // 2),
            values=factors("values", s.n_kv_heads, s.head_dim),
            mlp=factors("norm", s.hidden_size),
            up=factors("up", s.intermediate_size),
        )
        for _ in range(s.n_layers)
    )
    head = None if checkpoint.config.tied else factors("norm", s.hidden_size)
    return scaled(checkpoint, DecoderFactors(layers, head))


def write_checkpoint(checkpoint: DecoderCheckpoint, folder: Path) -> None:
    """Write a checkpoint's tensors in float32, with the config.json that it came from.

    Args:
        checkpoint: the model.
        folder: where it is written; made if need be.

    Raises:
        CheckpointError: when a tensor cannot be read.
        OSError: when the folder cannot be written.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(checkpoint.tensor(name)) for name in checkpoint.tensors}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(checkpoint.path / "config.json", folder / "config.json")
