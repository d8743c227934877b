"""What ecorl's sampler takes of a processor core, and how true its joules are, on a real GPU.

Each figure stands twice: as ecorl samples now, where an energy counter that is slow to read is read
once a second and at the edges of stages, and as it did before, with every reading of power.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

from benchmarks.gpu.loads.bursts import Burner
from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.meter import CpuShare, EnergyMeter, Window, window_facts
from benchmarks.gpu.sensing.tracer import COUNTER, Tracer
from benchmarks.gpu.sensing.traces import counted_energy
from benchmarks.harness.figures import Figure
from benchmarks.harness.table import FigureTable
from ecorl.records import StageEnergy

FIGURES = FigureTable("gpu_sampling")
IDLE_S, WINDOW_S, FINE_S = 2.0, 4.0, 0.02
KNOWN_S, STARTS_S = 0.6, 3.0
"""Time until a slow counter is known as one, and until an arm's processes are started and ended,
s."""

REHEARSED_S = 0.4
"""Length of all windows in a rehearsal, s."""

SIDE, REHEARSED_SIDE = 4096, 32
"""Side of the load's square products."""


class Arm(Enum):
    """How often a slow energy counter is read."""

    NOW, BEFORE = "now", "before"

    def meter(self, synchronize: Callable[[], None]) -> EnergyMeter:
        """Make a meter that reads a slow counter so often.

        Args:
            synchronize: as of `EnergyMeter`.
        """
        interval_s = 1.0 if self is Arm.NOW else 0.0  # 0: with each reading of power
        return EnergyMeter(synchronize, counter_interval_s=interval_s)


def errors_of(energy: StageEnergy, truth_j: float | None) -> dict[str, float | None]:
    """Share by which counter and integral of a window lie above the truth, None where not known.

    Args:
        energy: of the window.
        truth_j: what was drawn over it, J.
    """
    energies_j = {"counter": energy.counter_energy_j, "integral": energy.integral_energy_j}
    return {
        kind: None if energy_j is None or not truth_j else energy_j / truth_j - 1.0
        for kind, energy_j in energies_j.items()
    }


def measure(setting: Setting) -> Measured:
    """Measure both arms, idle and beside a load whose power always changes.

    Args:
        setting: where and for how long.
    """
    idle_s, window_s = (REHEARSED_S,) * 2 if setting.is_rehearsal else (IDLE_S, WINDOW_S)
    burner = Burner(setting.device, REHEARSED_SIDE if setting.is_rehearsal else SIDE)
    burner.calibrate(0.3)
    figures: list[Figure] = []
    config: dict[str, object] = {"window_s": window_s, "idle_s": idle_s, "fine_s": FINE_S}
    for arm in Arm:
        if setting.has_room(idle_s + window_s + STARTS_S):
            how = "with each reading" if arm is Arm.BEFORE else "once a second if it is slow"
            setting.tell(f"the counter is read {how}")
            config[arm.value], made = _arm(setting, burner, arm, (idle_s, window_s))
            figures += made
        else:
            figures += FIGURES.all_missing(FIGURES.rows(), "no time left", arm=arm.value)
    return config, figures


def _arm(
    setting: Setting, burner: Burner, arm: Arm, lengths_s: tuple[float, float]
) -> tuple[dict[str, object], list[Figure]]:
    """Facts and figures of one arm: an idle window, and one beside a load."""
    idle_s, window_s = lengths_s
    with arm.meter(setting.synchronize) as meter:
        time.sleep(KNOWN_S)
        clock = CpuShare(meter.sampler.pid)
        idle = meter.idle(idle_s)
        shares = {"idle": clock.share()}
        clock = CpuShare(meter.sampler.pid)
        loaded, errors = _loaded(meter, burner, window_s)
        shares["loaded"] = clock.share()
    words = {"arm": arm.value, "window_s": window_s}
    figures = [
        FIGURES.figure(f"gpu_sampling.{{arm}}.cpu_share_{load}", share, words=words)
        for load, share in shares.items()
    ]
    figures += [
        FIGURES.median(f"gpu_sampling.{{arm}}.{kind}_error", [error], words=words)
        for kind, error in errors.items()
    ]
    return {**window_facts([idle, loaded]), "errors": errors}, figures


def _loaded(
    meter: EnergyMeter, burner: Burner, length_s: float
) -> tuple[Window, dict[str, float | None]]:
    """A window of bursts, and how far its two energies lie from a counter that is read closely."""
    with Tracer(meter.device.uuid, (), FINE_S) as tracer:
        time.sleep(0.3)  # the counter has changed before the window begins
        window = meter.once(lambda: burner.restless(length_s))
        time.sleep(0.3)
    energy = window.energy
    truth_j = counted_energy(tracer.trace.points[COUNTER], energy.t_start_s, energy.t_end_s)
    return window, errors_of(energy, truth_j)
