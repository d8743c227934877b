"""Puts rows of tokens into the rectangles that a forward pass computes.

Two functions tell of a model what padding around its rows does to their results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ecorl.engines.packing import Indices, PackedTokens, pack
from ecorl.engines.protocol import Int64, ScoreBatch

_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions whose frequencies follow the length of the batch."""


def has_relative_positions(model: Any) -> bool:
    """Whether a row's results stay, but for rounding, where it begins further to the right.

    They do where positions are rotary: attention then knows how far apart two tokens are, and not
    where they are. A model whose positions are learned one by one, as GPT-2's, and which is not
    told where its rows begin, reads padding before a row as a part of its length.

    Args:
        model: of transformers, or an adapter of PEFT around one.

    Returns:
        False where it cannot be told, where queries are scaled by where they stand (Llama 4,
        Ministral 3), and where an adapter puts tokens of its own before the padding.
    """
    if _has_prompt_of_its_own(model):
        return False
    kinds = list(_rotary(model))
    if getattr(_text_config(model), "attn_temperature_tuning", False):
        return False
    return bool(kinds) and not any(own.get("llama_4_scaling_beta") for own in kinds)


def _has_prompt_of_its_own(model: Any) -> bool:
    """Whether an adapter of PEFT has learned tokens before each row."""
    own = getattr(model, "active_peft_config", None)
    return bool(getattr(own, "is_prompt_learning", False))


def follows_batch_length(model: Any) -> str | None:
    """Name the kind of a model's positions where other rows of a batch change a row's results.

    Args:
        model: of transformers.

    Returns:
        The kind; None where the length of the batch changes nothing.
    """
    kinds = (str(own.get("rope_type", own.get("type", "default"))) for own in _rotary(model))
    return next((kind for kind in kinds if any(word in kind for word in _BY_LENGTH)), None)


def _text_config(model: Any) -> Any:
    """The config of a model's text part; None without one."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        return config
    return config.get_text_config()


def _rotary(model: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a model's rotary positions; some models have one for each kind of layer."""
    config = _text_config(model)
    if config is None:
        return
    # Transformers before 5 has the base as a key of its own, beside a scaling that may be None.
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(config, name, None)
        if isinstance(found, Mapping) and found:
            each = [own for own in found.values() if isinstance(own, Mapping)]
            yield from each or [found]
            return
    if getattr(config, "rope_theta", None) is not None:
        yield {}


