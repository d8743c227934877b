"""Removes outlier channels from a Llama-family decoder before quantisation; its function stays.

A channel 50 times as large as the others uses up most of the 127 steps of the INT8 scale that it
shares with them. Where one linear map writes a channel and another reads it, the first can be
divided by a factor and the second multiplied by it, and the model remains the same function:

    norm weight         -> columns of q, k, v, or of gate and up, or of the head and its gate
    rows of up          -> columns of down
    rows of v           -> columns of o (all heads of a group read one value head)
    rows of k           -> rows of q (times f where keys are over f; dimensions j and j + d / 2,
                           which RoPE turns into each other, share one factor)

Biases are scaled with their rows. Factors are powers of two, so that each float changes exactly. A
tied head is left alone, because its matrix is the input embedding too.

The factor of channel c is SmoothQuant's with alpha = 0.5, ``sqrt(a[c] / w[c])``, where a is the
range of the activation and w that of the weights that read it, each over its median. Without data,
a is ``|gamma|`` after a norm, and elsewhere the norm of the row that writes the channel, weighted
by the ranges of that row's inputs. Without outliers all factors are 1: see `channel_factors`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ecorl.engines.models.checkpoint import DecoderCheckpoint
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.engines.protocol import Float32

logger = logging.getLogger(__name__)

Ranges: TypeAlias = npt.NDArray[np.float64]
"""Magnitudes, 0 or more; in float64, since the squares of large weights overflow float32."""

DEADBAND_LOG2 = 1.0
"""Channels that would change by no more than a factor of two are left alone. Assumed: that costs a
scale at most one bit, and models without outliers keep their results."""

_LARGEST_LOG2 = 24.0
"""Bound of a factor. Assumed: far beyond observed outliers, and far from the limits of float32."""

_ROWS_AT_A_TIME = 1024  # bounds the temporaries of large matrices


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors of one tensor: row i is multiplied by ``rows[i]``, column j by ``columns[j]``."""

    rows: Float32 | None = None
    columns: Float32 | None = None

    def apply(self, tensor: Float32) -> Float32:
        """Return the scaled tensor, ``[n]`` or ``[n, k] float32``."""
        if self.rows is not None:
            tensor = tensor * (self.rows if tensor.ndim == 1 else self.rows[:, None])
        return tensor if self.columns is None else tensor * self.columns


@dataclass(frozen=True, slots=True)
class LayerFactors:
    """Divisors of a layer's channels, applied to the weights that write them.

    Attributes:
        attention: for the output of the norm before the attention, ``[hidden]``.
        keys: for the keys, ``[n_kv_heads, head_dim / 2]``; the queries are multiplied by them.
        values: for the values, ``[n_kv_heads, head_dim]``.
        mlp: for the output of the norm before the MLP, ``[hidden]``.
        up: for the output of the up projection, ``[intermediate]``.
    """

    attention: Float32
    keys: Float32
    values: Float32
    mlp: Float32
    up: Float32


@dataclass(frozen=True, slots=True)
class DecoderFactors:
    """Factors of a decoder: of its layers, and of the head's input (None for a tied head)."""

    layers: tuple[LayerFactors, ...]
    head: Float32 | None

    def arrays(self) -> Iterator[Float32]:
        """Yield all factors as flat arrays."""
        for layer in self.layers:
            for part in (layer.attention, layer.keys, layer.values, layer.mlp, layer.up):
                yield part.reshape(-1)
        if self.head is not None:
            yield self.head

    def scalings(self, config: DecoderConfig, head_names: tuple[str, ...]) -> dict[str, Scaling]:
        """Derive the scaling of each tensor.

        Args:
            config: the decoder.
            head_names: names of the tensors that read the last hidden state.

        Returns:
            Scalings by the name of the tensor; tensors without one are left alone.
        """
        found: dict[str, Scaling] = {}
        for i, layer in enumerate(self.layers):
            found |= _layer_scalings(config, layer, f"model.layers.{i}")
        if self.head is not None:
            found["model.norm.weight"] = Scaling(rows=np.reciprocal(self.head))
            found |= dict.fromkeys(head_names, Scaling(columns=self.head))
        return found


