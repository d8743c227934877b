"""A model whose training stage computes in a gear, and everything else as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ecorl.control import Gear
from ecorl.trainer.gears.float8 import Float8Layers
from ecorl.trainer.gears.formats import DTYPES, GearSupport

Forward = Callable[..., Any]


class GearedModel:
    """Puts the forward and backward passes of the training stage into a gear.

    A framework decides once, when its trainer is made, in which precision the model computes. A
    gear is therefore entered innermost, around the model's own forward pass, and stays until the
    backward pass is over, which may compute parts of the forward pass anew. Between two training
    stages the model is as the framework has made it: generation, rewards and the reference see
    nothing of a gear.

    Args:
        model: that is trained; wrappers for several processes hold it inside.
        own: gear in which the framework computes the training stage.
        support: the gears, and which of them are simulated.
        forward: the model's forward pass without the framework's precision around it; None: its
            ``forward`` as it is now.

    Attributes:
        own: gear in which the framework itself computes the training stage.

    Raises:
        ConfigError: when FP8 is asked for and no layer takes it.
        MissingToolError: when FP8 is asked for and torchao is not installed.
    """

    def __init__(
        self, model: nn.Module, own: Gear, support: GearSupport, forward: Forward | None = None
    ) -> None:
        self.own, self._model = own, model
        self._inner: Forward = forward or model.forward
        self._device_type = next(model.parameters()).device.type
        # Made now, so that no step pays for it.
        self._float8: Float8Layers | None = None
        if Gear.FP8 in support.gears:
            self._float8 = Float8Layers(model, simulate=Gear.FP8 in support.simulated)
        self._forwards = {gear: self._forward_in(gear) for gear in support.gears if gear != own}
        self._framework: Forward | None = None
        self._engaged: Gear | None = None

    @property
    def engaged(self) -> Gear | None:
        """The gear in which the model computes just now; None: as the framework has it."""
        return self._engaged

    def engage(self, gear: Gear) -> None:
        """Have the model compute in a gear until `release`.

        Nothing at all changes for the gear in which the framework computes anyway.

        Args:
            gear: one of the supported.
        """
        if gear == self._engaged:
            return
        self.release()
        if gear == self.own:
            return
        self._engaged = gear
        self._framework = self._model.__dict__.get("forward")
        self._model.__dict__["forward"] = self._forwards[gear]
        if gear is Gear.FP8 and self._float8 is not None:
            self._float8.engage()

    def release(self) -> None:
        """Have the model compute as the framework has made it; safe to call at any time."""
        if self._engaged is None:
            return
        self._engaged = None
        if self._framework is None:
            self._model.__dict__.pop("forward", None)
        else:
            self._model.__dict__["forward"] = self._framework
        self._framework = None
        if self._float8 is not None:
            self._float8.release()

    @contextmanager
    def within(self, gear: Gear) -> Iterator[None]:
        """Compute in a gear inside the block, and in the one of before after it.

        Args:
            gear: one of the supported.
        """
        before = self._engaged
        self.engage(gear)
        try:
            yield
        finally:
            if before is None:
                self.release()
            else:
                self.engage(before)

    def _forward_in(self, gear: Gear) -> Forward:
        dtype, device_type, inner = DTYPES[gear], self._device_type, self._inner

        def forward(*args: Any, **kwargs: Any) -> Any:
            # Autocast keeps the weights that it has cast, in whatever format, until its outermost
            # context ends: within the framework's own, one gear would compute with another's.
            if torch.is_autocast_enabled(device_type):
                torch.clear_autocast_cache()
            with torch.autocast(device_type, dtype=dtype, enabled=gear is not Gear.FP32):
                output = inner(*args, **kwargs)
            if torch.is_autocast_enabled(device_type):
                torch.clear_autocast_cache()
            # What follows (losses, log-probabilities) is computed in float32, as behind the
            # framework's own mixed precision.
            return as_float32(output)

        return forward


def as_float32(output: Any) -> Any:
    """Copy a model's output with its tensors of 16 bits as float32.

    Args:
        output: a tensor, or tuples, lists and mappings of them; anything else stays.
    """
    if isinstance(output, torch.Tensor):
        is_short = output.dtype in (torch.float16, torch.bfloat16)
        return output.float() if is_short else output
    if isinstance(output, Mapping):
        # Outputs of transformers are ordered mappings with a class of their own.
        kind: Any = type(output)
        return kind({key: as_float32(value) for key, value in output.items()})
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*map(as_float32, output))
    if isinstance(output, list | tuple):
        return type(output)(as_float32(value) for value in output)
    return output
