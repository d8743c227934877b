"""What does each stage of RLHF draw on a real NVIDIA GPU, per token, and what does ecorl add?

Generation, reward, reference and training of a 1 B-class Llama of random weights (nothing is
downloaded) by batch and length: joules per token, watts, tokens a second; idle power stands beside
and is subtracted nowhere. Then the same loop with ecorl and without. Nothing is set on the GPU.
Not part of `make bench`: it needs a GPU of 80 GB that nothing else uses, for some seven minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.gpu.attached import TimedLoop, blocks
from benchmarks.gpu.figures import attached_figures
from benchmarks.gpu.loads.generation import step_error
from benchmarks.gpu.loads.llama import EAGER, Llama, fused
from benchmarks.gpu.loads.stages import (
    FULL,
    QUICK,
    TrainingStep,
    generation_loads,
    random_tokens,
    scoring_loads,
    training_loads,
)
from benchmarks.gpu.run.parts import NO_CUDA
from benchmarks.gpu.sensing.meter import EnergyMeter
from benchmarks.gpu.table import BENCHMARK, SIZE, StageTable
from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure
from ecorl.devices.llama import model_shape
from ecorl.errors import MissingToolError

REPETITIONS, LENGTH_S, QUICK_LENGTH_S = 3, 3.0, 1.0
FUSES = True
"""Whether a step of generation is fused and captured; tests on a CPU do without."""

LOOPED = (8, 512)
"""Rows and length of the loops with ecorl around them and without."""

SHORT_STEP = "short"
"""A loop of forward passes of some ten milliseconds: the worst case for what a step costs."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    shapes, length_s = (QUICK, QUICK_LENGTH_S) if options.quick else (FULL, LENGTH_S)
    with EnergyMeter(torch.cuda.synchronize) as meter:
        if not torch.cuda.is_available():
            raise MissingToolError(NO_CUDA)
        shape, device = model_shape(SIZE), torch.device("cuda")
        model = Llama(shape, shapes.longest + 1, device=device, dtype=torch.bfloat16)
        error = step_error(
            model, random_tokens(model, 4, shapes.longest), fused() if FUSES else EAGER
        )
        table = StageTable(meter, SIZE, shape, REPETITIONS, length_s)
        table.idle("before", "a CUDA context and the model are there, nothing runs")
        table.take(generation_loads(model, shapes, graphs=FUSES))
        torch.cuda.empty_cache()
        table.take(scoring_loads(model, shapes))
        table.take(training_loads(model, shapes))
        torch.cuda.empty_cache()
        table.idle("after", "the same after all stages")
        config, uuid = table.config(error), meter.device.uuid
    # Its sampler has ended: in the plain arm nothing of ecorl runs.
    attached = _attached(model, uuid, quick=options.quick)
    return config, [*table.figures(), *attached]


def _attached(model: Llama, uuid: str, *, quick: bool) -> list[Figure]:
    """Blocks of two loops with ecorl and without: a training step, and a far shorter one."""
    step, tokens = TrainingStep(model, *LOOPED), random_tokens(model, *LOOPED)

    @torch.inference_mode()
    def score() -> torch.Tensor:
        return model.rewards(tokens)[0]

    n_pairs = 2 if quick else 8
    loops = (
        TimedLoop(f"train_b{LOOPED[0]}x{LOOPED[1]}", step, step.n_tokens, 8 if quick else 32),
        TimedLoop(SHORT_STEP, score, tokens.numel(), 30 if quick else 150),
    )
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-gpu-") as folder:
        for loop in loops:
            found = blocks(loop, uuid, Path(folder), n_pairs)
            figures += attached_figures(BENCHMARK, loop.name, found, loop.n_steps)
    return figures


if __name__ == "__main__":
    sys.exit(run_benchmark(BENCHMARK, measure))
