"""Shows what controllers came to along a recorded grid, for ``ecorl carbon simulate``."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.cli.carbon.app import ForecastKind
from ecorl.cli.carbon.planning.words import (
    ActionsOverTime,
    budget_text,
    capped_note,
    counted,
    draw_actions,
    emitted,
    gas_text,
    mass_scale,
    percent,
    show_table,
    workers_text,
)
from ecorl.cli.carbon.times import dated_moment, length, paragraph, utc_text
from ecorl.cli.output import writing
from ecorl.config import Config
from ecorl.controllers.planning.baselines import saving
from ecorl.controllers.planning.comparison import PlayedComparison
from ecorl.controllers.planning.history import LONGEST_HOLE_H, NEEDED_DAYS, SHORT_HOLE_H
from ecorl.controllers.planning.problems import slack_of
from ecorl.controllers.problem.table import GearTable
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.files import write_whole
from ecorl.kinds import Provenance, weakest
from ecorl.report.render.numbers import MISSING, figure

DAY_S = 86400.0
BOUND = "LP bound"

_TOLD = {
    "none": "the past alone",
    "kind": "the past, and forecasts made from the recording with made-up errors of 6 to 12 %",
    "archived": "the past, and forecasts made from the recording with errors as archived ones had",
}
_EMISSIONS = ["", "emits, {mass}", "saved on {high}", "on static FP8", "above bound", "captured"]
_COURSE = [
    "", "done after", "tokens missing", "in FP8", "pauses", "width changes", "gear changes",
    "shielded",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSetting:
    """What is played.

    Attributes:
        config: of the command.
        trace: the recording.
        series: the same with short holes bridged.
        n_bridged: how many of its values were.
        table: of the training stage.
        problems: one a start.
        forecast: what controllers are told.
    """

    config: Config
    trace: GridTrace
    series: Series
    n_bridged: int
    table: GearTable
    problems: tuple[TrainingProblem, ...]
    forecast: ForecastKind

    @property
    def provenance(self) -> Provenance:
        """Of all emissions: the weaker of the recording and the table."""
        return weakest(Provenance.REPLAYED, self.table.provenance)


def show_simulation(setting: SimulatedSetting, found: PlayedComparison, console: Console) -> None:
    """Print what was played, two tables, and one sentence.

    Args:
        setting: what was played.
        found: what came of it.
        console: where to.
    """
    _show_head(setting, found, console)
    rows = [found.score(one) for one in (*found.static, *found.controllers)]
    high = found.static[0].name if found.static and found.cases[0].high else "static"
    bound_g = found.bound_g
    factor, unit = mass_scale(row.carbon_g for row in rows)
    mass = f"{unit}{gas_text(setting.trace.gas)}"
    cells = [[text.format(high=high, mass=mass) for text in _EMISSIONS]]
    cells += [
        [
            row.name, figure(factor * row.carbon_g), percent(row.saving_high),
            percent(row.saving_low), percent(row.regret), percent(row.captured),
        ]
        for row in rows
    ]  # fmt: skip
    if bound_g is not None:
        saved = [percent(value) for value in _bound_savings(found)]
        captured = percent(1.0) if any(row.captured is not None for row in rows) else MISSING
        cells.append([BOUND, figure(factor * bound_g), *saved, percent(0.0), captured])
    show_table(cells, console)
    cells = [list(_COURSE)]
    cells += [
        [
            row.name, _days(row.done_days), figure(row.deficit), percent(row.low_share),
            counted(row.n_pauses), counted(row.n_width_changes), counted(row.n_gear_changes),
            counted(row.n_shielded),
        ]
        for row in rows
    ]  # fmt: skip
    show_table(cells, console)
    for line in _notes(setting, found):
        paragraph(line, console)
    paragraph(_sentence(setting, found), console)


def simulation_data(setting: SimulatedSetting, found: PlayedComparison) -> dict[str, Any]:
    """All figures as plain data; what is missing is None.

    Args:
        setting: what was played.
        found: what came of it.
    """
    first = setting.problems[0]
    return {
        "trace": str(setting.trace.path),
        "unit": str(setting.trace.gas),
        "bridged_values": setting.n_bridged,
        "provenance": setting.provenance,
        "table": {
            "provenance": setting.table.provenance, "source": setting.table.source,
            "gears": list(setting.table.gears), "widths": list(setting.table.widths),
        },
        "forecast": setting.forecast,
        "starts": [utc_text(one.start_s) for one in setting.problems],
        "days": (first.deadline_s - first.start_s) / DAY_S,
        "tokens": first.tokens,
        "slack": slack_of(first),
        "pue": first.pue,
        "bound_g": found.bound_g,
        "no_bound": found.no_bound,
        "static": [asdict(found.score(one)) for one in found.static],
        "controllers": [asdict(found.score(one)) for one in found.controllers],
        "sentence": _sentence(setting, found),
    }  # fmt: skip


def write_files(
    setting: SimulatedSetting, found: PlayedComparison, rows: Path | None, plot: Path | None
) -> None:
    """Write the files that were asked for.

    Args:
        setting: what was played.
        found: what came of it.
        rows: CSV of a row a controller and start; None: not asked for.
        plot: PNG; None: not asked for.

    Raises:
        ConfigError: when a file cannot be written.
    """
    if rows is not None:
        with writing(rows, "--csv"):
            rows.parent.mkdir(parents=True, exist_ok=True)
            write_whole(rows, _csv(setting, found))
    if plot is not None:
        with writing(plot, "--plot"):
            draw_actions(_drawn(setting, found), plot)


def _show_head(setting: SimulatedSetting, found: PlayedComparison, console: Console) -> None:
    first, last, n = setting.problems[0], setting.problems[-1], len(setting.problems)
    days = length(first.deadline_s - first.start_s)
    when = f"from {dated_moment(first.start_s, with_year=True)}"
    if n > 1:
        when = (
            f"{n} starts {when} to {dated_moment(last.start_s, with_year=True)}; figures are means"
        )
    trace = setting.trace
    told = (
        f"{trace.name}, recorded in {trace.path.name} (replayed); {budget_text(first.tokens)} in "
        f"{days}, slack {slack_of(first):.3g}, {when}."
    )
    paragraph(told, console)
    paragraph(workers_text(setting.table), console)
    told = _TOLD[setting.forecast]
    paragraph(
        f"Controllers know {told}. All emissions are {setting.provenance}, "
        f"with a PUE of {first.pue:g}.",
        console,
    )
    console.print()


def _notes(setting: SimulatedSetting, found: PlayedComparison) -> list[str]:
    """What a reader has to know beside the figures."""
    notes = [
        "Above bound: what is emitted beyond the least that whoever knew all hours could reach; "
        "captured: the share of what that saves of full speed at once; shielded: epochs in which "
        "the deadline left no choice."
    ]
    first, series = setting.problems[0], setting.series
    if setting.n_bridged:
        n = setting.n_bridged
        what = "value is" if n == 1 else "values are"
        notes.append(
            f"{n} {what} missing in the recording: holes of up to {SHORT_HOLE_H:g} h go on as the "
            f"hour before, of up to {LONGEST_HOLE_H:g} h as the day before."
        )
    known_days = (first.start_s - series.start_s) / DAY_S
    if known_days < NEEDED_DAYS:
        notes.append(
            f"The recording has {known_days:.2g} days before the first start; controllers that "
            f"plan run at full speed until {NEEDED_DAYS:g} are known."
        )
    late = [
        case
        for case in found.cases
        if case.high is not None and not _in_time(case.high.done_s, case.problem)
    ]
    if late and found.static:
        notes.append(f"{found.static[0].name} is done after the deadline, which it cannot keep.")
    lacking = [
        name for name in ("high", "low") if any(getattr(c, name) is None for c in found.cases)
    ]
    if "high" in lacking:
        notes.append("The recording ends before the static training in the other gear is done.")
    if "low" in lacking:
        notes.append("The table has no FP8.")
    if found.no_bound is not None:
        notes.append(f"The bound is missing: {found.no_bound}.")
    if first.low_share < 1.0 and "low" not in lacking:
        notes.append(capped_note(first.low_share))
    if first.idle_w == 0.0:
        notes.append(
            "Workers that do not train draw nothing here (carbon.control.idle_w = 0), as where "
            "they are given back."
        )
    return notes


def _in_time(done_s: float | None, problem: TrainingProblem) -> bool:
    return done_s is not None and done_s <= problem.deadline_s + 1e-6


def _sentence(setting: SimulatedSetting, found: PlayedComparison) -> str:
    """The default controller's distances in one sentence."""
    row = found.score(next(one for one in found.controllers if one.name == found.shown))
    parts = []
    if row.saving_low is not None:
        parts.append(f"{_less(row.saving_low)} than static FP8")
    if row.saving_high is not None:
        parts.append(f"{_less(row.saving_high)} than {found.static[0].name}")
    told = (
        f"{row.name} emits " + " and ".join(parts)
        if parts
        else f"{row.name} emits " + emitted(row.carbon_g, setting.trace.gas)
    )
    if row.regret is not None:
        told += f"; that is {percent(row.regret)} above what nobody can reach below"
    if row.deficit > 0.0:
        told += f", and {budget_text(row.deficit)} are missing at the deadline"
    return f"{told} ({setting.provenance})."


