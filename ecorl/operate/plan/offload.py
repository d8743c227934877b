"""Whether a second device pays in a job, at which sizes it stops paying, and how many to have.

All of it is priced by one iteration of mean length on idle devices (`ecorl.operate.levers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ecorl.devices import cheapest, dearest
from ecorl.devices.llama import MODEL_SIZES
from ecorl.errors import ConfigError
from ecorl.operate.levers.placement import (
    PlacedStep,
    accelerators,
    best_placed,
    placed_steps,
)
from ecorl.operate.levers.step import PricedStep, StageLevels, priced_step
from ecorl.operate.plan.job import PlannedJob
from ecorl.records import Action, Stage
from ecorl.scheduler.tables import Setting
from ecorl.sim.scenario import Scenario

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROWS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Mean completions, tokens, and completions a step at which a device is tried."""

PAYS = 1e-3
"""Share of the energy from which on a device counts as paying: less than any model of it is worth.
Invented."""


@dataclass(frozen=True, slots=True)
class PricedPlacement:
    """One placement of the stages that may leave the GPUs.

    Attributes:
        actions: of the stages that leave.
        time_s: time of a step, s.
        energy_j: of GPUs and second devices, those that stand by included, J.
        bubble_s: time in which the GPUs wait, s.
    """

    actions: Mapping[Stage, Action]
    time_s: float
    energy_j: float
    bubble_s: float


@dataclass(frozen=True, slots=True)
class Scan:
    """Where a device pays along one size of the job, all else being as it is.

    Attributes:
        what: the size: ``length``, ``rows`` or ``inference_model``.
        saved: share of the energy that the best placement saves at each value that could be priced,
            by the value as it is shown; below 0 where every placement costs.
    """

    what: str
    saved: Mapping[str, float]

    @property
    def paying(self) -> tuple[str, ...]:
        """The values at which the device pays."""
        return tuple(value for value, share in self.saved.items() if share >= PAYS)


@dataclass(frozen=True, slots=True)
class OffloadAnswer:
    """What the second devices of a job are worth.

    Attributes:
        n: how many the job has.
        device: name of their profile.
        placements: every placement, the one of least energy first; none where they can run nothing.
        saved_share: energy that the best saves of that of the job without them; None likewise.
        low, high: the same with the figures of GPUs and second devices at the ends of their
            intervals, one against the other; None likewise.
        slowdown: time of the best over that of the job without them, less 1; None likewise.
        why_not: why they cannot run a stage; empty where they can run all.
        scans: where they would pay.
        by_number: energy that is saved with so many of them.
    """

    n: int
    device: str
    placements: Sequence[PricedPlacement]
    saved_share: float | None
    low: float | None
    high: float | None
    slowdown: float | None
    why_not: str
    scans: Sequence[Scan]
    by_number: Mapping[int, float]

    @property
    def pays(self) -> bool:
        """Whether the job takes less energy with the devices, by the figures as they are."""
        return self.saved_share is not None and self.saved_share >= PAYS

    @property
    def hangs_on_intervals(self) -> bool:
        """Whether they pay at one end of the figures' intervals and not at the other."""
        if self.low is None or self.high is None:
            return False
        return self.low < PAYS <= self.high

    @property
    def best_number(self) -> int:
        """How many devices save most; 0 where none saves anything."""
        paying = {n: share for n, share in self.by_number.items() if share >= PAYS}
        return max(paying, key=lambda n: (round(paying[n], 6), -n), default=0)


