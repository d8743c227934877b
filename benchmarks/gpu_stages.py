"""What does each stage of RLHF draw on a real NVIDIA GPU, per token, and what does ecorl add?

Generation, reward, reference and training of a 1 B-class Llama of random weights (nothing is
downloaded) by batch and length: joules per token, watts, tokens a second; idle power stands beside
and is subtracted nowhere. Then the same loop with ecorl and without. Nothing is set on the GPU.
Not part of `make bench`: it needs a GPU of 80 GB that nothing else uses, for some seven minutes.

With ecorl a loop is in `ecorl.measure` with its defaults and NVML: a process that samples, a stage
execution, figures and a record for each step, and a wait for the GPU at both ends of a step. Both
arms read the loss after each step, as trainers do that log it, so that the plain loop waits too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu.attached import ATTACHED, PLAIN, in_turns
from benchmarks.gpu.loads.generation import step_error
from benchmarks.gpu.loads.llama import EAGER, Llama, fused
from benchmarks.gpu.loads.stages import FULL, QUICK, TrainingStep, longest, random_tokens
from benchmarks.gpu.run.parts import NO_CUDA
from benchmarks.gpu.sensing.meter import EnergyMeter
from benchmarks.gpu.sensing.traces import counted_energy
from benchmarks.gpu.stage_table import BENCHMARK, FIGURES, SIZE, StageTable
from benchmarks.harness import Figure, run_benchmark
from ecorl.config import Config, NvmlSourceConfig, TelemetryConfig
from ecorl.devices.llama import model_shape
from ecorl.errors import MissingToolError
from ecorl.loop import measure as measured_run

REPETITIONS, LENGTH_S, QUICK_LENGTH_S = 3, 3.0, 1.0
FUSES = True
"""Whether a step of generation is fused and captured; tests on a CPU do without."""

LOOPED = (8, 512)
"""Rows and length of the loops with ecorl around them and without."""

SHORT_STEP = "short"
"""A loop of forward passes of some ten milliseconds: the worst case for what a step costs."""

COUNTER_S = 0.02
"""Interval at which the counter is read in both arms, by a process beside them, s."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    batches, length_s = (QUICK, QUICK_LENGTH_S) if options.quick else (FULL, LENGTH_S)
    with EnergyMeter(torch.cuda.synchronize) as meter:
        if not torch.cuda.is_available():
            raise MissingToolError(NO_CUDA)
        shape, n_most = model_shape(SIZE), longest(batches)
        model = Llama(shape, n_most + 1, device=torch.device("cuda"), dtype=torch.bfloat16)
        error = step_error(model, random_tokens(model, 4, n_most), fused() if FUSES else EAGER)
        table = StageTable(meter, SIZE, shape, REPETITIONS, length_s)
        table.idle("before")
        for batch in batches:
            table.take(batch.loads(model, graphs=FUSES))
            torch.cuda.empty_cache()
        table.idle("after")
        config, uuid = table.config(error), meter.device.uuid
    # Its sampler has ended: in the plain arm nothing of ecorl runs.
    return config, [*table.figures, *_attached(model, uuid, quick=options.quick)]


def _attached(model: Llama, uuid: str, *, quick: bool) -> list[Figure]:
    """Blocks of two loops with ecorl and without: a training step, and a far shorter one."""
    step, tokens = TrainingStep(model, *LOOPED), random_tokens(model, *LOOPED)

    @torch.inference_mode()
    def score() -> torch.Tensor:
        return model.rewards(tokens)[0]

    n_pairs = 2 if quick else 8
    loops: tuple[tuple[str, Callable[[], torch.Tensor], int], ...] = (
        (f"train_b{LOOPED[0]}x{LOOPED[1]}", step, 8 if quick else 32),
        (SHORT_STEP, score, 30 if quick else 150),
    )
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-gpu-") as folder:
        for name, call, n_steps in loops:
            found = blocks(call, n_steps, uuid, Path(folder) / name, n_pairs)
            figures += attached_figures(name, found, n_steps)
    return figures


class LoopTime(NamedTuple):
    """One block of steps.

    Attributes:
        wall_s: from the first step to the end of the last, s.
        cpu_s: CPU time of this process over it, all threads, s.
        energy_j: that the GPU drew over it, by its counter; None where it could not be told.
    """

    wall_s: float
    cpu_s: float
    energy_j: float | None


def blocks(
    step: Callable[[], torch.Tensor], n_steps: int, uuid: str, folder: Path, n_pairs: int
) -> dict[str, list[LoopTime]]:
    """Run blocks of a loop in turns, with ecorl around it and without.

    Args:
        step: one step, on `LOOPED` tokens; what it returns can be read.
        n_steps: steps of a block.
        uuid: of the GPU.
        folder: with whose name those of the attached blocks' records begin.
        n_pairs: blocks of each arm.
    """
    config = Config(name="overhead", telemetry=TelemetryConfig(gpu=NvmlSourceConfig()))

    def block(arm: str, number: int | str) -> tuple[float, float, float]:
        if arm == PLAIN:
            return _timed(step, n_steps, lambda loss: None)
        run_dir, n_tokens = folder.with_name(f"{folder.name}-{number}"), LOOPED[0] * LOOPED[1]
        with measured_run(config, run_dir=run_dir, overwrite=True) as run:
            return _timed(step, n_steps, lambda loss: run.step(n_tokens=n_tokens, loss=loss))

    for arm in (PLAIN, ATTACHED):  # what is done once belongs to no block
        block(arm, "warm")
    spans, points = in_turns(block, uuid, n_pairs, COUNTER_S)
    return {
        arm: [LoopTime(end_s - start_s, cpu_s, counted_energy(points, start_s, end_s))
              for start_s, end_s, cpu_s in found]
        for arm, found in spans.items()
    }  # fmt: skip


def _timed(
    step: Callable[[], torch.Tensor], n_steps: int, after: Callable[[float], object]
) -> tuple[float, float, float]:
    """Begin, end and CPU time of one block, s."""
    # The first step is not timed: an attached loop has opened its record and its sampler just now.
    after(step().item())
    start_s, cpu_s = time.monotonic(), time.process_time()
    for _ in range(n_steps):
        after(step().item())
    return start_s, time.monotonic(), time.process_time() - cpu_s


def attached_figures(
    name: str, found: Mapping[str, Sequence[LoopTime]], n_steps: int
) -> list[Figure]:
    """What ecorl around a loop costs: ratios of paired blocks.

    Args:
        name: of the loop.
        found: its blocks by arm.
        n_steps: steps of a block.
    """
    stem, words = "gpu_stages.attached.{loop}.", {"loop": name, "n_steps": n_steps}
    attached, plain = found[ATTACHED], found[PLAIN]
    pairs_s = [(a.wall_s, p.wall_s) for a, p in zip(attached, plain, strict=True)]
    return [
        FIGURES.median(stem + "plain_step_s", [p / n_steps for _, p in pairs_s], words=words),
        FIGURES.median(stem + "extra_s", [(a - p) / n_steps for a, p in pairs_s], words=words),
        *(
            FIGURES.ratio(
                f"{stem}{kind}_ratio",
                [getattr(block, of) for block in attached],
                [getattr(block, of) for block in plain],
                words=words,
            )
            for kind, of in (("step", "wall_s"), ("cpu", "cpu_s"), ("energy", "energy_j"))
        ),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(BENCHMARK, measure))
