"""How much work a stage is: operations and bytes, from the model's shape and the batch's lengths.

Formulas (L layers, h = heads x head_dim, N = active parameters, T tokens, l = mean row length):

- forward: ``2 N T`` for the products with weights, and ``4 l h`` a token and layer for attention
  (scores and weighted values; the causal half is not subtracted, as in the usual MFU convention);
- training: three times the forward pass (backward is twice the forward);
- generation: a prefill over the prompts, then one step a completion token, each streaming the
  weights once for all rows, and each row's key-value cache once.

Activations that stay in caches or on-chip are not counted as memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.records import ModelShape, Stage, StageWork

TRAINING_STAGES = (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)

_OPTIMIZER_BYTES_PER_PARAM = 28.0
# AdamW in FP32: read and write master weight and two moments (24 B), read the gradient (4 B).
_TRAIN_STATE_BYTES_PER_PARAM = 16.0
# Held in memory while training: weight and gradient (2 B each), master and two moments (4 B each).


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a stage: operations, bytes through device memory, forward passes over layers."""

    ops: float
    memory_bytes: float
    n_passes: float


def forward_ops(model: ModelShape, n_tokens: float, mean_length: float) -> float:
    """Operations of one forward pass: ``2 N T + 4 l h L T``."""
    width = model.n_heads * model.head_dim
    attention = 4.0 * mean_length * width * model.n_layers
    return n_tokens * (2.0 * model.n_params_active + attention)


def kv_bytes_per_token(model: ModelShape, dtype_bytes: int) -> float:
    """Bytes of key-value cache that one token occupies over all layers."""
    return 2.0 * model.n_layers * model.n_kv_heads * model.head_dim * dtype_bytes


def resident_bytes(work: StageWork, model: ModelShape, dtype_bytes: int) -> float:
    """Bytes that the model's state occupies: weights, and for training gradients and optimizer."""
    if work.stage in TRAINING_STAGES:
        return model.n_params * _TRAIN_STATE_BYTES_PER_PARAM
    return float(model.n_params * dtype_bytes)


def forward_phase(
    work: StageWork, model: ModelShape, dtype_bytes: int, tile_tokens: float | None = None
) -> Phase:
    """The single forward pass of reward, reference or critic.

    Args:
        work: the stage's work.
        model: shape of the model.
        dtype_bytes: bytes a weight and a cached value.
        tile_tokens: tokens per pass over the weights; None when one pass serves the whole batch.
    """
    tokens = work.n_tokens
    n_tiles = 1.0 if tile_tokens is None else max(1.0, float(-(-tokens // tile_tokens)))
    weights = n_tiles * model.n_params_active * dtype_bytes
    cache = 2.0 * kv_bytes_per_token(model, dtype_bytes) * tokens
    return Phase(forward_ops(model, tokens, work.mean_length), weights + cache, n_tiles)


def training_phase(work: StageWork, model: ModelShape, dtype_bytes: int) -> Phase:
    """One pass of forward, backward and one optimizer step over the batch."""
    ops = 3.0 * forward_ops(model, work.n_tokens, work.mean_length)
    moved = model.n_params * (3.0 * dtype_bytes + _OPTIMIZER_BYTES_PER_PARAM)
    return Phase(ops, moved, 3.0)


def generation_phases(work: StageWork, model: ModelShape, dtype_bytes: int) -> tuple[Phase, Phase]:
    """Prefill of the prompts, then decoding, bound by streaming the weights once a step.

    The number of steps is that of the longest row: its length less the mean prompt.
    """
    rows = max(work.n_sequences, 1)
    prompt_tokens = max(work.n_tokens - work.n_output_tokens, 0)
    mean_prompt, mean_output = prompt_tokens / rows, work.n_output_tokens / rows
    cache = kv_bytes_per_token(model, dtype_bytes)
    weights = float(model.n_params_active * dtype_bytes)
    prefill = Phase(
        forward_ops(model, prompt_tokens, mean_prompt),
        weights + 2.0 * cache * prompt_tokens,
        1.0 if prompt_tokens else 0.0,
    )
    steps = max(work.max_length - mean_prompt, mean_output) if work.n_output_tokens else 0.0
    mean_context = mean_prompt + mean_output / 2.0
    decode = Phase(
        forward_ops(model, work.n_output_tokens, mean_context),
        steps * weights + cache * work.n_output_tokens * mean_context,
        steps,
    )
    return prefill, decode


def link_bytes(work: StageWork) -> float:
    """Bytes over the host link of a card: token ids in (4 B each), FP32 results out.

    Results are one reward a row, or one value a completion token (log-probs, critic values).
    """
    n_results = work.n_sequences if work.stage is Stage.REWARD else work.n_output_tokens
    return 4.0 * (work.n_tokens + n_results)
