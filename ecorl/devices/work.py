"""The work of a stage in operations and bytes, from the model's shape and the batch's lengths.

Formulas (L layers, h = heads x head_dim, N = active parameters, T tokens, l = mean row length):

- forward: ``2 N T`` for the products with weights, and ``4 l h`` a token and layer for attention
  (scores and weighted values; the causal half is not subtracted, as in the usual MFU convention);
  the reference's language-model head works on completion tokens alone;
- training: three times the forward pass (backward is twice the forward);
- generation: a prefill over the prompts, then one step a completion token, each streaming the
  weights once for all rows, and each row's key-value cache once.

Activations that stay in caches or on-chip are not counted as memory traffic.

`least_ops` counts otherwise: what no implementation of the forward pass can do without.
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
    """One phase of a stage.

    Attributes:
        ops: operations (a multiply-accumulate is two).
        memory_bytes: bytes through device memory.
        n_passes: forward passes over the layers.
        n_tokens: tokens that went through them, all passes together.
        decodes: whether each pass takes one token of a row, so that memory rules.
    """

    ops: float
    memory_bytes: float
    n_passes: float
    n_tokens: float
    decodes: bool = False


def forward_ops(model: ModelShape, n_tokens: float, mean_length: float) -> float:
    """Count the operations of one forward pass: ``2 N T + 4 l h L T``.

    Args:
        model: shape of the model.
        n_tokens: tokens of the batch.
        mean_length: mean row length, tokens.
    """
    width = model.n_heads * model.head_dim
    attention = 4.0 * mean_length * width * model.n_layers
    return n_tokens * (2.0 * model.n_params_active + attention)


def kv_bytes_per_token(model: ModelShape, dtype_bytes: int) -> float:
    """Count the bytes of key-value cache that one token occupies over all layers.

    Args:
        model: shape of the model.
        dtype_bytes: bytes of a weight or cached value.
    """
    return 2.0 * model.n_layers * model.n_kv_heads * model.head_dim * dtype_bytes


def resident_bytes(work: StageWork, model: ModelShape, dtype_bytes: int) -> float:
    """Count the bytes of the model's state: weights; in training gradients and optimizer too.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
        dtype_bytes: bytes of a weight or cached value.
    """
    if work.stage in TRAINING_STAGES:
        return model.n_params * _TRAIN_STATE_BYTES_PER_PARAM
    return float(model.n_params * dtype_bytes)


def forward_phase(work: StageWork, model: ModelShape, dtype_bytes: int) -> Phase:
    """Count the work of the single forward pass of reward, reference or critic.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
        dtype_bytes: bytes of a weight or cached value.
    """
    tokens = work.n_tokens
    ops = forward_ops(model, tokens, work.mean_length)
    if work.stage is Stage.REFERENCE:
        head = min(model.vocab_size * model.hidden_size, model.n_params_active)
        ops -= 2.0 * head * max(0, tokens - work.n_output_tokens)
    weights = float(model.n_params_active * dtype_bytes)
    cache = 2.0 * kv_bytes_per_token(model, dtype_bytes) * tokens
    return Phase(ops, weights + cache, 1.0, tokens)


@dataclass(frozen=True, slots=True)
class LeastProducts:
    """The fewest multiply-accumulates of a forward pass, by layers and tokens.

    Attributes:
        tokens: tokens that pass through all layers but the last; causal attention needs them.
        wanted: tokens that pass through the last layer and the head.
        earlier: products with the weights of all layers but the last, a token.
        last: products with the weights of the last layer and the head, a token.
    """

    tokens: int
    wanted: int
    earlier: float
    last: float


def least_products(work: StageWork, model: ModelShape) -> LeastProducts:
    """Count the products with weights that a forward pass cannot do without.

    A row's last token conditions no log-prob. A decoder whose tokens use but a part of it has
    fewer products than its dimensions say; norms and biases are in ``n_params_active``, but are no
    products: the lesser of the two counts.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
    """
    is_reward = work.stage is Stage.REWARD
    wanted = min(work.n_sequences if is_reward else work.n_output_tokens, work.n_tokens)
    if wanted <= 0:
        return LeastProducts(0, 0, 0.0, 0.0)
    tokens = work.n_tokens if is_reward else max(work.n_tokens - work.n_sequences, 0)
    scalar = is_reward or work.stage in (Stage.CRITIC, Stage.CRITIC_TRAIN)
    head = min(model.hidden_size * (1 if scalar else model.vocab_size), model.n_params_active)
    width = model.n_heads * model.head_dim
    kv_width = model.n_kv_heads * model.head_dim
    layer = model.hidden_size * (2 * width + 2 * kv_width + 3 * model.intermediate_size)
    layers = min(float(model.n_layers * layer), float(model.n_params_active - head))
    last = layers / model.n_layers
    return LeastProducts(tokens, wanted, layers - last, last + head)


def least_ops(work: StageWork, model: ModelShape) -> float:
    """Compute a lower bound of the operations of one forward pass over the batch.

    The last layer and the head see the wanted tokens alone, attention is causal and left out of
    the last layer, and rows have the mean length (attention grows with its square, so uneven rows
    need more). Each row is computed in full: prefixes that rows share are not computed once.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
    """
    least = least_products(work, model)
    if least.wanted == 0:
        return 0.0
    length = least.tokens / max(work.n_sequences, 1)
    width = model.n_heads * model.head_dim
    attention = (model.n_layers - 1) * width * (length + 1.0)
    return 2.0 * (least.tokens * (least.earlier + attention) + least.wanted * least.last)


def training_phase(work: StageWork, model: ModelShape, dtype_bytes: int) -> Phase:
    """Count the work of one pass of forward, backward and one optimizer step over the batch.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
        dtype_bytes: bytes of a weight or cached value.
    """
    ops = 3.0 * forward_ops(model, work.n_tokens, work.mean_length)
    moved = model.n_params * (3.0 * dtype_bytes + _OPTIMIZER_BYTES_PER_PARAM)
    return Phase(ops, moved, 3.0, work.n_tokens)


def generation_phases(work: StageWork, model: ModelShape, dtype_bytes: int) -> tuple[Phase, Phase]:
    """Count the work of prefill and of decoding, which streams the weights once a step.

    The number of steps is that of the longest row: its length less the mean prompt.

    Args:
        work: the stage's batch: stage, rows, tokens.
        model: shape of the model.
        dtype_bytes: bytes of a weight or cached value.

    Returns:
        Prefill and decoding.
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
        prompt_tokens,
    )
    steps = max(work.max_length - mean_prompt, mean_output) if work.n_output_tokens else 0.0
    mean_context = mean_prompt + mean_output / 2.0
    decode = Phase(
        forward_ops(model, work.n_output_tokens, mean_context),
        steps * weights + cache * work.n_output_tokens * mean_context,
        steps,
        work.n_output_tokens,
        decodes=True,
    )
    return prefill, decode


def link_bytes(work: StageWork) -> float:
    """Bytes over the host link of a card: token ids in (4 B each), FP32 results out.

    Results are one reward a row, or one value a completion token (log-probs, critic values).
    """
    n_results = work.n_sequences if work.stage is Stage.REWARD else work.n_output_tokens
    return 4.0 * (work.n_tokens + n_results)
