"""The control step: what a controller wants, and what the promise of the budget lets it have.

It is a pure function of what is seen: the runtime acts on it, and a replay plays a recorded grid
through the very same one.
"""

from __future__ import annotations

from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Controller, Seen


def control_step(
    controller: Controller, problem: TrainingProblem, now_s: float, seen: Seen
) -> GearChoice:
    """Decide what the training stage does until the next epoch.

    The shield lets the controller have its way for as long as the rest of the budget can still be
    trained after the epoch at full speed, changes included. From then on it is full speed.

    Args:
        controller: who decides.
        problem: what has to be met.
        now_s: time, s since 1970.
        seen: what is known; its progress counts.

    Raises:
        ValueError: when there is no progress in `seen`.
    """
    progress = seen.progress
    if progress is None:
        raise ValueError("a token budget is kept by its progress, and there is none")
    if progress.tokens_left <= 0.0:
        return choice(controller.name, now_s, problem, seen, PAUSE, Why.DONE, "all is trained")
    wanted = controller.decide(now_s, seen)
    if wanted.command is Command.STOP or wanted.why is Why.STOPPING:
        return wanted
    return shielded(problem, now_s, seen, progress, wanted)


def shielded(
    problem: TrainingProblem, now_s: float, seen: Seen, progress: Progress, wanted: GearChoice
) -> GearChoice:
    """What is done in place of a choice: itself, or what the budget needs.

    Args:
        problem: what has to be met.
        now_s: time, s since 1970.
        seen: what is known.
        progress: how far the training is.
        wanted: the choice.
    """
    action = action_of(wanted)
    name, price = wanted.controller, wanted.price_g_per_token
    if action.is_low and progress.low_tokens_left <= 0.0:
        action = _without_low(problem, action)
        told = f"{100 * problem.low_share:.0f} % of the tokens are in low precision already"
        wanted = choice(name, now_s, problem, seen, action, Why.CAPPED, told, price)
    if can_finish_after(problem, now_s, progress, action):
        return wanted
    told = "the rest of the tokens takes full speed until the deadline"
    fastest = problem.fastest(progress)
    return choice(name, now_s, problem, seen, fastest, Why.SHIELDED, told, price)


def can_finish_after(
    problem: TrainingProblem, now_s: float, progress: Progress, action: TrainingAction
) -> bool:
    """Whether the budget can still be met after one epoch of an action.

    Args:
        problem: what has to be met.
        now_s: begin of the epoch, s since 1970.
        progress: how far the training is.
        action: of the epoch.
    """
    # Mostly there is time for an epoch of nothing and all changes, and this is all that is asked.
    spare_s = problem.deadline_s - now_s - problem.epoch_s - problem.width_change_s
    if problem.needed_s(progress) + problem.gear_change_s <= spare_s:
        return True
    useful_s = problem.epoch_s - problem.change_s(progress.action, action)
    tokens = min(progress.tokens_left, max(0.0, useful_s) * problem.rate(action))
    if action.is_low:
        tokens = min(tokens, progress.low_tokens_left)
    later = problem.after(progress, action, tokens)
    return now_s + problem.epoch_s + problem.needed_s(later) <= problem.deadline_s


def choice(
    name: str,
    now_s: float,
    problem: TrainingProblem,
    seen: Seen,
    action: TrainingAction,
    why: Why,
    reason: str,
    price_g_per_token: float | None = None,
) -> GearChoice:
    """The record of an action.

    Args:
        name: of the controller.
        now_s: time, s since 1970.
        problem: what has to be met.
        seen: what is known.
        action: what is done.
        why: what it goes by.
        reason: one sentence.
        price_g_per_token: what one more token is worth; None without a price.
    """
    intensity = seen.intensity
    return GearChoice(
        decided_s=now_s,
        command=Command.PAUSE if action.is_pause and why is not Why.DONE else Command.RUN,
        why=why,
        controller=name,
        reason=reason,
        look_again_s=now_s + problem.epoch_s,
        g_per_kwh=None if intensity is None else intensity.g_per_kwh,
        feed=None if intensity is None else intensity.feed,
        width=action.width,
        gear=action.gear,
        price_g_per_token=price_g_per_token,
    )


def action_of(found: GearChoice) -> TrainingAction:
    """The action of a choice that names its width and gear.

    Args:
        found: the choice.
    """
    if found.command is not Command.RUN or not found.width:
        return PAUSE
    return TrainingAction(found.width, None if found.gear is None else Gear(found.gear))


def _without_low(problem: TrainingProblem, action: TrainingAction) -> TrainingAction:
    """The fastest action of the same width that is not of low precision."""
    others = [TrainingAction(action.width, gear) for gear in problem.table.gears if not gear.is_low]
    return max(others, key=problem.rate, default=PAUSE)
