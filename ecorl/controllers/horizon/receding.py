"""The receding horizon: plan until the deadline, do the first epoch of it, and plan anew.

The plan is a price of a token. At each decision it is what one more token would cost in the hours
to come, as they are expected now: `PriceCurve`. The stochastic kind, which is the default, expects
a fan of values for each hour; the other kind the middle of the fan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ecorl.control import Gear, GearChoice, Why
from ecorl.controllers.horizon.fan import Fan, FanShape, LevelFan
from ecorl.controllers.horizon.foretold import ForecastErrors, hours_ahead
from ecorl.controllers.horizon.pricing import Hulls, Price, PriceCurve
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import HOUR_S, Kept, Progress, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.rules.reactive import high_gear
from ecorl.controllers.step import choice, shielded
from ecorl.errors import ConfigError

RECEDING, STOCHASTIC = "receding", "stochastic"

_INDIFFERENT = 0.003
"""Share of the price within which the present action goes on. A price is not known as exactly as
that, and a fifth fewer changes of width cost nothing that shows in the regret."""

_SPARE_H = (0, 1, 2, 4, 8, 16, 24, 36, 48, 72, 96, 144, 192, 288, 384, 576, 768)
"""Ends that are weighed against each other where an end costs something, hours of the grid after
the earliest one; the deadline is another. Invented. None of them hangs on the deadline, so that a
later one changes little."""


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What is expected until the end that was chosen.

    Attributes:
        key: what it was made from.
        curve: tokens by price.
        middle: ``[rows]``, means of the fan, g/kWh, from the hour under way on.
        end_s: when the last token is to be trained, s since 1970.
        fan: what is expected of the hours until then.
        others: curves of some of the actions, by the id of their hulls.
    """

    key: tuple[object, ...]
    curve: PriceCurve
    middle: FloatArray
    end_s: float
    fan: Fan
    others: dict[int, PriceCurve] = field(default_factory=dict)

    def priced_with(self, hulls: Hulls) -> PriceCurve:
        """The curve of other actions than those of the plan.

        Args:
            hulls: of these actions; the same object each time.
        """
        found = self.others.get(id(hulls))
        if found is None:
            found = self.others[id(hulls)] = PriceCurve.of(hulls, self.fan, self.curve.seconds)
        return found


