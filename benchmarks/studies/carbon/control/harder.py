"""Cases that are harder than the study's: bad forecasts, idle nodes and more.

Each is played by the default controller, and by racing in the fastest gear that is allowed, against
the bound of the same case. The recordings hold average intensities alone. In the case of marginal
ones an estimate made from the mix (`benchmarks.studies.carbon.control.marginal`) stands in their
place throughout: it is what is told, what is emitted and what the bound is of, and no figure is
made of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.studies.carbon.bound.lagrangian import lagrangian_bound
from benchmarks.studies.carbon.control.regrets import Regrets, StudyCase, cases, regrets
from benchmarks.studies.carbon.control.scenario import Study
from ecorl.carbon.series import Series
from ecorl.controllers.catalogue import build
from ecorl.controllers.planning.foresight import AS_ARCHIVED, MadeUpForesight
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Controller

GPUS_OF_A_NODE = 8
IDLE_NODE_W = 1800.0
"""What a kept node with eight idle GPUs draws, W."""

WIDTH_CHANGE_S, GEAR_CHANGE_S = 300.0, 30.0
"""Time without training at a change, s. Stated: a checkpoint, a new process group and a warm-up
take one epoch, and a gear a tenth of it."""

LOW_SHARE = 0.37
"""Share of the time that CarbonGearRL's largest model was in FP8."""

LATE_H = 2


@dataclass(frozen=True, slots=True)
class Harder:
    """A case that was played.

    Attributes:
        what: the case, in words.
        regrets: of the default controller.
        race: mean regret of the fastest gear that is allowed, at full width.
        saved: what the default controller saves of racing's emissions, as a fraction.
    """

    what: str
    regrets: Regrets
    race: float
    saved: float


def harder_cases(
    study: Study, series: Series, days: Sequence[int], marginal: Series | None = None
) -> dict[str, Harder]:
    """Play all of them.

    Args:
        study: the training.
        series: the recording, without missing values.
        days: on which it starts.
        marginal: estimated marginal intensities over the intervals of `series`, g/kWh, without
            missing values; None leaves the case of them out.

    Returns:
        What was played, by the name of the case.
    """
    usual = cases(study, series, days)
    idle_w = IDLE_NODE_W / GPUS_OF_A_NODE
    kept = cases(study, series, days, idle_w=idle_w, base_w=study.base_w)
    changing = [
        _with_bound(case, lagrangian_bound(case.problem, series).cost_g)
        for case in cases(
            study, series, days, width_change_s=WIDTH_CHANGE_S, gear_change_s=GEAR_CHANGE_S
        )
    ]
    capped = cases(_looser(study), series, days, low_share=LOW_SHARE)
    archived = MadeUpForesight(series, AS_ARCHIVED)
    per_hour = round(3600.0 / series.step_s)
    found = {
        "archived_forecast": _played(
            "forecasts of 96 h that are 18 to 20 % off", usual, series,
            regrets(_default, usual, series, foresight=archived),
        ),
        "idle_nodes": _played(
            f"kept nodes of {GPUS_OF_A_NODE} GPUs draw {IDLE_NODE_W:g} W when idle", kept, series,
            regrets(_default, kept, series),
        ),
        "changes": _played(
            f"a change of width takes {WIDTH_CHANGE_S:g} s, of the gear {GEAR_CHANGE_S:g} s; the "
            "bound is Lagrange's", changing, series,
            regrets(_default, changing, series),
        ),
        "low_share": _played(
            f"at most {100 * LOW_SHARE:g} % of the tokens in FP8, slack 1.67 of what that allows",
            capped, series, regrets(_default, capped, series),
        ),
        "late": _played(
            f"intensities are told {LATE_H} h late", usual, series,
            regrets(_default, usual, series, late=LATE_H * per_hour),
        ),
    }  # fmt: skip
    if marginal is not None:
        found |= _by_margin(study, marginal, days)
    return found


def _by_margin(study: Study, marginal: Series, days: Sequence[int]) -> dict[str, Harder]:
    """The usual case in a world in which the marginal intensity is the only one there is.

    The estimate hardly depends on that of the hour before, so that all hangs on when it is known:
    by itself when the hour is over, and by a provider's model perhaps as it begins.
    """
    what = "the estimated marginal intensity in place of the average, the fuels that followed load"
    chosen = cases(study, marginal, days)
    per_hour = round(3600.0 / marginal.step_s)
    return {
        name: _played(
            f"{what}; {told}", chosen, marginal, regrets(_default, chosen, marginal, late=late)
        )
        for name, told, late in (
            ("marginal", "told as an hour begins", 0),
            ("marginal_late", "told when the hour is over", per_hour),
        )
    }


def _looser(study: Study) -> Study:
    """The study with the slack that a cap leaves, so that the deadline can be kept."""
    # With the cap a token takes this much longer at full speed.
    slower = LOW_SHARE + (1.0 - LOW_SHARE) * study.fp8_gain
    return replace(study, slack=study.slack * slower)


def _with_bound(case: StudyCase, bound_g: float) -> StudyCase:
    return StudyCase(case.day, case.problem, bound_g, case.race_g)


def _played(what: str, chosen: Sequence[StudyCase], series: Series, found: Regrets) -> Harder:
    race = regrets(lambda problem: build("race", problem), chosen, series)
    raced_g, emitted_g = (sum(run.played.cost_g for run in one.runs) for one in (race, found))
    return Harder(what, found, race.mean, 1.0 - emitted_g / raced_g)


def _default(problem: TrainingProblem) -> Controller:
    return build("stochastic", problem)
