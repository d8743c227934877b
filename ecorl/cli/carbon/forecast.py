"""Shows what the grid will emit, for ``ecorl carbon forecast``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from datetime import UTC, tzinfo
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ecorl.carbon.forecasts.forecast import (
    NOMINAL_COVERAGE,
    Forecast,
    lowest_window,
    mean_between,
    next_clean_window,
)
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.outlook import Outlook
from ecorl.cli.carbon.now import HOW_TO_FEED, GridNow, limit_text, origin, refusal_text
from ecorl.cli.carbon.times import clock, length, moment, paragraph, span, utc_text, zone_name
from ecorl.grid import Intensity
from ecorl.report.render.lines import GAP, aligned
from ecorl.report.render.numbers import MISSING, share

LOWEST_S = 6 * 3600.0
"""Length of the lowest window that is told where no threshold says what is clean, s. Invented: a
training of a night."""


def prospect(grid: GridNow) -> str:
    """Say when the grid is clean next.

    Args:
        grid: with the intensity that is waited for, if it is known.
    """
    value, ahead = grid.awaited.value, grid.outlook
    if value is None or ahead is None:
        return "There is no forecast, since the intensity is unknown."
    if ahead.forecast is None:
        return f"There is no forecast: {ahead.reason}."
    gas, now_s, forecast = str(value.gas), grid.awaited.asked_s, ahead.forecast
    limit = grid.threshold_g_per_kwh
    if limit is None:
        return _lowest(forecast, gas, now_s)
    window_s = next_clean_window(forecast, limit)
    if window_s is None:
        lowest = float(min(v for v in forecast.middle.tolist() if v == v))
        return (
            f"No clean window until the forecast ends, {moment(_end_s(forecast), now_s)}: its "
            f"lowest value is {lowest:.0f} {gas}, above {limit_text(grid)}."
        )
    told = _told(forecast, window_s, gas, now_s)
    if window_s[0] <= now_s:
        return f"The grid is clean now, by {limit_text(grid)}: {told}."
    left = length(window_s[0] - now_s)
    return f"The next clean window, by {limit_text(grid)}: {told}; in {left}."


def _lowest(forecast: Forecast, gas: str, now_s: float) -> str:
    whole_s = len(forecast.middle) * forecast.step_s
    # Of a fast replay's forecast, which is short as a whole, a quarter.
    window_s = lowest_window(forecast, LOWEST_S if whole_s >= 2 * LOWEST_S else whole_s / 4)
    no_limit = "No threshold is configured (carbon.threshold_g_per_kwh)"
    if window_s is None:
        return f"{no_limit}, and the forecast has too many gaps to name its lowest hours."
    when = "now" if window_s[0] <= now_s else f"in {length(window_s[0] - now_s)}"
    return (
        f"{no_limit}. The lowest {length(window_s[1] - window_s[0])}: "
        f"{_told(forecast, window_s, gas, now_s, with_length=False)}; {when}."
    )


def _told(
    forecast: Forecast,
    window_s: tuple[float, float],
    gas: str,
    now_s: float,
    with_length: bool = True,
) -> str:
    """A window: when, how long from now on, and how much."""
    start_s, end_s = max(window_s[0], now_s), window_s[1]
    parts = [span(start_s, end_s, now_s)]
    if with_length:
        parts.append(length(end_s - start_s))
    mean = mean_between(forecast, *window_s)
    if mean is not None:
        parts.append(f"about {mean:.0f} {gas}")
    if end_s >= _end_s(forecast):
        parts.append("and there the forecast ends")
    return ", ".join(parts)


def _end_s(forecast: Forecast) -> float:
    return forecast.start_s + len(forecast.middle) * forecast.step_s


HOUR_S = 3600.0

_SHORT_S = 12 * HOUR_S
"""A forecast of a fast replay, which is shorter, has shorter rows."""
_SHORT_ROWS = 24


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """Means over one span of a forecast; None is missing.

    Attributes:
        start_s: begin of the span, s since 1970.
        end_s: its end.
        middle_g_per_kwh: mean of the middle.
        low_g_per_kwh: mean of the low ends of the intervals.
        high_g_per_kwh: mean of their high ends.
        renewable_share: mean of the renewable share, 0 to 1.
        is_clean: whether the middle is at or below the threshold; None without one of them.
    """

    start_s: float
    end_s: float
    middle_g_per_kwh: float | None
    low_g_per_kwh: float | None
    high_g_per_kwh: float | None
    renewable_share: float | None
    is_clean: bool | None


def rows_of_hours(
    forecast: Forecast, share: Forecast | None, threshold_g_per_kwh: float | None, n: int
) -> list[ForecastRow]:
    """The first rows of a forecast, each of an hour of the clock.

    A forecast of less than half a day, as a fast replay has it, gets shorter rows. Where intervals
    begin at odd seconds, hours are counted from the first.

    Args:
        forecast: of the intensity.
        share: of the renewable share.
        threshold_g_per_kwh: what is clean.
        n: number of rows at most.
    """
    row_s = _row_s(forecast)
    is_on_clock = row_s == HOUR_S and forecast.start_s % 60.0 == 0.0
    first_s = math.floor(forecast.start_s / row_s) * row_s if is_on_clock else forecast.start_s
    ends_s = forecast.start_s + len(forecast.middle) * forecast.step_s
    n = min(n, math.ceil((ends_s - first_s) / row_s - 1e-6))
    found = []
    for number in range(n):
        start_s, end_s = first_s + number * row_s, first_s + (number + 1) * row_s
        span_s = max(start_s, forecast.start_s), min(end_s, ends_s)
        found.append(_row(forecast, share, threshold_g_per_kwh, span_s))
    return found


def rows_of_intervals(
    forecast: Forecast, share: Forecast | None, threshold_g_per_kwh: float | None
) -> list[ForecastRow]:
    """One row for each interval of a forecast.

    Args:
        forecast: of the intensity.
        share: of the renewable share.
        threshold_g_per_kwh: what is clean.
    """
    starts_s = [forecast.start_s + i * forecast.step_s for i in range(len(forecast.middle))]
    return [
        _row(forecast, share, threshold_g_per_kwh, (start_s, start_s + forecast.step_s))
        for start_s in starts_s
    ]


def _row_s(forecast: Forecast) -> float:
    whole_s = len(forecast.middle) * forecast.step_s
    if whole_s >= _SHORT_S:
        return max(HOUR_S, forecast.step_s)
    return forecast.step_s * math.ceil(len(forecast.middle) / _SHORT_ROWS)


def _row(
    forecast: Forecast, share: Forecast | None, limit: float | None, span_s: tuple[float, float]
) -> ForecastRow:
    middle = mean_between(forecast, *span_s)
    low, high = (
        None if line is None else mean_between(replace(forecast, middle=line), *span_s)
        for line in (forecast.low, forecast.high)
    )
    return ForecastRow(
        start_s=span_s[0],
        end_s=span_s[1],
        middle_g_per_kwh=middle,
        low_g_per_kwh=low,
        high_g_per_kwh=high,
        renewable_share=None if share is None else mean_between(share, *span_s),
        is_clean=None if limit is None or middle is None else middle <= limit,
    )


_MINUTE_S = 60.0
_BAR_MIN, _BAR_MAX = 8, 30
_EIGHTHS = " ▏▎▍▌▋▊▉"
_CLEAN = {True: "yes", False: "no", None: MISSING}


def is_missed(grid: GridNow) -> bool:
    """Whether a forecast is missing that the feeds should have given.

    Args:
        grid: what the feeds say.
    """
    value, ahead = grid.awaited.value, grid.outlook
    if value is None or ahead is None:
        return True
    return ahead.forecast is None and not grid.infos[value.feed].is_stated


def show_forecast(grid: GridNow, n_rows: int, console: Console) -> None:
    """Print who forecasts, a table of hours, and one sentence.

    Args:
        grid: what the feeds say.
        n_rows: rows at most.
        console: where to.
    """
    value, ahead = grid.awaited.value, grid.outlook
    for refusal in grid.awaited.refusals:
        paragraph(f"passed over: {refusal_text(refusal)}", console)
    if value is not None and ahead is not None and ahead.forecast is not None:
        _show_origin(grid, value, ahead, ahead.forecast, console)
        rows = rows_of_hours(ahead.forecast, grid.renewable, grid.threshold_g_per_kwh, n_rows)
        _show_rows(rows, console)
    elif value is not None:
        now = f"{value.g_per_kwh:.0f} {value.gas} ({origin(grid, value)})"
        paragraph(f"The intensity now is {now}.", console)
    paragraph(prospect(grid), console)
    if not grid.config.carbon.feeds:
        paragraph(HOW_TO_FEED, console)


def forecast_data(grid: GridNow) -> dict[str, Any]:
    """The forecast in its own intervals as plain data; what is missing is None.

    Args:
        grid: what the feeds say.
    """
    value, ahead, limit = grid.awaited.value, grid.outlook, grid.threshold_g_per_kwh
    forecast = None if ahead is None else ahead.forecast
    data: dict[str, Any] = {
        "asked_s": grid.awaited.asked_s,
        "asked": utc_text(grid.awaited.asked_s),
        "kind": grid.config.carbon.waits_for,
        "feed": None if value is None else value.feed,
        "unit": None if value is None else value.gas,
        "threshold_g_per_kwh": limit,
        "reason": None if ahead is None else ahead.reason,
        "refusals": [asdict(refusal) for refusal in grid.awaited.refusals],
        "forecast": None,
        "next_clean_window": None,
        "sentence": prospect(grid),
    }
    if forecast is None or ahead is None:
        return data
    data["forecast"] = {
        "model": forecast.model,
        "provenance": ahead.provenance,
        "issued_s": forecast.issued_s,
        "coverage": None if forecast.low is None else NOMINAL_COVERAGE,
        "renewable_model": None if grid.renewable is None else grid.renewable.model,
        "intervals": [asdict(row) for row in rows_of_intervals(forecast, grid.renewable, limit)],
    }
    window_s = None if limit is None else next_clean_window(forecast, limit)
    if window_s is not None:
        mean = mean_between(forecast, *window_s)
        data["next_clean_window"] = {
            "start_s": window_s[0], "end_s": window_s[1], "start": utc_text(window_s[0]),
            "end": utc_text(window_s[1]), "mean_g_per_kwh": mean,
        }  # fmt: skip
    return data


def _show_origin(
    grid: GridNow, value: Intensity, ahead: Outlook, forecast: Forecast, console: Console
) -> None:
    """Print of what the forecast is, whose it is, and how sure it is."""
    kind = grid.config.carbon.waits_for.capitalize()
    info = grid.infos[value.feed]
    is_ours = forecast.model == RecencyAdaptivePool.name
    past = "estimated" if value.is_estimated else value.provenance
    how = f"modelled, from {past} values" if is_ours else str(ahead.provenance)
    model = f"the {forecast.model}" if is_ours else forecast.model
    model = "the same source" if model == info.source else model
    made = moment(forecast.issued_s, grid.awaited.asked_s)
    text = f"{kind} intensity, {value.gas}: {info.source}. Forecast by {model} ({how}), made {made}"
    if forecast.low is None:
        text += ", without an interval."
    elif np.array_equal(forecast.low, forecast.middle):
        text += "; it knows what will be told."
    else:
        percent = f"{100 * NOMINAL_COVERAGE:.0f} %"
        text += f"; {percent} of the values are to lie from low to high."
    if ahead.reason is not None:
        text += f" It is not the feed's own: {ahead.reason}."
    if grid.renewable is not None:
        text += f" The renewable share is forecast by the {grid.renewable.model} (modelled)."
    paragraph(text, console)
    console.print()


def _show_rows(rows: list[ForecastRow], console: Console) -> None:
    """Print the table; a column without a value is left out, and bars need a terminal."""
    heads, cells = ["from"], [[_from(row, None)] for row in rows]
    zone = zone_name(rows[0].start_s)
    if zone != "UTC":
        heads += ["UTC"]
        cells = [[*cell, _from(row, UTC)] for cell, row in zip(cells, rows, strict=True)]
    heads[0] = f"from ({zone})"
    n_text = len(heads)
    columns = [
        ("middle", [_whole(row.middle_g_per_kwh) for row in rows]),
        ("low", [_whole(row.low_g_per_kwh) for row in rows]),
        ("high", [_whole(row.high_g_per_kwh) for row in rows]),
        ("renewable", [share(row.renewable_share, 0) for row in rows]),
        ("clean", [_CLEAN[row.is_clean] for row in rows]),
    ]
    for head, column in columns:
        if any(text != MISSING for text in column):
            heads.append(head)
            cells = [[*cell, text] for cell, text in zip(cells, column, strict=True)]
    lines = aligned([heads, *cells], text_columns=range(n_text))
    bars = _bars(rows, console, max(map(len, lines)))
    for line, bar, row in zip(lines, ["", *bars], [None, *rows], strict=True):
        style = "green" if row is not None and row.is_clean else ""
        text = Text.assemble(line, (bar and GAP + bar, style))
        console.print(text, soft_wrap=True, highlight=False)
    console.print()


def _from(row: ForecastRow, zone: tzinfo | None) -> str:
    return clock(row.start_s, zone, with_seconds=row.end_s - row.start_s < _MINUTE_S)


def _whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"


def _bars(rows: list[ForecastRow], console: Console, table_width: int) -> list[str]:
    """A bar for each row, from zero on; empty where there is no room for one."""
    width = min(_BAR_MAX, console.width - table_width - len(GAP))
    has_blocks = console.encoding.lower().startswith("utf")
    if not console.is_terminal or width < _BAR_MIN or not has_blocks:
        return [""] * len(rows)
    values = [row.middle_g_per_kwh or 0.0 for row in rows]
    highest = max(values) or 1.0
    eighths = [round(8 * width * value / highest) for value in values]
    return ["█" * (n // 8) + _EIGHTHS[n % 8].strip() for n in eighths]
