"""Lengths of completions: tasks of a batch, slow drift of all lengths, mean, longest and tail.

They are drawn from distributions, or those of a recorded run, and expected beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.scheduler.tables import Float64
from ecorl.sim import tasks
from ecorl.sim.divergence import Diverged, growth_of
from ecorl.sim.factors import N_POWERS, N_TIMES
from ecorl.sim.replay import Laid, lay, mean_so_far
from ecorl.sim.scenario import Scenario, column

N_HANDOVERS = 6
"""Times that generation hands over finished rows, evenly spaced up to its end."""


@dataclass(frozen=True, slots=True)
class CompletionLengths:
    """Lengths of the completions of batches, tokens.

    Attributes:
        mean, longest: ``[n_iter, n] float64``.
        tail: `ecorl.stages.figures.Work.tail`, `N_HANDOVERS` arrays of the same shape.
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
    drawn = rng.standard_gamma(
        np.maximum(alpha, 1e-3), size=(n_iter, len(scenarios), tasks.N_TASKS)
    )
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
    flat = tasks.POINTS.reshape(-1)
    per_row = np.minimum(flat * factor[..., None], cap[:, None])
    weights = np.repeat(shares, tasks.POINTS.shape[1], axis=-1) / tasks.POINTS.shape[1] * per_row
    mean = weights.sum(axis=-1)
    # A task of under 2 % of the prompts is too rare for its longest row to be expected in a batch.
    present = shares > 0.02
    longest = np.minimum((tasks.LONGEST * present).max(axis=-1) * factor, cap)
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
        per_row = np.minimum(tasks.POINTS * np.exp(middle)[..., None, None], limit[..., None, None])
        short = (shares * per_row.mean(axis=-1)).sum(axis=-1) < mean
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray(np.minimum(0.5 * (low + high), np.log(limit / tasks.POINTS.min())))


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
    task = (rng.random((n_iter, n_prompts, 1)) > edges).sum(axis=-1).clip(0, tasks.N_TASKS - 1)
    of_prompt = tasks.LOG_MEDIANS[task] + tasks.SIGMAS[task] * np.sqrt(0.5) * rng.standard_normal(
        task.shape
    )
    logs = np.repeat(of_prompt, group, axis=1)
    own = rng.standard_normal(logs.shape) * np.sqrt(0.5)
    logs += np.repeat(tasks.SIGMAS[task], group, axis=1) * own
    logs += (rng.random(logs.shape) < tasks.TAIL_SHARE) * rng.exponential(
        1.0 / tasks.TAIL_INDEX, logs.shape
    )
    return np.asarray(np.clip(np.exp(logs) * factor[:, None], 1.0, scenario.max_length))


@dataclass(frozen=True, slots=True)
class DrawnLengths:
    """Lengths of the batches of several scenarios side by side; as in `ecorl.sim.trace.Trace`.

    Attributes:
        real: as they turn out.
        hoped: as they are expected when generation starts.
        shares: tasks of each batch's prompts as they are told beforehand.
        foreseen: logarithm of the factor on lengths that `hoped` rests on.
        surprise: standard deviation of the actual factor's logarithm around it.
        stretch: longest completion over the mean that is expected where a run is replayed, NaN
            elsewhere; None where no run is.
        laid: the replay of each column that has one.
    """

    real: CompletionLengths
    hoped: CompletionLengths
    shares: Float64
    foreseen: Float64
    surprise: Float64
    stretch: Float64 | None
    laid: Mapping[int, Laid]


def draw_lengths(
    scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator
) -> DrawnLengths:
    """Draw or replay the lengths of an episode of each scenario.

    Args:
        scenarios: the scenarios side by side.
        n_iter: iterations.
        rng: source of all chance.
    """
    shares = draw_shares(scenarios, n_iter, rng)
    drift, foreseen = draw_drift(scenarios, n_iter, rng)
    noise_std = column(scenarios, "batch_noise_std")
    scale = column(scenarios, "length_scale")
    cap = column(scenarios, "max_length")
    noise = rng.standard_normal((n_iter, len(scenarios))) * noise_std
    growth = growth_of([s.divergence for s in scenarios], n_iter)
    real = lengths_of(shares, scale * np.exp(drift + growth + noise), cap)
    foreseen = foreseen + growth
    surprise = np.hypot(
        noise_std,
        column(scenarios, "drift_std") * np.sqrt(1.0 - column(scenarios, "drift_memory") ** 2),
    )
    drawn = np.array([s.rows == "drawn" and s.replay is None for s in scenarios])
    if drawn.any():
        factor = (scale * np.exp(drift + growth))[:, drawn]
        chosen = [s for s, own in zip(scenarios, drawn, strict=True) if own]
        real = _placed(real, drawn_lengths(chosen, shares[:, drawn], factor, rng), drawn)
        # What is not known of a batch beforehand is told by the usual mix.
        shares = np.where(drawn[:, None], _usual(scenarios, shares), shares)
        hoped = lengths_of(shares, scale * np.exp(foreseen), cap)
        # The heavy tail makes rows longer than their task's points by a constant share on average.
        foreseen += np.where(drawn, np.log(real.mean / hoped.mean).mean(axis=0), 0.0)
    laid = _laid(scenarios, n_iter, rng)
    replayed = np.isin(np.arange(len(scenarios)), list(laid))
    if laid:
        real = _placed(real, _joined(list(laid.values())), replayed)
        shares = np.where(replayed[:, None], _usual(scenarios, shares), shares)
        told = _so_far(scenarios, laid)
        foreseen[:, replayed] = log_factor(
            told, shares[:, replayed], np.broadcast_to(cap[replayed], told.shape)
        ) - np.log(scale[replayed])
    hoped = lengths_of(shares, scale * np.exp(foreseen), cap)
    stretch = _stretch(real, hoped, replayed)
    hoped = stretched(hoped, stretch, cap)
    seen = drawn | replayed
    if seen.any():
        surprise = np.where(seen, np.log(real.mean / hoped.mean).std(axis=0), surprise)
    return DrawnLengths(real, hoped, shares, foreseen, surprise, stretch, laid)


