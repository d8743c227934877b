"""What does ecorl's sampler take of a processor core, and how true is the energy of 5 s with it?

On a stand-in for NVML whose truth is known and whose calls keep the processor busy as long as those
of real GPUs do: an H100's energy counter takes 2.4 to 3.7 ms a call (``benchmarks/results/
nvidia-h100-80gb-hbm3/nvml.json``); one that answers at once is taken to need 0.02 ms. Two samplers
run beside each other:
as ecorl samples now, and with a counter that is read with every power reading, as it did before.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gpu.sampling import Arm, errors_of
from benchmarks.gpu.sensing.meter import CpuShare
from benchmarks.harness import Figure, FigureTable, run_benchmark
from tests.fakes.nvml.fake_nvml import CONTROL, FakeNvml, build, true_energy_j

FIGURES = FigureTable("sampler")

POWER_CALLS = (
    "burn_us nvmlDeviceGetFieldValues 60 80 130",
    "burn_us nvmlDeviceGetUtilizationRates 10 15 30",
)
DEVICES = {
    "slow": (*POWER_CALLS, "burn_us nvmlDeviceGetTotalEnergyConsumption 3720 11900 29700"),
    "fast": (*POWER_CALLS, "burn_us nvmlDeviceGetTotalEnergyConsumption 20 30 60"),
}
"""Times of NVML's calls, us: usual, in 9 of 100 calls, in one: an H100's counter beside a load; and
one that answers at once, which is assumed."""

WAVES_S = {"fast": 0.2, "slow": 3.1}
"""Periods of the load, s: four times shorter than a second, and some seconds as stages are."""

WINDOW_S, GAP_S = 5.0, 0.4
KNOWN_S = 1.0
"""Time from a sampler's start until it knows whether the counter is slow, s."""

FULL, QUICK = (10, 20.0), (2, 4.0)
"""Windows of each wave, and the time over which a share of a core is taken, s."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    n_windows, share_s = QUICK if options.quick else FULL
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-sampler-") as folder:
        fake = _fake(Path(folder))
        for device, burns in DEVICES.items():
            fake.set("devices 1", "refresh_ms 100", *burns)
            for arm in Arm:
                with arm.meter(lambda: None) as meter:
                    time.sleep(KNOWN_S)
                    clock = CpuShare(meter.sampler.pid)
                    time.sleep(share_s)
                    share = clock.share()
                key = "sampler.{device}.{arm}.cpu_share"
                figures.append(FIGURES.figure(key, share, device=device, arm=arm.value))
            for wave, period_s in WAVES_S.items():
                fake.set("devices 1", "refresh_ms 100", f"period_ms {1e3 * period_s}", *burns)
                figures += _error_figures(f"{device}.wave_{wave}", period_s, n_windows)
    config = {"window_s": WINDOW_S, "windows": n_windows, "waves_s": WAVES_S, "calls": DEVICES}
    return config, figures


def _fake(folder: Path) -> FakeNvml:
    """The stand-in, for this process and those that it starts."""
    fake = FakeNvml(build(folder / "library"), folder / "nvml.control")
    fake.set()
    os.environ.update(fake.child_environment())
    os.environ[CONTROL] = str(fake.control)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    ctypes.CDLL(str(fake.library))
    return fake


def _error_figures(name: str, period_s: float, n_windows: int) -> list[Figure]:
    """Errors of both arms over the same windows, by the counter and by the integral."""
    chance = random.Random(0)
    errors: dict[tuple[str, str], list[float | None]] = {}
    with ExitStack() as stack:
        meters = {arm: stack.enter_context(arm.meter(lambda: None)) for arm in Arm}
        time.sleep(KNOWN_S)
        for _ in range(n_windows):
            time.sleep(GAP_S + chance.uniform(0.0, 0.2))
            start_s = meters[Arm.NOW].edge_s()
            time.sleep(WINDOW_S)
            end_s = meters[Arm.NOW].edge_s()
            truth_j = true_energy_j(end_s, 0, period_s) - true_energy_j(start_s, 0, period_s)
            for arm, meter in meters.items():
                for kind, error in errors_of(meter.energy(start_s, end_s), truth_j).items():
                    known = None if error is None else abs(error)
                    errors.setdefault((arm.value, kind), []).append(known)
    key, words = "sampler.{load}.{arm}.{kind}_error", {"load": name, "window_s": WINDOW_S}
    return [
        FIGURES.median(key, values, words=words, arm=arm, kind=kind)
        for (arm, kind), values in errors.items()
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark("sampler", measure))
