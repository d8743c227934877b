"""Cases that are harder than the study's: bad forecasts, idle nodes and more.

Each is played by the default controller, and by racing in the fastest gear that is allowed, against
the bound of the same case. There is no case of marginal intensities: the recordings hold none, and
nothing in them tells one from the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ecorl.bench.carbon.control.foresight import AS_ARCHIVED, MadeUpForesight
from ecorl.bench.carbon.control.regrets import Regrets, StudyCase, cases, regrets
from ecorl.bench.carbon.control.scenario import Study
from ecorl.carbon.series import Series
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lagrangian import lagrangian_bound
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


def harder_cases(study: Study, series: Series, days: Sequence[int]) -> dict[str, Harder]:
    """Play all of them.

    Args:
        study: the training.
        series: the recording, without missing values.
        days: on which it starts.
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
    return {
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