def stretched(
    lengths: CompletionLengths, stretch: Float64 | None, cap: Float64
) -> CompletionLengths:
    """Give the longest completions another ratio to the mean.

    Args:
        lengths: of the completions.
        stretch: the ratio, ``[n_iter, n]``, NaN where it stays; None: it stays everywhere.
        cap: longest completion of each scenario, ``[n]`` tokens.
    """
    if stretch is None:
        return lengths
    longest = np.clip(lengths.mean * stretch, lengths.mean, np.maximum(cap, lengths.mean))
    longest = np.where(np.isnan(stretch), lengths.longest, longest)
    return CompletionLengths(lengths.mean, longest, lengths.tail)


def with_replays(
    diverged: Diverged | None, laid: Mapping[int, Laid], shape: tuple[int, int]
) -> Diverged | None:
    """Multiply how costs differ from the tables with the factors of replayed runs.

    Args:
        diverged: what was drawn; None where nothing differs.
        laid: the replay of each column that has one.
        shape: iterations and columns.

    Returns:
        None where nothing differs. What a run measured is a reading already: nothing is added to
        it.
    """
    if not laid:
        return diverged
    if diverged is None:
        diverged = Diverged(
            np.ones((N_TIMES, *shape)),
            np.ones((N_POWERS, *shape)),
            np.ones((N_TIMES + N_POWERS, *shape)),
            np.ones(shape),
        )
    time, power = diverged.time.copy(), diverged.power.copy()
    for place, one in laid.items():
        time[..., place] *= one.time
        power[..., place] *= one.power
    return Diverged(time, power, diverged.reading, diverged.report)


def _laid(scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator) -> dict[int, Laid]:
    """Lay each replay over the episode, from a random batch on."""
    return {
        place: lay(s.replay, int(rng.integers(s.replay.n_batches)), n_iter)
        for place, s in enumerate(scenarios)
        if s.replay is not None
    }


def _joined(laid: Sequence[Laid]) -> CompletionLengths:
    """The replayed lengths side by side."""
    tails = np.stack([one.tail for one in laid], axis=-1)
    return CompletionLengths(
        np.stack([one.length for one in laid], axis=-1),
        np.stack([one.longest for one in laid], axis=-1),
        tuple(tails),
    )


def _so_far(scenarios: Sequence[Scenario], laid: Mapping[int, Laid]) -> Float64:
    """Mean lengths that the batches so far let expect, ``[n_iter, n_replayed]`` tokens."""
    of = [mean_so_far(one.length, scenarios[i].nominal_length) for i, one in laid.items()]
    return np.stack(of, axis=-1)


def _stretch(
    real: CompletionLengths, hoped: CompletionLengths, replayed: npt.NDArray[np.bool_]
) -> Float64 | None:
    """Longest completion over the mean that the batches so far let expect."""
    if not replayed.any():
        return None
    found = np.full(real.mean.shape, np.nan)
    for i in np.flatnonzero(replayed):
        first = float(hoped.longest[0, i] / hoped.mean[0, i])
        found[:, i] = mean_so_far(real.longest[:, i] / real.mean[:, i], first)
    return found


def _usual(scenarios: Sequence[Scenario], shares: Float64) -> Float64:
    return np.broadcast_to(np.array([s.mix for s in scenarios]), shares.shape)


def _placed(of: CompletionLengths, own: CompletionLengths, where: Any) -> CompletionLengths:
    """Put the lengths of some columns into their places."""
    mean, longest = of.mean.copy(), of.longest.copy()
    mean[:, where], longest[:, where] = own.mean, own.longest
    tails = []
    for part, theirs in zip(of.tail, own.tail, strict=True):
        made = part.copy()
        made[:, where] = theirs
        tails.append(made)
    return CompletionLengths(mean, longest, tuple(tails))
