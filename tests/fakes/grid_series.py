"""Made-up series of a grid: a sine over the day plus noise that forgets, with or without gaps."""

from __future__ import annotations

import numpy as np

from ecorl.carbon.series import Series

HOUR_S, DAY_S = 3600.0, 86400.0
MONDAY_S = 19_730 * DAY_S  # 8 January 2024


def grid(days, seed=0, step_s=HOUR_S, noise=20.0, memory_h=12.0, start_s=MONDAY_S):
    """A sine over the day plus an AR(1) noise that forgets in some hours."""
    n = int(days * DAY_S / step_s)
    hours = np.arange(n) * step_s / HOUR_S
    draws = np.random.default_rng(seed).normal(size=n)
    keep = np.exp(-step_s / HOUR_S / memory_h)
    state, level = np.zeros(n), 0.0
    for i, draw in enumerate(draws):
        level = keep * level + np.sqrt(1.0 - keep**2) * draw
        state[i] = level
    return Series(start_s, step_s, 300.0 + 80.0 * np.sin(2 * np.pi * hours / 24.0) + noise * state)


def with_gaps(series, share=0.1, seed=1):
    values = series.values.copy()
    values[np.random.default_rng(seed).random(len(values)) < share] = np.nan
    return Series(series.start_s, series.step_s, values)


def cut(series, n):
    return Series(series.start_s, series.step_s, series.values[:n])
