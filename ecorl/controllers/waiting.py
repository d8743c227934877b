"""Waiting for a clean window: run below a threshold, and pause above it while there is time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ecorl.control import Command, GearChoice, Why
from ecorl.controllers.protocol import Seen
from ecorl.ledger import GearChoiceRow

NAME = "threshold"

_COMMANDS = {
    Why.DIRTY: Command.PAUSE,
    Why.ASKING: Command.PAUSE,
    Why.BUDGET: Command.STOP,
}
"""What is done for a reason; training runs for all others."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What may be waited for, and for how long.

    Attributes:
        threshold_g_per_kwh: at or below it training runs; None: `percentile` gives it, and where
            that is None too nothing is waited for.
        percentile: 0 to 100, of what the forecast says of the coming `horizon_s`.
        horizon_s: how much of a forecast the percentile is of, s.
        max_wait_s: longest wait of the whole run, s.
        deadline_s: when training should be over, s since 1970; None without one.
        recheck_s: longest time between two decisions of a pause, s.
        at_steps: whether training may be paused at each step, and not before the first alone.
        stops_over_budget: whether training ends when the run has emitted what it may.
    """

    threshold_g_per_kwh: float | None
    max_wait_s: float
    recheck_s: float
    percentile: float | None = None
    horizon_s: float = 86400.0
    deadline_s: float | None = None
    at_steps: bool = False
    stops_over_budget: bool = False

    @property
    def waits(self) -> bool:
        """Whether anything is ever waited for."""
        return self.threshold_g_per_kwh is not None or self.percentile is not None


def decide(rule: Waiting, now_s: float, seen: Seen) -> GearChoice:
    """Decide whether training runs or waits.

    Waiting ends with whatever comes first: a clean window, `Waiting.max_wait_s`, or the time that
    the rest of the training needs before the deadline. Where nobody knows the intensity training
    runs: a wait for what cannot be seen might last for ever.

    Args:
        rule: of the run.
        now_s: time, s since 1970.
        seen: what is known.
    """
    if seen.is_stopping:
        return _choice(rule, now_s, seen, Why.STOPPING, "training was asked to stop")
    if seen.is_over_budget and rule.stops_over_budget:
        return _choice(rule, now_s, seen, Why.BUDGET, "the run has emitted what it may")
    if not rule.waits:
        return _choice(rule, now_s, seen, Why.UNGOVERNED, "nothing is waited for")
    if seen.has_begun and not rule.at_steps:
        return _choice(rule, now_s, seen, Why.BEGUN, "training has begun")
    if seen.intensity is None and seen.is_asking:
        choice = _choice(rule, now_s, seen, Why.ASKING, "no feed has answered yet")
        return replace(choice, look_again_s=now_s + 1.0)
    if seen.intensity is None:
        return _choice(rule, now_s, seen, Why.UNKNOWN, "the grid's intensity is unknown")
    limit = threshold(rule, now_s, seen)
    if limit is None:
        return _choice(rule, now_s, seen, Why.UNKNOWN, "there is no forecast to wait by")
    told = f"{seen.intensity.g_per_kwh:.0f} {seen.intensity.gas}"
    if seen.intensity.g_per_kwh <= limit:
        return _choice(rule, now_s, seen, Why.CLEAN, f"{told} is at most {limit:.0f}", limit)
    wait_s = rule.max_wait_s - seen.waited_s
    if wait_s <= 0:
        reason = f"{told} is above {limit:.0f}, but {rule.max_wait_s:.0f} s were waited"
        return _choice(rule, now_s, seen, Why.WAITED, reason, limit)
    if rule.deadline_s is not None:
        spare_s = rule.deadline_s - now_s
        if seen.left_s is not None:
            spare_s -= seen.left_s
        if spare_s <= 0:
            reason = f"{told} is above {limit:.0f}, but the deadline leaves no time to wait"
            return _choice(rule, now_s, seen, Why.DEADLINE, reason, limit)
        wait_s = min(wait_s, spare_s)
    reason = f"{told} is above {limit:.0f}: waiting for at most {wait_s:.0f} s more"
    pause = _choice(rule, now_s, seen, Why.DIRTY, reason, limit)
    return replace(pause, look_again_s=now_s + min(wait_s, rule.recheck_s))


def threshold(rule: Waiting, now_s: float, seen: Seen) -> float | None:
    """The intensity at or below which training runs, g/kWh; None where no forecast gives it.

    Args:
        rule: of the run.
        now_s: time, s since 1970.
        seen: what is known.
    """
    if rule.threshold_g_per_kwh is not None:
        return rule.threshold_g_per_kwh
    forecast = seen.forecast
    if forecast is None or rule.percentile is None:
        return None
    starts_s = forecast.start_s + forecast.step_s * np.arange(len(forecast.middle))
    is_ahead = (starts_s + forecast.step_s > now_s) & (starts_s < now_s + rule.horizon_s)
    # A provider's forecast may lack hours.
    known = forecast.middle[is_ahead & np.isfinite(forecast.middle)]
    return float(np.percentile(known, rule.percentile)) if len(known) else None


def _choice(
    rule: Waiting, now_s: float, seen: Seen, why: Why, reason: str, limit: float | None = None
) -> GearChoice:
    intensity = seen.intensity
    return GearChoice(
        decided_s=now_s,
        command=_COMMANDS.get(why, Command.RUN),
        why=why,
        controller=NAME,
        reason=reason,
        look_again_s=now_s + rule.recheck_s,
        g_per_kwh=None if intensity is None else intensity.g_per_kwh,
        feed=None if intensity is None else intensity.feed,
        threshold_g_per_kwh=limit,
    )


def paused_spans(
    choices: Sequence[GearChoiceRow], ends_s: Mapping[int, float]
) -> dict[int, list[tuple[float, float]]]:
    """Begin and end of each pause by attempt, monotonic s of it, in the order of time.

    A pause lasts from the decision to pause to the next other one of its attempt, or to the
    attempt's last record.

    Args:
        choices: of the record, in their order.
        ends_s: time of the last record of each attempt, monotonic s.
    """
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    began: dict[int, float] = {}
    for row in choices:
        if row.choice.command is Command.PAUSE:
            began.setdefault(row.attempt, row.t_s)
        elif row.attempt in began:
            found[row.attempt].append((began.pop(row.attempt), row.t_s))
    for attempt, start_s in began.items():
        end_s = ends_s.get(attempt, start_s)
        if end_s > start_s:
            found[attempt].append((start_s, end_s))
    return dict(found)
