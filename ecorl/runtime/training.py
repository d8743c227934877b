"""Facts of the training process that the runtime serves, given by a framework's adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ecorl.records import ModelShape, Stage

TrainerDevice = Literal["cuda", "cpu"]


def _nothing_to_wait_for() -> None:
    """Return at once: on a CPU work is done when the call returns."""


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A frozen model on disk, as the trainer's own is in memory.

    Attributes:
        folder: Hugging Face checkpoint folder.
        dtype: floating-point type in which the trainer computes with it, e.g. ``float32``; an
            exact engine computes in the same one.
    """

    folder: Path
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class TrainingSide:
    """Facts of one training process, given by the framework's adapter.

    Attributes:
        device: where the framework trains.
        gpu_uuids: UUIDs of the GPUs that it uses; empty when it cannot tell, then NVML's
            ``CUDA_VISIBLE_DEVICES`` rule decides.
        models: shape of every stage's model, for the cost model; unknown ones may be absent.
        frozen: the frozen model of each stage that may leave the GPU.
        fence: waits until the device has done all that was launched. A stage's borders lie
            behind it: without it a stage on a GPU would end when its kernels are queued, and its
            seconds and joules would count for the stage that happens to wait for them.
    """

    device: TrainerDevice = "cpu"
    gpu_uuids: tuple[str, ...] = ()
    models: Mapping[Stage, ModelShape] = field(default_factory=dict)
    frozen: Mapping[Stage, FrozenModel] = field(default_factory=dict)
    fence: Callable[[], None] = _nothing_to_wait_for

    @property
    def on_gpu(self) -> bool:
        """Whether the framework trains on a GPU."""
        return self.device == "cuda"
