"""The decisions of a run as a table of the page and as lines of the terminal."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ecorl.control import SIMULATED, Gear
from ecorl.records import Action, Role
from ecorl.report.decisions.model import DecisionKind, DecisionStretch, RunCourse
from ecorl.report.render.lines import GAP, Section, Table, aligned, table, visible, widths, wrapped
from ecorl.report.render.numbers import MISSING, count, duration, figure
from ecorl.report.training_stage.words import OWN_GEAR
from ecorl.scheduler.words import action_name

_CARDS = {Action.CONCURRENT: "c", Action.FPGA: "w"}
_GEARS = {str(Gear.FP32): "3", str(Gear.FP16): "6", str(Gear.BF16): "b", str(Gear.FP8): "8"}
_OWN, _PAUSED, _BOTH, _NOTHING = "o", "-", "m", " "
_MIXED = 0.2
"""Share of a column's time from which a second value shows; invented."""

_BLOCKS, _DIGITS = "▁▂▃▄▅▆▇█", "12345678"

Spans = Sequence[tuple[float, float, str]]


def lanes(course: RunCourse, width: int, path: str, *, has_blocks: bool) -> list[str]:
    """Draw the lanes, their scale, and what the letters mean.

    Args:
        course: of the run.
        width: columns of the terminal.
        path: what the report calls the framework's devices.
        has_blocks: whether the terminal knows letters beyond ASCII.
    """
    named = _lanes(course, path)
    curves = _curves(course)
    size = max(len(name) for name in (*named, *curves))
    n = max(10, width - size - 2 * len(GAP))
    each_s = course.end_s / n if course.end_s > 0 else 1.0
    marks = _BLOCKS if has_blocks else _DIGITS
    letters = {name: _letters(spans, n, each_s) for name, spans in named.items()}
    drawn = letters | {
        name: _levels(_values_at(curve, n, each_s), marks) for name, curve in curves.items()
    }
    lines = [f"{GAP}{name:<{size}}{GAP}{own}".rstrip() for name, own in drawn.items()]
    end = duration(course.end_s)
    lines.append(f"{GAP}{'':<{size}}{GAP}0 s{end:>{n - 3}}")
    return [*lines, *wrapped(_legend(course, path, letters.values()), width)]


def _place_letter(action: Action, path: str) -> str:
    return _CARDS.get(action, path[:1].lower())


def _lanes(course: RunCourse, path: str) -> dict[str, list[tuple[float, float, str]]]:
    """What lies on each lane of letters, in the order of time."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    by_role: dict[Role, list[tuple[float, float, str]]] = defaultdict(list)
    for placed in course.placements:
        letter = _BOTH if placed.action is None else _place_letter(placed.action, path)
        by_role[placed.role].append((placed.start_s, placed.end_s, letter))
    found |= by_role
    pauses = [(b.start_s, b.end_s, _PAUSED) for b in course.bands if b.is_pause]
    trained = [b for b in course.bands if not b.is_pause]
    if DecisionKind.GEAR in course.kinds:
        found["gear"] = [(b.start_s, b.end_s, _gear_letter(b.gear)) for b in trained]
    if DecisionKind.WIDTH in course.kinds:
        found["workers"] = [(b.start_s, b.end_s, _width_letter(b.width)) for b in trained]
    return {name: sorted([*own, *pauses]) for name, own in found.items()}


def _gear_letter(gear: str | None) -> str:
    return _OWN if gear is None else _GEARS.get(gear.removesuffix(SIMULATED), _OWN)


def _width_letter(width: int | None) -> str:
    return "?" if width is None else str(width) if width < 10 else "+"


def _letters(spans: Spans, n: int, each_s: float) -> str:
    """What took most of each column's time; an *m* where two took turns."""
    columns: list[dict[str, float]] = [defaultdict(float) for _ in range(n)]
    for start_s, end_s, letter in spans:
        first = min(n - 1, max(0, int(start_s / each_s)))
        last = min(n - 1, max(first, math.ceil(end_s / each_s) - 1))
        for i in range(first, last + 1):
            inside_s = min(end_s, (i + 1) * each_s) - max(start_s, i * each_s)
            columns[i][letter] += max(0.0, inside_s)
    return "".join(map(_letter, columns)).rstrip()


def _letter(times_s: dict[str, float]) -> str:
    ranked = sorted(times_s.items(), key=lambda item: -item[1])
    if not ranked or ranked[0][1] <= 0.0:
        return _NOTHING
    total_s = sum(times_s.values())
    others = [letter for letter, time_s in ranked[1:] if time_s >= _MIXED * total_s]
    # At the edge of a pause something stood still, and nothing took turns.
    is_mixed = any(letter != _PAUSED for letter in others) and ranked[0][0] != _PAUSED
    return _BOTH if is_mixed else ranked[0][0]


_Curve = tuple[Sequence[tuple[float, float | None]], float, float | None]
"""Times, s, with what holds from each on; the part of a column that it is read at; what was before
the first of them."""


def _curves(course: RunCourse) -> dict[str, _Curve]:
    """The intensity, read at the middle of each column, and the energy so far, at its end."""
    found: dict[str, _Curve] = {}
    if any(g is not None for _, g in course.intensities):
        found["grid"] = (course.intensities, 0.5, None)
    for own in course.energy:
        name = "energy" if len(course.energy) == 1 else f"energy, {own.provenance}"
        found[name] = (own.points, 1.0, own.points[0][1])
    return found


def _values_at(curve: _Curve, n: int, each_s: float) -> list[float | None]:
    points, part, before = curve
    times_s = [t_s for t_s, _ in points]
    places = [bisect.bisect_right(times_s, (i + part) * each_s) - 1 for i in range(n)]
    return [before if at < 0 else points[at][1] for at in places]


def _levels(values: Sequence[float | None], marks: str) -> str:
    """Values as marks of their height over the highest."""
    highest = max((v for v in values if v is not None), default=0.0) or 1.0
    steps = [
        None if v is None else min(len(marks) - 1, int(v / highest * len(marks))) for v in values
    ]
    return "".join(_NOTHING if step is None else marks[step] for step in steps).rstrip()


def _legend(course: RunCourse, path: str, letters: Iterable[str]) -> str:
    used = set("".join(letters))
    actions = dict.fromkeys(placed.action for placed in course.placements)
    told = [f"{_place_letter(a, path)} {action_name(a, path)}" for a in Action if a in actions]
    gears = dict.fromkeys(b.gear for b in course.bands if not b.is_pause)
    if DecisionKind.GEAR in course.kinds:
        told += [f"{_gear_letter(gear)} {gear or OWN_GEAR}" for gear in gears]
    told += [f"{_BOTH} in turn"] * (_BOTH in used) + [f"{_PAUSED} paused"] * (_PAUSED in used)
    words = [f"{', '.join(told)}; blank: between attempts, or nothing is recorded"]
    known = [g for _, g in course.intensities if g is not None]
    if known:
        span = f"{figure(min(known))} to {figure(max(known))}"
        words.append(f"grid: {span} g{course.gas}/kWh ({course.intensity_provenance})")
    words += [
        f"energy so far, without simulated cards: {'at least ' * own.at_least}"
        f"{figure(own.points[-1][1])} J at the end ({own.provenance})"
        for own in course.energy
    ]
    return "; ".join(words)


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
