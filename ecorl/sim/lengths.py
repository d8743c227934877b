"""Lengths of completions: tasks of a batch, slow drift of all lengths, mean, longest and tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.scheduler.tables import Float64
from ecorl.sim.scenario import Scenario, column
from ecorl.sim.tasks import (
    LOG_MEDIANS,
    LONGEST,
    N_TASKS,
    POINTS,
    SIGMAS,
    TAIL_INDEX,
    TAIL_SHARE,
)

N_HANDOVERS = 6
"""Times that generation hands over finished rows, evenly spaced up to its end."""


@dataclass(frozen=True, slots=True)
class CompletionLengths:
    """Lengths of the completions of batches, tokens.

    Attributes:
        mean, longest: ``[n_iter, n] float64``.
        tail: `ecorl.stages.Work.tail`, `N_HANDOVERS` arrays of the same shape.
    """

    mean: Float64
    longest: Float64
    tail: tuple[Float64, ...]


def draw_shares(scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator) -> Float64:
    """Draw the tasks of each batch, Dirichlet around the mix.

    Args:
        scenarios: the scenarios side by side.
        n_iter: iterations.
        rng: source of chance.

    Returns:
        Shares of the tasks, ``[n_iter, n, n_tasks] float64``.
    """
    alpha = np.array([np.array(s.mix) * s.batch_concentration for s in scenarios])
    drawn = rng.standard_gamma(np.maximum(alpha, 1e-3), size=(n_iter, len(scenarios), N_TASKS))
    drawn += 1e-12
    return np.asarray(drawn / drawn.sum(axis=-1, keepdims=True))


def draw_drift(
    scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Draw the logarithm of the slow factor on all lengths.

    Args:
        scenarios: the scenarios side by side.
        n_iter: iterations.
        rng: source of chance.

    Returns:
        The factor as it is and as the iteration before foretells it, ``[n_iter, n] float64`` each.
    """
    memory, std = column(scenarios, "drift_memory"), column(scenarios, "drift_std")
    step = rng.standard_normal((n_iter, len(scenarios))) * std * np.sqrt(1.0 - memory**2)
    drift, foreseen = np.empty_like(step), np.empty_like(step)
    last = rng.standard_normal(len(scenarios)) * std
    for k in range(n_iter):
        foreseen[k] = memory * last
        # AR(1); the step is such that the variance stays `std` squared.
        last = drift[k] = foreseen[k] + step[k]
    return drift, foreseen


def lengths_of(shares: Float64, factor: Float64, cap: Float64) -> CompletionLengths:
    """Compute the lengths of the completions of batches from their tasks.

    Args:
        shares: of the tasks, ``[n_iter, n, n_tasks]``.
        factor: on all lengths, ``[n_iter, n]``.
        cap: longest completion of each scenario, ``[n]`` tokens.
    """
    flat = POINTS.reshape(-1)
    per_row = np.minimum(flat * factor[..., None], cap[:, None])
    weights = np.repeat(shares, POINTS.shape[1], axis=-1) / POINTS.shape[1] * per_row
    mean = weights.sum(axis=-1)
    # A task of under 2 % of the prompts is too rare for its longest row to be expected in a batch.
    present = shares > 0.02
    longest = np.minimum((LONGEST * present).max(axis=-1) * factor, cap)
    longest = np.maximum(longest, mean)
    # The hand-over that each row belongs to: the first one after its last token.
    place = np.ceil(per_row * (N_HANDOVERS / longest)[..., None]).astype(np.int64) - 1
    np.clip(place, 0, N_HANDOVERS - 1, out=place)
    # One bincount for all batches: each has `N_HANDOVERS` bins of its own, one after another.
    episode = np.arange(mean.size).reshape(mean.shape)[..., None] * N_HANDOVERS
    tokens = np.bincount(
        (place + episode).reshape(-1), weights.reshape(-1), mean.size * N_HANDOVERS
    )
    tokens = tokens.reshape(*mean.shape, N_HANDOVERS) / mean[..., None]
    # Summed from the end; rounding must not make the first of them anything but all.
    shares_left = np.cumsum(tokens[..., ::-1], axis=-1)[..., ::-1]
    shares_left[..., 0] = 1.0
    tail = [np.ascontiguousarray(shares_left[..., j]) for j in range(N_HANDOVERS)]
    return CompletionLengths(mean, longest, tuple(tail))


