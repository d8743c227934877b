"""How a job differs from its cost tables, how that changes while it runs, and what is seen of it.

Tables are computed before a job starts: from profiles, from a roofline, from somebody else's run.
They are wrong by some share for each stage on each device; other tenants come and go; clocks
wander; answers get longer as training goes on. A run learns of all this by measuring alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.errors import ConfigError
from ecorl.scheduler.tables import Float64
from ecorl.sim.factors import N_POWERS, N_TIMES, ON_CARD


@dataclass(frozen=True, slots=True)
class Divergence:
    """What a job's costs are beside what its tables say, and what a run sees of them.

    Attributes:
        table_error: most by which a time or a power of the tables is off, a share: the true one is
            drawn evenly from ``1 - table_error`` to ``1 + table_error`` times it, once a job.
        seed: of that draw.
        clock_std, clock_memory: slow change of the speed of GPUs and of cards, AR(1) of the
            logarithm.
        contention, contention_slow: share of the iterations in which another tenant slows the
            cards, and the factor by which it does.
        gpu_contention, gpu_contention_slow: the same of the GPUs.
        spell: mean iterations that a tenant stays.
        growth: factor by which completions are longer at the end of the job than at its start.
        reading_noise: standard deviation of a measured time or power, a share.
        report_lag: iterations by which the report of the cards' queue is old.
        report_noise: standard deviation of its logarithm.
    """

    table_error: float = 0.0
    seed: int = 0
    clock_std: float = 0.0
    clock_memory: float = 0.95
    contention: float = 0.0
    contention_slow: float = 1.0
    gpu_contention: float = 0.0
    gpu_contention_slow: float = 1.0
    spell: float = 15.0
    growth: float = 1.0
    reading_noise: float = 0.0
    report_lag: int = 0
    report_noise: float = 0.0

    def __post_init__(self) -> None:
        checks = (
            ("table_error", 0 <= self.table_error < 1, "0 to below 1"),
            ("clock_std", self.clock_std >= 0, "0 or more"),
            ("clock_memory", 0 <= self.clock_memory < 1, "0 to below 1"),
            ("contention", 0 <= self.contention < 1, "0 to below 1"),
            ("contention_slow", self.contention_slow >= 1, "1 or more"),
            ("gpu_contention", 0 <= self.gpu_contention < 1, "0 to below 1"),
            ("gpu_contention_slow", self.gpu_contention_slow >= 1, "1 or more"),
            ("spell", self.spell >= 1, "1 or more"),
            ("growth", self.growth > 0, "above 0"),
            ("reading_noise", self.reading_noise >= 0, "0 or more"),
            ("report_lag", self.report_lag in (0, 1, 2), "0, 1 or 2"),
            ("report_noise", self.report_noise >= 0, "0 or more"),
        )
        for key, fine, allowed in checks:
            if not fine:
                raise ConfigError(f"scenario.divergence.{key}", getattr(self, key), allowed)

    @property
    def own_factors(self) -> tuple[Float64, Float64]:
        """True times and powers of this job over its tables, ``[N_TIMES]`` and ``[N_POWERS]``."""
        rng = np.random.default_rng([self.seed, 41])
        drawn = 1.0 + self.table_error * rng.uniform(-1.0, 1.0, N_TIMES + N_POWERS)
        return drawn[:N_TIMES], drawn[N_TIMES:]


EXACT = Divergence()
"""A job that costs what its tables say, and whose cards' queue is known."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """How the costs of some episodes differ from their tables, arrays of float64.

    Attributes:
        time: ``[N_TIMES, n_iterations, n]``: true times over those of the tables.
        power: ``[N_POWERS, n_iterations, n]``: true powers likewise.
        reading: ``[N_TIMES + N_POWERS, n_iterations, n]``: measured over true ones.
        report: ``[n_iterations, n]``: the reported queue of the cards over the true one.
    """

    time: Float64
    power: Float64
    reading: Float64
    report: Float64


def draw_divergence(
    all_of: Sequence[Divergence], n_iter: int, rng: np.random.Generator
) -> Diverged | None:
    """Draw how the costs of some episodes differ from their tables; None where none does.

    Args:
        all_of: what each of the jobs side by side is like.
        n_iter: iterations.
        rng: source of chance.
    """
    if all(one == EXACT for one in all_of):
        return None
    n = len(all_of)
    own = [d.own_factors for d in all_of]
    time = np.stack([t for t, _ in own], axis=-1)[:, None, :] * np.ones((1, n_iter, 1))
    power = np.stack([p for _, p in own], axis=-1)[:, None, :] * np.ones((1, n_iter, 1))
    clocks = np.exp(_clocks(all_of, n_iter, rng))
    # A lower clock takes longer at less power: of what was drawn about its first power is saved.
    time[:ON_CARD] *= clocks[0]
    time[ON_CARD:] *= clocks[1]
    power[:-1] /= clocks[0]
    power[-1] /= clocks[1]
    time[:ON_CARD] *= _tenants([(d.gpu_contention, d.gpu_contention_slow) for d in all_of],
                               all_of, n_iter, rng)  # fmt: skip
    time[ON_CARD:] *= _tenants([(d.contention, d.contention_slow) for d in all_of],
                               all_of, n_iter, rng)  # fmt: skip
    noise = np.array([d.reading_noise for d in all_of])
    reading = np.exp(noise * rng.standard_normal((N_TIMES + N_POWERS, n_iter, n)))
    report_noise = np.array([d.report_noise for d in all_of])
    report = np.exp(report_noise * rng.standard_normal((n_iter, n)))
    return Diverged(time, power, reading, report)


def growth_of(all_of: Sequence[Divergence], n_iter: int) -> Float64:
    """Compute how much longer completions get, logarithm of the factor, ``[n_iter, n] float64``.

    It is 0 in the middle of the job, so that its nominal length stays its mean.

    Args:
        all_of: what each of the jobs side by side is like.
        n_iter: iterations.
    """
    whole = np.log([one.growth for one in all_of])
    return np.asarray(np.linspace(-0.5, 0.5, n_iter)[:, None] * whole)


def _clocks(all_of: Sequence[Divergence], n_iter: int, rng: np.random.Generator) -> Float64:
    """Draw the logarithm of GPUs' and cards' slowness, ``[2, n_iter, n] float64``."""
    std = np.array([d.clock_std for d in all_of])
    memory = np.array([d.clock_memory for d in all_of])
    step = rng.standard_normal((n_iter, 2, len(all_of))) * std * np.sqrt(1.0 - memory**2)
    last = rng.standard_normal((2, len(all_of))) * std
    made = np.empty_like(step)
    for k in range(n_iter):
        last = made[k] = memory * last + step[k]
    return np.moveaxis(made, 1, 0)


def _tenants(
    of: Sequence[tuple[float, float]],
    all_of: Sequence[Divergence],
    n_iter: int,
    rng: np.random.Generator,
) -> Float64:
    """Draw the factor by which a tenant that comes and goes slows a device, ``[n_iter, n]``.

    Args:
        of: share of the iterations, and the factor, of each.
        all_of: for the mean length of a stay.
        n_iter: iterations.
        rng: source of chance.
    """
    share, slow = np.array(of).T
    leaves = 1.0 / np.array([d.spell for d in all_of])
    # Balance of the two states: share x leaves = (1 - share) x comes.
    comes = np.minimum(1.0, leaves * share / (1.0 - share))
    there = rng.random(len(of)) < share
    draws = rng.random((n_iter, len(of)))
    made = np.empty((n_iter, len(of)))
    for k in range(n_iter):
        there = np.where(there, draws[k] >= leaves, draws[k] < comes)
        made[k] = np.where(there, slow, 1.0)
    return made