@dataclass(frozen=True, slots=True)
class ScaledCheckpoint(DecoderCheckpoint):
    """A checkpoint whose tensors are scaled on reading; its function is that of the base."""

    base: DecoderCheckpoint
    scalings: Mapping[str, Scaling]

    def tensor(self, name: str) -> Float32:
        """Read one scaled tensor as float32; see `DecoderCheckpoint.tensor` for the errors."""
        tensor = self.base.tensor(name)
        scaling = self.scalings.get(name)
        return tensor if scaling is None else scaling.apply(tensor)


def scaled(checkpoint: DecoderCheckpoint, factors: DecoderFactors) -> ScaledCheckpoint:
    """Apply factors to a checkpoint.

    Args:
        checkpoint: the model.
        factors: divisors of its channels; the weights that read a channel are multiplied by them.

    Returns:
        The same function with scaled channels; tensors are scaled when they are read.
    """
    c = checkpoint
    scalings = factors.scalings(c.config, c.head_names)
    return ScaledCheckpoint(c.path, c.config, c.tensors, base=c, scalings=scalings)


def equalised(
    checkpoint: DecoderCheckpoint, ranges: Mapping[str, Float32] | None = None
) -> ScaledCheckpoint:
    """Equalise the outlier channels of a checkpoint; each tensor is read once for that.

    Args:
        checkpoint: the model.
        ranges: largest magnitude of each input channel observed in data, ``[k] float32``, by the
            name of the first weight that reads it (``...q_proj.weight``, ``...o_proj.weight``,
            ``...gate_proj.weight``, ``...down_proj.weight``, or the head's). Missing ones are
            estimated from the weights, those of queries and keys always.

    Returns:
        The same function with equalised channels.

    Raises:
        CheckpointError: when a tensor cannot be read.
    """
    seen = ranges or {}
    n_layers = checkpoint.config.shape.n_layers
    layers = tuple(_Layer(checkpoint, i, seen).factors() for i in range(n_layers))
    factors = DecoderFactors(layers, _head_factors(checkpoint, seen))
    every = np.concatenate(list(factors.arrays()))
    changed = every[every != 1]
    if changed.size:
        largest = 2 ** float(np.abs(np.log2(changed)).max())
        logger.info(
            "%s: %d of %d channels equalised before quantisation, by up to %gx",
            checkpoint.path, changed.size, every.size, largest,
        )  # fmt: skip
    return scaled(checkpoint, factors)


def channel_factors(activation: Ranges, weight: Ranges) -> Float32:
    """Compute the divisor of each channel (SmoothQuant's with alpha = 0.5).

    It is ``sqrt(a / w)``, with both ranges over their medians along the last axis. It is bounded so
    that neither an activation nor a weight falls below its median: a channel that is no outlier
    costs the others no precision, and one that no weight reads (w = 0) has no balance to find. The
    result is rounded to a power of two; within `DEADBAND_LOG2` of 1 it becomes 1.

    Args:
        activation: range of each channel's activation, ``[..., k]``, 0 or more.
        weight: range of the weights that read it, ``[..., k]``, 0 or more.

    Returns:
        ``[..., k] float32``, powers of two.
    """
    a, w = _log2_over_median(activation), _log2_over_median(weight)
    with np.errstate(invalid="ignore"):
        wanted = np.nan_to_num(
            (a - w) / 2, nan=0.0
        )  # inf - inf: a channel of zeros that no weight reads
    # Dividing by more than a (its excess over the median) would push the activation below its
    # median; multiplying by more than w would do so to the weights.
    most = np.clip(a, 0, _LARGEST_LOG2)
    least = -np.clip(w, 0, _LARGEST_LOG2)
    log2 = np.rint(np.clip(wanted, least, most))
    return np.exp2(np.where(np.abs(log2) > DEADBAND_LOG2, log2, 0)).astype(np.float32)


