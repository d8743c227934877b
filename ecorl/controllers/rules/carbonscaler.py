"""CarbonScaler's greedy allocation (Hanafy et al. 2023): elastic width, one gear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from ecorl.control import Gear, GearChoice, Why
from ecorl.controllers.horizon.frontier import Frontier, frontier
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.rules.expectation import HourlyExpectation
from ecorl.controllers.rules.static import checked_gear, full_width, high_gear
from ecorl.controllers.step import choice
from ecorl.units import JOULES_PER_KWH

CARBONSCALER, CARBONSCALER_FP8 = "carbonscaler", "carbonscaler-fp8"

PROFILE_DAYS = 7
"""Days of the mean day by which a forecast is continued. Of 3, 7 and 14 days, 7 saved most in PJM's
hours of 2022, and nearly as much as the best of them in California's and New York's (a week at
slack 1.5, in FP8)."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the plan has for the hour under way.

    Attributes:
        until_s: end of the hour, s since 1970.
        gear: for which the plan was made.
        width: number of workers, 0 for a pause.
        price_g_per_token: emissions of the dearest token of the plan.
    """

    until_s: float
    gear: Gear
    width: int
    price_g_per_token: float


class CarbonScaler:
    """Gives tokens to the hours and workers that train most of them per gram.

    At the begin of each hour all pairs of an hour until the deadline and a step of the width are
    ranked by the throughput that the step adds per gram it emits, and the best of them are taken
    until they train the rest of the budget (Hanafy et al., "CarbonScaler", Proceedings of the ACM
    on Measurement and Analysis of Computing Systems 7(3), 2023). The width of the hour under way is
    kept for the hour.

    Beyond the paper:

    - It takes marginal throughputs that fall with the width. Here the steps are those of the lower
      hull of power over throughput, so that no step is taken before the one below it whatever the
      table; and a step's power is what it draws above idle machines that are kept.
    - It takes a forecast as given; `HourlyExpectation` says what is expected here. Where nothing is
      known that one could expect something by, training runs at full width.
    - Where a cap on low precision is used up, the gear becomes the fastest other one; the plan
      counts with that one's throughput from the begin on.

    As in the paper, changes cost nothing in the plan, and it knows of no soft deadline.

    Args:
        problem: what has to be met.
        gear: the one gear; None: the fastest one that is not of low precision.
        profile_days: over how many days the mean day of the expectation is.
        day_s: length of a day of the grid, s.
        name: under which its choices are recorded.

    Raises:
        ConfigError: for a gear that the table does not have.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        gear: Gear | None = None,
        *,
        profile_days: int = PROFILE_DAYS,
        day_s: float = 86400.0,
        name: str = CARBONSCALER,
    ) -> None:
        self.name = name
        self._problem = problem
        self._gear, self._high_gear = checked_gear(problem, gear), high_gear(problem)
        self._hulls = {
            one: frontier(problem, [a for a in problem.table.actions() if a.gear is one])
            for one in (self._gear, self._high_gear)
        }
        self._expectation = HourlyExpectation(problem.start_s, day_s, profile_days)
        self._planned: _Planned | None = None

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        progress = seen.progress
        assert progress is not None
        p = self._problem
        is_used_up = self._gear.is_low and progress.low_tokens_left <= 0.0
        gear = self._high_gear if is_used_up else self._gear
        planned = self._planned
        if planned is None or planned.gear is not gear or now_s >= planned.until_s - 1e-3:
            planned = self._planned = self._plan(gear, now_s, seen, progress)
        if planned is None:
            told = "too little is known of the grid to plan"
            widest = full_width(p, gear)
            return choice(self.name, now_s, p, seen, widest, Why.UNKNOWN, told)
        action = TrainingAction(planned.width, gear) if planned.width else PAUSE
        told = f"the plan takes steps of up to {1e6 * planned.price_g_per_token:.3g} g a million"
        found = choice(self.name, now_s, p, seen, action, Why.PRICED, told)
        return replace(found, price_g_per_token=planned.price_g_per_token)

    def _plan(self, gear: Gear, now_s: float, seen: Seen, progress: Progress) -> _Planned | None:
        """Rank all pairs of an hour and a step, and take the best that train the rest."""
        p, hull = self._problem, self._hulls[gear]
        found = self._expectation.until(p.deadline_s, now_s, seen)
        if found is None:
            return None
        g_per_kwh, seconds = found
        n_steps = len(hull.j_per_token)
        g_per_j = np.maximum(g_per_kwh, 0.0) * p.pue / JOULES_PER_KWH
        prices = (g_per_j[:, None] * hull.j_per_token).ravel()
        tokens = (seconds[:, None] * np.diff(hull.tokens_per_s)).ravel()
        # Of equal steps the earlier ones come first, and in each hour the lower ones.
        best = np.argsort(prices, kind="stable")
        wanted = self._tokens(gear, hull, progress)
        n = int(np.searchsorted(np.cumsum(tokens[best]), wanted)) + 1
        taken = best[:n]
        n_now = int(np.count_nonzero(taken < n_steps))
        width = hull.actions[n_now].width
        until_s = self._expectation.next_s(now_s)
        return _Planned(until_s, gear, width, float(prices[taken[-1]]))

    def _tokens(self, gear: Gear, hull: Frontier, progress: Progress) -> float:
        """The rest of the budget, in tokens at the throughput of the gear."""
        left = progress.tokens_left
        if not gear.is_low or progress.low_tokens_left >= left:
            return left
        high_rate = self._hulls[self._high_gear].tokens_per_s[-1]
        slower = float(hull.tokens_per_s[-1] / high_rate)
        return progress.low_tokens_left + (left - progress.low_tokens_left) * slower

    # ------------------------------------------------------------ memory

    def memory(self) -> Mapping[str, object]:
        """The plan of the hour under way."""
        return {} if self._planned is None else asdict(self._planned)

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with a plan.

        Args:
            memory: the plan of the hour under way, or nothing.
        """
        if not memory:
            self._planned = None
            return
        values = cast("Mapping[str, Any]", memory)
        self._planned = _Planned(
            until_s=values["until_s"],
            gear=Gear(values["gear"]),
            width=values["width"],
            price_g_per_token=values["price_g_per_token"],
        )
