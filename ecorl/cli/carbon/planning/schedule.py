"""Shows a plan, for ``ecorl carbon plan``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.carbon.series import Series
from ecorl.cli.carbon.planning.words import (
    ActionsOverTime,
    budget_text,
    capped_note,
    draw_actions,
    emitted,
    gas_text,
    mass_scale,
    percent,
    percents,
    show_table,
    workers_text,
)
from ecorl.cli.carbon.times import (
    clock,
    dated,
    dated_moment,
    length,
    paragraph,
    utc_text,
    zone_name,
)
from ecorl.controllers.planning.plan import (
    CarbonPlan,
    CourseOutcome,
    DeadlineChoice,
    PlannedSpan,
    daily_hours,
    saved_of_high,
    saved_of_low,
)
from ecorl.controllers.planning.problems import slack_of
from ecorl.controllers.problem.training import Kept
from ecorl.controllers.rules.reactive import high_gear
from ecorl.kinds import Provenance
from ecorl.report.render.numbers import MISSING, figure, share

MOST_ROWS = 20
"""Rows of the schedule that are printed."""

SMALL = 0.05
"""Below this share a saving is called small. Invented: a forecast's errors move it by as much."""

_NONE = 0.005
"""Below this share nothing is saved."""

_FEW_DAYS = 14.0
"""Days of the past below which it is told how few they are: two weekends."""

_DRAWN_PAST_DAYS, _HOUR_S = 7, 3600.0


def show_plan(plan: CarbonPlan, console: Console) -> None:
    """Print the schedule, what it saves, other deadlines, the price, and one sentence.

    Args:
        plan: of a training.
        console: where to.
    """
    _show_head(plan, console)
    rows = _span_rows(plan)
    left = len(plan.spans) - MOST_ROWS
    more = None
    if left > 0:
        until = dated_moment(plan.spans[-1].end_s)
        more = f"... and {left} more until {until}; --json has them all"
    show_table(rows, console, n_text=_n_zones(plan), more=more)
    _show_outcomes(plan, console)
    _show_deadlines(plan, console)
    for line in _notes(plan):
        paragraph(line, console)
    console.print()
    paragraph(sentence(plan), console)


def plan_data(plan: CarbonPlan) -> dict[str, Any]:
    """A plan as plain data; what is missing is None.

    Args:
        plan: of a training.
    """
    p = plan.problem
    return {
        "grid": {
            "source": plan.past.source, "provenance": plan.past.provenance,
            "unit": str(plan.past.gas), "known_days": plan.past.known_days,
            "forecast": None if plan.past.forecast is None else plan.past.forecast.model,
        },
        "provenance": Provenance.MODELLED,
        "table": {
            "provenance": p.table.provenance, "source": p.table.source,
            "gears": list(p.table.gears), "widths": list(p.table.widths),
        },
        "start": utc_text(p.start_s), "deadline": utc_text(p.deadline_s), "tokens": p.tokens,
        "slack": slack_of(p), "pue": p.pue, "epoch_s": p.epoch_s,
        "earliest_deadline": utc_text(p.earliest_deadline_s()),
        "spans": [_span_data(span) for span in plan.spans],
        "done": None if plan.played.done_s is None else utc_text(plan.played.done_s),
        "expected": _outcome_data(plan.expected),
        "intervals": {
            "n_courses": len(plan.outcomes),
            "carbon_g": plan.interval(_carbon_g),
            "saving_on_static_fp8": plan.interval(saved_of_low),
            "saving_on_static_full_precision": plan.interval(saved_of_high),
        },
        "courses": [_outcome_data(one) for one in plan.outcomes],
        "deadlines": [
            {"slack": one.slack, "deadline": utc_text(one.deadline_s), "is_own": one.is_own,
             **_outcome_data(one.outcome)}
            for one in plan.deadlines
        ],
        "worth": asdict(plan.worth),
        "sentence": sentence(plan),
    }  # fmt: skip


def draw_plan(plan: CarbonPlan, path: Path) -> None:
    """Draw the expected course, and width and gear along it.

    Args:
        plan: of a training.
        path: the PNG.

    Raises:
        OSError: when it cannot be written.
    """
    p, hours, course = plan.problem, plan.past.hours, plan.course
    n = min(len(hours.values), 24 * _DRAWN_PAST_DAYS)
    told = Series(hours.end_s - n * hours.step_s, hours.step_s, hours.values[-n:])
    first = round((p.start_s - course.start_s) / course.step_s)
    last = first + round((p.deadline_s - p.start_s) / course.step_s + 0.5 - 1e-9)
    expected = Series(p.start_s, course.step_s, course.values[first:last])
    name, saving = _reference(plan)
    saved = f", {percent(saving)} less than {name}" if saving is not None else ""
    gas = plan.past.gas
    shown = ActionsOverTime(
        title=f"Plan: {emitted(plan.played.carbon_g, gas)} expected (modelled){saved}",
        unit=str(gas),
        told=told,
        expected=expected,
        actions=plan.actions,
        end_s=p.deadline_s if plan.played.done_s is None else plan.played.done_s,
        deadline_s=p.deadline_s,
        widest=p.table.widths[-1],
    )
    draw_actions(shown, path)


