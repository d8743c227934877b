"""The decisions of a run as a table of the page and as lines of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.report.decisions.model import DecisionStretch, RunCourse
from ecorl.report.render.course.lanes import lanes
from ecorl.report.render.layout import Section, Table, table
from ecorl.report.render.lines import GAP, aligned, visible, widths
from ecorl.report.render.numbers import MISSING, count, figure

COURSE_TITLE = "Decisions over the run"
SAVED_TITLE = "What was saved, and against what"

_LEAST = 20
"""Columns of the terminal for a reason, at least; invented."""


def course_section(course: RunCourse) -> Section:
    """Make the section with the picture and the table of all stretches.

    Args:
        course: of the run.
    """
    lead = (
        "What was decided when, on one axis: the wall clock since the run began, in seconds. "
        "Placements, and gears that took turns, are put together to stretches; all decisions are "
        "further below."
    )
    return Section("course", COURSE_TITLE, lead, "course", (_table(course.stretches),))


def _table(stretches: Sequence[DecisionStretch]) -> Table:
    heads = ("decision", "time, s", "from", "to", "why", "n")
    rows = [
        (
            str(s.kind) if s.role is None else f"{s.kind} of {s.role}",
            _time(s).replace(" ", "\u00a0"),
            " and ".join(s.before) or MISSING,
            _values(s),
            s.reason or MISSING,
            count(s.n),
        )
        for s in stretches
    ]
    caption = "n: calls that were placed, steps in the gear or on the workers, or pauses"
    return table(heads, rows, 5, caption)


def _time(s: DecisionStretch) -> str:
    return f"{figure(s.start_s)} to {figure(s.end_s)}"


def _values(s: DecisionStretch) -> str:
    if len(s.after) == 1:
        return s.after[0][0]
    return f"in turn: {', '.join(f'{value} {count(n)} x' for value, n in s.after)}"


def course_lines(course: RunCourse | None, width: int, path: str, *, has_blocks: bool) -> list[str]:
    """Lanes of letters, and the stretches with their reasons, shortened to a line each.

    Args:
        course: of the run; None where fewer than two kinds of decisions changed anything.
        width: columns of the terminal.
        path: what the report calls the framework's devices.
        has_blocks: whether the terminal knows letters beyond ASCII.
    """
    if course is None:
        return []
    heads = ("decision", "time, s", "from -> to")
    rows = [(s.role or str(s.kind), _time(s), _change(s)) for s in course.stretches]
    sizes = widths([heads, *rows])
    room = max(_LEAST, width - sum(sizes) - len(GAP) * (len(sizes) + 1))
    reasons = [_shortened(s.reason or MISSING, room) for s in course.stretches]
    told = aligned(
        [(*heads, "why"), *((*row, why) for row, why in zip(rows, reasons, strict=True))],
        text_columns=range(4),
        indent=GAP,
    )
    return [*lanes(course, width, path, has_blocks=has_blocks), "", *told]


def _change(s: DecisionStretch) -> str:
    """From what to what, in few words: values that took turns stand further above."""
    before, after = (
        "" if not values else values[0] if len(values) == 1 else "in turn"
        for values in (s.before, [value for value, _ in s.after])
    )
    return f"{before} -> {after}".strip()


def _shortened(text: str, size: int) -> str:
    shown = visible(text)
    return shown if len(shown) <= size else f"{shown[: size - 3].rstrip()}..."
