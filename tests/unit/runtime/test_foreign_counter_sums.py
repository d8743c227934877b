"""Sums of a run that an energy counter has told which is found not to be its device's."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from ecorl.records import PowerSample, Provenance
from ecorl.runtime.monitor import NodeMonitor
from ecorl.telemetry.history import PowerHistory

POWER_W, FACTOR = 500.0, 1.7


@pytest.fixture
def monitor():
    """A monitor of one GPU, without a ledger and a sampler of its own."""
    made = NodeMonitor.__new__(NodeMonitor)
    history = PowerHistory(2.0)
    made._lock, made._meters = threading.Lock(), {}
    made.accounts = SimpleNamespace(take_free=lambda *spans: [])
    made.sampler = SimpleNamespace(
        history=history,
        devices=[SimpleNamespace(device_id="gpu0")],
        watermark_s=history.watermark_s,
    )
    return made


def read(monitor, begin_s, end_s, step_s=0.1):
    """Readings of a steady load, whose counter counts more than the GPU."""
    for i in range(round(begin_s / step_s), round(end_s / step_s)):
        energy_j = FACTOR * POWER_W * i * step_s
        sample = PowerSample(
            "gpu0", i * step_s, POWER_W, energy_j, None, Provenance.MEASURED, "nvml", None
        )
        monitor.sampler.history.add([sample])
        monitor._add_up()


@pytest.mark.parametrize("hole_s", [0.0, 6.0])
@pytest.mark.parametrize("found_s", [60.0, 5.0 * 3600])
def test_sums_are_scaled_by_the_power_readings_even_with_a_hole_in_them(monitor, hole_s, found_s):
    step_s = 0.1 if found_s < 100 else 1.0
    read(monitor, 0.0, found_s - 30, step_s)
    read(monitor, found_s - 30 + hole_s, found_s, step_s)
    meter = monitor._meters["gpu0"]
    assert meter.drawn_j == pytest.approx(FACTOR * POWER_W * found_s, rel=0.2)
    monitor.sampler.history.disown_counter("gpu0")
    read(monitor, found_s, found_s + 20, step_s)
    assert not meter.is_lost
    # The counter has bridged the hole.
    assert meter.drawn_j == pytest.approx(POWER_W * (found_s + 20), rel=0.02)