def _log2_over_median(ranges: Ranges) -> Ranges:
    """Log2 of each range over the median of the ranges above 0; -inf for a range of 0."""
    used = np.where(ranges > 0, ranges, np.nan)
    some = np.isfinite(used).any(axis=-1, keepdims=True)
    middle = np.nanmedian(np.where(some, used, 1.0), axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log2(ranges / middle))


def _row_ranges(weight: Float32, inputs: Ranges, bias: Float32 | None = None) -> Ranges:
    """Norm of each output of ``[n, k]`` weights whose input channels have these ranges: ``[n]``."""
    out = np.empty(len(weight))
    for at in range(0, len(weight), _ROWS_AT_A_TIME):
        rows = weight[at : at + _ROWS_AT_A_TIME]
        out[at : at + len(rows)] = np.linalg.norm(rows * inputs, axis=1)
    return out if bias is None else np.hypot(out, bias)


def _column_ranges(weight: Float32, inputs: Ranges) -> Ranges:
    """Range of each column of ``[n, k]`` weights whose rows are divided by their ranges: ``[k]``.

    Each row has a separate quantisation scale, so that only a column's share of its row matters.
    """
    own = _row_ranges(weight, inputs)
    inverse = np.divide(1.0, own, out=np.zeros_like(own), where=own > 0)
    out = np.zeros(weight.shape[1])
    for at in range(0, len(weight), _ROWS_AT_A_TIME):
        shares = (
            np.abs(weight[at : at + _ROWS_AT_A_TIME]) * inverse[at : at + _ROWS_AT_A_TIME, None]
        )
        np.maximum(out, shares.max(axis=0), out=out)
    return out


class _Layer:
    """Computes the factors of one layer."""

    def __init__(
        self, checkpoint: DecoderCheckpoint, index: int, seen: Mapping[str, Float32]
    ) -> None:
        self._checkpoint, self._seen = checkpoint, seen
        self._at, self._shape = f"model.layers.{index}", checkpoint.config.shape

    def factors(self) -> LayerFactors:
        attention, keys, values = self._attention()
        mlp, up = self._mlp()
        return LayerFactors(attention, keys, values, mlp, up)

    def _attention(self) -> tuple[Float32, Float32, Float32]:
        s = self._shape
        gamma = _magnitudes(self._tensor("input_layernorm.weight"))
        q, k, v = (self._tensor(f"self_attn.{part}_proj.weight") for part in "qkv")
        inputs = self._inputs("self_attn.q_proj", gamma)
        columns = np.maximum.reduce([_column_ranges(each, inputs) for each in (q, k, v)])
        q_out, k_out, v_out = (
            _row_ranges(each, gamma, self._bias(part)).reshape(s.n_kv_heads, -1, s.head_dim)
            for part, each in (("q", q), ("k", k), ("v", v))
        )
        # A query's dot product with a key is unchanged by a factor that moves between them, as long
        # as RoPE's pairs and all query heads of a group share it.
        keys = channel_factors(_rope_pairs(k_out), _rope_pairs(q_out))
        share = s.n_heads // s.n_kv_heads
        context = np.repeat(v_out, share, axis=1).reshape(-1)  # as the output projection reads it
        read = self._inputs("self_attn.o_proj", context)
        o_columns = _column_ranges(self._tensor("self_attn.o_proj.weight"), read)
        values = channel_factors(_of_group(read, v_out.shape), _of_group(o_columns, v_out.shape))
        return channel_factors(inputs, columns), keys, values.reshape(s.n_kv_heads, s.head_dim)

    def _mlp(self) -> tuple[Float32, Float32]:
        gamma = _magnitudes(self._tensor("post_attention_layernorm.weight"))
        gate, up = self._tensor("mlp.gate_proj.weight"), self._tensor("mlp.up_proj.weight")
        inputs = self._inputs("mlp.gate_proj", gamma)
        columns = np.maximum(_column_ranges(gate, inputs), _column_ranges(up, inputs))
        # down_proj reads up * silu(gate); for large gates silu(x) is about x, so that the range of
        # the product is about that of both projections multiplied.
        product = _row_ranges(gate, gamma) * _row_ranges(up, gamma)
        product = self._inputs("mlp.down_proj", product)
        down = _column_ranges(self._tensor("mlp.down_proj.weight"), product)
        return channel_factors(inputs, columns), channel_factors(product, down)

    def _inputs(self, reader: str, estimate: Ranges) -> Ranges:
        return _seen_or(self._seen, f"{self._at}.{reader}.weight", estimate)

    def _tensor(self, name: str) -> Float32:
        return self._checkpoint.tensor(f"{self._at}.{name}")

    def _bias(self, part: str) -> Float32 | None:
        if not self._checkpoint.config.qkv_bias:
            return None
        return self._tensor(f"self_attn.{part}_proj.bias")