def offload_answer(
    job: PlannedJob,
    scenario: Scenario,
    step: PricedStep,
    adjust: Callable[[PricedStep], PricedStep] | None = None,
) -> OffloadAnswer:
    """Price the second devices of a job.

    Args:
        job: as it was asked about.
        scenario: the job in the simulator.
        step: on its GPUs alone.
        adjust: brought it there from what the model has priced; None: it is as priced.
    """
    setting = scenario.setting
    levels = None if adjust is None else step.levels_over(priced_step(setting, job.length))
    others = accelerators(setting, job.length) if setting.n_cards else None
    rows = [] if others is None else _rows(placed_steps(step.draws, others))
    best = rows[0] if rows else None
    ends = _ends(setting, job.length, adjust) if best else ()
    return OffloadAnswer(
        n=setting.n_cards,
        device=setting.card.name,
        placements=rows,
        saved_share=None if best is None else 1.0 - best.energy_j / step.energy_j,
        low=min(ends, default=None),
        high=max(ends, default=None),
        slowdown=None if best is None else best.time_s / step.time_s - 1.0,
        why_not="there is none" if others is None else others.why_not,
        scans=_scans(job, scenario, levels) if setting.n_cards else (),
        by_number=_by_number(job, setting, levels) if setting.n_cards else {},
    )


def _rows(found: Iterable[PlacedStep]) -> list[PricedPlacement]:
    rows = [
        PricedPlacement(p.actions, float(p.time_s), float(p.energy_j), float(p.bubble_s))
        for p in found
    ]
    return sorted(rows, key=lambda row: row.energy_j)


def best_saved_share(
    setting: Setting, length: float, adjust: Callable[[PricedStep], PricedStep] | None = None
) -> float | None:
    """Compute what the best placement saves, below 0 where every one costs; None where none can be.

    Args:
        setting: job and devices.
        length: mean completion, tokens.
        adjust: brings the priced step to what its user has measured; None: it stays as priced.
    """
    try:
        step, others = priced_step(setting, length), accelerators(setting, length)
    except ConfigError:
        return None
    step = step if adjust is None else adjust(step)
    best = best_placed(step.draws, others)
    return None if best is None else 1.0 - float(best.energy_j) / step.energy_j


def _ends(
    setting: Setting, length: float, adjust: Callable[[PricedStep], PricedStep] | None
) -> tuple[float, ...]:
    """The best saving with the devices' figures as they are, and at opposite ends."""
    gpu, card = setting.gpu, setting.card
    corners = ((gpu, card), (cheapest(gpu), dearest(card)), (dearest(gpu), cheapest(card)))
    found = [
        best_saved_share(replace(setting, gpu=one, card=other), length, adjust)
        for one, other in corners
    ]
    return tuple(share for share in found if share is not None)


def _at(levels: StageLevels | None) -> Callable[[PricedStep], PricedStep] | None:
    """What brings a like job's step to the levels of this one's stages."""
    return None if levels is None else lambda step: step.at_levels(levels)


def _scans(job: PlannedJob, scenario: Scenario, levels: StageLevels | None) -> tuple[Scan, ...]:
    setting, at = scenario.setting, _at(levels)

    def with_size(name: str) -> Setting:
        sizes = {**scenario.sizes, Stage.REWARD: name, Stage.CRITIC: name}
        return replace(scenario, sizes=sizes).setting

    by_length = {n: best_saved_share(setting, float(n), at) for n in LENGTHS}
    by_rows = {n: best_saved_share(replace(setting, n_rows=n), job.length, at) for n in ROWS}
    by_size = {name: best_saved_share(with_size(name), job.length, at) for name in MODEL_SIZES}
    return (
        Scan("length", _told(by_length)),
        Scan("rows", _told(by_rows)),
        Scan("inference_model", _told(by_size)),
    )


def _told(found: Mapping[int, float | None] | Mapping[str, float | None]) -> dict[str, float]:
    """The shares that are known, by their value as it is shown."""
    return {
        f"{value:,}" if isinstance(value, int) else value: share
        for value, share in found.items()
        if share is not None
    }


def _by_number(job: PlannedJob, setting: Setting, levels: StageLevels | None) -> dict[int, float]:
    found = {
        n: best_saved_share(replace(setting, n_cards=n), job.length, _at(levels))
        for n in _numbers(setting.n_cards)
    }
    return {n: share for n, share in found.items() if share is not None}


def _numbers(n_cards: int) -> Iterator[int]:
    """Yield numbers of devices up to four times as many as there are."""
    n = 1
    while n <= max(4 * n_cards, 8):
        yield n
        n *= 2
