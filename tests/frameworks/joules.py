"""Whether a run's record gives each joule to one execution at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.ledger import LedgerReader


@dataclass(frozen=True)
class Meter:
    """Devices of one attempt that executions hold together, and what each drew by when."""

    curves: list[tuple[np.ndarray, np.ndarray]]

    def drawn_j(self, start_s: float, end_s: float) -> float:
        return sum(float(np.diff(np.interp([start_s, end_s], *c))[0]) for c in self.curves)

    @property
    def all_j(self) -> float:
        return sum(float(energy_j[-1] - energy_j[0]) for _, energy_j in self.curves)

    @property
    def blur_j(self) -> float:
        """What a border of a window may be off by: the most that is drawn between two readings."""
        return sum(float(np.diff(energy_j).max()) for _, energy_j in self.curves)


def read_curves(reader: LedgerReader) -> dict[tuple[int, str], tuple[np.ndarray, np.ndarray]]:
    """Joules that each device has drawn by each time, by attempt and device."""
    samples = defaultdict(list)
    for row in reader.raw_samples():
        if row.error is None:
            samples[row.attempt, row.device_id].append(row)
    found = {}
    for key, rows in samples.items():
        times = np.array([row.t_s for row in rows])
        if all(row.energy_j is not None for row in rows):
            energies = np.array([row.energy_j for row in rows], dtype=float)
        else:
            powers = np.array([row.power_w or 0.0 for row in rows])
            energies = np.concatenate([[0.0], np.cumsum(powers[:-1] * np.diff(times))])
        if len(rows) > 1:
            found[key] = (times, energies)
    return found


def together(groups: Sequence[tuple[str, ...]]) -> list[set[str]]:
    """Join groups of devices that share one."""
    found: list[set[str]] = []
    for group in groups:
        apart = [other for other in found if other.isdisjoint(group)]
        found = [*apart, set(group).union(*(o for o in found if not o.isdisjoint(group)))]
    return found


def union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans):
        if found and start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(end_s, found[-1][1]))
        else:
            found.append((start_s, end_s))
    return found


def assert_counted_once(reader: LedgerReader) -> None:
    """No joule belongs to two executions, and none to one that its devices did not draw."""
    curves = read_curves(reader)
    energies = defaultdict(list)
    for row in reader.executions():
        energy = row.result.energy
        if energy is not None and energy.energy_j is not None:
            energies[row.attempt].append(energy)
    assert energies
    n_metered = 0
    for attempt, own in energies.items():
        for devices in together([energy.device_ids for energy in own]):
            if any((attempt, device) not in curves for device in devices):
                continue  # an engine's own report, or a simulated card: nothing reads it
            n_metered += 1
            meter = Meter([curves[attempt, device] for device in devices])
            held = [energy for energy in own if not devices.isdisjoint(energy.device_ids)]
            used_j = sum(energy.energy_j for energy in held)
            spans = union([(energy.t_start_s, energy.t_end_s) for energy in held])
            within_j = sum(meter.drawn_j(*span) for span in spans)
            assert used_j <= 1.02 * within_j + 2 * len(spans) * meter.blur_j, devices
            assert used_j <= 1.02 * meter.all_j + 2 * meter.blur_j, devices
    assert n_metered
