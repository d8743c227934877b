"""The state of the random numbers that a training step draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """State of torch's random numbers on the host and on a device.

    Attributes:
        host: of the CPU's generator.
        device: the CUDA device, or None.
        on_device: of its generator, or None.
    """

    host: torch.Tensor
    device: torch.device | None = None
    on_device: torch.Tensor | None = None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """The state at this moment.

        Args:
            device: on which the training stage computes.
        """
        if device.type != "cuda":
            return cls(torch.get_rng_state())
        return cls(torch.get_rng_state(), device, torch.cuda.get_rng_state(device))

    def restore(self) -> None:
        """Draw again from here on what was drawn after the state was taken."""
        torch.set_rng_state(self.host)
        if self.device is not None and self.on_device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Draw random numbers inside the block as if none were drawn.

    Args:
        device: on which the training stage computes.
    """
    before = RandomState.now(device)
    try:
        yield
    finally:
        before.restore()
