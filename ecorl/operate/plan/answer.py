"""The answer to "should I buy or change anything?", with all that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ecorl.config import read_toml
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.operate.levers.choice import MOST_SLOWDOWN, LeverLimits
from ecorl.operate.levers.known_timings import SLACKS, TimingSaving, known_timings
from ecorl.operate.levers.step import PricedStep, priced_step
from ecorl.operate.levers.study import LeverStudy, lever_study
from ecorl.operate.plan.job import PlannedJob, checked_value, job_keys
from ecorl.operate.plan.offload import OffloadAnswer, offload_answer
from ecorl.operate.plan.own_stages import OwnStages
from ecorl.sim.scenario import Scenario
from ecorl.units import JOULES_PER_KWH

HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """What the user says of money, carbon and use; None where it is not known.

    Attributes:
        card_price: of one device, in any currency.
        kwh_price: of a kilowatt-hour, in the same.
        g_per_kwh: carbon intensity of the electricity, gCO2e/kWh.
        card_embodied_kg: emissions of making one device, kgCO2e.
        use: share of the year in which the job runs, above 0 and at most 1.
        years: how long a device serves.
        slowdown: share by which a step may take longer for a lever.
        slack: time that there is for the whole job over the time that it takes without a pause.
    """

    card_price: float | None = None
    kwh_price: float | None = None
    g_per_kwh: float | None = None
    card_embodied_kg: float | None = None
    use: float = 0.8
    years: float = 5.0
    slowdown: float = MOST_SLOWDOWN
    slack: float = 1.5

    def __post_init__(self) -> None:
        for key in ("card_price", "kwh_price", "g_per_kwh", "card_embodied_kg"):
            value = getattr(self, key)
            if value is not None and not 0.0 <= value < float("inf"):
                raise ConfigError(f"plan.{key}", value, "0 or more")
        for key, is_possible, told in (
            ("use", 0.0 < self.use <= 1.0, "above 0 and at most 1"),
            ("years", 0.0 < self.years <= 100.0, "above 0 and at most 100"),
            ("slowdown", 0.0 <= self.slowdown <= 10.0, "0 to 10"),
            ("slack", 1.0 <= self.slack <= 1000.0, "1 to 1000"),
        ):
            if not is_possible:
                raise ConfigError(f"plan.{key}", getattr(self, key), told)


@dataclass(frozen=True, slots=True)
class Payback:
    """What a saving comes to in a year, and what it has cost.

    Attributes:
        kwh_per_year: energy that is saved; below 0 where it is lost.
        money_per_year: what that is worth; None without a price.
        kg_per_year: CO2e that is not emitted; None without an intensity.
        money_years: after how many years the purchase has paid itself back; None where it never
            does, or a price is missing.
        carbon_years: after how many years it has saved what making it emitted; None likewise.
        embodied_share: emissions of making it over those of its service that it saves; None
            likewise.
        missing: names of what the user has not told.
    """

    kwh_per_year: float
    money_per_year: float | None
    kg_per_year: float | None
    money_years: float | None
    carbon_years: float | None
    embodied_share: float | None
    missing: tuple[str, ...]


def payback(saved_share: float, power_w: float, n_devices: int, terms: PlanTerms) -> Payback:
    """Compute when a saving has paid back what was bought for it.

    Args:
        saved_share: of the energy; below 0 where it costs.
        power_w: mean power of the job as it is, W.
        n_devices: how many devices were bought; 0 for what costs nothing.
        terms: prices, intensity and use.
    """
    kwh = saved_share * power_w * terms.use * HOURS_PER_YEAR * 3600.0 / JOULES_PER_KWH
    money = None if terms.kwh_price is None else kwh * terms.kwh_price
    kg = None if terms.g_per_kwh is None else kwh * terms.g_per_kwh / 1000.0
    price = None if terms.card_price is None else n_devices * terms.card_price
    made_kg = None if terms.card_embodied_kg is None else n_devices * terms.card_embodied_kg
    needed = ("kwh_price", "g_per_kwh", *(("card_price", "card_embodied_kg") if n_devices else ()))
    carbon_years = _years(made_kg, kg) if n_devices else None
    return Payback(
        kwh_per_year=kwh,
        money_per_year=money,
        kg_per_year=kg,
        money_years=_years(price, money) if n_devices else None,
        carbon_years=carbon_years,
        embodied_share=None if carbon_years is None else carbon_years / terms.years,
        missing=tuple(key for key in needed if getattr(terms, key) is None),
    )


def _years(spent: float | None, per_year: float | None) -> float | None:
    if spent is None or per_year is None or per_year <= 0.0:
        return None
    return spent / per_year


_NODE = 8
"""GPUs of a node: fewer of them are given back at once. Assumed."""


@dataclass(frozen=True, slots=True)
class NarrowerStep:
    """The same step on fewer GPUs.

    Attributes:
        n_gpus: how many.
        saved_share: energy that is saved; below 0 where it takes more.
        slowdown: time over that on all GPUs, less 1.
    """

    n_gpus: int
    saved_share: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """All that a plan says of a job.

    Attributes:
        step: on the GPUs alone, as it is.
        offload: what the second devices are worth.
        study: what every lever saves.
        narrower: the step on one node less; None where there is one, or the model does not fit.
        timings: what timing saves of the emissions, along each recorded grid, at the slack that is
            the nearest of those that were replayed and no longer than asked for.
        bought: what the second devices come to in a year.
        changed: what all levers together come to, without buying anything.
        own: what the user has measured or told of the stages; None: they are the model's.
    """

    step: PricedStep
    offload: OffloadAnswer
    study: LeverStudy
    narrower: NarrowerStep | None
    timings: Sequence[TimingSaving]
    bought: Payback | None
    changed: Payback
    own: OwnStages | None = None

    @property
    def tokens_per_joule(self) -> float:
        """Completion tokens over the energy of a step as it is."""
        return self.step.n_tokens / self.step.energy_j


def plan_answer(
    job: PlannedJob,
    scenario: Scenario,
    terms: PlanTerms,
    own: OwnStages | None = None,
) -> PlanAnswer:
    """Answer for one algorithm of a job.

    Args:
        job: as it was asked about.
        scenario: the job in the simulator.
        terms: prices, intensity and use.
        own: what the user has measured or told of the stages.

    Raises:
        ConfigError: when a stage cannot be priced, or a share cannot be.
    """
    adjust = None if own is None else own.applied
    limits = LeverLimits(slowdown=terms.slowdown)
    study = lever_study(scenario.setting, job.length, limits=limits, adjust=adjust)
    step = study.step
    offload = offload_answer(job, scenario, step, adjust)
    power_w = step.energy_j / step.time_s
    bought = None
    if offload.saved_share is not None:
        bought = payback(offload.saved_share, power_w, offload.n, terms)
    return PlanAnswer(
        step=step,
        offload=offload,
        study=study,
        narrower=_narrower(job, scenario, step),
        timings=_timings(terms.slack),
        bought=bought,
        changed=payback(study.together.value, power_w, 0, terms),
        own=own,
    )


def _timings(slack: float) -> tuple[TimingSaving, ...]:
    """The replays at the slack that is nearest to what there is, and no longer."""
    within = [one for one in SLACKS if one <= slack + 1e-9]
    if not within:
        return ()
    return tuple(one for one in known_timings() if one.slack == max(within))


def _narrower(job: PlannedJob, scenario: Scenario, step: PricedStep) -> NarrowerStep | None:
    n_gpus = scenario.n_gpus - _NODE
    if n_gpus < 1:
        return None
    try:
        narrow = priced_step(replace(scenario, n_gpus=n_gpus).setting, job.length)
    except (ConfigError, PhysicalBoundError):
        return None
    # At the levels of the user's own stages, as far as they differ from the model's.
    narrow = narrow.at_levels(step.levels_over(priced_step(scenario.setting, job.length)))
    return NarrowerStep(
        n_gpus, 1.0 - narrow.energy_j / step.energy_j, narrow.time_s / step.time_s - 1.0
    )


MOST = 2_000
"""Jobs that one file may ask for: some minutes of work."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One job of a grid and what is worth changing in it. None is missing, `why` says why.

    Attributes:
        values: what the file lists, by key.
        algorithm: of the trainer.
        time_s, energy_j, tokens_per_joule: of a step on the GPUs alone.
        offload_saved_share: what the best placement on the second devices saves of the energy.
        levers_saved_share: what all levers save.
        why: why figures are missing; empty otherwise.
    """

    values: Mapping[str, Any]
    algorithm: str
    time_s: float | None = None
    energy_j: float | None = None
    tokens_per_joule: float | None = None
    offload_saved_share: float | None = None
    levers_saved_share: float | None = None
    why: str = ""


def what_if_grid(path: Path, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read a grid; every key of a job may hold a value or a list of values.

    Args:
        path: the TOML file.
        given: values of options, which go before the file's; None where one was not given.

    Returns:
        The keys of each job, in the order of the file, the last key changing fastest.

    Raises:
        ConfigError: for a file that cannot be read, an unknown key, a wrong value, or too many
            jobs.
    """
    data, keys = read_toml(path, "--what-ifs"), job_keys()
    lists: dict[str, list[Any]] = {}
    for key, value in data.items():
        if key not in keys:
            raise ConfigError(key, value, f"one of {keys}", path)
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ConfigError(key, value, "one value or more", path)
        lists[key] = [checked_value(key, one, path) for one in values]
    lists |= {key: [value] for key, value in given.items() if value is not None}
    n = 1
    for values in lists.values():
        n *= len(values)
    if n > MOST:
        raise ConfigError("--what-ifs", f"{n:,} jobs", f"{MOST:,} at most", path)
    return [dict(zip(lists, row, strict=True)) for row in product(*lists.values())]


def what_ifs(grid: list[dict[str, Any]], limits: LeverLimits) -> Iterator[WhatIf]:
    """Answer for each job of a grid, one row an algorithm.

    Args:
        grid: from `what_if_grid`.
        limits: what may be done to a step.

    Raises:
        ConfigError: for a value that no job can have.
    """
    for values in grid:
        job = PlannedJob(**values)
        try:
            rows = [_row(values, names, one, job.length, limits)
                    for names, one in job.scenarios(1).items()]  # fmt: skip
        except (ConfigError, PhysicalBoundError) as error:
            rows = [WhatIf(values, job.algorithm or "", why=str(error))]
        yield from rows


def _row(
    values: Mapping[str, Any], names: str, scenario: Scenario, length: float, limits: LeverLimits
) -> WhatIf:
    setting = scenario.setting
    study = lever_study(setting, length, limits=limits)
    step = study.step
    return WhatIf(
        values,
        names,
        step.time_s,
        step.energy_j,
        step.n_tokens / step.energy_j,
        study.devices[0].saved_share if study.devices else None,
        study.together.value,
        "; ".join(scenario.table.notes),
    )