def sentence(plan: CarbonPlan) -> str:
    """When to train and what it is worth, in one sentence.

    Args:
        plan: of a training.
    """
    gas, done_s, zone = plan.past.gas, plan.played.done_s, zone_name(plan.problem.start_s)
    name, saving = _reference(plan)
    done = "" if done_s is None else f", done {dated(done_s, None)}"
    other = plan.low if plan.low is not None else plan.high
    if saving is None or other is None:
        told = emitted(plan.played.carbon_g, gas)
        return f"Train in the times above{done} ({zone}): {told} are expected (modelled)."
    at_once = f"{name} at once"
    if other.done_s is not None:
        at_once += f", which is done {dated(other.done_s, None)}"
    ends = plan.interval(saved_of_low if plan.low is not None else saved_of_high)
    sure = "" if ends is None else f"; in 90 % of cases it is {percents(ends)}"
    saved = emitted(other.carbon_g - plan.played.carbon_g, gas)
    if saving < _NONE:
        return (
            f"Waiting is worth nothing here: this plan is expected to emit as much as {at_once} "
            f"(saving {percent(saving)}, modelled{sure}; times in {zone})."
        )
    if saving < SMALL:
        return (
            f"The saving is small: this plan is expected to emit {percent(saving)} or {saved} less "
            f"than {at_once} (modelled{sure}; times in {zone})."
        )
    unsure = ", and it may save nothing" if ends is not None and ends[0] <= 0.0 else ""
    return (
        f"Train in the times above{_mainly(plan)}, from {dated(plan.spans[0].start_s, None)} on"
        f"{done}: that is expected to emit {percent(saving)} or {saved} less than {at_once} "
        f"(modelled{sure}{unsure}; times in {zone})."
    )


def _mainly(plan: CarbonPlan) -> str:
    """The hours of the day in which most is trained, where there are such."""
    found = daily_hours(plan)
    if found is None or plan.past.hour_s != _HOUR_S:
        return ""
    begin_s, n_hours, part = found
    ends = [clock(t_s, None).partition(" ")[2] for t_s in (begin_s, begin_s + n_hours * _HOUR_S)]
    return f" ({share(part, 0)} of the tokens from {ends[0]} to {ends[1]})"


def _show_head(plan: CarbonPlan, console: Console) -> None:
    p, past = plan.problem, plan.past
    forecast = "" if past.forecast is None else f", and the forecast of {past.forecast.model}"
    paragraph(
        f"Grid: {past.source} ({past.provenance}), {past.known_days:.3g} days of it; the time "
        f"ahead is modelled from that{forecast}.",
        console,
    )
    paragraph(workers_text(p.table), console)
    paragraph(
        f"To train: {budget_text(p.tokens)} from {dated(p.start_s, None, with_year=True)} until "
        f"{dated(p.deadline_s, None, with_year=True)} ({zone_name(p.start_s)}): "
        f"{length(p.deadline_s - p.start_s)}, "
        f"{slack_of(p):.3g} times the least time that they take; PUE {p.pue:g}. What follows is "
        "modelled.",
        console,
    )
    console.print()


def _n_zones(plan: CarbonPlan) -> int:
    return 1 if zone_name(plan.problem.start_s) == "UTC" else 2


def _zones(plan: CarbonPlan, what: str) -> list[str]:
    """Heads of the columns of a time."""
    return [f"{what} ({zone_name(plan.problem.start_s)})", "UTC"][: _n_zones(plan)]


def _times(plan: CarbonPlan, t_s: float) -> list[str]:
    """A time in the zones of `_zones`."""
    return [dated(t_s, zone) for zone in (None, UTC)][: _n_zones(plan)]


def _span_rows(plan: CarbonPlan) -> list[list[str]]:
    """The first spans; times in this machine's zone, and in UTC where that is another one."""
    p = plan.problem
    rows = [[*_zones(plan, "from"), "length", "workers", "gear", str(plan.past.gas), "tokens"]]
    for span in plan.spans[:MOST_ROWS]:
        times = _times(plan, span.start_s)
        tokens = share(span.tokens / p.tokens, 2)
        seconds = length(span.end_s - span.start_s)
        rows.append(
            [*times, seconds, str(span.action.width), str(span.action.gear),
             f"{span.g_per_kwh:.0f}", tokens]
        )  # fmt: skip
    return rows


