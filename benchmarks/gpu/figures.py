"""Figures of measured loads: joules, watts and tokens of stages, ratios of formats and of arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.gpu.attached import ATTACHED, PLAIN, LoopTime, ratios
from benchmarks.gpu.loads.gears import GearLoad
from benchmarks.gpu.loads.stages import Workload
from benchmarks.gpu.sensing.meter import Window
from benchmarks.harness.figures import Figure, missing
from ecorl.bench.rounds import round_ratios
from ecorl.bench.stats import median, spread_of
from ecorl.control import Gear
from ecorl.devices import check_execution, titled_profile
from ecorl.edi import EdiMatrix, edi_from_energy
from ecorl.errors import PhysicalBoundError
from ecorl.records import EdiReading, Provenance

MEASURED = Provenance.MEASURED

STAGE_UNITS = {"j_per_token": "J/token", "power_w": "W", "tokens_per_s": "token/s",
               "tokens_per_j": "token/J", "edi_j_per_token": "J/token"}  # fmt: skip
"""Figures of each workload of a stage, with their units."""


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that are there.

    Args:
        values: with None for a missing one.
    """
    return [value for value in values if value is not None]


def figure(
    id: str,
    values: Sequence[float | None],
    unit: str,
    note: str,
    provenance: Provenance = MEASURED,
) -> Figure:
    """Make a figure of repetitions: their median and spread; missing where one is missing.

    Args:
        id: of the figure.
        values: one a repetition.
        unit: of the values.
        note: what was measured.
        provenance: of the values.
    """
    kept = known(values)
    if not kept or len(kept) < len(values):
        return missing(id, unit, "the energy of a repetition is not known" if values else "not run")
    return Figure(id, median(kept), unit, provenance, spread_of(kept), note=note)


def window_facts(windows: Sequence[Window]) -> dict[str, object]:
    """Describe how windows were measured, for the settings of a result.

    Args:
        windows: repetitions of one load.
    """
    states = [w.state for w in windows if w.state is not None]
    clocks = known([s.sm_clock_hz for s in states])
    return {
        "windows_s": [round(w.time_s, 4) for w in windows],
        "spans_s": [[w.energy.t_start_s, w.energy.t_end_s] for w in windows],
        "calls": [w.n_calls for w in windows],
        "energy_j": [w.energy_j for w in windows],
        "method": sorted({str(w.energy.method) for w in windows}),
        "integral_over_counter": [w.gap_share for w in windows],
        "sm_clock_hz": clocks,
        "temperature_c": known([s.temperature_c for s in states]),
        "clock_event_reasons": [s.clock_event_reasons for s in states],
    }


def power_figure(id: str, window: Window, note: str) -> Figure:
    """Mean power over one window.

    Args:
        id: of the figure.
        window: e.g. of an idle GPU.
        note: what was measured.
    """
    if window.power_w is None:
        return missing(id, "W", "the energy of the window is not known")
    spread = {"window_s": window.time_s, "integral_over_counter": window.gap_share}
    return Figure(id, window.power_w, "W", MEASURED, spread, note=note)


class StageFigures:
    """Collects the figures of stages, and their cells of the EDI matrix.

    Args:
        benchmark: with which the ids begin.
        gpu_name: as NVML writes it.

    Attributes:
        figures: so far.
        edi: joules per output token by stage and batch; the batch is the variant.
        refused: why a figure was refused, by workload.
    """

    def __init__(self, benchmark: str, gpu_name: str) -> None:
        self._benchmark, self._profile = benchmark, titled_profile(gpu_name)
        self._device = gpu_name if self._profile is None else self._profile.name
        self.figures: list[Figure] = []
        # All readings count alike: these are repetitions of one thing, not a course in time.
        self.edi = EdiMatrix(n_profiling=10**6)
        self.refused: dict[str, str] = {}

    def add(self, workload: Workload, windows: Sequence[Window]) -> None:
        """Make the figures of a workload.

        Args:
            workload: what was measured.
            windows: its repetitions.
        """
        why = self._refusal(workload, windows)
        if why is not None:
            self.refused[workload.name] = why
            self.leave_out(workload.name, why)
            return
        tokens = [w.n_calls * workload.n_counted for w in windows]
        per_token = [edi_from_energy(w.energy_j, n) for w, n in zip(windows, tokens, strict=True)]
        values: dict[str, Sequence[float | None]] = {
            "j_per_token": per_token,
            "power_w": [w.power_w for w in windows],
            "tokens_per_s": [n / w.time_s for w, n in zip(windows, tokens, strict=True)],
            "tokens_per_j": [None if not j else 1.0 / j for j in per_token],
            "edi_j_per_token": self._edi(workload, windows),
        }
        counted = "new tokens" if workload.n_counted == workload.work.n_output_tokens else "tokens"
        for name, unit in STAGE_UNITS.items():
            tail = "per completion token" if name.startswith("edi") else f"{counted} counted"
            note = f"{workload.how}; {tail}; idle power included"
            id = f"{self._benchmark}.{workload.name}.{name}"
            self.figures.append(figure(id, values[name], unit, note))

    def leave_out(self, workload: str, why: str) -> None:
        """Make the figures of a workload missing.

        Args:
            workload: its name.
            why: the reason.
        """
        self.figures += [
            missing(f"{self._benchmark}.{workload}.{name}", unit, why)
            for name, unit in STAGE_UNITS.items()
        ]

    def _edi(self, workload: Workload, windows: Sequence[Window]) -> list[float | None]:
        found: list[float | None] = []
        for window in windows:
            n_out = window.n_calls * workload.work.n_output_tokens
            value = edi_from_energy(window.energy_j, n_out)
            found.append(value)
            self.edi.update(
                EdiReading(
                    workload.work.stage, self._device, window.energy_j, n_out, value, MEASURED,
                    window.time_s, variant=workload.name,
                )
            )  # fmt: skip
        return found

    def _refusal(self, workload: Workload, windows: Sequence[Window]) -> str | None:
        """Why the figures cannot be true, or None."""
        if self._profile is None:
            return None
        for window in windows:
            try:
                # Energy is not held against the limit here: what a board draws may pass its limit
                # by a little, and that is a finding.
                check_execution(
                    self._profile, workload.work, window.time_s / window.n_calls, None, MEASURED
                )
            except PhysicalBoundError as error:
                return str(error)
        return None


