"""The costs of scenarios side by side, in arrays: their tables at the lengths that were drawn, with
other jobs' bursts and failures of the cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.scheduler import iteration_costs
from ecorl.scheduler.tables import COLUMN, Float64
from ecorl.sim.lengths import CompletionLengths
from ecorl.sim.scenario import Scenario, column
from ecorl.stages.figures import Work


@dataclass(frozen=True, slots=True)
class Disturbances:
    """Disturbances of the cards in each iteration, ``[n_iter, n] float64`` each.

    Attributes:
        arriving_s, late_s: other jobs' work that arrives at the start of the iteration and at the
            end of generation, s of all cards.
        cards_up: share of the cards that is up.
        lost: share of the rows on the cards that is lost to a failure.
        mean_late_s: what `late_s` is on average, s.
    """

    arriving_s: Float64
    late_s: Float64
    cards_up: Float64
    lost: Float64
    mean_late_s: Float64


def draw_disturbances(
    scenarios: Sequence[Scenario], unit_s: Float64, n_iter: int, rng: np.random.Generator
) -> Disturbances:
    """Draw other jobs' bursts (two states, exponential work) and failures of cards.

    Args:
        scenarios: the scenarios side by side.
        unit_s: GPU-only iteration of each at its nominal length, ``[n]`` s.
        n_iter: iterations.
        rng: source of chance.
    """
    n = len(scenarios)
    load = column(scenarios, "load")
    rate, burst_s, leave_calm, leave_burst = _burst_chain(scenarios, unit_s)
    busy = rng.random(n) < rate
    flips, work = rng.random((n_iter, n)), rng.standard_exponential((n_iter, n, 2))
    split = rng.random((n_iter, n))
    on = np.empty((n_iter, n), dtype=bool)
    for k in range(n_iter):
        busy = np.where(busy, flips[k] >= leave_burst, flips[k] < leave_calm * (rate > 0))
        on[k] = busy
    arriving_s = on * work[..., 0] * burst_s * split
    late_s = on * work[..., 1] * burst_s * (1.0 - split)
    up, lost = _failures(scenarios, n_iter, rng)
    mean_late_s = np.broadcast_to(load * unit_s / 2, (n_iter, n))
    return Disturbances(arriving_s, late_s, up, lost, mean_late_s)


def _burst_chain(
    scenarios: Sequence[Scenario], unit_s: Float64
) -> tuple[Float64, Float64, Float64, Float64]:
    """Compute the two-state chain of other jobs' bursts.

    Returns:
        Share of iterations with a burst, its mean work (s), and the chances to leave the calm and
        the bursting state, ``[n] float64`` each.
    """
    load = column(scenarios, "load")
    burst = column(scenarios, "burst_s") * unit_s
    leave_calm = 1.0 - column(scenarios, "calm")
    # At the least rate a burst always lasts one iteration (its chance to end is 1); a lower rate
    # would need a chance above 1. At 0.95 there is still a pause. Where the rate is bounded, the
    # work of a burst is scaled so that the mean load stays what it should be.
    least = leave_calm / (1.0 + leave_calm)
    # Chance of a burst in the long run such that its mean work is the load.
    rate = np.clip(load * unit_s / np.maximum(burst, 1e-12), least, 0.95) * (load > 0)
    burst = np.where(rate > 0, load * unit_s / np.maximum(rate, 1e-12), 0.0)
    # Balance of the chain: rate x leave_burst = (1 - rate) x leave_calm.
    leave_burst = np.where(rate > 0, leave_calm * (1.0 - rate) / np.maximum(rate, 1e-12), 1.0)
    return rate, burst, leave_calm, np.minimum(leave_burst, 1.0)


def unforeseen(others: Disturbances) -> Disturbances:
    """Return what is known when an iteration starts: arrivals and cards that are up.

    Later arrivals count with their mean, and no failure is foreseen.
    """
    return Disturbances(
        others.arriving_s,
        np.ascontiguousarray(others.mean_late_s),
        others.cards_up,
        np.zeros_like(others.lost),
        others.mean_late_s,
    )


def _failures(
    scenarios: Sequence[Scenario], n_iter: int, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Draw failures and repairs of cards.

    Returns:
        Share of the cards that is up, and share of the rows that is lost when one fails,
        ``[n_iter, n] float64`` each.
    """
    n = len(scenarios)
    n_cards = np.maximum(column(scenarios, "n_cards"), 1.0)
    rate = column(scenarios, "failure_rate")
    back = 1.0 / column(scenarios, "repair_iterations")
    draws = rng.random((n_iter, n, 2))
    down = np.zeros(n)
    up, lost = np.empty((n_iter, n)), np.zeros((n_iter, n))
    for k in range(n_iter):
        up[k] = (n_cards - down) / n_cards
        fails = (draws[k, :, 0] < rate) & (down < n_cards)
        lost[k] = fails / np.maximum(n_cards - down, 1.0)
        # Each card that is down comes back with chance `back`; at most one does in an iteration.
        returns = (draws[k, :, 1] < 1.0 - (1.0 - back) ** down) & (down > 0)
        down = down + fails - returns
    return up * (column(scenarios, "n_cards") > 0), lost


class ScenarioCosts:
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
        time_s = iteration_costs.at_ratio(
            row[..., COLUMN["generation_short_s"]], row[..., COLUMN["generation_long_s"]], ratio
        )
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

    def work(
        self, lengths: CompletionLengths, others: Disturbances, rows: Float64 | None = None
    ) -> Work:
        """Compute the work of every iteration, arrays ``[n_iter, n] float64``.

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
        shape = lengths.mean.shape

        def constant(values: object) -> Float64:
            made = np.asarray(values, dtype=np.float64)
            return np.ascontiguousarray(np.broadcast_to(made, shape))

        constants = [iteration_costs.TableConstants.of(t) for t in self.tables]
        around = iteration_costs.Circumstances(
            longest_over_mean=lengths.longest / lengths.mean,
            tail=lengths.tail,
            slow=constant(column(self.scenarios, "slowdown")),
            arriving_s=others.arriving_s,
            late_arriving_s=others.late_s,
            cards_up=others.cards_up,
            lost=others.lost,
            off_policy=constant(column(self.scenarios, "off_policy")),
            n_cards=constant(np.maximum(column(self.scenarios, "n_cards"), 1.0)),
            ambient_c=constant(column(self.scenarios, "ambient_c")),
            full_rise_c=constant(iteration_costs.FULL_RISE_C),
            tau_s=constant(iteration_costs.THERMAL_TAU_S),
            limit_c=constant(iteration_costs.TEMPERATURE_LIMIT_C),
            throttle=constant(iteration_costs.THROTTLE),
            sleeps=constant(column(self.scenarios, "sleeps")),
            asleep_share=constant(column(self.scenarios, "asleep_share")),
            wake_s=constant(column(self.scenarios, "wake_iterations") * self.nominal_s),
            stale=constant(column(self.scenarios, "is_stale")),
            yielding=constant(column(self.scenarios, "yielding")),
            timeout_s=constant(column(self.scenarios, "timeout_iterations") * self.nominal_s),
        )
        return iteration_costs.iteration_costs(
            row=row,
            constants=iteration_costs.TableConstants._make(
                map(constant, zip(*constants, strict=True))
            ),
            around=around,
        )


_FIRST_BY_ROWS = COLUMN["reward_s"]
"""From here on columns grow with the rows; before stands generation."""

_TIMES = ("reward_s", "reference_s", "critic_s", "actor_train_s", "critic_train_s")
