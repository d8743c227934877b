"""The answer to "should I buy or change anything?", with all that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.operate.levers.choice import LeverLimits
from ecorl.operate.levers.known_timings import SLACKS, TimingSaving, known_timings
from ecorl.operate.levers.step import PricedStep, priced_step
from ecorl.operate.levers.study import LeverStudy, lever_study
from ecorl.operate.plan.job import PlannedJob
from ecorl.operate.plan.offload import OffloadAnswer, offload_answer
from ecorl.operate.plan.own_stages import OwnStages
from ecorl.operate.plan.payback import Payback, PlanTerms, payback
from ecorl.sim.scenario import Scenario

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