def log_factor(mean: Float64, shares: Float64, cap: Float64 | float) -> Float64:
    """Find the factor on all lengths that makes the mean of each batch, by bisection.

    Args:
        mean: mean completion of each batch, ``[...]`` tokens.
        shares: of the tasks, ``[..., n_tasks]``.
        cap: longest completion, tokens; one for all, or ``[...]``.

    Returns:
        Its logarithm ``[...] float64``. Batches of which every row is cut off tell no factor: they
        count as just cut off.
    """
    low, high = np.full(mean.shape, -20.0), np.full(mean.shape, 20.0)
    limit = np.asarray(cap)
    for _ in range(60):
        middle = 0.5 * (low + high)
        per_row = np.minimum(POINTS * np.exp(middle)[..., None, None], limit[..., None, None])
        short = (shares * per_row.mean(axis=-1)).sum(axis=-1) < mean
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray(np.minimum(0.5 * (low + high), np.log(limit / POINTS.min())))


def usual_lengths(mean: Float64, mix: Float64, cap: float) -> CompletionLengths:
    """Lengths of batches of which the mean alone is known: those of the tasks' usual mix.

    Args:
        mean: mean completion of each batch, ``[n]`` tokens.
        mix: shares of the tasks, ``[n_tasks]``.
        cap: longest completion, tokens.
    """
    shares = np.broadcast_to(mix, (*mean.shape, len(mix)))
    factor = np.exp(log_factor(mean, shares, cap))
    found = lengths_of(shares[:, None], factor[:, None], np.array([cap]))
    return CompletionLengths(
        found.mean[:, 0], found.longest[:, 0], tuple(part[:, 0] for part in found.tail)
    )


def drawn_lengths(
    scenarios: Sequence[Scenario], shares: Float64, factor: Float64, rng: np.random.Generator
) -> CompletionLengths:
    """Draw every completion of every batch of some scenarios.

    The logarithm of a length is normal around its task's; half of the variance is the prompt's, and
    shared by the rows of a group. A few rows have a heavy tail (`TAIL_SHARE`).

    Args:
        scenarios: the scenarios side by side.
        shares: of the tasks of each batch's prompts, ``[n_iter, n, n_tasks]``.
        factor: on all lengths, ``[n_iter, n]``.
        rng: source of chance.
    """
    shape = factor.shape
    mean, longest = np.empty(shape), np.empty(shape)
    tail = np.empty((N_HANDOVERS, *shape))
    for i, scenario in enumerate(scenarios):
        rows = _drawn_rows(scenario, shares[:, i], factor[:, i], rng)
        mean[:, i], longest[:, i] = rows.mean(axis=1), rows.max(axis=1)
        total = rows.sum(axis=1)
        # The hand-over that each row belongs to: the first one after its last token.
        place = np.ceil(rows * (N_HANDOVERS / longest[:, i, None])) - 1.0
        for j in range(N_HANDOVERS):
            tail[j, :, i] = (rows * (place >= j)).sum(axis=1) / total
    tail[0] = 1.0
    return CompletionLengths(mean, longest, tuple(tail))


def _drawn_rows(
    scenario: Scenario, shares: Float64, factor: Float64, rng: np.random.Generator
) -> Float64:
    """Draw the lengths of the rows of one scenario's batches, ``[n_iter, n_rows] float64``."""
    n_iter, group = len(factor), scenario.group_size
    n_prompts = scenario.n_rows // group
    edges = np.cumsum(shares, axis=-1)[:, None, :]
    task = (rng.random((n_iter, n_prompts, 1)) > edges).sum(axis=-1).clip(0, N_TASKS - 1)
    of_prompt = LOG_MEDIANS[task] + SIGMAS[task] * np.sqrt(0.5) * rng.standard_normal(task.shape)
    logs = np.repeat(of_prompt, group, axis=1)
    own = rng.standard_normal(logs.shape) * np.sqrt(0.5)
    logs += np.repeat(SIGMAS[task], group, axis=1) * own
    logs += (rng.random(logs.shape) < TAIL_SHARE) * rng.exponential(1.0 / TAIL_INDEX, logs.shape)
    return np.asarray(np.clip(np.exp(logs) * factor[:, None], 1.0, scenario.max_length))
