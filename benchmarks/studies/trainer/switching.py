"""How much longer than other steps of its gear the first one after a switch takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.studies.trainer.geared_steps import GearedSteps
from benchmarks.studies.trainer.language_model import Batches, small_llama
from ecorl.bench.rounds import TimeBox
from ecorl.control import Gear
from ecorl.trainer.optimizer.adamw import PrecisionAdaptiveAdamW

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
        return statistics.median(self.extra_s)


def switch_times(
    box_s: float,
    n_switches: int = N_SWITCHES,
    pairs: Sequence[tuple[Gear, Gear]] = PAIRS,
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


class _StepTime(NamedTuple):
    """What a step took, s."""

    wall_s: float
    cpu_s: float


def _of_pair(pair: tuple[Gear, Gear], box: TimeBox, n_switches: int) -> SwitchTimes:
    torch.set_num_threads(1)
    model, batches = small_llama(seed=0), Batches(seed=1, n_rows=N_ROWS)
    optimizer = PrecisionAdaptiveAdamW(model.parameters(), foreach=True)
    steps = GearedSteps(model, optimizer, pair)

    def timed(gear: Gear) -> _StepTime:
        rows = batches.next()
        start_s, cpu_s = time.perf_counter(), time.process_time()
        steps.gradients(rows, gear)
        steps.update()
        return _StepTime(time.perf_counter() - start_s, time.process_time() - cpu_s)

    # What is made once in a run, as the optimizer's moments, belongs to no switch.
    for gear in pair + pair:
        timed(gear)
    first: list[tuple[Gear, _StepTime]] = []
    others: dict[Gear, list[_StepTime]] = {gear: [] for gear in pair}
    for number in range(n_switches):
        if number >= 2 and not box.has_room():
            break
        gear = pair[number % 2]  # the one before was the other
        first.append((gear, timed(gear)))
        others[gear] += [timed(gear) for _ in range(STEPS_BETWEEN - 1)]
    middles = {
        gear: _StepTime(*(statistics.median(times) for times in zip(*found, strict=True)))
        for gear, found in others.items()
    }
    return SwitchTimes(
        gears=pair,
        extra_s=tuple(one.wall_s - middles[gear].wall_s for gear, one in first),
        cpu_s=tuple(one.cpu_s - middles[gear].cpu_s for gear, one in first),
        step_s=(middles[pair[0]].wall_s, middles[pair[1]].wall_s),
    )