def _show_outcomes(plan: CarbonPlan, console: Console) -> None:
    """What the plan emits and saves, with intervals."""
    ends = plan.interval(_carbon_g)
    runs = [
        ("static FP8 at once", plan.low, saved_of_low),
        (f"static {high_gear(plan.problem)} at once", plan.high, saved_of_high),
    ]
    emissions = [run.carbon_g for _, run, _ in runs if run is not None]
    factor, unit = mass_scale([plan.played.carbon_g, *emissions, *(ends or ())])
    mass, often = f"{unit}{gas_text(plan.past.gas)}", "in 90 % of cases"
    rows = [["all modelled", f"emits, {mass}", often, "the plan saves", often]]
    told = MISSING
    if ends is not None:
        told = f"{figure(factor * max(0.0, ends[0]))} to {figure(factor * ends[1])}"
    rows.append(["this plan", figure(factor * plan.played.carbon_g), told, "", ""])
    for label, run, of in runs:
        if run is not None:
            saved = [percent(of(plan.expected)), percents(plan.interval(of))]
            rows.append([label, figure(factor * run.carbon_g), "", *saved])
    show_table(rows, console)


def _show_deadlines(plan: CarbonPlan, console: Console) -> None:
    """What is saved with other deadlines, on the expected course."""
    names = ["saves on static FP8", f"on static {high_gear(plan.problem)}"]
    is_there = [plan.low is not None, plan.high is not None]
    n_text = _n_zones(plan) + 1
    rows = [[*_zones(plan, "deadline"), "", "slack", *_only(names, is_there)]]
    for one in plan.deadlines:
        saved = [percent(saved_of_low(one.outcome)), percent(saved_of_high(one.outcome))]
        times = _times(plan, one.deadline_s)
        rows.append([*times, _mark(one), f"{one.slack:.2f}", *_only(saved, is_there)])
    show_table(rows, console, n_text=n_text)


def _only(cells: list[str], is_there: list[bool]) -> list[str]:
    return [cell for cell, there in zip(cells, is_there, strict=True) if there]


def _mark(one: DeadlineChoice) -> str:
    if one.is_own:
        return "this plan"
    return "the earliest" if one.slack <= 1.0 else ""


def _notes(plan: CarbonPlan) -> list[str]:
    """Prices, and what a reader has to know beside the figures."""
    p, gas, notes = plan.problem, plan.past.gas, []
    worth = plan.worth
    million_g = emitted(max(0.0, 1e6 * worth.g_per_token), gas)
    notes.append(f"A million tokens less would save {million_g} (modelled).")
    verb = "save" if worth.g_per_h >= 0.0 else "cost"
    until = "" if worth.later_s <= plan.past.hour_s else ", up to a day,"
    notes.append(
        f"Each hour more until the deadline{until} would {verb} "
        f"{emitted(abs(worth.g_per_h), gas)} (modelled)."
    )
    notes.append(
        f"How sure: the controller was played on {len(plan.outcomes)} courses of the grid, drawn "
        "around the expected one with the errors of its past."
    )
    if plan.past.known_days < _FEW_DAYS:
        notes.append(
            f"Only {plan.past.known_days:.2g} days of the grid's past are known: the time ahead is "
            "little more than a guess."
        )
    if plan.low is not None and p.low_share < 1.0:
        notes.append(capped_note(p.low_share))
    if p.idle_w == 0.0 and p.base_w == 0.0:
        until = "the deadline" if p.kept is Kept.DEADLINE else "the last token"
        notes.append(
            "Workers that do not train are taken to draw nothing (carbon.control.idle_w = 0), as "
            f"where they are given back; where they stand idle until {until}, less is saved."
        )
    return notes


def _reference(plan: CarbonPlan) -> tuple[str, float | None]:
    """What the plan is held against, and what it saves of that."""
    if plan.low is not None:
        return "static FP8", saved_of_low(plan.expected)
    return f"static {high_gear(plan.problem)}", saved_of_high(plan.expected)


def _carbon_g(outcome: CourseOutcome) -> float:
    return outcome.carbon_g


def _span_data(span: PlannedSpan) -> dict[str, Any]:
    return {
        "start": utc_text(span.start_s), "end": utc_text(span.end_s), "start_s": span.start_s,
        "end_s": span.end_s, "width": span.action.width, "gear": span.action.gear,
        "tokens": span.tokens, "g_per_kwh": span.g_per_kwh,
    }  # fmt: skip


def _outcome_data(outcome: CourseOutcome) -> dict[str, Any]:
    return {
        **asdict(outcome),
        "saving_on_static_fp8": saved_of_low(outcome),
        "saving_on_static_full_precision": saved_of_high(outcome),
    }
