"""When to train from now on, and what that is worth: the default controller on the grid ahead.

On the expected course it makes the schedule. On courses drawn around that it shows how sure the
saving is. Everything is modelled: from what the grid has done, and from the table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import GearChoice
from ecorl.controllers.catalogue import build
from ecorl.controllers.horizon.levels import DAY_H
from ecorl.controllers.horizon.receding import STOCHASTIC
from ecorl.controllers.planning.baselines import saving, static_trainings
from ecorl.controllers.planning.courses import OneForecast, grid_ahead
from ecorl.controllers.planning.history import GridPast
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import HOUR_S, Progress, TrainingProblem
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, play
from ecorl.controllers.rules.reactive import high_gear
from ecorl.controllers.step import action_of

SLACKS = (1.0, 1.25, 1.67, 3.0)
"""Deadlines that are weighed, as the time there is over the least time that the budget takes."""

COVERAGE = 0.9
"""Share of the outcomes that intervals are to hold."""

MAINLY = 2.0 / 3.0
"""Share of the tokens by which hours of the day are told."""

_MOST_COURSES, _LEAST_COURSES, _COURSE_DAYS = 8, 6, 360.0
"""Number of courses, and how many days of training they make up together at most. Invented: more of
them move the interval by less than one of them does."""

_LESS_TOKENS = 0.01
"""Share of the budget by whose lack the price of a token is told. Invented: a smaller one drowns in
what a plan loses to whole hours."""

Tell = Callable[[int], None]
"""Is told how many more trainings have been played."""


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """A time of the plan with one width and gear.

    Attributes:
        start_s, end_s: begin and end, s since 1970.
        action: width and gear; never a pause.
        tokens: trained in it.
        g_per_kwh: mean of the expected intensity.
    """

    start_s: float
    end_s: float
    action: TrainingAction
    tokens: float
    g_per_kwh: float


@dataclass(frozen=True, slots=True)
class CourseOutcome:
    """What a training emits on one course of the grid, gCO2e.

    Attributes:
        carbon_g: by the default controller.
        high_g: by all workers in the fastest gear of full precision at once; None: unknown.
        low_g: by all workers in FP8 at once; None without that gear.
    """

    carbon_g: float
    high_g: float | None
    low_g: float | None


@dataclass(frozen=True, slots=True)
class DeadlineChoice:
    """What another deadline would save on the expected course.

    Attributes:
        slack: time there is over the least time that the budget takes.
        deadline_s: the deadline, s since 1970.
        outcome: what is emitted.
        is_own: whether it is the deadline that the plan is for.
    """

    slack: float
    deadline_s: float
    outcome: CourseOutcome
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class PlanWorth:
    """What tokens and time are worth, on the expected course.

    Attributes:
        g_per_token: the grams that one token less would save, mean over a hundredth of the budget.
        g_per_h: the grams that an hour more until the deadline would save, mean over `later_s`;
            below 0 where keeping the machines for it costs more.
        later_s: by how much the deadline is put off for that, s.
    """

    g_per_token: float
    g_per_h: float
    later_s: float


@dataclass(frozen=True, slots=True, eq=False)
class CarbonPlan:
    """A plan of a training.

    Attributes:
        past: of the grid.
        problem: what has to be met.
        course: the past with the expected course after it, g/kWh.
        actions: width and gear of each epoch, until the last token.
        spans: the same, merged and without pauses.
        played: the training on the expected course.
        high, low: the static ones beside it; None where they are missing.
        outcomes: on the courses that were drawn.
        deadlines: what other deadlines would save, the plan's own among them.
        worth: what tokens and time are worth.
    """

    past: GridPast
    problem: TrainingProblem
    course: Series
    actions: tuple[tuple[float, TrainingAction], ...]
    spans: tuple[PlannedSpan, ...]
    played: PlayedTraining
    high: PlayedTraining | None
    low: PlayedTraining | None
    outcomes: tuple[CourseOutcome, ...]
    deadlines: tuple[DeadlineChoice, ...]
    worth: PlanWorth

    @property
    def expected(self) -> CourseOutcome:
        """What is emitted on the expected course."""
        return _outcome(self.played, self.high, self.low)

    def interval(self, of: Callable[[CourseOutcome], float | None]) -> tuple[float, float] | None:
        """The interval that is to hold a figure with `COVERAGE`; None where it is missing.

        It is that of one more draw from a normal distribution of which the courses are a sample. As
        they lie apart from each other it is rather too wide than too narrow.

        Args:
            of: takes the figure of a course.
        """
        values = [value for outcome in self.outcomes if (value := of(outcome)) is not None]
        if len(values) < 2:
            return None
        mean, spread = statistics.fmean(values), statistics.stdev(values)
        half = _student(len(values) - 1) * spread * math.sqrt(1.0 + 1.0 / len(values))
        return mean - half, mean + half


def daily_hours(plan: CarbonPlan) -> tuple[float, int, float] | None:
    """The shortest stretch of each day in which `MAINLY` of the tokens are trained.

    Args:
        plan: of a training.

    Returns:
        Its begin on the first day, s since 1970, its hours, and the share of the tokens, 0 to 1.
        None where it is half a day or more, and for plans of less than three days of the grid.
    """
    p, hour_s = plan.problem, plan.past.hour_s
    if p.deadline_s - p.start_s < 3.0 * DAY_H * hour_s:
        return None
    tokens = np.zeros(DAY_H)
    for span in plan.spans:
        edges = np.array([span.start_s, span.end_s])
        first, last = (edges - p.start_s) / hour_s
        rate = span.tokens / (last - first)
        for hour in range(math.floor(first + 1e-6), math.ceil(last - 1e-6)):
            within = min(last, hour + 1.0) - max(first, float(hour))
            tokens[hour % DAY_H] += rate * within
    for n in range(1, DAY_H // 2):
        sums = np.array([np.roll(tokens, -begin)[:n].sum() for begin in range(DAY_H)])
        best = int(sums.argmax())
        if sums[best] >= MAINLY * p.tokens:
            return p.start_s + best * hour_s, n, float(sums[best] / p.tokens)
    return None


def saved_of_low(outcome: CourseOutcome) -> float | None:
    """What is saved of static FP8's emissions, as a fraction; None without that gear.

    Args:
        outcome: on one course.
    """
    return saving(outcome.carbon_g, outcome.low_g)


def saved_of_high(outcome: CourseOutcome) -> float | None:
    """What is saved of the static fastest gear of full precision, as a fraction; None: unknown.

    Args:
        outcome: on one course.
    """
    return saving(outcome.carbon_g, outcome.high_g)


def epoch_of(past: GridPast, length_s: float, wanted_s: float) -> float:
    """Time between two decisions of a plan: an hour of the grid, or less for a short one.

    Args:
        past: of the grid.
        length_s: from start to deadline, s.
        wanted_s: what the config asks for, s; it counts where it divides an hour.
    """
    if length_s >= 2.0 * DAY_H * past.hour_s:
        return past.hour_s
    parts = past.hour_s / wanted_s
    is_part = parts >= 1.0 and abs(parts - round(parts)) < 1e-9 * parts
    return wanted_s if is_part else past.hour_s / 12.0


def carbon_plan(past: GridPast, problem: TrainingProblem, tell: Tell | None = None) -> CarbonPlan:
    """Plan a training.

    Args:
        past: of the grid, of `NEEDED_DAYS` at least.
        problem: what has to be met; it starts with an hour as `GridPast.begin_s` gives it.
        tell: is told what has been played; `n_plays` says how much there is.
    """
    p, needed_s = problem, problem.needed_s(problem.begin())
    high_s = p.tokens / p.rate(TrainingAction(p.table.widths[-1], high_gear(p))) + p.width_change_s
    ends_s = (
        p.deadline_s - p.start_s + _later_s(past, p),
        high_s + p.epoch_s,
        max(SLACKS) * needed_s,
    )
    ahead = grid_ahead(past, p.start_s, _hours(past, max(ends_s)))
    course = ahead.course()
    watched: list[tuple[float, GearChoice, Progress]] = []
    played = _played(past, p, course, lambda *one: watched.append(one))
    high, low = static_trainings(p, course)
    _tell(tell)
    outcomes = []
    n_busy, n_hours = (max(1, round(s / past.hour_s)) for s in (needed_s, p.deadline_s - p.start_s))
    for values in ahead.apart(_n_courses(past, p), n_busy, n_hours):
        truth = ahead.course(values)
        outcomes.append(_outcome(_played(past, p, truth), *static_trainings(p, truth)))
        _tell(tell)
    own = _outcome(played, high, low)
    deadlines = [DeadlineChoice((p.deadline_s - p.start_s) / needed_s, p.deadline_s, own, True)]
    for slack in SLACKS:
        if abs(slack / deadlines[0].slack - 1.0) > 0.005:
            deadlines.append(_deadline(past, p, course, slack))
        _tell(tell)
    worth = _worth(past, p, course, played.cost_g)
    _tell(tell)
    return CarbonPlan(
        past=past,
        problem=p,
        course=course,
        actions=tuple((now_s, action_of(found)) for now_s, found, _ in watched),
        spans=_spans(p, course, watched, played),
        played=played,
        high=high,
        low=low,
        outcomes=tuple(outcomes),
        deadlines=tuple(sorted(deadlines, key=lambda one: one.slack)),
        worth=worth,
    )


def n_plays(past: GridPast, problem: TrainingProblem) -> int:
    """How many times `carbon_plan` tells that something has been played.

    Args:
        past: of the grid.
        problem: what has to be met.
    """
    return 2 + _n_courses(past, problem) + len(SLACKS)


def _n_courses(past: GridPast, problem: TrainingProblem) -> int:
    days = (problem.deadline_s - problem.start_s) / (DAY_H * past.hour_s)
    pairs = int(_COURSE_DAYS / max(days, 1e-9) / 2.0)
    return min(_MOST_COURSES, max(_LEAST_COURSES, 2 * pairs))


def _played(
    past: GridPast,
    problem: TrainingProblem,
    truth: Series,
    watch: Callable[[float, GearChoice, Progress], None] | None = None,
) -> PlayedTraining:
    """The default controller on a course, of which it knows the part so far and the forecast."""
    controller = build(STOCHASTIC, problem, day_s=DAY_H * past.hour_s)
    knowledge = Knowledge(truth, foresight=OneForecast(past.forecast))
    return play(controller, problem, knowledge, watch=watch)


def _outcome(
    played: PlayedTraining, high: PlayedTraining | None, low: PlayedTraining | None
) -> CourseOutcome:
    high_g, low_g = (None if one is None else one.carbon_g for one in (high, low))
    return CourseOutcome(played.carbon_g, high_g, low_g)


def _deadline(
    past: GridPast, problem: TrainingProblem, course: Series, slack: float
) -> DeadlineChoice:
    """The same training with another deadline."""
    needed_s = problem.needed_s(problem.begin())
    deadline_s = max(problem.earliest_deadline_s(), problem.start_s + slack * needed_s)
    other = replace(problem, deadline_s=deadline_s)
    played = _played(past, other, course)
    return DeadlineChoice(slack, deadline_s, _outcome(played, *static_trainings(other, course)))


def _spans(
    problem: TrainingProblem,
    course: Series,
    watched: Sequence[tuple[float, GearChoice, Progress]],
    played: PlayedTraining,
) -> tuple[PlannedSpan, ...]:
    """Epochs of one action after each other as one span each; pauses are left out."""
    end_s = problem.deadline_s if played.done_s is None else played.done_s
    left = [progress.tokens_left for _, _, progress in watched] + [played.deficit]
    edges_s = [now_s for now_s, _, _ in watched] + [end_s]
    actions = [action_of(found) for _, found, _ in watched]
    found, begin = [], 0
    for number in range(1, len(actions) + 1):
        if number < len(actions) and actions[number] == actions[begin]:
            continue
        if not actions[begin].is_pause:
            start_s, stop_s = edges_s[begin], edges_s[number]
            mean = _mean(course, start_s, stop_s)
            tokens = left[begin] - left[number]
            found.append(PlannedSpan(start_s, stop_s, actions[begin], tokens, mean))
        begin = number
    return tuple(found)


def _mean(course: Series, start_s: float, end_s: float) -> float:
    """Mean over the intervals that begin in a span, or the one in which it lies, g/kWh."""
    first = math.floor((start_s - course.start_s) / course.step_s + 1e-9)
    last = math.ceil((end_s - course.start_s) / course.step_s - 1e-9)
    return float(course.values[first : max(first + 1, last)].mean())


def _worth(past: GridPast, problem: TrainingProblem, course: Series, cost_g: float) -> PlanWorth:
    """What a token less and a later deadline would save on the expected course."""
    part = _LESS_TOKENS * problem.tokens
    less = _played(past, replace(problem, tokens=problem.tokens - part), course)
    later_s = _later_s(past, problem)
    later = _played(past, replace(problem, deadline_s=problem.deadline_s + later_s), course)
    return PlanWorth(
        g_per_token=(cost_g - less.cost_g) / part,
        g_per_h=(cost_g - later.cost_g) / (later_s / HOUR_S),
        later_s=later_s,
    )


def _later_s(past: GridPast, problem: TrainingProblem) -> float:
    """A day of the grid, whose hours differ; one hour where the whole plan is short."""
    length_s = problem.deadline_s - problem.start_s
    return past.hour_s * (DAY_H if length_s >= 2.0 * DAY_H * past.hour_s else 1)


def _hours(past: GridPast, length_s: float) -> int:
    """Hours of the grid that hold a time and one hour more."""
    return math.ceil(length_s / past.hour_s - 1e-9) + 1


def _student(freedom: int) -> float:
    """Student's quantile with half of the rest above it, by the expansion of Cornish and Fisher."""
    z = statistics.NormalDist().inv_cdf(0.5 + COVERAGE / 2.0)
    first = (z**3 + z) / (4.0 * freedom)
    return z + first + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * freedom**2)


def _tell(tell: Tell | None) -> None:
    if tell is not None:
        tell(1)
