"""Episodes of a scenario: everything that chance decides, drawn before the first decision.

An episode is a table of figures, one row an iteration. The figures of a batch exist twice: as they
turn out (``actual``), and as they are expected when generation starts (``expected``), from the
prompts' tasks and the lengths so far. A policy sees the expected ones until the rows are there; the
clairvoyant optimum sees all actual ones from the start. Other jobs' bursts, failures and the next
batches are in neither until they happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.errors import ConfigError
from ecorl.scheduler.tables import COLUMN, LONG, SHORT, Float64
from ecorl.sim.scenario import Scenario
from ecorl.sim.tasks import LONGEST, N_TASKS, POINTS
from ecorl.stages import Work, gpu_only

N_HANDOVERS = 6
"""Times that generation hands over finished rows, evenly spaced up to its end."""

THERMAL_TAU_S = 120.0
"""Time constant of a card and its cooler, s. Assumed: cards of this size settle in minutes."""

FULL_RISE_C = 71.0 - 23.0
"""The paper's Table 2: 71 degrees at full load and 23 degrees of air. Cards of other power are
taken to have coolers to match."""

TEMPERATURE_LIMIT_C = 80.0
"""Where a card begins to slow: it is halfway down at the 85 degrees of the paper's Table 2."""

THROTTLE = 0.5
"""Speed of a card well above the limit. Assumed: half the clock."""


