"""The fits behind a calibration: costs, overlaps, lengths.

Costs are linear functions with coefficients of 0 or more (`scipy.optimize.nnls`) of what the work
of a batch depends on; see `cost_terms`. Each is fitted twice: the second time without outliers and
with the first fit's values as weights, so that all lengths count by their relative error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ecorl.errors import MissingToolError
from ecorl.scheduler.tables import Float64
from ecorl.sim.lengths import log_factor
from ecorl.sim.tasks import N_TASKS, SHARES

MIN_READINGS = 10
"""Readings below which nothing is fitted. Assumed: the error of a mean is then a third of a
reading's own."""

MIN_ENERGIES = MIN_READINGS - 2
"""Readings with an energy below which nothing is fitted: the first executions of a run may end
before the instrument's first reading."""

_NEIGHBOURS = 2
FAR = 3.0
"""A reading this many times its neighbours' median, or that part of it, is no reading of the
stage (a first call that compiles, a machine that was suspended)."""

_SPREADS = 4.0
"""A reading this many robust standard deviations off the first fit is left out of the second."""

_CLOSE = 0.02
"""A reading this close to the first fit is kept whatever the spread: the times of a cycle model
have none, and go up in steps."""

_MAX_SERIES = 400
"""Newest batches whose lengths are fitted: the likelihood takes the cube of their number."""

_MEMORIES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)
_NOISE_RATIOS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variance of the noise over that of the drift."""


@dataclass(frozen=True, slots=True)
class LinearFit:
    """A non-negative linear function.

    Attributes:
        coefficients: ``[n_terms] float64``.
        spread: robust standard deviation of a reading about it, over its value.
        n: readings that it was made from.
    """

    coefficients: Float64
    spread: float
    n: int

    def at(self, terms: Float64) -> Float64:
        """Its values at terms ``[..., n_terms]``."""
        return np.asarray(terms @ self.coefficients)


def cost_terms(
    n_rows: Float64, prompt: Float64, length: Float64, longest: Float64 | None = None
) -> Float64:
    """What the cost of a stage is linear in, ``[n, 5] float64``.

    A constant (weights, launches), tokens of prompts and completions, the same times the mean row
    (attention), completion tokens and those times the mean completion (cache, log-probs). For
    generation the longest completion stands in the constant's place where it is known: weights
    and launches come once a decoding step.

    Args:
        n_rows: ``[n]``, rows of each batch.
        prompt: ``[n]``, mean prompt, tokens.
        length: ``[n]``, mean completion, tokens.
        longest: ``[n]``, longest completion, tokens.
    """
    row = prompt + length
    first = np.ones_like(row) if longest is None else longest
    terms = [first, n_rows * row, n_rows * row**2, n_rows * length, n_rows * length**2]
    return np.stack(terms, axis=-1)


def fit_linear(terms: Float64, values: Float64) -> LinearFit:
    """Fit values above 0 with small relative errors.

    Args:
        terms: ``[n, n_terms] float64``, 0 or more.
        values: ``[n] float64``, above 0.

    Raises:
        MissingToolError: without SciPy.
    """
    nearby = nearby_median(terms[:, 1], values)
    ratio = values / nearby
    believed = (ratio < FAR) & (ratio > 1.0 / FAR)
    first = _nnls(terms[believed], values[believed], nearby[believed])
    guess = np.maximum(terms @ first, 1e-3 * nearby)
    residual = values / guess - 1.0
    spread = _spread(residual[believed])
    centre = float(np.median(residual[believed]))
    kept = np.abs(residual - centre) <= max(_SPREADS * spread, _CLOSE)
    coefficients = _nnls(terms[kept], values[kept], guess[kept])
    final = np.maximum(terms[kept] @ coefficients, 1e-300)
    return LinearFit(coefficients, _spread(values[kept] / final - 1.0), int(kept.sum()))


def nearby_median(order_by: Float64, values: Float64) -> Float64:
    """Compute the median of each value and its neighbours, ``[n] float64``.

    Args:
        order_by: ``[n]``: what they are neighbours in, e.g. the work.
        values: ``[n]``.
    """
    order = np.argsort(order_by, kind="stable")
    width = 2 * _NEIGHBOURS + 1
    at = np.clip(np.arange(len(values)) - _NEIGHBOURS, 0, max(len(values) - width, 0))
    window = np.minimum(at[:, None] + np.arange(width), len(values) - 1)
    medians = np.empty_like(values)
    medians[order] = np.median(values[order][window], axis=1)
    return medians


def _nnls(terms: Float64, values: Float64, scale: Float64) -> Float64:
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        message = f"calibrating needs SciPy: pip install 'ecorl[policy]' ({error})"
        raise MissingToolError(message) from error
    size = np.maximum(terms.mean(axis=0), 1e-300)
    found, _ = nnls(terms / size / scale[:, None], values / scale)
    return np.asarray(found / size)


def _spread(residual: Float64) -> float:
    """Robust standard deviation: 1.4826 x the median distance from the median."""
    return float(1.4826 * np.median(np.abs(residual - np.median(residual))))


# ---------------------------------------------------------------- overlaps


@dataclass(frozen=True, slots=True)
class Early:
    """Training with its forward pass before the barrier, in units of the actor's step.

    Attributes:
        forward_share: of the step, or None when no barrier shows where it ended.
        price: what the step takes longer.
    """

    forward_share: float | None
    price: float


def fit_early(step_s: Float64, net_s: Float64, ahead_s: Float64) -> Early:
    """Where the forward pass ends, and what it costs to run it before the barrier.

    Args:
        step_s: ``[n] float64``, the step under a1, from its fit.
        net_s: ``[n] float64``, under a3 without the wait.
        ahead_s: ``[n] float64``, start of the stage to the barrier; NaN without one.
    """
    price = max(0.0, _centre(net_s / step_s) - 1.0)
    seen = np.isfinite(ahead_s)
    if seen.sum() < MIN_READINGS:
        return Early(None, price)
    # What lies before the barrier is the forward pass and its price.
    share = _centre(ahead_s[seen] / step_s[seen]) - price
    return Early(float(np.clip(share, 0.05, 0.95)), price)


def fit_contention(generation_s: Float64, deferred_s: Float64, seen_s: Float64) -> float:
    """By which share of the common time generation slows beside the critic's step, 0 to 1.

    Args:
        generation_s: ``[n] float64``, generation alone, from its fit.
        deferred_s: ``[n] float64``, the critic's step, from its fit.
        seen_s: ``[n] float64``, both together.
    """
    shared_s = np.minimum(generation_s, deferred_s)
    extra_s = seen_s - generation_s - (deferred_s - shared_s)
    believed = _believed(extra_s / generation_s)
    return float(np.clip(extra_s[believed].sum() / shared_s[believed].sum(), 0.0, 1.0))


def fit_ratio(values: Float64, base: Float64) -> float:
    """How many times its base a value is, outliers aside."""
    return _centre(values / base)


def _believed(values: Float64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    limit = max(_SPREADS * _spread(values), 1e-12)
    return np.asarray(np.abs(values - np.median(values)) <= limit)


def _centre(values: Float64) -> float:
    """Mean without outliers."""
    return float(values[_believed(values)].mean())


# ---------------------------------------------------------------- lengths


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long completions are; names and meaning as in `ecorl.sim.scenario.Scenario`."""

    mix: tuple[float, ...]
    concentration: float
    length_scale: float
    drift_std: float
    drift_memory: float
    noise_std: float


