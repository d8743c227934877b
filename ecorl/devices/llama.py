"""Shapes of well-known decoders, for settings that name a model by its size."""

from __future__ import annotations

from functools import cache

from ecorl.errors import ConfigError
from ecorl.records import ModelShape

# layers, hidden, intermediate, heads, key-value heads, head size, vocabulary, tied embedding:
# as in the models' published configurations.
_SIZES = {
    "160k": (2, 64, 176, 4, 4, 16, 512, True),  # about what the demo trains
    "15m": (6, 288, 768, 6, 6, 48, 32_000, True),
    "135m": (30, 576, 1536, 9, 3, 64, 49_152, True),
    "360m": (32, 960, 2560, 15, 5, 64, 49_152, True),
    "0.5b": (24, 896, 4864, 14, 2, 64, 151_936, True),
    "1b": (16, 2048, 8192, 32, 8, 64, 128_256, True),
    "3b": (28, 3072, 8192, 24, 8, 128, 128_256, True),
    "7b": (32, 4096, 11008, 32, 32, 128, 32_000, False),
    "8b": (32, 4096, 14336, 32, 8, 128, 128_256, False),
    "13b": (40, 5120, 13824, 40, 40, 128, 32_000, False),
    "70b": (80, 8192, 28672, 64, 8, 128, 128_256, False),
    "405b": (126, 16384, 53248, 128, 8, 128, 128_256, False),
}

MODEL_SIZES = tuple(_SIZES)
"""Names that `model_shape` knows, the smallest first."""


@cache
def model_shape(size: str, *, scalar_head: bool = False) -> ModelShape:
    """Look up the shape of a decoder by the name of its size.

    Args:
        size: one of `MODEL_SIZES`.
        scalar_head: a reward or value head in place of the vocabulary's.

    Raises:
        ConfigError: for an unknown size.
    """
    if size not in _SIZES:
        raise ConfigError("model size", size, f"one of {list(MODEL_SIZES)}")
    *dimensions, tied = _SIZES[size]
    return decoder_shape(*dimensions, tied=tied, scalar_head=scalar_head)


def decoder_shape(
    n_layers: int,
    hidden: int,
    inner: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    *,
    tied: bool = False,
    scalar_head: bool = False,
) -> ModelShape:
    """Count the parameters of a decoder of Llama's kind.

    Args:
        n_layers: decoder layers.
        hidden: width of the residual stream.
        inner: width of the feed-forward.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        vocab: tokens of the vocabulary.
        tied: whether the head's weights are those of the embedding.
        scalar_head: a reward or value head in place of the vocabulary's.
    """
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * inner + 2 * hidden
    embedding = vocab * hidden
    head = hidden if scalar_head else embedding
    active = n_layers * layer + hidden + head
    n_params = active + (0 if tied and not scalar_head else embedding)
    return ModelShape(n_layers, hidden, inner, heads, kv_heads, head_dim, vocab, n_params, active)