def rise_c_per_w(scenario: Scenario) -> float:
    """Rise of a card's temperature over the air per watt of its table's power."""
    card_w = scenario.table.card_active_w / max(scenario.n_cards, 1)
    return FULL_RISE_C / card_w if card_w > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Episodes of several scenarios side by side; arrays are ``[n_iterations, n] float64``.

    Attributes:
        scenarios: the scenario of each column.
        actual: what each iteration costs.
        expected: the same as far as it can be known when generation starts.
        length, expected_length: mean length of completions, tokens.
        row_length, expected_row_length: with the prompt, tokens.
        shares: ``[n_iterations, n, n_tasks]``: tasks of the batch's prompts.
        n_rows: completions of the batch.
        gpu_only_s, gpu_only_j: time and energy of the iteration that never uses the cards.
        noise: ``[n_iterations, n, 4]``: what telemetry reads beside the truth (mean and spread of
            power and utilisation).
        start_c: temperature of the cards at the start, ``[n]``.
        foreseen: logarithm of the factor on lengths that `expected` rests on.
        surprise: standard deviation of the actual factor's logarithm around it, ``[n]``.
    """

    scenarios: tuple[Scenario, ...]
    actual: Work
    expected: Work
    length: Float64
    expected_length: Float64
    row_length: Float64
    expected_row_length: Float64
    shares: Float64
    n_rows: Float64
    gpu_only_s: Float64
    gpu_only_j: Float64
    noise: Float64
    start_c: Float64
    foreseen: Float64
    surprise: Float64

    @property
    def n_iterations(self) -> int:
        """Iterations of each episode."""
        return int(self.length.shape[0])

    @property
    def n(self) -> int:
        """Episodes side by side."""
        return int(self.length.shape[1])


def work_at(work: Work, index: Any) -> Work:
    """The work of some iterations, by any NumPy index; scalars come out as floats."""
    return Work(*(_pick(value, index) for value in work))


def select(trace: Trace, columns: npt.NDArray[np.int64]) -> Trace:
    """Some of the episodes of a trace, in the order of `columns`; an episode may come twice."""
    index = (slice(None), columns)
    return Trace(
        scenarios=tuple(trace.scenarios[int(i)] for i in columns),
        actual=work_at(trace.actual, index),
        expected=work_at(trace.expected, index),
        length=trace.length[index],
        expected_length=trace.expected_length[index],
        row_length=trace.row_length[index],
        expected_row_length=trace.expected_row_length[index],
        shares=trace.shares[index],
        n_rows=trace.n_rows[index],
        gpu_only_s=trace.gpu_only_s[index],
        gpu_only_j=trace.gpu_only_j[index],
        noise=trace.noise[index],
        start_c=trace.start_c[columns],
        foreseen=trace.foreseen[index],
        surprise=trace.surprise[columns],
    )


def _pick(value: Any, index: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_pick(part, index) for part in value)
    picked = value[index]
    return float(picked) if np.ndim(picked) == 0 else picked


def draw_trace(scenarios: Sequence[Scenario], rng: np.random.Generator) -> Trace:
    """Draw one episode of each scenario.

    Args:
        scenarios: all with the same number of iterations.
        rng: source of all chance.
    """
    n, n_iter = len(scenarios), scenarios[0].n_iterations
    if any(s.n_iterations != n_iter for s in scenarios):
        raise ConfigError("scenario.n_iterations", sorted({s.n_iterations for s in scenarios}),
                          "one number for episodes side by side")  # fmt: skip
    shares = _shares(scenarios, n_iter, rng)
    drift, foreseen = _drift(scenarios, n_iter, rng)
    noise_std = _column(scenarios, "batch_noise_std")
    scale = _column(scenarios, "length_scale")
    cap = _column(scenarios, "max_length")
    noise = rng.standard_normal((n_iter, n)) * noise_std
    real = _lengths(shares, scale * np.exp(drift + noise), cap)
    hoped = _lengths(shares, scale * np.exp(foreseen), cap)
    costs = _Costs(scenarios)
    exogenous = _others(scenarios, costs, n_iter, rng)
    prompt = _column(scenarios, "prompt_length")
    actual = costs.work(real, exogenous, rows_over(scenarios, hoped.mean, real.mean))
    expected = costs.work(hoped, _unforeseen(exogenous))
    time_s, energy_j = gpu_only(actual)
    return Trace(
        scenarios=tuple(scenarios),
        actual=actual,
        expected=expected,
        length=real.mean,
        expected_length=hoped.mean,
        row_length=real.mean + prompt,
        expected_row_length=hoped.mean + prompt,
        shares=shares,
        n_rows=np.stack([s.rows_at(hoped.mean[:, i]) for i, s in enumerate(scenarios)], axis=1),
        gpu_only_s=time_s,
        gpu_only_j=energy_j,
        noise=rng.standard_normal((n_iter, n, 4)),
        start_c=np.array([s.ambient_c for s in scenarios]),
        foreseen=foreseen,
        surprise=np.hypot(
            noise_std,
            _column(scenarios, "drift_std")
            * np.sqrt(1.0 - _column(scenarios, "drift_memory") ** 2),
        ),
    )


def rows_over(scenarios: Sequence[Scenario], made_for: Float64, length: Float64) -> Float64 | None:
    """Rows of batches over those of the tables at their lengths; None where they are the same.

    An adaptive batch is made for the length that was expected, and keeps its rows.
    """
    if not any(s.adaptive_batch for s in scenarios):
        return None
    return np.stack(
        [s.rows_at(made_for[:, i]) / s.rows_at(length[:, i]) for i, s in enumerate(scenarios)],
        axis=1,
    )


def supposing(trace: Trace, deviation: float) -> Work:
    """What each iteration is expected to cost if its lengths deviate from what is foreseen.

    Args:
        trace: the episodes.
        deviation: of the logarithm of the lengths' factor, in standard deviations.
    """
    scenarios = trace.scenarios
    factor = _column(scenarios, "length_scale") * np.exp(
        trace.foreseen + deviation * trace.surprise
    )
    lengths = _lengths(trace.shares, factor, _column(scenarios, "max_length"))
    expected = trace.expected
    others = _Others(
        expected.arriving_s, expected.late_arriving_s, expected.cards_up, expected.lost,
        expected.late_arriving_s,
    )  # fmt: skip
    rows = rows_over(scenarios, trace.expected_length, lengths.mean)
    return _Costs(scenarios).work(lengths, others, rows)


def _column(scenarios: Sequence[Scenario], name: str) -> Float64:
    return np.array([float(getattr(s, name)) for s in scenarios])


def _shares(scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator) -> Float64:
    """Tasks of each batch, Dirichlet around the mix ``[n_iter, n, n_tasks]``."""
    alpha = np.array([np.array(s.mix) * s.batch_concentration for s in scenarios])
    drawn = rng.standard_gamma(np.maximum(alpha, 1e-3), size=(n_iter, len(scenarios), N_TASKS))
    drawn += 1e-12
    return np.asarray(drawn / drawn.sum(axis=-1, keepdims=True))


def _drift(
    scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Logarithm of the slow factor on all lengths, as it is and as the last one foretells it."""
    memory, std = _column(scenarios, "drift_memory"), _column(scenarios, "drift_std")
    step = rng.standard_normal((n_iter, len(scenarios))) * std * np.sqrt(1.0 - memory**2)
    drift, foreseen = np.empty_like(step), np.empty_like(step)
    last = rng.standard_normal(len(scenarios)) * std
    for k in range(n_iter):
        foreseen[k] = memory * last
        last = drift[k] = foreseen[k] + step[k]
    return drift, foreseen


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Of completions: mean and longest ``[n_iter, n]``, and `Work.tail` as a list of them."""

    mean: Float64
    longest: Float64
    tail: tuple[Float64, ...]


def _lengths(shares: Float64, factor: Float64, cap: Float64) -> _Lengths:
    flat = POINTS.reshape(-1)
    per_row = np.minimum(flat * factor[..., None], cap[:, None])
    weights = np.repeat(shares, POINTS.shape[1], axis=-1) / POINTS.shape[1] * per_row
    mean = weights.sum(axis=-1)
    present = shares > 0.02
    longest = np.minimum((LONGEST * present).max(axis=-1) * factor, cap)
    longest = np.maximum(longest, mean)
    # The hand-over that each row belongs to: the first one after its last token.
    place = np.ceil(per_row * (N_HANDOVERS / longest)[..., None]).astype(np.int64) - 1
    np.clip(place, 0, N_HANDOVERS - 1, out=place)
    episode = np.arange(mean.size).reshape(mean.shape)[..., None] * N_HANDOVERS
    tokens = np.bincount(
        (place + episode).reshape(-1), weights.reshape(-1), mean.size * N_HANDOVERS
    )
    tokens = tokens.reshape(*mean.shape, N_HANDOVERS) / mean[..., None]
    # Summed from the end; rounding must not make the first of them anything but all.
    shares_left = np.cumsum(tokens[..., ::-1], axis=-1)[..., ::-1]
    shares_left[..., 0] = 1.0
    tail = [np.ascontiguousarray(shares_left[..., j]) for j in range(N_HANDOVERS)]
    return _Lengths(mean, longest, tuple(tail))


@dataclass(frozen=True, slots=True)
class _Others:
    """What others do to the cards ``[n_iter, n]``; the last iteration's state is what is known."""

    arriving_s: Float64
    late_s: Float64
    cards_up: Float64
    lost: Float64
    mean_late_s: Float64


