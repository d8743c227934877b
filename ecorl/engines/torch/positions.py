"""What a model's results say of the padding around its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