def _magnitudes(values: Float32) -> Ranges:
    return np.abs(values.astype(np.float64))


def _seen_or(seen: Mapping[str, Float32], reader: str, estimate: Ranges) -> Ranges:
    return _magnitudes(seen[reader]) if reader in seen else estimate


def _rope_pairs(ranges: Ranges) -> Ranges:
    """``[n_kv, heads, d]`` to ``[n_kv, d / 2]``: the largest range of all that share one factor."""
    half = ranges.shape[-1] // 2
    return np.asarray(np.maximum(ranges[..., :half], ranges[..., half:]).max(axis=1))


def _of_group(ranges: Ranges, shape: tuple[int, ...]) -> Ranges:
    """``[n_heads * d]`` to ``[n_kv * d]``: the largest range over the heads of a group."""
    n_kv, _, head_dim = shape
    return np.asarray(ranges.reshape(n_kv, -1, head_dim).max(axis=1).reshape(-1))


def _head_factors(checkpoint: DecoderCheckpoint, seen: Mapping[str, Float32]) -> Float32 | None:
    if checkpoint.config.tied:
        return None
    names = checkpoint.head_names
    inputs = _seen_or(seen, names[0], _magnitudes(checkpoint.tensor("model.norm.weight")))
    columns = [_column_ranges(checkpoint.tensor(name), inputs) for name in names]
    return channel_factors(inputs, np.maximum.reduce(columns))


def _layer_scalings(config: DecoderConfig, f: LayerFactors, at: str) -> dict[str, Scaling]:
    share = config.shape.n_heads // config.shape.n_kv_heads
    keys = np.concatenate([f.keys, f.keys], axis=1)  # dimensions j and j + d / 2
    queries = np.repeat(keys, share, axis=0).reshape(-1)
    keys, values = keys.reshape(-1), f.values.reshape(-1)
    context = np.repeat(f.values, share, axis=0).reshape(-1)
    made = {"q": queries, "k": np.reciprocal(keys), "v": np.reciprocal(values)}
    found = {
        f"{at}.input_layernorm.weight": Scaling(rows=np.reciprocal(f.attention)),
        f"{at}.self_attn.o_proj.weight": Scaling(columns=context),
        f"{at}.post_attention_layernorm.weight": Scaling(rows=np.reciprocal(f.mlp)),
        f"{at}.mlp.gate_proj.weight": Scaling(columns=f.mlp),
        f"{at}.mlp.up_proj.weight": Scaling(np.reciprocal(f.up), f.mlp),
        f"{at}.mlp.down_proj.weight": Scaling(columns=f.up),
    }
    for part, rows in made.items():
        found[f"{at}.self_attn.{part}_proj.weight"] = Scaling(rows, f.attention)
        if config.qkv_bias:
            found[f"{at}.self_attn.{part}_proj.bias"] = Scaling(rows)
    return found
