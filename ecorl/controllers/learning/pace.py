"""What pacing and learning begin with: a schedule of the tokens, and prices by the past."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import SupportsFloat, cast

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import GearChoice, Why
from ecorl.controllers.horizon.pricing import Hulls, Price, PriceCurve
from ecorl.controllers.problem.table import PAUSE, FloatArray
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.step import choice

PAST_DAYS = 60
"""How much of the past prices are made of. Invented: two months are of one season."""


@dataclass(frozen=True, slots=True)
class FirstPrice:
    """What is known of prices when training begins.

    Attributes:
        reference_g_per_token: the unit of lambda.
        warm: lambda that would have trained the budget on the past, in reference prices.
        low_share: what a token in low precision costs beside that, as a share of lambda; 0 where
            no cap on them binds.
    """

    reference_g_per_token: float
    warm: float
    low_share: float

    def price(self, dual: float) -> Price:
        """The price of a token at a lambda.

        Args:
            dual: lambda, in reference prices.
        """
        g_per_token = dual * self.reference_g_per_token
        return Price(g_per_token, self.low_share * g_per_token)


# ---------------------------------------------------------------- the schedule


def pace_end_s(problem: TrainingProblem) -> float:
    """When the pro-rata schedule has trained the last token, s since 1970.

    The soft deadline where lateness after it costs something and it can be met; else the deadline.

    Args:
        problem: what has to be met.
    """
    soft_s = problem.soft_deadline_s
    if soft_s is None or problem.late_g_per_h <= 0.0:
        return problem.deadline_s
    return min(max(soft_s, problem.earliest_deadline_s()), problem.deadline_s)


def due_tokens(problem: TrainingProblem, now_s: float) -> float:
    """Tokens that the pro-rata schedule has trained at a time.

    Args:
        problem: what has to be met.
        now_s: time, s since 1970.
    """
    length_s = pace_end_s(problem) - problem.start_s
    return problem.tokens * min(max((now_s - problem.start_s) / length_s, 0.0), 1.0)


def epoch_of(problem: TrainingProblem, now_s: float) -> int:
    """Number of the epoch that a time is in: asked twice in one, a controller learns once.

    Args:
        problem: with the epochs.
        now_s: time, s since 1970.
    """
    return math.floor((now_s - problem.start_s) / problem.epoch_s + 1e-6)


# ---------------------------------------------------------------- prices


def known_values(past: Series | None, day_s: float) -> FloatArray:
    """The newest values of the past that are not missing, g/kWh.

    Args:
        past: what was told; None: nothing.
        day_s: length of a day of the grid, s.

    Returns:
        ``[n] float64``, in the order of time.
    """
    if past is None:
        return np.zeros(0)
    values = past.values[-max(1, round(PAST_DAYS * day_s / past.step_s)) :]
    return values[np.isfinite(values)]


def first_price(
    problem: TrainingProblem, hulls: Hulls, now_s: float, seen: Seen, day_s: float = 86400.0
) -> FirstPrice | None:
    """Prices by the past, or by the intensity now where no past is known; None without either.

    Args:
        problem: what has to be met.
        hulls: its actions.
        now_s: time, s since 1970.
        seen: what is known.
        day_s: length of a day of the grid, s.
    """
    progress = seen.progress
    assert progress is not None
    values = known_values(seen.past, day_s)
    if not values.size and seen.intensity is not None:
        values = np.array([seen.intensity.g_per_kwh])
    if not values.size:
        return None
    fastest = problem.fastest(problem.begin())
    extra_w = problem.draw_w(fastest) - problem.draw_w(PAUSE)
    mean = max(float(values.mean()), 1e-9)
    reference = mean * hulls.g_per_j * max(extra_w, 1e-9) / problem.rate(fastest)
    left_s = max(pace_end_s(problem) - now_s, problem.needed_s(progress))
    curve = PriceCurve(hulls, values, left_s)
    found = curve.price(progress.tokens_left, progress.low_tokens_left)
    if not found.g_per_token > 0.0:
        # No price: an idle worker draws more than one that trains, say.
        return FirstPrice(reference, 1.0, 0.0)
    low_share = min(found.low_g_per_token / found.g_per_token, 1.0)
    return FirstPrice(reference, found.g_per_token / reference, low_share)


def first_memory(first: FirstPrice | None) -> list[float] | None:
    """First prices in values that JSON can hold.

    Args:
        first: the prices; None where nothing was known yet.
    """
    return None if first is None else [first.reference_g_per_token, first.warm, first.low_share]


def first_recalled(memory: object) -> FirstPrice | None:
    """First prices from a memory.

    Args:
        memory: as `first_memory` tells it.
    """
    if memory is None:
        return None
    reference, warm, low_share = (number(one) for one in cast(list[object], memory))
    return FirstPrice(reference, warm, low_share)


def unknown(name: str, now_s: float, problem: TrainingProblem, seen: Seen) -> GearChoice:
    """Full speed, because nobody knows the intensity.

    Args:
        name: of the controller.
        now_s: time, s since 1970.
        problem: what has to be met.
        seen: what is known; its progress counts.
    """
    assert seen.progress is not None
    fastest = problem.fastest(seen.progress)
    told = "the intensity is unknown: full speed"
    return choice(name, now_s, problem, seen, fastest, Why.UNKNOWN, told)


def number(value: object) -> float:
    """A number of a memory.

    Args:
        value: as JSON told it.
    """
    return float(cast(SupportsFloat, value))
