"""The two planners: the clairvoyant optimum, and the best policy that knows no future.

`Clairvoyant` is dynamic programming over (backlog, temperature, deferred) with every figure of the
episode known: 100 % of the share scale. `Planner` solves the same problem in expectation, by value
iteration over sampled iterations, with the state of what can be seen of the near future (whether
other jobs' burst is on, how long the rows are) beside those three; within an iteration it looks
ahead with what is known then. Both act under the same guards as every policy.

Four numbers couple iterations: the cards' backlog, their temperature, critic training that was put
off, and whether the cards sleep. The grid of the backlog is quadratic, dense near 0 where it
matters. Two more are approximated: results that may come an iteration later are taken to come when
the whole backlog is done, and other jobs to yield nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ecorl.policy.planners.search import Codes, GuardView, Leaves, leaves, look
from ecorl.records import Stage
from ecorl.scheduler.iteration_costs import FULL_RISE_C, TEMPERATURE_LIMIT_C
from ecorl.scheduler.tables import Float64
from ecorl.sim.divergence import EXACT
from ecorl.sim.scenario import Scenario
from ecorl.sim.simulation import CostView, Simulation, rules_of
from ecorl.sim.trace import Trace, draw_trace, supposing, work_at
from ecorl.stages.figures import Between, Carry, Work
from ecorl.stages.guards import Rules
from ecorl.stages.iteration import begin

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
    heats = any(
        s.n_cards > 0 and s.ambient_c + FULL_RISE_C > TEMPERATURE_LIMIT_C for s in scenarios
    )
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


GAMMA = 0.95
"""Discount of an iteration in value iteration; couplings last for a few iterations."""

N_SWEEPS = 80
N_SAMPLES = 60
"""Iterations that stand for a scenario in value iteration."""

N_LENGTH_CLASSES = 3

DEVIATIONS = ((-(3.0**0.5), 1 / 6), (0.0, 2 / 3), (3.0**0.5, 1 / 6))
"""Lengths that a batch may turn out to have, in standard deviations, and their weights: the
three-point Gauss-Hermite rule."""


class Clairvoyant:
    """Dynamic programming with the whole episode known, for the episodes of one trace.

    Args:
        trace: the episodes.
    """

    name = "dp"

    def __init__(self, trace: Trace) -> None:
        self.trace, self.grid = trace, grid_for(trace)
        self.rules = rules_of(trace.scenarios)
        self.values = self._solve()
        self._plan: Codes = np.zeros((trace.n, 6), dtype=np.int64)

    def __call__(self, simulation: Simulation) -> Codes:
        """The action at this stage; the whole iteration is planned at its start."""
        if simulation.place == 0:
            k = simulation.iteration
            found = _leaves_at(self.trace, k, simulation.carry, self.rules)
            value = found.score
            if k + 1 < self.trace.n_iterations:
                value = value + self.grid.interpolate(self.values[k + 1], found.after)
            self._plan = found.actions[np.argmax(value, axis=1)]
        return np.asarray(self._plan[:, simulation.place])

    def _solve(self) -> Float64:
        """Worth of every grid state before every iteration, ``[n_iterations + 1, n, size]``."""
        trace, grid = self.trace, self.grid
        n, size = trace.n, grid.size
        values = np.zeros((trace.n_iterations + 1, n, size))
        points = Between(*(x.reshape(-1) for x in grid.points()))
        rules = _repeat(self.rules, size)
        for k in reversed(range(trace.n_iterations)):
            work = _repeat(work_at(trace.actual, k), size)
            found = _leaves_at(trace, k, begin(work, points), rules, work, size)
            value = found.score
            if k + 1 < trace.n_iterations:
                after = Between(*(x.reshape(n, -1) for x in found.after))
                future = grid.interpolate(values[k + 1], after)
                value = value + future.reshape(n * size, -1)
            values[k] = value.max(axis=1).reshape(n, size)
        return values


def _leaves_at(
    trace: Trace, k: int, carry: Carry, rules: Rules, work: Work | None = None, times: int = 1
) -> Leaves:
    """All sequences of iteration `k` with its actual figures, each episode `times` times.

    The guards see no more of rows that are not there than they do in a run.
    """
    expected = work_at(trace.expected, k)
    judged = GuardView(
        carry,
        expected if times == 1 else _repeat(expected, times),
        np.repeat(trace.expected_row_length[k], times),
    )
    return leaves(
        Stage.GENERATION,
        carry,
        work_at(trace.actual, k) if work is None else work,
        rules,
        np.repeat(trace.row_length[k], times),
        judged,
    )


class Planner:
    """Value iteration and look-ahead: the best causal planner, for several scenarios side by side.

    Args:
        scenarios: of the episodes that it will play, in their order; equal ones are solved once.
        seed: of the sampled iterations.
        view: whether it plans by the true costs or by those of the tables.
    """

    name = "planner"

    def __init__(
        self, scenarios: Sequence[Scenario], seed: int = 0, view: CostView = CostView.TRUE
    ) -> None:
        if view is CostView.NOMINAL:
            # Equal scenarios must stay one object, since each is solved once.
            exact = {id(s): replace(s, divergence=EXACT, replay=None) for s in scenarios}
            scenarios = [exact[id(s)] for s in scenarios]
        self.view = view
        known: dict[int, _Solution] = {}
        self._solutions = []
        self._trace: Trace | None = None
        self._supposed: list[tuple[float, Work]] = []
        for scenario in scenarios:
            key = id(scenario)
            if key not in known:
                known[key] = _solve(scenario, seed)
            self._solutions.append(known[key])
        self._groups = _grouped(self._solutions)

    def __call__(self, simulation: Simulation) -> Codes:
        """The best action by what is known."""
        return self.look(simulation)[0]

    def look(self, simulation: Simulation) -> tuple[Codes, Float64]:
        """The best action, and the worth of each, ``[n] int64`` and ``[n, 3] float64``."""
        contexts = self._contexts(simulation)
        if simulation.trace is not self._trace:
            self._trace = simulation.trace
            by_tables = self.view is CostView.NOMINAL
            self._supposed = [
                (w, supposing(self._trace, d, by_tables=by_tables)) for d, w in DEVIATIONS
            ]

        def future(after: Between) -> Float64:
            worth = np.empty(np.shape(after.backlog_s))
            for solution, members in self._groups:
                part = Between(*(x[members] for x in after))
                worth[members] = solution.worth(part, contexts[members])
            return GAMMA * worth

        k = simulation.iteration
        supposed = [(w, work_at(work, k)) for w, work in self._supposed]
        return look(simulation, future, supposed, self.view)

    def _contexts(self, simulation: Simulation) -> Codes:
        k = simulation.iteration
        burst = simulation.trace.actual.arriving_s[k] > 0
        length = simulation.trace.expected_length[k]
        found = np.empty(len(length), dtype=np.int64)
        for solution, members in self._groups:
            found[members] = solution.context(length[members], burst[members])
        return found


class _Solution:
    """Worth of the states between iterations of one scenario, by context."""

    def __init__(self, grid: Grid, edges: Float64, values: Float64) -> None:
        self.grid, self.edges, self.values = grid, edges, values

    def context(self, length: Float64, burst: np.ndarray) -> Codes:
        """Number of the context: how long the rows are, and whether a burst is on.

        Args:
            length: ``[m] float64``, expected mean completion, tokens.
            burst: ``[m] bool``, whether other jobs' burst is on.
        """
        return np.searchsorted(self.edges, length) + N_LENGTH_CLASSES * burst.astype(np.int64)

    def worth(self, after: Between, context: Codes) -> Float64:
        """Worth of states ``[m, s]``, each row in its own context.

        Args:
            after: the states, ``[m, s]`` each.
            context: ``[m] int64``.
        """
        wide = Between(*(x.reshape(1, -1) for x in after))
        index, weight = self.grid.corners(wide)
        shape = np.shape(after.backlog_s)
        index, weight = index.reshape(-1, *shape), weight.reshape(-1, *shape)
        values = self.values[context]
        rows = np.arange(shape[0])[:, None]
        return np.asarray(sum(w * values[rows, i] for i, w in zip(index, weight, strict=True)))


def _grouped(solutions: list[_Solution]) -> list[tuple[_Solution, np.ndarray]]:
    members: dict[int, list[int]] = {}
    for i, solution in enumerate(solutions):
        members.setdefault(id(solution), []).append(i)
    return [(solutions[rows[0]], np.array(rows)) for rows in members.values()]


def _solve(scenario: Scenario, seed: int) -> _Solution:
    """Value iteration for one scenario.

    The expectation over the next iteration is a mean over sampled ones that followed an iteration
    of the same context; each is planned with its own figures known, which makes the worth of a
    state a little too high, alike for all states.
    """
    trace = draw_trace([scenario], np.random.default_rng([seed, 7]))
    grid = grid_for(trace)
    edges = np.quantile(trace.expected_length[:, 0], [1 / 3, 2 / 3])
    n_contexts = 2 * N_LENGTH_CLASSES
    solution = _Solution(grid, edges, np.zeros((n_contexts, grid.size)))
    burst = trace.actual.arriving_s[:, 0] > 0
    context = solution.context(trace.expected_length[:, 0], burst)
    n_samples = min(N_SAMPLES, trace.n_iterations - 1)
    picked = np.linspace(1, trace.n_iterations - 1, n_samples).astype(np.int64)
    if grid.size == 1:
        return solution
    score, index, weight = _transitions(trace, grid, picked)
    before, now = context[picked - 1], context[picked]
    weights = np.zeros((n_contexts, n_samples))
    weights[before, np.arange(n_samples)] = 1.0
    weights[weights.sum(axis=1) == 0] = 1.0
    weights /= weights.sum(axis=1, keepdims=True)
    for _ in range(N_SWEEPS):
        future = sum(
            w * solution.values[now[:, None, None], i] for i, w in zip(index, weight, strict=True)
        )
        best = (score + GAMMA * future).max(axis=2)
        values = weights @ best
        change = np.abs(values - solution.values).max()
        solution.values = values
        if change < 1e-6:
            break
    return solution


def _transitions(
    trace: Trace, grid: Grid, picked: np.ndarray
) -> tuple[Float64, np.ndarray, Float64]:
    """Score, next grid points and weights of every sequence from every grid state.

    Returns:
        ``[n_samples, size, n_sequences]``, and twice ``[n_corners, n_samples, size, n_sequences]``.
    """
    size, n_samples = grid.size, len(picked)
    work = _repeat(work_at(trace.actual, (picked, 0)), size)
    points = Between(*(np.tile(x[0], n_samples) for x in grid.points()))
    rules = Rules(*(_tile(x, n_samples * size) for x in rules_of(trace.scenarios)))
    started = begin(work, points)
    found = leaves(
        Stage.GENERATION,
        started,
        work,
        rules,
        np.repeat(trace.row_length[picked, 0], size),
        GuardView(
            started,
            _repeat(work_at(trace.expected, (picked, 0)), size),
            np.repeat(trace.expected_row_length[picked, 0], size),
        ),
    )
    index, weight = grid.corners(Between(*(x.reshape(1, -1) for x in found.after)))
    shape = (n_samples, size, -1)
    return (
        found.score.reshape(shape),
        index.reshape(-1, n_samples, size, found.score.shape[1]),
        weight.reshape(-1, n_samples, size, found.score.shape[1]),
    )


def _repeat(figures: Any, times: int) -> Any:
    """A tuple of figures with each entry `times` times in a row."""
    parts = [
        tuple(np.repeat(part, times) for part in x) if isinstance(x, tuple) else np.repeat(x, times)
        for x in figures
    ]
    return figures._make(parts)


def _tile(value: Any, n: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_tile(part, n) for part in value)
    return np.full(n, value[0])