def _others(
    scenarios: Sequence[Scenario], costs: _Costs, n_iter: int, rng: np.random.Generator
) -> _Others:
    """Bursts of other jobs (two states, exponential work) and failures of cards."""
    n = len(scenarios)
    load, calm = _column(scenarios, "load"), _column(scenarios, "calm")
    unit_s = costs.nominal_s
    burst = _column(scenarios, "burst_s") * unit_s
    # Chance of a burst in the long run such that its mean work is the load.
    leave_calm = 1.0 - calm
    # Bursts are not rarer than calm ends, nor without pause; their work makes up for the rest.
    least = leave_calm / (1.0 + leave_calm)
    rate = np.clip(load * unit_s / np.maximum(burst, 1e-12), least, 0.95) * (load > 0)
    burst = np.where(rate > 0, load * unit_s / np.maximum(rate, 1e-12), 0.0)
    leave_burst = np.where(rate > 0, leave_calm * (1.0 - rate) / np.maximum(rate, 1e-12), 1.0)
    leave_burst = np.minimum(leave_burst, 1.0)
    busy = rng.random(n) < rate
    flips, work = rng.random((n_iter, n)), rng.standard_exponential((n_iter, n, 2))
    split = rng.random((n_iter, n))
    on = np.empty((n_iter, n), dtype=bool)
    for k in range(n_iter):
        busy = np.where(busy, flips[k] >= leave_burst, flips[k] < leave_calm * (rate > 0))
        on[k] = busy
    arriving = on * work[..., 0] * burst * split
    late = on * work[..., 1] * burst * (1.0 - split)
    up, lost = _failures(scenarios, n_iter, rng)
    return _Others(arriving, late, up, lost, np.broadcast_to(load * unit_s / 2, (n_iter, n)))