class RecedingHorizon:
    """Plans until the deadline at each decision.

    Args:
        problem: what has to be met.
        is_stochastic: whether it expects a fan, or the fan's middle alone.
        day_s: length of a day of the grid, s.
        some: of the table's actions, which alone are planned with; None: all. The shield may take
            others where the budget needs them.
        name: under which its choices are recorded; None: that of its kind.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        *,
        is_stochastic: bool = True,
        day_s: float = 86400.0,
        some: Sequence[TrainingAction] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or (STOCHASTIC if is_stochastic else RECEDING)
        self._problem, self._hulls, self._is_whole = problem, Hulls.of(problem, some), some is None
        shape = FanShape() if is_stochastic else FanShape(hourly=0.0, drift=0.0)
        self._fan, self._hour_s = LevelFan(shape, day_s), day_s / 24
        self._errors = ForecastErrors(self._hour_s)
        self._plan: _Plan | None = None
        self._chosen_end: tuple[int, float] | None = None
        p = problem
        held_w = p.draw_w(PAUSE) if p.kept is Kept.DONE else 0.0
        self._held_w = held_w
        self._end_costs = held_w > 0.0 or (p.soft_deadline_s is not None and p.late_g_per_h > 0.0)
        self._changes_cost = p.width_change_s > 0.0 or p.gear_change_s > 0.0
        self._some = tuple(problem.table.actions() if some is None else some)
        self._held_hulls: dict[tuple[TrainingAction, ...], Hulls] = {}

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        progress = seen.progress
        assert progress is not None
        plan = self._planned(now_s, seen, progress)
        if plan is None:
            told = "too little is known of the grid to plan"
            fastest = self._fastest(progress)
            return choice(self.name, now_s, self._problem, seen, fastest, Why.UNKNOWN, told)
        left_s = plan.end_s - now_s
        if self._end_costs and left_s - self._problem.needed_s(progress) < self._problem.epoch_s:
            # Prices alone would wait for the next hour whenever that is hardly any cleaner, and in
            # that one again.
            told = "keeping machines, or being late, costs more than cleaner hours would save"
            fastest = self._fastest(progress)
            return choice(self.name, now_s, self._problem, seen, fastest, Why.PRICED, told)
        tokens = progress.tokens_left * plan.curve.seconds / max(left_s, 1e-6)
        low = progress.low_tokens_left * plan.curve.seconds / max(left_s, 1e-6)
        price = plan.curve.price(tokens, low)
        # A value of an hour that is over says less of now than what is expected from it.
        known = seen.intensity
        is_of_now = known is not None and now_s < known.end_s
        g_per_kwh = known.g_per_kwh if known is not None and is_of_now else float(plan.middle[0])
        action = self._hulls.best(price, g_per_kwh)
        present = progress.action
        if action != present and self._hulls.as_good(price, g_per_kwh, present, _INDIFFERENT):
            action = present
        if self._changes_cost and action != present:
            wanted, held = action, self._held(present)
            action = self._kept_or(wanted, price, g_per_kwh, present, plan.middle)
            if action != wanted and held is not None:
                # What is not changed to has no say in what a token is worth.
                price = plan.priced_with(held).price(tokens, low)
                action = held.best(price, g_per_kwh)
        told = f"a token is worth {1e6 * price.g_per_token:.3g} g a million"
        return choice(
            self.name, now_s, self._problem, seen, action, Why.PRICED, told, price.g_per_token
        )

    def memory(self) -> Mapping[str, object]:
        """When the last token is to be trained, and how far forecasts were off."""
        end = {} if self._chosen_end is None else {"end": list(self._chosen_end)}
        return {**end, "errors": self._errors.memory()}

    def recall(self, memory: Mapping[str, object]) -> None:
        """See `Controller.recall`."""
        found = memory.get("end")
        self._plan = None
        self._chosen_end = None
        if isinstance(found, list):
            hour, end_s = found
            self._chosen_end = (int(hour), float(end_s))
        errors = memory.get("errors")
        if isinstance(errors, Mapping):
            self._errors.recall(errors)

    # ------------------------------------------------------------ the plan

    def _planned(self, now_s: float, seen: Seen, progress: Progress) -> _Plan | None:
        """The plan, made anew when an hour begins or something new is known.

        It is that of the hour's begin, so that it is the same whenever in the hour it is made.
        """
        past = seen.past
        if past is None or not now_s < self._problem.deadline_s:
            return None
        hour = int((now_s - self._problem.start_s) / self._hour_s + 1e-9)
        key = (hour, past.end_s, len(past.values), seen.forecast)
        if self._plan is not None and self._plan.key == key:
            return self._plan
        begin_s = self._problem.start_s + hour * self._hour_s
        self._errors.learn(past, hours_ahead(seen.forecast, past.end_s, self._hour_s))
        deadline_s = self._problem.deadline_s
        fan = self._fan.fan(past, begin_s, deadline_s, seen.forecast, self._errors)
        if fan is None:
            return None
        end_s = self._problem.deadline_s
        if self._end_costs:
            if self._chosen_end is None or self._chosen_end[0] != hour:
                self._chosen_end = (hour, self._best_end(now_s, fan, progress))
            end_s = self._chosen_end[1]
            fan = fan.first(max(1, round((end_s - begin_s) / self._hour_s)))
        curve = PriceCurve.of(self._hulls, fan, end_s - begin_s)
        self._plan = _Plan(key, curve, fan.middle, end_s, fan)
        return self._plan

    def _best_end(self, now_s: float, fan: Fan, progress: Progress) -> float:
        """The end at which training, keeping the machines and lateness cost the least."""
        p = self._problem
        earliest_s = min(p.deadline_s, now_s + p.needed_s(progress))
        ends_s = {min(p.deadline_s, earliest_s + spare * self._hour_s) for spare in _SPARE_H}
        ends_s.add(p.deadline_s)
        if p.soft_deadline_s is not None:
            ends_s.add(min(max(p.soft_deadline_s, earliest_s), p.deadline_s))

        def cost_g(end_s: float) -> float:
            part = fan.first(max(1, round((end_s - now_s) / self._hour_s)))
            curve = PriceCurve.of(self._hulls, part, end_s - now_s)
            held_g = p.grams(self._held_w, part.mean, end_s - now_s)
            late_s = 0.0 if p.soft_deadline_s is None else max(0.0, end_s - p.soft_deadline_s)
            return curve.grams(progress.tokens_left) + held_g + late_s / HOUR_S * p.late_g_per_h

        return float(min(sorted(ends_s), key=cost_g))

    def _fastest(self, progress: Progress) -> TrainingAction:
        """The fastest action that may be planned with and that the cap still allows."""
        if self._is_whole:
            return self._problem.fastest(progress)
        hull = self._hulls.all if progress.low_tokens_left > 0.0 else self._hulls.high
        return hull.actions[-1]

    def _held(self, present: TrainingAction) -> Hulls | None:
        """What can be done without a change that takes time, where that is to run and to pause.

        It is so where workers are kept through a pause: who does not change them decides between
        these alone. Elsewhere None.
        """
        p = self._problem
        free = tuple(one for one in self._some if p.change_s(present, one) == 0.0)
        if not free or p.change_s(present, PAUSE) > 0.0 or len(free) == len(self._some):
            return None
        if free not in self._held_hulls:
            self._held_hulls[free] = Hulls.of(p, free)
        return self._held_hulls[free]

    def _kept_or(
        self,
        wanted: TrainingAction,
        price: Price,
        g_per_kwh: float,
        present: TrainingAction,
        middle: FloatArray,
    ) -> TrainingAction:
        """The wanted action where it pays for the change to it and back, else the best free one.

        The present one is free, and what can be changed to without losing time.
        """
        p, per_joule = self._problem, self._hulls.g_per_j
        more_tokens = p.rate(wanted) - p.rate(present)
        more_w = p.draw_w(wanted) - p.draw_w(present)
        path = middle.copy()
        path[0] = g_per_kwh
        gains = (price.g_per_token * more_tokens - path * per_joule * more_w) * self._hour_s
        turns = np.flatnonzero(gains < 0.0)
        gain_g = float(gains[: turns[0] if turns.size else len(gains)].sum())
        change_s = p.change_s(present, wanted)
        lost = change_s * max(p.rate(wanted), p.rate(present))
        draw_g = change_s * max(p.draw_w(wanted), p.draw_w(present)) * g_per_kwh * per_joule
        if gain_g > 2.0 * (price.g_per_token * lost + draw_g):
            return wanted
        free = [one for one in self._hulls.actions if p.change_s(present, one) == 0.0]

        def worth_g_per_s(one: TrainingAction) -> float:
            token_g = price.g_per_token - (price.low_g_per_token if one.is_low else 0.0)
            return token_g * p.rate(one) - g_per_kwh * per_joule * p.draw_w(one)

        # Of some actions alone, the present one may be another that the budget has forced.
        kept = [present] if self._is_whole or present in self._hulls.actions else []
        return max([*kept, *free], key=worth_g_per_s, default=wanted)


WIDTH_FIXED, GEAR_FIXED = "width-fixed", "gear-fixed"


class Ablation:
    """The default controller with some gears and widths.

    Args:
        name: under which its choices are recorded.
        problem: what has to be met.
        gears: which it may take; None: all.
        widths: which it may take beside a pause; None: all.
        day_s: length of a day of the grid, s.
    """

    def __init__(
        self,
        name: str,
        problem: TrainingProblem,
        *,
        gears: tuple[Gear, ...] | None = None,
        widths: tuple[int, ...] | None = None,
        day_s: float = 86400.0,
    ) -> None:
        self.name = name
        some = problem.table.only(gears, widths).actions()
        self._actions = frozenset((PAUSE, *some))
        self._inner = RecedingHorizon(problem, day_s=day_s, some=some, name=name)
        try:
            self._part: TrainingProblem | None = problem.of(gears, widths)
        except ConfigError:
            self._part = None

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        progress, wanted = seen.progress, self._inner.decide(now_s, seen)
        assert progress is not None
        if self._part is None:
            return wanted
        if progress.action not in self._actions:
            progress = replace(progress, action=PAUSE)
        return shielded(self._part, now_s, seen, progress, wanted)

    def memory(self) -> Mapping[str, object]:
        """See `Controller.memory`."""
        return self._inner.memory()

    def recall(self, memory: Mapping[str, object]) -> None:
        """See `Controller.recall`.

        Args:
            memory: of a controller of this kind for the same problem.
        """
        self._inner.recall(memory)


def width_fixed(problem: TrainingProblem, day_s: float = 86400.0) -> Ablation:
    """The default controller with all workers or none.

    Args:
        problem: what has to be met.
        day_s: length of a day of the grid, s.
    """
    return Ablation(WIDTH_FIXED, problem, widths=problem.table.widths[-1:], day_s=day_s)


def gear_fixed(problem: TrainingProblem, day_s: float = 86400.0) -> Ablation:
    """The default controller in the fastest gear that is not of low precision.

    Args:
        problem: what has to be met.
        day_s: length of a day of the grid, s.
    """
    return Ablation(GEAR_FIXED, problem, gears=(high_gear(problem),), day_s=day_s)
