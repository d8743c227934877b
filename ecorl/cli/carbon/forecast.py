"""Shows what the grid will emit, for ``ecorl carbon forecast``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, tzinfo
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ecorl.carbon.forecasts.forecast import (
    NOMINAL_COVERAGE,
    Forecast,
    mean_between,
    next_clean_window,
)
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.outlook import Outlook
from ecorl.cli.carbon.asking import GridNow
from ecorl.cli.carbon.paragraphs import paragraph
from ecorl.cli.carbon.prospect import prospect
from ecorl.cli.carbon.rows import ForecastRow, rows_of_hours, rows_of_intervals
from ecorl.cli.carbon.times import clock, moment, utc_text, zone_name
from ecorl.cli.carbon.verdict import HOW_TO_FEED, origin, refusal_text
from ecorl.grid import Intensity
from ecorl.report.render.lines import GAP, aligned
from ecorl.report.render.numbers import MISSING, share

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