Int64Matrix: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What one forward pass computes.

    Attributes:
        rows: which rows of the batch.
        ids: token ids, ``[n, width] int64``, with 0 where there is none.
        mask: likewise, 1 for real tokens.
        n_keep: columns of the completions, on the right.
    """

    rows: Indices | slice
    ids: Int64Matrix
    mask: Int64Matrix
    n_keep: int = 0


def pad_right(rows: tuple[Int64, ...]) -> tuple[Int64Matrix, Int64Matrix]:
    """Pad on the right with 0; returns ids and attention mask, ``[n_rows, longest] int64``."""
    return _pad(rows, [0] * len(rows), max(len(row) for row in rows))


def pad_like_trl(
    rows: tuple[Int64, ...],
    n_completion: tuple[int, ...] | list[int],
    longest_prompt: int | None = None,
) -> tuple[Int64Matrix, Int64Matrix]:
    """Pad prompts on the left and completions on the right, over the whole batch.

    The pad token is 0 whatever the tokenizer says: masked positions have no weight in the
    attention, so that it does not affect any result.

    Args:
        rows: token ids of each row, prompt and completion, ``[length] int64``.
        n_completion: number of completion tokens at the end of each row.
        longest_prompt: columns of the prompts; None: as many as the longest of these rows has.

    Returns:
        Token ids and attention mask, ``[n_rows, longest prompt + longest completion] int64``.
    """
    n_prompt = [len(row) - n for row, n in zip(rows, n_completion, strict=True)]
    longest = max(n_prompt) if longest_prompt is None else longest_prompt
    return _pad(rows, [longest - n for n in n_prompt], longest + max(n_completion))


def _pad(rows: tuple[Int64, ...], starts: list[int], width: int) -> tuple[Int64Matrix, Int64Matrix]:
    ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[index, start : start + len(row)] = row
        mask[index, start : start + len(row)] = 1
    return ids, mask


def micro_batches(batch: ScoreBatch) -> Iterator[slice]:
    """Yield the slices of rows that share a forward, in order."""
    size = batch.micro_batch or len(batch)
    for start in range(0, len(batch), size):
        yield slice(start, start + size)


def reward_forwards(batch: ScoreBatch) -> Iterator[ForwardPass]:
    """Yield the forward passes of a reward model: packed within a budget of tokens, if it has one.

    Args:
        batch: at least one row.
    """
    if batch.token_budget is None:
        ids, mask = pad_right(batch.token_ids)
        yield from (ForwardPass(rows, ids[rows], mask[rows]) for rows in micro_batches(batch))
        return
    for rows in pack([len(row) for row in batch.token_ids], batch.token_budget):
        yield ForwardPass(rows, *pad_right(tuple(batch.token_ids[i] for i in rows)))


def log_prob_forwards(batch: ScoreBatch, *, trims_prompts: bool) -> Iterator[ForwardPass]:
    """Yield the forward passes of a language model, as `reward_forwards` does.

    Args:
        batch: at least one row with a completion.
        trims_prompts: whether a row's results stay where there is less padding before it.
    """
    n_keep = max(batch.n_completion)
    if batch.token_budget is None:
        ids, mask = pad_like_trl(batch.token_ids, batch.n_completion)
        yield from (
            ForwardPass(rows, ids[rows], mask[rows], n_keep) for rows in micro_batches(batch)
        )
        return
    lengths = prompt_and_completion(batch)
    longest = None if trims_prompts else int(lengths[:, 0].max())
    if longest is not None:
        lengths[:, 0] = longest
    for rows in pack(lengths, batch.token_budget):
        n_completion = [batch.n_completion[i] for i in rows]
        if max(n_completion):
            tokens = tuple(batch.token_ids[i] for i in rows)
            ids, mask = pad_like_trl(tokens, n_completion, longest)
            yield ForwardPass(rows, ids, mask, max(n_completion))


def prompt_and_completion(batch: ScoreBatch) -> Int64Matrix:
    """Tokens of each row's prompt and of its completion, ``[n_rows, 2] int64``.

    Args:
        batch: the rows.
    """
    lengths = np.array([len(row) for row in batch.token_ids], dtype=np.int64)
    n_completion = np.array(batch.n_completion, dtype=np.int64)
    return np.stack([lengths - n_completion, n_completion], axis=1)


def as_padded(batch: ScoreBatch) -> ScoreBatch:
    """The same rows as they are without packing, in forward passes that are no larger.

    Args:
        batch: packed within a budget of tokens.
    """
    width = int(prompt_and_completion(batch).max(axis=0).sum())
    size = max(1, (batch.token_budget or 1) // width)
    return replace(batch, token_budget=None, micro_batch=min(size, batch.micro_batch or len(batch)))


def packed_tokens(
    batch: ScoreBatch, forwards: list[ForwardPass], difference: float | None
) -> PackedTokens:
    """Say what packing made of a batch.

    Args:
        batch: at least one row.
        forwards: its forward passes.
        difference: of the results with and without packing, if it is known.
    """
    if any(forward.n_keep for forward in forwards):
        width = int(prompt_and_completion(batch).max(axis=0).sum())
    else:
        width = max(len(row) for row in batch.token_ids)
    n_computed = sum(forward.ids.size for forward in forwards)
    return PackedTokens(len(forwards), batch.n_tokens, n_computed, len(batch) * width, difference)