def gear_figures(
    benchmark: str, measured: Sequence[tuple[GearLoad, Sequence[Window]]], base: Gear = Gear.BF16
) -> list[Figure]:
    """Figures of each load in each format, and its ratios to the same load in another.

    Args:
        benchmark: with which the ids begin.
        measured: loads with their repetitions.
        base: the format to which ratios are taken, window by window.
    """
    figures: list[Figure] = []
    bases = {load.name: (load, windows) for load, windows in measured if load.gear is base}
    for load, windows in measured:
        stem = f"{benchmark}.{load.name}.{load.gear.lower()}"
        call_s, call_j = _per_call(windows)
        per_token = [None if j is None else j / load.n_tokens for j in call_j]
        figures += [
            figure(f"{stem}.call_s", call_s, "s", f"{load.how}; one call"),
            figure(f"{stem}.j_per_token", per_token, "J/token", load.how),
            figure(f"{stem}.power_w", [w.power_w for w in windows], "W", load.how),
        ]
        if load.gear is base or load.name not in bases:
            continue
        base_s, base_j = _per_call(bases[load.name][1])
        note = f"{load.how}; {load.gear} over {base}, repetition by repetition"
        figures.append(figure(f"{stem}.time_ratio", round_ratios(known(call_s), known(base_s)),
                              "1", note))  # fmt: skip
        energies = known(call_j), known(base_j)
        if len(energies[0]) == len(energies[1]) == len(call_j):
            figures.append(figure(f"{stem}.energy_ratio", round_ratios(*energies), "1", note))
        else:
            figures.append(missing(f"{stem}.energy_ratio", "1", "an energy is not known"))
    return figures


def _per_call(windows: Sequence[Window]) -> tuple[list[float | None], list[float | None]]:
    """Time, s, and energy, J, of one call, by repetition."""
    times: list[float | None] = [w.time_s / w.n_calls for w in windows]
    return times, [None if w.energy_j is None else w.energy_j / w.n_calls for w in windows]


def attached_figures(
    benchmark: str, name: str, found: Mapping[str, Sequence[LoopTime]], n_steps: int
) -> list[Figure]:
    """What ecorl around a loop costs: ratios of paired blocks.

    Args:
        benchmark: with which the ids begin.
        name: of the loop.
        found: its blocks by arm.
        n_steps: steps of a block.
    """
    stem = f"{benchmark}.attached.{name}"
    arms: dict[str, Callable[[LoopTime], float | None]] = {
        "step_ratio": lambda b: b.wall_s,
        "cpu_ratio": lambda b: b.cpu_s,
        "energy_ratio": lambda b: b.energy_j,
    }
    figures = []
    for kind, of in arms.items():
        note = f"attached over plain, blocks of {n_steps} steps in turns, median of the pairs"
        values: list[float | None] = list(ratios(found, of))
        if len(values) < len(found[PLAIN]):
            values.append(None)
        figures.append(figure(f"{stem}.{kind}", values, "1", note))
    plain_s = [b.wall_s / n_steps for b in found[PLAIN]]
    extra_s = [(a.wall_s - p.wall_s) / n_steps
               for a, p in zip(found[ATTACHED], found[PLAIN], strict=True)]  # fmt: skip
    return [
        figure(f"{stem}.plain_step_s", plain_s, "s", "mean step of a plain block"),
        figure(f"{stem}.extra_s", extra_s, "s", "attached less plain, a step, by pairs"),
        *figures,
    ]
