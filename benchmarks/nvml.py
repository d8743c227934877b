"""What do the power sensors of a real NVIDIA GPU tell, how late, and at what cost?

Counter against integral over loads of several lengths, refresh and lag of every instrument that
answers, the same work billed at several phases of the instruments' period, time of each call, CPU
time of ecorl's sampler, power of an idle GPU. Nothing is set on the GPU. Not part of `make bench`:
it needs a GPU that nothing else uses, for some five minutes.
"""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks.gpu.figures import power_figure, window_facts
from benchmarks.gpu.loads.bursts import Burner
from benchmarks.gpu.run.parts import NO_CUDA
from benchmarks.gpu.sensing import sensor_figures as made
from benchmarks.gpu.sensing.meter import EnergyMeter, Window
from benchmarks.gpu.sensing.sensors import (
    FULL,
    QUICK,
    CpuClock,
    Plan,
    cpu_use,
    lags,
    loads_by_length,
    periodic_loads,
    readings_alone,
    readings_under_load,
)
from benchmarks.gpu.sensing.tracer import COUNTER, readable
from benchmarks.gpu.sensing.traces import refresh_period
from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure
from ecorl.drivers.instruments import SCOPE_MEMORY, Instrument
from ecorl.errors import MissingToolError

DEFAULT_PERIOD_S = 0.1
"""Period of the first periodic load where the counter's own is not found, s."""


def _wait_for_gpu() -> None:
    # Asking torch to wait would make a context, and the idle power before one is of interest.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    plan = QUICK if options.quick else FULL
    with EnergyMeter(_wait_for_gpu) as meter:
        untouched = meter.idle(plan.idle_s)
        if not torch.cuda.is_available():
            raise MissingToolError(NO_CUDA)
        answers = readable(meter.driver, meter.device)
        instruments = tuple(i for i, a in answers.items() if not isinstance(a, str))
        limits = meter.driver.power_limits(meter.device)
        config: dict[str, object] = {
            "gpu": meter.device.name,
            "driver": meter.driver.version(),
            "torch": torch.__version__,
            "power_limit_w": limits.enforced_w,
            "mig_instances": len(meter.device.mig_uuids),
            "duty": plan.duty,
        }
        figures = made.answer_figures(answers)
        figures += _measured(meter, instruments, plan, config, untouched)
    return config, figures


def _measured(
    meter: EnergyMeter,
    instruments: tuple[Instrument, ...],
    plan: Plan,
    config: dict[str, object],
    untouched: Window,
) -> list[Figure]:
    # A memory's power is a part of the board's: it is timed and watched, never integrated.
    whole = tuple(i for i in instruments if i.scope != SCOPE_MEMORY)
    uuid = meter.device.uuid
    burner = Burner(torch.device("cuda"))
    burner.wait()
    with_context = meter.idle(plan.idle_s)
    figures = made.call_figures(
        readings_alone(uuid, instruments, plan.calls_s), "idle", "GPU idle, polled all the time"
    )
    burner.calibrate()
    loaded = readings_under_load(uuid, instruments, burner, plan.calls_s, is_costly=True)
    figures += made.call_figures(loaded, "loaded", "GPU under random bursts, polled all the time")
    restless = readings_under_load(uuid, instruments, burner, plan.restless_s)
    figures += made.refresh_figures(restless)
    figures += made.lag_figures(lags(uuid, instruments, burner, plan.steps))
    clock = CpuClock(meter.sampler.pid)
    figures += made.length_figures(loads_by_length(meter, whole, burner, plan))
    period_s = refresh_period(restless.points[COUNTER]) or DEFAULT_PERIOD_S
    while period_s < 0.05:  # bursts of a few milliseconds could not be kept to time
        period_s *= 2.0
    rows = periodic_loads(meter, whole, burner, plan, (period_s, *plan.periods_s))
    figures += made.phase_figures(rows)
    beside_loads, _ = clock.shares()
    burner.steady(2.0 * plan.idle_s)
    idle = {
        "before_context": (untouched, "no CUDA context of this process was ever there"),
        "with_context": (with_context, "a CUDA context is there and nothing runs"),
        "just_after_load": (meter.idle(plan.idle_s), "just after a steady load"),
        "later": (meter.idle(2.0 * plan.idle_s), "some seconds after a steady load"),
    }
    config["idle"] = {name: window_facts([window]) for name, (window, _) in idle.items()}
    for name, (window, note) in idle.items():
        figures.append(power_figure(f"{made.BENCHMARK}.idle.{name}_w", window, note))
    return figures + made.cpu_figures(cpu_use(meter, 2.0 * plan.idle_s), beside_loads)


if __name__ == "__main__":
    sys.exit(run_benchmark(made.BENCHMARK, measure))
