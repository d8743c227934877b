"""How much longer than other steps of its gear the first one after a switch takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.harness import Figure, FigureTable
from benchmarks.studies.trainer.geared_steps import GearedSteps
from benchmarks.studies.trainer.language_model import Batches, small_llama
from ecorl.bench.rounds import TimeBox
from ecorl.bench.stats import median, spread_of
from ecorl.control import Gear
from ecorl.scheduler.tables import Float64
from ecorl.trainer.optimizer.adamw import PrecisionAdaptiveAdamW

FIGURES = FigureTable("trainer")

PAIRS = ((Gear.BF16, Gear.FP32), (Gear.BF16, Gear.FP8))
"""Gears between which is switched."""

N_SWITCHES = 50
"""Switches of each pair."""

STEPS_BETWEEN = 3
"""Steps from one switch to the next: the first one, and those that it is compared with."""


N_ROWS = 2
"""Rows of a step: short ones, so that the machine's noise is small beside a millisecond."""


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """What switching between two gears costs.

    Attributes:
        gears: the two.
        extra_s: of each switch, the time of the first step after it less its gear's median step, s.
        cpu_s: the same of CPU time, in which other processes of the machine show less, s.
        step_s: median time of the other steps by gear, s.
    """

    gears: tuple[Gear, Gear]
    extra_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    step_s: tuple[float, float]

    @property
    def median_s(self) -> float:
        """The median over all switches, s; negative where the machine's noise is larger."""
        return median(self.extra_s)

    @property
    def name(self) -> str:
        """The two gears."""
        return "-".join(map(str, self.gears))


def switch_times(
    box_s: float, n_switches: int = N_SWITCHES, pairs: Sequence[tuple[Gear, Gear]] = PAIRS
) -> list[SwitchTimes]:
    """Train the small model with switches after every few steps, and time all steps.

    Args:
        box_s: time for all pairs, s; each pair makes two switches at least.
        n_switches: of each pair, at most.
        pairs: gears between which is switched.
    """
    end_s, found = time.monotonic() + box_s, []
    for number, pair in enumerate(pairs):
        # A pair takes over what those before it have left.
        share_s = (end_s - time.monotonic()) / (len(pairs) - number)
        found.append(_of_pair(pair, TimeBox(share_s), n_switches))
    return found


def _of_pair(pair: tuple[Gear, Gear], box: TimeBox, n_switches: int) -> SwitchTimes:
    torch.set_num_threads(1)
    model, batches = small_llama(seed=0), Batches(seed=1, n_rows=N_ROWS)
    optimizer = PrecisionAdaptiveAdamW(model.parameters(), foreach=True)
    steps = GearedSteps(model, optimizer, pair)

    def timed(gear: Gear) -> Float64:
        """Wall-clock and CPU time of a step, s ``[2]``."""
        rows = batches.next()
        start_s = time.perf_counter(), time.process_time()
        steps.gradients(rows, gear)
        steps.update()
        return np.subtract([time.perf_counter(), time.process_time()], start_s)

    # What is made once in a run, as the optimizer's moments, belongs to no switch.
    for gear in pair + pair:
        timed(gear)
    first: list[tuple[Gear, Float64]] = []
    others: dict[Gear, list[Float64]] = {gear: [] for gear in pair}
    for number in range(n_switches):
        if number >= 2 and not box.has_room():
            break
        gear = pair[number % 2]  # the one before was the other
        first.append((gear, timed(gear)))
        others[gear] += [timed(gear) for _ in range(STEPS_BETWEEN - 1)]
    middles = {gear: np.median(found, axis=0) for gear, found in others.items()}
    extra_s, cpu_s = np.array([one - middles[gear] for gear, one in first]).T.tolist()
    step_s = (float(middles[pair[0]][0]), float(middles[pair[1]][0]))
    return SwitchTimes(pair, tuple(extra_s), tuple(cpu_s), step_s)


def switch_figure(found: Sequence[SwitchTimes]) -> Figure:
    """The time that a switch of gears adds to a step, of the worst pair of gears.

    Args:
        found: of each pair.
    """
    worst = max(found, key=lambda one: one.median_s)
    is_enough = all(len(one.extra_s) >= N_SWITCHES for one in found)
    told = "; ".join(
        f"{one.name} {1e3 * one.median_s:.2f} ms of {len(one.extra_s)} switches, CPU time "
        f"{1e3 * median(one.cpu_s):.2f} ms, steps of {1e3 * one.step_s[0]:.1f} and "
        f"{1e3 * one.step_s[1]:.1f} ms"
        for one in found
    )
    by_pair = {one.name: spread_of([1e3 * s for s in one.extra_s]) for one in found}
    id, ms = "trainer.gear_switch_ms", 1e3 * worst.median_s
    return FIGURES.figure(id, ms, by_pair, judged=is_enough, n_rows=N_ROWS, pairs=told)
