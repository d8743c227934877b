"""One sentence about the time ahead: when the next clean window is, or the lowest one."""

from __future__ import annotations

from ecorl.carbon.forecasts.forecast import Forecast, lowest_window, mean_between, next_clean_window
from ecorl.cli.carbon.asking import GridNow
from ecorl.cli.carbon.times import length, moment, span
from ecorl.cli.carbon.verdict import limit_text

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
