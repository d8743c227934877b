"""What ecorl's sampler takes of a processor core, and how true its joules are, on a real GPU.

Each figure stands twice: as ecorl samples now, where an energy counter that is slow to read is read
once a second and at the edges of stages, and as it did before, with every reading of power.
"""

from __future__ import annotations

import time
from enum import Enum

import psutil

from benchmarks.gpu.figures import figure, window_facts
from benchmarks.gpu.loads.bursts import Burner
from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.meter import EnergyMeter, Window
from benchmarks.gpu.sensing.tracer import COUNTER, Order, Tracer
from benchmarks.gpu.sensing.traces import counted_energy
from benchmarks.harness.figures import Figure, Target, missing
from ecorl.records import Provenance

BENCHMARK = "gpu_sampling"
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

    @property
    def counter_interval_s(self) -> float:
        """Shortest time between two readings of a slow counter, s; 0: with each of power."""
        return 1.0 if self is Arm.NOW else 0.0


class CpuShare:
    """CPU time of a process over wall-clock, from its making on.

    Args:
        pid: of the process; None where there is none.
    """

    def __init__(self, pid: int | None) -> None:
        self._process = None if pid is None else psutil.Process(pid)
        self._start_s, self._cpu_s = time.monotonic(), self._now_s()

    def share(self) -> float | None:
        """Share of one core so far; None where the process was not there all the time."""
        now_s = self._now_s()
        if now_s is None or self._cpu_s is None:
            return None
        return (now_s - self._cpu_s) / (time.monotonic() - self._start_s)

    def _now_s(self) -> float | None:
        if self._process is None:
            return None
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return None
        return float(times.user + times.system)


def share_figure(
    id: str, share: float | None, target: Target | None, provenance: Provenance
) -> Figure:
    """Make the figure of a share of a core.

    Args:
        id: of the figure.
        share: 0 to 1; None where it is not known.
        target: that it should meet; None for none.
        provenance: of the NVML calls that were paid for.
    """
    if share is None:
        return missing(id, "1", "the sampling process was not there all the time", target)
    note = "CPU time of the sampling process over wall-clock, of one core"
    return Figure(id, share, "1", provenance, target=target, note=note)


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
            names = ("cpu_share_idle", "cpu_share_loaded", "counter_error", "integral_error")
            figures += [missing(f"{BENCHMARK}.{arm.value}.{name}", "1", "no time left")
                        for name in names]  # fmt: skip
    return config, figures


def _arm(
    setting: Setting, burner: Burner, arm: Arm, lengths_s: tuple[float, float]
) -> tuple[dict[str, object], list[Figure]]:
    """Facts and figures of one arm: an idle window, and one beside a load."""
    stem, (idle_s, window_s) = f"{BENCHMARK}.{arm.value}", lengths_s
    with EnergyMeter(setting.synchronize, counter_interval_s=arm.counter_interval_s) as meter:
        time.sleep(KNOWN_S)
        clock = CpuShare(meter.sampler.pid)
        idle = meter.idle(idle_s)
        shares = {"idle": clock.share()}
        clock = CpuShare(meter.sampler.pid)
        loaded, errors = _loaded(meter, burner, window_s)
        shares["loaded"] = clock.share()
    figures = [
        share_figure(f"{stem}.cpu_share_{load}", share, None, Provenance.MEASURED)
        for load, share in shares.items()
    ]
    note = f"energy of {window_s:g} s of random bursts over that of a counter read closely, less 1"
    figures += [figure(f"{stem}.{kind}_error", [error], "1", note)
                for kind, error in errors.items()]  # fmt: skip
    return {**window_facts([idle, loaded]), "errors": errors}, figures


def _loaded(
    meter: EnergyMeter, burner: Burner, length_s: float
) -> tuple[Window, dict[str, float | None]]:
    """A window of bursts, and how far its two energies lie from a counter that is read closely."""
    with Tracer(Order(meter.device.uuid, (), FINE_S)) as tracer:
        time.sleep(0.3)  # the counter has changed before the window begins
        window = meter.once(lambda: burner.restless(length_s))
        time.sleep(0.3)
    energy = window.energy
    truth_j = counted_energy(tracer.trace.points[COUNTER], energy.t_start_s, energy.t_end_s)

    def error(energy_j: float | None) -> float | None:
        return None if energy_j is None or not truth_j else energy_j / truth_j - 1.0

    return window, {
        "counter": error(energy.counter_energy_j),
        "integral": error(energy.integral_energy_j),
    }
