"""FP8 layers of a model beside its own, by torchao.

torchao replaces linear layers in place, once and for all. Here each replacement is kept beside the
layer that it stands for. Both hold the same parameters, so that a shift is an exchange of modules
and copies nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ecorl.errors import ConfigError, MissingToolError

_MULTIPLE = 16
"""Sizes of FP8 matrix units: inner and outer dimension have to be multiples of it."""

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Hooks of a module, which belong to both layers of a pair."""


@dataclass(slots=True)
class _Pair:
    """A linear layer and its FP8 twin, at one place of a model."""

    parent: nn.Module
    name: str
    plain: nn.Linear
    float8: nn.Linear


class Float8Layers:
    """The FP8 twins of a model's linear layers.

    The output embedding stays as it is: its rounding would show in each token's probability.

    Args:
        model: whose layers are paired; it computes as before until `engage`.
        simulate: whether the device has no FP8 units: operands are rounded to FP8 and multiplied
            in float32.

    Raises:
        ConfigError: when no layer has sizes that FP8 units take.
        MissingToolError: when torchao is not installed.
    """

    def __init__(self, model: nn.Module, *, simulate: bool) -> None:
        self._pairs = _pairs(model, simulate=simulate)
        if not self._pairs:
            allowed = (
                f"a list without FP8: {type(model).__name__} has no linear layer of which both "
                f"sizes are multiples of {_MULTIPLE}"
            )
            raise ConfigError("gears.allowed", "FP8", allowed)
        self._is_engaged = False

    def __len__(self) -> int:
        return len(self._pairs)

    def engage(self) -> None:
        """Have the model compute these layers in FP8; nothing happens where it does already."""
        if self._is_engaged:
            return
        self._is_engaged = True
        for pair in self._pairs:
            # One dictionary for both layers: whoever moves or merges the model gives a layer other
            # parameters, and FSDP2 does so around each forward pass.
            pair.float8.__dict__["_parameters"] = pair.plain.__dict__["_parameters"]
            pair.parent._modules[pair.name] = pair.float8

    def release(self) -> None:
        """Give the model its own layers back."""
        if self._is_engaged:
            self._is_engaged = False
            for pair in self._pairs:
                pair.parent._modules[pair.name] = pair.plain


def _pairs(model: nn.Module, *, simulate: bool) -> list[_Pair]:
    convert, make_config = _torchao()
    head = _output_embedding(model)

    def is_taken(module: nn.Module, name: str) -> bool:
        return (
            type(module) is nn.Linear
            and module is not head
            and module.in_features % _MULTIPLE == 0
            and module.out_features % _MULTIPLE == 0
        )

    before = {
        (id(parent), name): (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if is_taken(child, name)
    }
    if not before:
        return []
    # The gradient of a weight is a product over the tokens, of which a batch may have any number.
    config = make_config(emulate=simulate, pad_inner_dim=True)
    with _quiet():
        convert(model, config=config, module_filter_fn=is_taken)
    pairs = []
    for parent, name, plain in before.values():
        twin = parent._modules[name]
        parent._modules[name] = plain
        if twin is plain or not isinstance(twin, nn.Linear) or not isinstance(plain, nn.Linear):
            continue
        for hooks in _HOOKS:
            if hooks in plain.__dict__:
                twin.__dict__[hooks] = plain.__dict__[hooks]
        inner = twin.forward
        twin.forward = _in_autocast(inner)  # type: ignore[method-assign]
        twin.train(plain.training)
        pairs.append(_Pair(parent, name, plain, twin))
    return pairs


def _in_autocast(inner: Any) -> Any:
    """A forward pass whose input has autocast's type on any device: torchao asks CUDA's alone."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        kind = x.device.type
        if kind != "cuda" and torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        out: torch.Tensor = inner(x)
        return out

    return forward


def _output_embedding(model: nn.Module) -> Any:
    """The layer that gives each token's score, or None."""
    find = getattr(model, "get_output_embeddings", None)
    return find() if callable(find) else None


def _torchao() -> tuple[Any, Any]:
    try:
        with _quiet():
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise MissingToolError(
            "FP8 needs torchao, which is not installed: pip install 'ecorl[gears]'"
        ) from error
    return convert_to_float8_training, Float8LinearConfig


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torchao says of kernels for other devices and of torch's registries."""
    names = ("torchao", "torch.utils._pytree")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
