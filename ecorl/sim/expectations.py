"""Lengths of an episode's batches, as they turn out and as they are expected beforehand.

They are drawn from distributions (`ecorl.sim.lengths`), or those of a recorded run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.scheduler.tables import Float64
from ecorl.sim.divergence import Diverged, growth_of
from ecorl.sim.factors import N_POWERS, N_TIMES
from ecorl.sim.lengths import (
    CompletionLengths,
    draw_drift,
    draw_shares,
    drawn_lengths,
    lengths_of,
    log_factor,
)
from ecorl.sim.replay import Laid, lay, mean_so_far
from ecorl.sim.scenario import Scenario, column


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
