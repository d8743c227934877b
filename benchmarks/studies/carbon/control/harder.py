"""Cases that are harder than the study's: bad forecasts, idle nodes and more.

Each is played by the default controller, and by racing in the fastest gear that is allowed, against
the bound of the same case. The recordings hold average intensities alone. In the case of marginal
ones an estimate made from the mix stands in their place throughout: it is what is told, what is
emitted and what the bound is of, and no figure is made of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.studies.carbon.bound.lagrangian import lagrangian_bound
from benchmarks.studies.carbon.control.scenario import (
    DEFAULT,
    Regrets,
    Study,
    StudyCase,
    cases,
    filled,
    regrets,
)
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import FACTORS
from ecorl.carbon.traces.trace import GridTrace
from ecorl.controllers.planning.foresight import AS_ARCHIVED, MadeUpForesight
from ecorl.grid import Fuel

GPUS_OF_A_NODE = 8
IDLE_NODE_W = 1800.0
"""What a kept node with eight idle GPUs draws, W."""

WIDTH_CHANGE_S, GEAR_CHANGE_S = 300.0, 30.0
"""Time without training at a change, s. Stated: a checkpoint, a new process group and a warm-up
take one epoch, and a gear a tenth of it."""

LOW_SHARE = 0.37
"""Share of the time that CarbonGearRL's largest model was in FP8."""

LATE_H = 2


_DISPATCHABLE = (Fuel.HYDRO, Fuel.OIL, Fuel.GAS, Fuel.COAL, Fuel.OTHER)
"""Fuels of plants that are run up and down as load asks for it."""

_LEAST_MW = 1e-3
"""Below this a fuel did not move: recordings have whole megawatts, and what is left of a fuel's
share times the total is their rounding."""


class Harder(NamedTuple):
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
        case._replace(bound_g=lagrangian_bound(case.problem, series).cost_g)
        for case in cases(
            study, series, days, width_change_s=WIDTH_CHANGE_S, gear_change_s=GEAR_CHANGE_S
        )
    ]
    # With the cap a token takes this much longer at full speed, and the deadline is to be kept.
    slower = LOW_SHARE + (1.0 - LOW_SHARE) * study.fp8_gain
    looser = replace(study, slack=study.slack * slower)
    capped = cases(looser, series, days, low_share=LOW_SHARE)
    per_hour = round(3600.0 / series.step_s)
    found = {
        "archived_forecast": _played(
            "forecasts of 96 h that are 18 to 20 % off", usual, series,
            foresight=MadeUpForesight(series, AS_ARCHIVED),
        ),
        "idle_nodes": _played(
            f"kept nodes of {GPUS_OF_A_NODE} GPUs draw {IDLE_NODE_W:g} W when idle", kept, series
        ),
        "changes": _played(
            f"a change of width takes {WIDTH_CHANGE_S:g} s, of the gear {GEAR_CHANGE_S:g} s; the "
            "bound is Lagrange's", changing, series,
        ),
        "low_share": _played(
            f"at most {100 * LOW_SHARE:g} % of the tokens in FP8, slack 1.67 of what that allows",
            capped, series,
        ),
        "late": _played(
            f"intensities are told {LATE_H} h late", usual, series, late=LATE_H * per_hour
        ),
    }  # fmt: skip
    if marginal is None:
        return found
    # The estimate hardly depends on that of the hour before, so that all hangs on when it is known:
    # by itself when the hour is over, and by a provider's model perhaps as it begins.
    what = "the estimated marginal intensity in place of the average, the fuels that followed load"
    chosen = cases(study, marginal, days)
    return found | {
        "marginal": _played(f"{what}; told as an hour begins", chosen, marginal),
        "marginal_late": _played(
            f"{what}; told when the hour is over", chosen, marginal, late=per_hour
        ),
    }


def _played(
    what: str,
    chosen: Sequence[StudyCase],
    series: Series,
    late: int = 0,
    foresight: MadeUpForesight | None = None,
) -> Harder:
    found = regrets(DEFAULT, chosen, series, late=late, foresight=foresight)
    race = regrets("race", chosen, series)
    raced_g, emitted_g = (sum(run.played.cost_g for run in one.runs) for one in (race, found))
    return Harder(what, found, race.mean, 1.0 - emitted_g / raced_g)


def marginal_series(trace: GridTrace) -> Series | None:
    """What one more kilowatt-hour might have emitted, estimated from a recording's mix.

    Hydro, oil, gas, coal and other fuels can follow load. From one interval to the next each of
    them moved by some megawatts, and all together went up or down. Those that moved in that
    direction followed load; the estimate is the mean of their emission factors, weighted by how
    far each moved. Fuels that moved against it did not follow load, and do not count. Where the
    sum stood still or a value is missing, the estimate before holds on; intervals before the first
    estimate have that one, so that the first interval has the second's.

    The figures are modelled. They are an estimate, and no marginal intensity of anybody's: what
    providers publish (WattTime), and what a regression of changes of emissions on changes of load
    finds (Hawkes 2010; Siler-Evans et al. 2012), differ from it. Curtailment of sun and wind, at
    which the margin would be theirs, is not in such recordings, and neither are imports. The
    factors are those of the life cycle, though one more kilowatt-hour builds no plant.

    It is good enough to try a controller on, which is all that it is for: it jumps from hour to
    hour, as marginal intensities do and perhaps more, and its course is another one than the
    average's. What is saved along it is no estimate of what is saved along a grid's real margin.

    Args:
        trace: a recording with its mix and its generation.

    Returns:
        Estimates over the intervals of the recording, g/kWh in the unit of `trace.gas`, none
        missing, each within the factors of the fuels that can follow load. None where the recording
        has no mix or no generation, or where none of these fuels ever followed.
    """
    if trace.mix is None or trace.generation_mw is None:
        return None
    fuels = [fuel for fuel in _DISPATCHABLE if fuel in trace.mix]
    if not fuels:
        return None
    power_mw = np.array([trace.mix[fuel] for fuel in fuels]) * trace.generation_mw.values
    moved_mw = np.diff(power_mw, axis=1)
    moved_mw[np.abs(moved_mw) < _LEAST_MW] = 0.0
    together_mw = moved_mw.sum(axis=0)
    together_mw[np.abs(together_mw) < _LEAST_MW] = 0.0
    # A missing value compares as false, so that nobody followed from it or to it.
    followed_mw = np.where(moved_mw * np.sign(together_mw) > 0.0, np.abs(moved_mw), 0.0)
    all_mw = followed_mw.sum(axis=0)
    is_known = all_mw > 0.0
    if not is_known.any():
        return None
    factors = np.array([FACTORS[fuel] for fuel in fuels])
    g_per_kwh = np.full(len(trace.series.values), np.nan)
    g_per_kwh[1:][is_known] = factors @ followed_mw[:, is_known] / all_mw[is_known]
    return filled(replace(trace.series, values=g_per_kwh))
