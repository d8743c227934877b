"""What does FP8 save on a real NVIDIA GPU, in a training step and in its matrix products alone?

A step of a 1 B-class Llama of random weights in ecorl's gears (eager), the same with compiled
layers, and the matrix products of a layer alone: time and joules over those of BF16. Each figure
says which it is. Nothing is set on the GPU. Not part of `make bench`: it needs a GPU with FP8 units
that nothing else uses, torchao, and some five minutes.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import asdict

import torch

from benchmarks.gpu.figures import gear_figures, power_figure, window_facts
from benchmarks.gpu.loads.gears import Call, GearedStep, GearLoad, compiled_load, product_loads
from benchmarks.gpu.loads.llama import Llama
from benchmarks.gpu.run.parts import NO_CUDA
from benchmarks.gpu.sensing.meter import EnergyMeter, Window
from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure
from ecorl.control import Gear
from ecorl.devices.llama import model_shape
from ecorl.errors import MissingToolError
from ecorl.records import ModelShape
from ecorl.trainer.gears.formats import computes_fp8

BENCHMARK = "gpu_gears"
SIZE = "1b"
REPETITIONS, LENGTH_S, QUICK_LENGTH_S = 3, 3.0, 1.0
SHAPES = ((8, 512), (16, 1024))
"""Rows and length of a step. FP32 is measured at the first alone: it is an order slower."""

Measured = list[tuple[GearLoad, list[Window]]]


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    with EnergyMeter(torch.cuda.synchronize) as meter:
        if not torch.cuda.is_available():
            raise MissingToolError(NO_CUDA)
        device, shape = torch.device("cuda"), model_shape(SIZE)
        if not computes_fp8(device):
            raise MissingToolError(f"{meter.device.name} has no units for FP8: nothing to measure")
        length_s = QUICK_LENGTH_S if options.quick else LENGTH_S
        shapes = SHAPES[:1] if options.quick else SHAPES
        torch.empty(1, device=device)
        idle = power_figure(f"{BENCHMARK}.idle_before_w", meter.idle(length_s),
                            "a CUDA context is there, nothing runs")  # fmt: skip

        def take(load: GearLoad, call: Call) -> tuple[GearLoad, list[Window]]:
            return load, meter.measure(call, n_repetitions=REPETITIONS, length_s=length_s)

        measured: Measured = [take(*one) for one in product_loads(shape, device)]
        geared = GearedStep(_model(shape, device), (Gear.BF16, Gear.FP16, Gear.FP8), shapes)
        measured.append(take(*geared.load(shapes[0], Gear.FP32)))
        for one in shapes:
            gears = (Gear.BF16, Gear.FP16, Gear.FP8) if one == shapes[0] else (Gear.BF16, Gear.FP8)
            measured += [take(*geared.load(one, gear)) for gear in gears]
        del geared
        for gear in (Gear.BF16, Gear.FP8):
            for one in shapes:
                _free()
                measured.append(take(*compiled_load(_model(shape, device), one, gear)))
        config = {
            "gpu": meter.device.name,
            "driver": meter.driver.version(),
            "power_limit_w": meter.driver.power_limits(meter.device).enforced_w,
            "torch": torch.__version__,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "model": {"size": SIZE, **asdict(shape), "weights": "random"},
            "repetitions": REPETITIONS,
            "window_s": length_s,
            "loads": {
                f"{load.name}.{load.gear.lower()}": {"how": load.how, **window_facts(windows)}
                for load, windows in measured
            },
        }
    return config, [idle, *gear_figures(BENCHMARK, measured)]


def _model(shape: ModelShape, device: torch.device) -> Llama:
    longest = max(length for _, length in SHAPES)
    return Llama(shape, longest + 1, device=device, dtype=torch.float32)


def _free() -> None:
    """Give back what the model before held, and forget what was compiled for its sizes."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(run_benchmark(BENCHMARK, measure))