FIXED_MIX = 1e4
"""`Lengths.concentration` of batches whose tasks are always mixed alike."""


def fit_lengths(length: Float64, shares: Float64 | None, at: Float64, max_length: float) -> Lengths:
    """Fit the simulator's model of lengths: a mix of tasks, a drift AR(1), and noise.

    Args:
        length: ``[n] float64``, mean completion of each batch, tokens.
        shares: ``[n, N_TASKS] float64``, tasks of each batch; None: always the usual mix.
        at: ``[n] float64``, number of each batch; gaps are allowed.
        max_length: limit of a completion, tokens.
    """
    tasks = np.broadcast_to(SHARES, (len(length), N_TASKS)) if shares is None else shares
    factor = log_factor(length, tasks, max_length)[-_MAX_SERIES:]
    mean, drift, memory, noise = _fit_drift(factor, at[-_MAX_SERIES:])
    mix = tasks.mean(axis=0)
    return Lengths(
        mix=tuple(float(x) for x in mix / mix.sum()),
        concentration=FIXED_MIX if shares is None else _concentration(tasks),
        length_scale=float(np.exp(mean)),
        drift_std=drift,
        drift_memory=memory,
        noise_std=noise,
    )


def _concentration(shares: Float64) -> float:
    """Dirichlet concentration from its moments."""
    mean, variance = shares.mean(axis=0), shares.var(axis=0)
    total = float(variance.sum())
    if total <= 0:
        return FIXED_MIX
    return float(np.clip((mean * (1.0 - mean)).sum() / total - 1.0, 0.1, FIXED_MIX))


def _fit_drift(series: Float64, at: Float64) -> tuple[float, float, float, float]:
    """Most likely mean, drift (std, memory) and noise (std) of AR(1) plus white noise."""
    if np.ptp(series) < 1e-9:
        return float(series.mean()), 0.0, 0.0, 0.0
    gap = np.abs(at[:, None] - at[None, :])
    ones, best, found = np.ones_like(series), -np.inf, (0.0, 0.0, 0.0, 0.0)
    for memory in _MEMORIES:
        alike = np.where(gap == 0, 1.0, memory**gap if memory else 0.0)
        for ratio in _NOISE_RATIOS if memory else (0.0,):
            factor = np.linalg.cholesky(alike + (ratio + 1e-9) * np.eye(len(series)))
            white = np.linalg.solve(factor, np.stack([ones, series], axis=1))
            mean = float(white[:, 0] @ white[:, 1] / (white[:, 0] @ white[:, 0]))
            rest = white[:, 1] - mean * white[:, 0]
            variance = float(rest @ rest) / len(series)
            likelihood = -0.5 * len(series) * np.log(variance) - np.log(np.diag(factor)).sum()
            if likelihood > best:
                drift = float(np.sqrt(variance))
                best, found = likelihood, (mean, drift, memory, drift * float(np.sqrt(ratio)))
    mean, drift, memory, noise = found
    return (mean, 0.0, 0.0, drift) if memory == 0.0 else (mean, drift, memory, noise)
