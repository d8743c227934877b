"""A small problem of the training stage, and what a controller is shown of it."""

from __future__ import annotations

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.problem.table import scaled_table
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.kinds import Provenance
from tests.fakes.scripted_feed import HOUR_S, average

DAY_S = 86400.0
NOW_S = 19_730 * DAY_S
WIDTHS = (1, 2, 4, 8)


def table(widths=WIDTHS, exponent=1.0, **rates):
    rates = {Gear[gear]: rate for gear, rate in (rates or {"BF16": 1e4, "FP8": 1.25e4}).items()}
    return scaled_table(
        widths,
        rates,
        dict.fromkeys(rates, 1000.0),
        exponent=exponent,
        overhead=1.0,
        provenance=Provenance.MODELLED,
        source="made up",
    )


def problem(of=None, hours=48.0, share=0.5, **terms):
    """Half of what BF16 at full width could train in two days."""
    of = of or table()
    gear = next(gear for gear in of.gears if gear is Gear.BF16 or len(of.gears) == 1)
    most = float(of.tokens_per_s[of.gears.index(gear)][-1]) * hours * HOUR_S
    terms = {"epoch_s": HOUR_S, **terms}
    return TrainingProblem(of, share * most, NOW_S, NOW_S + hours * HOUR_S, **terms)


def seen(of, g_per_kwh=None, at_s=NOW_S, **more):
    intensity = None if g_per_kwh is None else average("uk", at_s, g_per_kwh)
    return Seen(intensity, **{"progress": of.begin(), **more})


def past(values, end_s=NOW_S, step_s=HOUR_S):
    values = np.asarray(values, np.float64)
    return Series(end_s - step_s * len(values), step_s, values)


def ahead(values, start_s=NOW_S, step_s=HOUR_S):
    return Forecast("told", start_s, start_s, step_s, np.asarray(values, np.float64))
