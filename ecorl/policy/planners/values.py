"""What the state between two iterations is worth: a table with linear interpolation.

Four numbers couple iterations: the cards' backlog, their temperature, critic training that was put
off, and whether the cards sleep. The grid of the backlog is quadratic, dense near 0 where it
matters. Two more are approximated: results that may come an iteration later are taken to come when
the whole backlog is done, and other jobs to yield nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ecorl.scheduler.iteration_costs import FULL_RISE_C, TEMPERATURE_LIMIT_C
from ecorl.scheduler.tables import Float64
from ecorl.sim.scenario import Scenario
from ecorl.sim.trace import Trace
from ecorl.stages import Between

N_BACKLOG, N_TEMPERATURE, N_DEFERRED = 12, 12, 3


@dataclass(frozen=True, slots=True)
class Grid:
    """States between iterations, for n scenarios or episodes side by side.

    Attributes:
        backlog_s: longest backlog of the grid, ``[n]`` s.
        low_c, high_c: temperatures of the grid, ``[n]``.
        deferred_s, deferred_j: most that is put off, ``[n]`` s and J.
        stale: 1.0 where results may come an iteration later, ``[n]``.
        shape: points of backlog, temperature, deferral and sleep; 1 where it does not matter.
    """

    backlog_s: Float64
    low_c: Float64
    high_c: Float64
    deferred_s: Float64
    deferred_j: Float64
    stale: Float64
    shape: tuple[int, int, int, int]

    @property
    def size(self) -> int:
        """Points of the grid."""
        return math.prod(self.shape)

    def points(self) -> Between:
        """All states of the grid, ``[n, size]`` each."""
        axes = [np.linspace(0.0, 1.0, m) if m > 1 else np.zeros(1) for m in self.shape]
        b, t, d, a = (x.reshape(-1) for x in np.meshgrid(*axes, indexing="ij"))
        backlog_s = self.backlog_s[:, None] * b**2
        return Between(
            backlog_s=backlog_s,
            temperature_c=self.low_c[:, None] + (self.high_c - self.low_c)[:, None] * t,
            deferred_s=self.deferred_s[:, None] * d,
            deferred_j=self.deferred_j[:, None] * d,
            asleep=np.broadcast_to(a, backlog_s.shape),
            due_s=self.stale[:, None] * backlog_s,
            occupancy=np.zeros_like(backlog_s),
        )

    def corners(self, after: Between) -> tuple[np.ndarray, Float64]:
        """Grid points around states ``[n, m]``, and their weights: ``[16, n, m]`` each.

        Axes of one point are left out, so that there may be fewer corners.
        """
        n_b, n_t, n_d, n_a = self.shape
        share_b = np.sqrt(np.clip(after.backlog_s / self.backlog_s[:, None], 0.0, 1.0))
        span_c = np.maximum(self.high_c - self.low_c, 1e-9)[:, None]
        share_t = np.clip((after.temperature_c - self.low_c[:, None]) / span_c, 0.0, 1.0)
        most_s = np.maximum(self.deferred_s, 1e-12)[:, None]
        share_d = np.clip(after.deferred_s / most_s, 0.0, 1.0)
        index = np.zeros((1, *share_b.shape), dtype=np.int64)
        weight = np.ones((1, *share_b.shape))
        share_a = np.clip(after.asleep, 0.0, 1.0)
        for share, m in ((share_b, n_b), (share_t, n_t), (share_d, n_d), (share_a, n_a)):
            if m == 1:
                continue
            x = share * (m - 1)
            low = np.minimum(x.astype(np.int64), m - 2)
            high = x - low
            if m == n_b and share is share_b:
                # Linear in the backlog itself, not in its root.
                high = _quadratic_share(share, low, m)
            index = np.concatenate([index * m + low, index * m + low + 1])
            weight = np.concatenate([weight * (1.0 - high), weight * high])
        return index, weight

    def interpolate(self, values: Float64, after: Between) -> Float64:
        """Worth of states ``[n, m]`` by a table ``[n, size]``."""
        index, weight = self.corners(after)
        rows = np.arange(len(self.backlog_s))[:, None]
        return np.asarray(sum(w * values[rows, i] for i, w in zip(index, weight, strict=True)))


def _quadratic_share(share: Float64, low: np.ndarray, m: int) -> Float64:
    edge = (low / (m - 1)) ** 2
    next_edge = ((low + 1) / (m - 1)) ** 2
    return np.asarray(np.clip((share**2 - edge) / (next_edge - edge), 0.0, 1.0))


def grid_for(trace: Trace) -> Grid:
    """A grid that holds what the episodes of a trace can reach."""
    scenarios, work = trace.scenarios, trace.actual
    nominal_s = trace.gpu_only_s.mean(axis=0)
    arriving = (work.arriving_s + work.late_arriving_s) / np.maximum(work.cards_up, 0.25)
    # Beyond this the cards are as good as gone for the horizon that counts.
    backlog_s = np.maximum(4.0 * nominal_s, 3.0 * arriving.max(axis=0))
    can_defer = any(s.abilities.defer_critic and float(work.critic_s[:, i].max()) > 0
                    for i, s in enumerate(scenarios))  # fmt: skip
    heats = any(_may_throttle(s) for s in scenarios)
    ambient_c = np.array([s.ambient_c for s in scenarios])
    idle_c = ambient_c + work.rise_c_per_w[0] * (work.card_idle_w / work.n_cards)[0]
    full_c = ambient_c + work.rise_c_per_w[0] * (work.card_active_w / work.n_cards)[0]
    # Results that may come later are a backlog of the job's own.
    loaded = any(s.load > 0 or s.is_stale for s in scenarios)
    shape = (
        N_BACKLOG if loaded else 1,
        N_TEMPERATURE if heats else 1,
        N_DEFERRED if can_defer else 1,
        2 if any(s.sleeps for s in scenarios) else 1,
    )
    return Grid(
        backlog_s=backlog_s,
        low_c=idle_c,
        high_c=full_c,
        deferred_s=work.critic_s.max(axis=0),
        deferred_j=work.critic_j.max(axis=0),
        stale=np.array([float(s.is_stale) for s in scenarios]),
        shape=shape,
    )


def _may_throttle(scenario: Scenario) -> bool:
    return scenario.n_cards > 0 and scenario.ambient_c + FULL_RISE_C > TEMPERATURE_LIMIT_C
