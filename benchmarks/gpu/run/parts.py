"""The parts of ``make gpu``, in order: how long each may take, and what it imports.

Standard library only: where a package is missing the runner still says which part it keeps out.
"""

from __future__ import annotations

from dataclasses import dataclass

BASE = ("torch", "numpy", "pydantic", "psutil", "pynvml", "tomlkit", "filelock", "jinja2", "rich",
        "matplotlib", "onnxruntime", "typer", "huggingface_hub", "tokenizers")  # fmt: skip
"""Modules that every part imports, by way of ecorl."""

NO_GPU = "this machine has no NVIDIA GPU that NVML answers for: nothing to measure"
NO_CUDA = "PyTorch does not reach a GPU on this machine: nothing to measure"
NO_CUDA_CODE = 3
"""Exit code of a part where PyTorch reaches no GPU."""

_TRAINING = ("transformers", "safetensors", "trl", "datasets", "accelerate")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the pass.

    Attributes:
        name: on the command line, and of its module in `benchmarks.gpu`.
        benchmark: with which its figures' ids begin; its file is ``<benchmark>.json``.
        seconds: that it may take from the start of its process to its end, s.
        question: what it measures, in a line.
        imports: modules that it needs, all that ecorl needs included.
    """

    name: str
    benchmark: str
    seconds: float
    question: str
    imports: tuple[str, ...] = BASE


PARTS = (
    Part("facts", "gpu_facts", 20.0, "driver, limits, clocks, and what each NVML call costs"),
    Part("training", "gpu_training", 180.0, "TRL's GRPO, plain and with ecorl attached",
         (*BASE, *_TRAINING)),
    Part("clocks", "gpu_clocks", 120.0, "what limits each stage; decoding on a part of the GPU"),
    Part("training_gears", "gpu_training_gears", 100.0, "the same training in BF16 and in FP8",
         (*BASE, *_TRAINING, "torchao")),
    Part("stage_table", "gpu_stages", 80.0, "joules a token by stage and batch, for `ecorl plan`"),
    Part("sampling", "gpu_sampling", 30.0, "what ecorl's sampler costs, and how true it is"),
)  # fmt: skip
