"""What each lever saves in a job, alone and together, and in which order to adopt them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ecorl.devices import DeviceProfile, cheapest, dearest
from ecorl.operate.levers.choice import (
    ALL_LEVERS,
    Lever,
    LeverLimits,
    LeverSetting,
    adoption_order,
    interactions,
    least_energy,
    missing_levers,
    subsets,
)
from ecorl.operate.levers.clocks import ENDS, End
from ecorl.operate.levers.placement import Accelerators, accelerators, best_placed
from ecorl.operate.levers.step import PricedStep, priced_step
from ecorl.scheduler.tables import Setting

Settings = Mapping[frozenset[Lever], LeverSetting]


@dataclass(frozen=True, slots=True)
class SavedShare:
    """A saved share of a step's energy, with the interval of what is known.

    Attributes:
        value: by the figures as they are.
        low, high: the least and the most at the ends of what is published, fitted and assumed.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What the best placement on one kind of second device does, be it a loss.

    Attributes:
        name, n: profile and number of the devices.
        saved_share: energy that is saved of that of the job without them, those that stand by
            included; below 0 where they cost; None where they can run no stage.
        why_not: why they cannot run a stage; empty where they can run all.
    """

    name: str
    n: int
    saved_share: float | None
    why_not: str


@dataclass(frozen=True, slots=True)
class LeverStudy:
    """All levers in one job.

    Attributes:
        step: the job's step as it is.
        settings: of every combination of levers, by the figures as they are.
        alone: what each lever saves alone; levers that are missing are not in it.
        together: what all of them save.
        beyond: what levers save that change more than is asked for by default: overlap one step
            off-policy, and gears that reach the rollout.
        missing: why a lever cannot be priced or pulled.
        order: levers in the order in which to adopt them, with the share that each adds.
        between: pairs with what they save beyond the sum of both alone.
        devices: each kind of second device by itself.
    """

    step: PricedStep
    settings: Settings
    alone: Mapping[Lever, SavedShare]
    together: SavedShare
    beyond: Mapping[str, SavedShare]
    missing: Mapping[Lever, str]
    order: Sequence[tuple[Lever, float]]
    between: Sequence[tuple[Lever, Lever, float]]
    devices: Sequence[DeviceVerdict]

    @property
    def all(self) -> LeverSetting:
        """The setting of all levers."""
        return self.settings[frozenset(set(ALL_LEVERS) - self.missing.keys())]


OFF_POLICY, ROLLOUT = "overlap, one step off-policy", "gears, rollout too"
"""Names of what `LeverStudy.beyond` holds."""


def lever_study(
    setting: Setting,
    length: float,
    *,
    limits: LeverLimits | None = None,
    adjust: Callable[[PricedStep], PricedStep] | None = None,
    beside: Sequence[Setting] = (),
) -> LeverStudy:
    """Price all levers in a job.

    Args:
        setting: the job, with the second devices that are asked about.
        length: mean completion, tokens.
        limits: what may be done to a step; None: the usual.
        adjust: brings a priced step to what its user has measured; None: it stays as priced.
        beside: the same job with other second devices to choose from.

    Raises:
        ConfigError: when a stage cannot be priced, or `adjust` refuses.
    """
    limits = limits or LeverLimits()
    corners = [setting, *(replace(setting, gpu=gpu) for gpu in _ends_of(setting.gpu))]
    steps = [priced_step(one, length) for one in corners]
    if adjust is not None:
        steps = [adjust(one) for one in steps]
    others = [accelerators(one, length) for one in (setting, *beside) if one.n_cards]
    step = steps[0]
    missing = missing_levers(step, others)
    levers = [lever for lever in ALL_LEVERS if lever not in missing]
    settings = _settings(step, levers, others, limits, "usual")
    moved = _moved(steps, corners, others, length, limits, levers)
    everything = frozenset(levers)
    return LeverStudy(
        step=step,
        settings=settings,
        alone={one: _saved(settings, moved, frozenset({one})) for one in levers},
        together=_saved(settings, moved, everything),
        beyond=_beyond(step, others, limits, missing),
        missing=missing,
        order=adoption_order(settings),
        between=interactions(settings),
        devices=[_verdict(step, one) for one in others],
    )


def _ends_of(gpu: DeviceProfile) -> tuple[DeviceProfile, ...]:
    ends = cheapest(gpu), dearest(gpu)
    return ends if ends[0] != ends[1] else ()


def _settings(
    step: PricedStep,
    levers: Sequence[Lever],
    others: Sequence[Accelerators],
    limits: LeverLimits,
    end: End,
) -> dict[frozenset[Lever], LeverSetting]:
    found = {frozenset(s): least_energy(step, s, others, limits, end) for s in subsets(levers)}
    return found | {frozenset(): least_energy(step, (), (), limits)}


def _moved(
    steps: Sequence[PricedStep],
    corners: Sequence[Setting],
    others: Sequence[Accelerators],
    length: float,
    limits: LeverLimits,
    levers: Sequence[Lever],
) -> list[Settings]:
    """Price each lever alone and all of them with what is known at its ends."""
    wanted = [*((lever,) for lever in levers), tuple(levers)]
    found: list[Settings] = []
    for step, corner in zip(steps, corners, strict=True):
        # The second devices stand beside GPUs that are others.
        devices = others
        if corner is not corners[0]:
            devices = [
                accelerators(replace(corner, card=one.profile, n_cards=one.n), length)
                for one in others
            ]
        for end in ENDS:
            if end != "usual" or corner is not corners[0]:
                found.append(
                    {frozenset(s): least_energy(step, s, devices, limits, end) for s in wanted}
                )
    return found


def _saved(settings: Settings, moved: Sequence[Settings], levers: frozenset[Lever]) -> SavedShare:
    value = settings[levers].saved_share
    shares = [value, *(one[levers].saved_share for one in moved)]
    return SavedShare(value, min(shares), max(shares))


def _beyond(
    step: PricedStep,
    others: Sequence[Accelerators],
    limits: LeverLimits,
    missing: Mapping[Lever, str],
) -> dict[str, SavedShare]:
    wanted = {
        OFF_POLICY: (Lever.OVERLAP, replace(limits, off_policy=True)),
        ROLLOUT: (Lever.GEARS, replace(limits, rollout=True)),
    }
    found = {}
    for name, (lever, more) in wanted.items():
        if lever not in missing:
            low, usual, high = (
                least_energy(step, (lever,), others, more, end).saved_share for end in ENDS
            )
            found[name] = SavedShare(usual, low, high)
    return found


def _verdict(step: PricedStep, one: Accelerators) -> DeviceVerdict:
    """Price the best placement on one kind of device."""
    best = best_placed(step.draws, one)
    if best is None:
        return DeviceVerdict(one.profile.name, one.n, None, one.why_not)
    return DeviceVerdict(
        one.profile.name,
        one.n,
        1.0 - float(best.energy_j) / step.energy_j,
        one.why_not,
    )
