"""Lengths of completions: tasks of a batch, slow drift of all lengths, mean, longest and tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.scheduler.tables import Float64
from ecorl.sim.scenario import Scenario, column
from ecorl.sim.tasks import LONGEST, N_TASKS, POINTS

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
