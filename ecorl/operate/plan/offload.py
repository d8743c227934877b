"""Whether a second device pays in a job, at which sizes it stops paying, and how many to have.

All of it is priced by one iteration of mean length on idle devices (`ecorl.operate.levers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ecorl.devices import cheapest, dearest
from ecorl.devices.llama import MODEL_SIZES
from ecorl.errors import ConfigError
from ecorl.operate.levers.placement import Accelerators, PlacedStep, accelerators, placed_steps
from ecorl.operate.levers.step import Step, priced_step
from ecorl.operate.plan.job import PlannedJob
from ecorl.records import Action, Stage
from ecorl.scheduler.tables import Setting
from ecorl.sim.scenario import Scenario

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROWS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Mean completions, tokens, and completions a step at which a device is tried."""

_PAYS = 1e-3
"""Share of the energy from which on a device counts as paying: less than any model of it is worth.
Invented."""


@dataclass(frozen=True, slots=True)
class PlacementRow:
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
        saved: share of the energy that the best placement saves at each value that could be priced;
            below 0 where every placement costs.
        own: the job's own value.
    """

    what: str
    saved: Mapping[object, float]
    own: object

    @property
    def paying(self) -> tuple[object, ...]:
        """The values at which the device pays."""
        return tuple(value for value, share in self.saved.items() if share >= _PAYS)


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
    placements: Sequence[PlacementRow]
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
        return self.saved_share is not None and self.saved_share >= _PAYS

    @property
    def best_number(self) -> int:
        """How many devices save most; 0 where none saves anything."""
        paying = {n: share for n, share in self.by_number.items() if share >= _PAYS}
        return max(paying, key=lambda n: (round(paying[n], 6), -n), default=0)


def offload_answer(job: PlannedJob, scenario: Scenario, step: Step) -> OffloadAnswer:
    """Price the second devices of a job.

    Args:
        job: as it was asked about.
        scenario: the job in the simulator.
        step: on its GPUs alone.
    """
    setting = scenario.setting
    others = accelerators(setting, job.length) if setting.n_cards else None
    rows = [] if others is None else _rows(placed_steps(step.draws, others))
    best = rows[0] if rows else None
    ends = _ends(setting, job.length) if best else ()
    return OffloadAnswer(
        n=setting.n_cards,
        device=setting.card.name,
        placements=rows,
        saved_share=None if best is None else 1.0 - best.energy_j / step.energy_j,
        low=min(ends, default=None),
        high=max(ends, default=None),
        slowdown=None if best is None else best.time_s / step.time_s - 1.0,
        why_not="there is none" if others is None else others.why_not,
        scans=_scans(job, scenario) if setting.n_cards else (),
        by_number=_by_number(job, setting) if setting.n_cards else {},
    )


def _rows(found: Iterable[PlacedStep]) -> list[PlacementRow]:
    rows = [
        PlacementRow(p.actions, float(p.time_s), float(p.energy_j), float(p.bubble_s))
        for p in found
    ]
    return sorted(rows, key=lambda row: row.energy_j)


def best_saved_share(setting: Setting, length: float) -> float | None:
    """Compute what the best placement saves, below 0 where every one costs; None where none can be.

    Args:
        setting: job and devices.
        length: mean completion, tokens.
    """
    try:
        step, others = priced_step(setting, length), accelerators(setting, length)
    except ConfigError:
        return None
    return _best(step, others)


def _best(step: Step, others: Accelerators) -> float | None:
    energies = [float(p.energy_j) for p in placed_steps(step.draws, others)]
    return 1.0 - min(energies) / step.energy_j if energies else None


def _ends(setting: Setting, length: float) -> tuple[float, ...]:
    """The best saving with the devices' figures as they are, and at opposite ends."""
    gpu, card = setting.gpu, setting.card
    corners = ((gpu, card), (cheapest(gpu), dearest(card)), (dearest(gpu), cheapest(card)))
    found = [
        best_saved_share(replace(setting, gpu=one, card=other), length) for one, other in corners
    ]
    return tuple(share for share in found if share is not None)


def _scans(job: PlannedJob, scenario: Scenario) -> tuple[Scan, ...]:
    setting = scenario.setting

    def scanned(
        what: str, values: Iterable[object], at: Callable[[object], float | None], own: object
    ) -> Scan:
        found = {value: at(value) for value in values}
        return Scan(what, {v: share for v, share in found.items() if share is not None}, own)

    def with_size(name: object) -> Setting:
        sizes = {**scenario.sizes, Stage.REWARD: str(name), Stage.CRITIC: str(name)}
        return replace(scenario, sizes=sizes).setting

    return (
        scanned("length", LENGTHS, lambda v: best_saved_share(setting, float(str(v))), job.length),
        scanned(
            "rows",
            ROWS,
            lambda v: best_saved_share(replace(setting, n_rows=int(str(v))), job.length),
            job.rows,
        ),
        scanned(
            "inference_model",
            MODEL_SIZES,
            lambda v: best_saved_share(with_size(v), job.length),
            job.inference_model,
        ),
    )


def _by_number(job: PlannedJob, setting: Setting) -> dict[int, float]:
    found = {
        n: best_saved_share(replace(setting, n_cards=n), job.length)
        for n in _numbers(setting.n_cards)
    }
    return {n: share for n, share in found.items() if share is not None}


def _numbers(n_cards: int) -> Iterator[int]:
    """Yield numbers of devices up to four times as many as there are."""
    n = 1
    while n <= max(4 * n_cards, 8):
        yield n
        n *= 2
