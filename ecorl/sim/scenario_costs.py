"""The costs of scenarios side by side, in arrays: their tables at the lengths that were drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ecorl.scheduler.iteration_costs import (
    FULL_RISE_C,
    TEMPERATURE_LIMIT_C,
    THERMAL_TAU_S,
    THROTTLE,
    Circumstances,
    TableConstants,
    at_ratio,
    iteration_costs,
)
from ecorl.scheduler.tables import COLUMN, Float64
from ecorl.sim.disturbances import Disturbances
from ecorl.sim.lengths import CompletionLengths
from ecorl.sim.scenario import Scenario, column
from ecorl.stages import Work


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
        time_s = at_ratio(
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

        constants = [TableConstants.of(t) for t in self.tables]
        around = Circumstances(
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
            full_rise_c=constant(FULL_RISE_C),
            tau_s=constant(THERMAL_TAU_S),
            limit_c=constant(TEMPERATURE_LIMIT_C),
            throttle=constant(THROTTLE),
            sleeps=constant(column(self.scenarios, "sleeps")),
            asleep_share=constant(column(self.scenarios, "asleep_share")),
            wake_s=constant(column(self.scenarios, "wake_iterations") * self.nominal_s),
            stale=constant(column(self.scenarios, "is_stale")),
            yielding=constant(column(self.scenarios, "yielding")),
            timeout_s=constant(column(self.scenarios, "timeout_iterations") * self.nominal_s),
        )
        return iteration_costs(
            row=row,
            constants=TableConstants._make(map(constant, zip(*constants, strict=True))),
            around=around,
        )


_FIRST_BY_ROWS = COLUMN["reward_s"]
"""From here on columns grow with the rows; before stands generation."""

_TIMES = ("reward_s", "reference_s", "critic_s", "actor_train_s", "critic_train_s")