def _less(saving: float) -> str:
    return f"{percent(saving)} less" if saving >= 0.0 else f"{percent(-saving)} more"


def _bound_savings(found: PlayedComparison) -> tuple[float | None, float | None]:
    """What the bound saves of both static trainings."""
    bound_g = found.bound_g
    assert bound_g is not None
    savings: list[float | None] = []
    for plays in ([case.high for case in found.cases], [case.low for case in found.cases]):
        emitted_g = [one.carbon_g for one in plays if one is not None]
        is_whole = len(emitted_g) == len(found.cases)
        savings.append(saving(bound_g * len(emitted_g), sum(emitted_g)) if is_whole else None)
    return savings[0], savings[1]


def _days(days: float | None) -> str:
    if days is None:
        return MISSING
    return f"{days:.1f} d" if days >= 2.0 else length(days * DAY_S)


def _csv(setting: SimulatedSetting, found: PlayedComparison) -> str:
    """A row a controller and start."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = (
        "start", "controller", "carbon_g", "late_g", "bound_g", "energy_j", "tokens", "deficit",
        "done", "low_share", "n_pauses", "n_width_changes", "n_gear_changes", "n_epochs",
        "n_shielded", "provenance",
    )  # fmt: skip
    writer.writerow(heads)
    for number, case in enumerate(found.cases):
        bound_g = "" if case.bound is None else case.bound.carbon_g
        for one in (*found.static, *found.controllers):
            run = one.played[number]
            low = sum(n for gear, n in run.tokens_by_gear.items() if gear.is_low)
            done = "" if run.done_s is None else utc_text(run.done_s)
            writer.writerow(
                [
                    utc_text(case.problem.start_s), one.name, run.carbon_g, run.late_g, bound_g,
                    run.energy_j, run.tokens, run.deficit, done, low / case.problem.tokens,
                    run.n_pauses, run.n_width_changes, run.n_gear_changes, run.n_epochs,
                    run.n_shielded, setting.provenance,
                ]
            )  # fmt: skip
    return out.getvalue()


def _drawn(setting: SimulatedSetting, found: PlayedComparison) -> ActionsOverTime:
    """The shown controller at the first start."""
    problem, series = setting.problems[0], setting.series
    first = int((problem.start_s - series.start_s) / series.step_s + 1e-9)
    last = int((problem.deadline_s - series.start_s) / series.step_s + 1 - 1e-9)
    told = Series(problem.start_s, series.step_s, series.values[first:last])
    run = next(one for one in found.controllers if one.name == found.shown).played[0]
    saved = found.score(next(one for one in found.controllers if one.name == found.shown))
    return ActionsOverTime(
        title=(
            f"{found.shown} along {setting.trace.path.name} from "
            f"{utc_text(problem.start_s)[:10]}: {emitted(run.carbon_g, setting.trace.gas)} "
            f"({setting.provenance}), {percent(saved.saving_low)} less than static FP8"
        ),
        unit=str(setting.trace.gas),
        told=told,
        expected=None,
        actions=tuple((epoch.start_s, epoch.action) for epoch in found.epochs),
        end_s=problem.deadline_s if run.done_s is None else run.done_s,
        deadline_s=problem.deadline_s,
        widest=problem.table.widths[-1],
    )
