"""Figures as text: the same in the terminal, the page and the verdict. Missing is ``-``."""

from __future__ import annotations

import math
from collections.abc import Iterable

MISSING = "-"


def figure(value: float | None, digits: int = 3) -> str:
    """Write a number with significant digits and thousands separators.

    Args:
        value: the number, or None.
        digits: significant digits, about.
    """
    if value is None or math.isnan(value):
        return MISSING
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude > 11:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def bounded(value: float | None, bound: bool, words: str = "at least") -> str:
    """Write a figure, with words before it where it is only a bound.

    Args:
        value: the number, or None.
        bound: whether it is a bound only.
        words: what then stands before it.
    """
    return f"{words} {figure(value)}" if bound and value is not None else figure(value)


def bound(saved: float, *, at_most: bool) -> str:
    """What stands before the size of a saving that is at most so large.

    Args:
        saved: the saving; below 0 it cost more.
        at_most: whether it is an upper bound; nothing is said of other savings.
    """
    if not at_most:
        return ""
    return "at most " if saved > 0 else "at least "


def count(value: int | None) -> str:
    """Write a whole number with thousands separators."""
    return MISSING if value is None else f"{value:,}"


def tokens(value: int, n_tokens: int) -> str:
    """Write a number of tokens; a stage that read none at all is one whose tokens nobody counted.

    Args:
        value: the number.
        n_tokens: tokens that the stage read.
    """
    return count(value) if n_tokens else MISSING


def share(value: float | None, digits: int = 1) -> str:
    """Write a share of 1 as per cent.

    Args:
        value: share of 1, or None.
        digits: digits behind the point.
    """
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


def joules(value: float | None) -> str:
    """Write an energy with a unit of fitting size: mJ, J, kJ or MJ."""
    if value is None or math.isnan(value):
        return MISSING
    size = abs(value)
    for limit, factor, unit in ((1, 1e3, "mJ"), (1e4, 1, "J"), (1e7, 1e-3, "kJ")):
        if size < limit:
            return f"{figure(value * factor)} {unit}" if value else "0 J"
    return f"{figure(value * 1e-6)} MJ"


def grams(value: float | None, gas: str) -> str:
    """Write emissions with a unit of fitting size: mg, g, kg or t.

    Args:
        value: g, or None.
        gas: what the grams are of, e.g. ``CO2e``.
    """
    if value is None or math.isnan(value):
        return MISSING
    size = abs(value)
    for limit, factor, unit in ((1, 1e3, "mg"), (1e4, 1, "g"), (1e7, 1e-3, "kg")):
        if size < limit:
            return f"{figure(value * factor)} {unit}{gas}" if value else f"0 g{gas}"
    return f"{figure(value * 1e-6)} t{gas}"


def edi_unit(values: Iterable[float | None]) -> tuple[float, str]:
    """Choose one unit for energies per token shown together: factor from J/token, and name."""
    largest = max((abs(v) for v in values if v is not None and not math.isnan(v)), default=1.0)
    if largest >= 0.1:
        return 1.0, "J/token"
    return (1e3, "mJ/token") if largest >= 1e-4 else (1e6, "µJ/token")


def scaled(value: float | None, factor: float) -> float | None:
    """Convert a figure to another unit; None stays None.

    Args:
        value: the figure, or None.
        factor: units of the new kind in one of the old.
    """
    return None if value is None else value * factor


def duration(seconds: float | None) -> str:
    """Write seconds as ``4.1 µs``, ``2.26 ms``, ``12.3 s``, ``4 min 05 s`` or ``2 h 03 min``."""
    if seconds is None or math.isnan(seconds):
        return MISSING
    if 0 < abs(seconds) < 1e-4:
        return f"{figure(1e6 * seconds)} µs"
    if 0 < abs(seconds) < 0.1:
        return f"{figure(1e3 * seconds)} ms"
    if seconds < 100:
        return f"{figure(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def with_spread(value: float | None, spread: float | None, kind: str = "") -> str:
    """Write ``value ± spread (kind)``.

    Args:
        value: the figure, or None.
        spread: in the unit of the figure, or None.
        kind: what the spread is: SD of single calls, SE of a mean.
    """
    if value is None or spread is None:
        return figure(value)
    named = f" ({kind})" if kind else ""
    return f"{figure(value)} ± {figure(spread, 2)}{named}"


def interval_95(ends: tuple[float, float]) -> str:
    """Write the 95 % interval of a share in per cent."""
    low, high = (figure(100 * end, 2) for end in ends)
    return f"95 % interval {low} to {high} %"
