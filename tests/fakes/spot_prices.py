"""Made-up prices of spot machines: a cosine over the day and an AR(1) noise, in the logarithm."""

from __future__ import annotations

import numpy as np

from ecorl.carbon.series import Series
from tests.fakes.grid_series import HOUR_S


def hourly_prices(start_s, n, base_price, seed):
    draws = 0.25 * np.random.default_rng(seed).standard_normal(n)
    stays = np.exp(-1.0 / 24.0)
    draws[1:] *= np.sqrt(1.0 - stays**2)
    distances, distance = np.empty(n), 0.0
    for number, move in enumerate(draws):
        distance = stays * distance + move
        distances[number] = distance
    hours = start_s / HOUR_S + np.arange(n) + 0.5
    day = 0.15 * np.cos(2.0 * np.pi * (hours - 15.0) / 24.0)
    return Series(start_s, HOUR_S, base_price * np.exp(day + distances))
