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
        model: of transformers.

    Returns:
        False where it cannot be told.
    """
    return any(True for _ in _rotary(model))


def follows_batch_length(model: Any) -> str | None:
    """Name the kind of a model's positions where other rows of a batch change a row's results.

    Args:
        model: of transformers.

    Returns:
        The kind; None where the length of the batch changes nothing.
    """
    kinds = (str(own.get("rope_type", own.get("type", "default"))) for own in _rotary(model))
    return next((kind for kind in kinds if any(word in kind for word in _BY_LENGTH)), None)


def _rotary(model: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a model's rotary positions; some models have one for each kind of layer."""
    config = getattr(model, "config", None)
    if config is None:
        return
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    # Transformers before 5 has the base as a key of its own, beside a scaling that may be None.
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(config, name, None)
        if isinstance(found, Mapping) and found:
            each = [own for own in found.values() if isinstance(own, Mapping)]
            yield from each or [found]
            return
    if getattr(config, "rope_theta", None) is not None:
        yield {}