def _failures(
    scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Share of cards that is up, and share of the rows that is lost when one fails."""
    n = len(scenarios)
    n_cards = np.maximum(_column(scenarios, "n_cards"), 1.0)
    rate = _column(scenarios, "failure_rate")
    back = 1.0 / _column(scenarios, "repair_iterations")
    draws = rng.random((n_iter, n, 2))
    down = np.zeros(n)
    up, lost = np.empty((n_iter, n)), np.zeros((n_iter, n))
    for k in range(n_iter):
        up[k] = (n_cards - down) / n_cards
        fails = (draws[k, :, 0] < rate) & (down < n_cards)
        lost[k] = fails / np.maximum(n_cards - down, 1.0)
        returns = (draws[k, :, 1] < 1.0 - (1.0 - back) ** down) & (down > 0)
        down = down + fails - returns
    return up * (_column(scenarios, "n_cards") > 0), lost


def _unforeseen(others: _Others) -> _Others:
    """What is known at the start: this iteration's arrivals and cards, not what comes later."""
    return _Others(
        others.arriving_s,
        np.ascontiguousarray(others.mean_late_s),
        others.cards_up,
        np.zeros_like(others.lost),
        others.mean_late_s,
    )


class _Costs:
    """The cost tables of several scenarios side by side."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        tables = [s.table for s in scenarios]
        self.values = np.stack([t.values for t in tables])
        self.lengths = np.stack([t.lengths for t in tables])
        self.first = np.array([np.log(t.lengths[0]) for t in tables])
        last = np.array([np.log(t.lengths[-1]) for t in tables])
        self.n = self.values.shape[1]
        self.slope = (self.n - 1) / (last - self.first)
        self.tables, self.scenarios = tables, scenarios
        nominal = np.array([s.nominal_length for s in scenarios])[None]
        row = self._rows(nominal)
        ratio = np.full_like(nominal, 2.0)
        time_s = _generation(row, ratio, "s")
        for name in _TIMES:
            time_s = time_s + row[..., COLUMN[name]]
        self.nominal_s: Float64 = time_s[0]
        """GPU-only iteration at the nominal length, s ``[n]``."""

    def _rows(self, length: Float64) -> Float64:
        """As `CostTable.at`, for all tables side by side."""
        x = np.clip((np.log(length) - self.first) * self.slope, 0.0, self.n - 1.0)
        low = np.minimum(x.astype(np.int64), self.n - 2)
        column = np.arange(length.shape[1])[None, :]
        below, above = self.lengths[column, low], self.lengths[column, low + 1]
        share = np.clip((length - below) / (above - below), 0.0, 1.0)[..., None]
        picked = self.values[column, low] * (1.0 - share)
        return np.asarray(picked + self.values[column, low + 1] * share)

    def work(self, lengths: _Lengths, others: _Others, rows: Float64 | None = None) -> Work:
        """The work of every iteration ``[n_iter, n]``.

        Args:
            lengths: of the completions.
            others: what others do to the cards.
            rows: rows of the batch over those that the tables were made for; None: the same.
        """
        # One column after another in memory: each figure is read on its own.
        row = np.ascontiguousarray(np.moveaxis(self._rows(lengths.mean), -1, 0))
        if rows is not None:
            # Decoding steps are those of the longest row, however many rows there are.
            row[_FIRST_BY_ROWS:] *= rows
        ratio = lengths.longest / lengths.mean
        table = np.moveaxis(row, 0, -1)
        generation_s = _generation(table, ratio, "s")
        shape = generation_s.shape
        forward = np.array([t.forward_share for t in self.tables])
        early = np.array([t.early_share for t in self.tables])
        swap = np.array([t.swap_share for t in self.tables])
        actor_s, critic_s = row[COLUMN["actor_train_s"]], row[COLUMN["critic_train_s"]]
        actor_j, critic_j = row[COLUMN["actor_train_j"]], row[COLUMN["critic_train_j"]]

        def constant(values: object) -> Float64:
            made = np.asarray(values, dtype=np.float64)
            return np.ascontiguousarray(np.broadcast_to(made, shape))

        def of_tables(name: str) -> Float64:
            return constant([getattr(t, name) for t in self.tables])

        return Work(
            generation_s=generation_s,
            generation_j=_generation(table, ratio, "j"),
            handover_s=tuple(generation_s * ((j + 1) / N_HANDOVERS) for j in range(N_HANDOVERS)),
            tail=lengths.tail,
            gpu_s=tuple(row[COLUMN[f"{s}_s"]] for s in _INFERENCE),
            gpu_j=tuple(row[COLUMN[f"{s}_j"]] for s in _INFERENCE),
            card_s=tuple(row[COLUMN[f"{s}_card_s"]] for s in _INFERENCE),
            resync_s=of_tables("resync_s"),
            forward_s=actor_s * forward,
            backward_s=actor_s * (1.0 - forward),
            actor_j=actor_j,
            early_s=actor_s * forward * early,
            early_j=actor_j * forward * early,
            critic_s=critic_s,
            critic_j=critic_j,
            swap_s=critic_s * swap,
            swap_j=critic_j * swap,
            contention=of_tables("contention"),
            gpu_idle_w=of_tables("gpu_idle_w"),
            card_active_w=of_tables("card_active_w"),
            card_idle_w=of_tables("card_idle_w"),
            slow=constant([s.slow for s in self.scenarios]),
            arriving_s=others.arriving_s,
            late_arriving_s=others.late_s,
            cards_up=others.cards_up,
            lost=others.lost,
            off_policy=constant([float(s.off_policy) for s in self.scenarios]),
            ambient_c=constant([s.ambient_c for s in self.scenarios]),
            rise_c_per_w=constant([rise_c_per_w(s) for s in self.scenarios]),
            tau_s=constant(THERMAL_TAU_S),
            limit_c=constant(TEMPERATURE_LIMIT_C),
            throttle=constant(THROTTLE),
            n_cards=constant([max(s.n_cards, 1) for s in self.scenarios]),
        )


_FIRST_BY_ROWS = COLUMN["reward_s"]
"""From here on columns grow with the rows; before stands generation."""

_INFERENCE = ("reward", "reference", "critic")
_TIMES = ("reward_s", "reference_s", "critic_s", "actor_train_s", "critic_train_s")


def _generation(row: Float64, ratio: Float64, unit: str) -> Float64:
    """Generation between the prices of a short and a long longest row, linear in the ratio."""
    short, long = (
        row[..., COLUMN[f"generation_short_{unit}"]],
        row[..., COLUMN[f"generation_long_{unit}"]],
    )
    return np.asarray(short + (long - short) * ((ratio - SHORT) / (LONG - SHORT)))
