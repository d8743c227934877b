"""What a part of ``make gpu`` is given, what it gives back, and measurements that may fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.harness.figures import Figure

if TYPE_CHECKING:  # a process that a part spawns comes by here, and needs no PyTorch
    import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and for how long a part measures.

    Attributes:
        folder: for what the part leaves beside its JSON; it exists.
        deadline_s: when the part should have measured all, monotonic s; its process is ended
            shortly after it.
        is_rehearsal: toy models on the processor in place of a GPU, and NVML of any kind: nothing
            that comes out is a figure of a device.
    """

    folder: Path
    deadline_s: float
    is_rehearsal: bool = False

    @property
    def device(self) -> torch.device:
        """Where models lie."""
        import torch

        return torch.device("cpu" if self.is_rehearsal else "cuda")

    def synchronize(self) -> None:
        """Wait until the device has done all that was launched."""
        if not self.is_rehearsal:
            import torch

            torch.cuda.synchronize()

    def tell(self, what: str) -> None:
        """Print what is measured now, so that a part of minutes does not look as if it stood still.

        Args:
            what: in a few words.
        """
        print(f"   {what}", flush=True)

    def left_s(self) -> float:
        """Time until the deadline, s; 0 behind it."""
        return max(0.0, self.deadline_s - time.monotonic())

    def has_room(self, need_s: float) -> bool:
        """Whether something that takes so long still ends in time.

        Args:
            need_s: how long it takes, s.
        """
        return self.left_s() >= need_s


Measured = tuple[Mapping[str, object], Sequence[Figure]]
"""What a part's ``measure(setting)`` returns: the settings that its figures depend on, and the
figures. Energies of windows stand in the settings with their ``spans_s`` (`window_facts`)."""


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call, and return the result or the error.

    Whatever is raised counts: beside the errors of PyTorch and NVML, a compiler that is missing, a
    disk that is full or an interface that has changed come in classes of their libraries' own. A
    figure that is missing for it says why.

    Args:
        call: measures.
    """
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error


def reason(error: Exception) -> str:
    """Say in one line what went wrong.

    Args:
        error: that was raised.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
