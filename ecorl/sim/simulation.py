"""The simulator: episodes of placement decisions, one or many side by side.

A step is one decision; an iteration has six, in the order of the stages. A stage that the algorithm
does not have is a step in which every action is a1 and costs nothing, so that many episodes can be
stepped together. An action that the guards refuse becomes a1, as in a run.

The reward of a step is what it adds to Eq. 7 (`ecorl.scheduler.features.objective`) if the rest of
the iteration stays on the GPUs; over an iteration the rewards add up to Eq. 7 itself, which is 0.0
for an iteration that only uses the GPUs.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from ecorl.records import Stage
from ecorl.scheduler.features import READ_STAGE, Observed, features, objective
from ecorl.scheduler.measured.readings import UNREAD
from ecorl.scheduler.tables import Float64
from ecorl.sim.factors import CARD_PLACE, GPU_PLACE, N_TIMES, Beliefs, mixed, picked_carry
from ecorl.sim.scenario import column
from ecorl.sim.trace import Trace, work_at
from ecorl.stages.figures import (
    BATCH,
    CONCURRENT,
    FPGA,
    GPU,
    SCALAR,
    Between,
    Carry,
    IterationTotals,
    Number,
    Ops,
    Work,
)
from ecorl.stages.guards import NO_LIMIT, Rules, choices, outlook, permitted
from ecorl.stages.iteration import advance, begin, finish, with_deferred_done

STAGES = tuple(Stage)
N_STAGES = len(STAGES)
_KNOWN_AT_ONCE = (Stage.GENERATION,)
_MAY_STREAM = (Stage.REWARD, Stage.REFERENCE)

_POWER_SHARE = {
    Stage.GENERATION: 0.95, Stage.REWARD: 0.60, Stage.REFERENCE: 0.35, Stage.CRITIC: 0.35,
    Stage.ACTOR_TRAIN: 0.35, Stage.CRITIC_TRAIN: 0.98,
}  # fmt: skip
"""Mean power over TDP that telemetry shows when a stage is about to start: that of the stage
before it. Rough; a policy learns not to lean on it."""


class CostView(StrEnum):
    """Where a policy's knowledge of costs comes from; the guards judge by the same.

    `MEASURED` is what a run has: tables, brought to the level of what it has measured so far.
    `NOMINAL` are the tables alone, `TRUE` what the stages really cost. With the first two the queue
    of the cards is known by its last report.
    """

    MEASURED = "measured"
    NOMINAL = "nominal"
    TRUE = "true"


class Simulation:
    """Episodes under way.

    Args:
        trace: the random draws and the costs that follow from them.
        index: the episode of `trace` to play alone, in floats; None plays all of them in arrays.
        view: where the policy's knowledge of costs comes from.
    """

    def __init__(
        self, trace: Trace, index: int | None = None, view: CostView = CostView.MEASURED
    ) -> None:
        self.trace, self.index = trace, index
        self.view = view if trace.diverged is not None else CostView.TRUE
        self.beliefs = Beliefs((trace.n,) if index is None else ())
        self._queues_s: list[Number] = []
        self._known: dict[CostView, tuple[Work, Carry]] = {}
        self.ops: Ops = SCALAR if index is not None else BATCH
        self.rules = rules_of(trace.scenarios if index is None else [trace.scenarios[index]])
        if index is not None:
            self.rules = _scalars(self.rules)
        self.pick: Any = slice(None) if index is None else index
        self._lags = np.array([s.divergence.report_lag for s in trace.scenarios])[self.pick]
        # A single GPU has no spread.
        several = column(trace.scenarios, "n_gpus") > 1.0
        self._several, start_c, asleep = (
            figure if index is None else float(figure[index])
            for figure in (1.0 * several, trace.start_c, column(trace.scenarios, "sleeps"))
        )
        zero = 0.0 * start_c
        self.iteration, self.place = 0, 0
        self.between = Between(zero, start_c, zero, zero, asleep, zero, zero)
        self.totals: IterationTotals | None = None
        self.actual: Work
        self.expected: Work
        self.carry: Carry
        self._value: Number
        self._open_iteration()

    # ------------------------------------------------------------ where it stands

    @property
    def stage(self) -> Stage:
        """The stage to place next."""
        return STAGES[self.place]

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.iteration >= self.trace.n_iterations

    def known_work(self, supposed: Work | None = None, view: CostView | None = None) -> Work:
        """Return the iteration's costs as far as a causal policy can know them now.

        Args:
            supposed: costs in place of the expected ones, if its lengths turn out otherwise; true
                ones, or those of the tables, as the view is.
            view: where the knowledge of costs comes from; None: as the simulation's.
        """
        view = view or self.view
        if view is not CostView.TRUE and self.trace.diverged is not None:
            return self._known_of(view)[0] if supposed is None else self._table_work(supposed, view)
        expected = self.expected if supposed is None else supposed
        if self.stage in _KNOWN_AT_ONCE:
            return expected
        if self.stage in _MAY_STREAM:
            return mixed(self.carry.streaming, expected, self.actual, self.ops)
        return self.actual._replace(lost=self.expected.lost)

    def _known_of(self, view: CostView) -> tuple[Work, Carry]:
        """Costs by the tables or by what was measured, and the iteration so far by them."""
        if view not in self._known:
            work = self._table_work(None, view)
            self._known[view] = work, self._replayed(work)
        return self._known[view]

    def _table_work(self, supposed: Work | None, view: CostView) -> Work:
        expected = self._table_expected if supposed is None else supposed
        work = expected
        if self.stage in _MAY_STREAM:
            work = mixed(self.carry.streaming, expected, self._table_actual, self.ops)
        elif self.stage not in _KNOWN_AT_ONCE:
            work = self._table_actual
        # What others send is in the report of the queue, what they will send is not known.
        work = work._replace(
            arriving_s=0.0 * expected.arriving_s,
            late_arriving_s=expected.late_arriving_s,
            lost=expected.lost,
        )
        return self.beliefs.believed(work) if view is CostView.MEASURED else work

    def _replayed(self, work: Work) -> Carry:
        """Play the iteration so far again on costs that a run knows."""
        carry = begin(work, self._before._replace(backlog_s=self._reported_s()))
        for stage, allowed in zip(STAGES, self._allowed, strict=False):
            carry = advance(stage, carry, work, allowed, self.ops)
        return carry

    def _reported_s(self) -> Number:
        """The queue of the cards by its last report, s."""
        diverged, k = self.trace.diverged, self.iteration
        assert diverged is not None  # only then anybody asks for a report
        queues = [self._queues_s[max(k - lag, 0)] for lag in range(3)]
        lag = self._lags
        if self.index is not None:
            return float(queues[int(lag)] * diverged.report[k, self.index])
        return np.choose(lag, queues) * diverged.report[k]

    def known_carry(self, supposed: Work | None = None, view: CostView | None = None) -> Carry:
        """Return the iteration so far as a causal policy can know it now.

        While rows are streamed nobody knows how generation will end, and a failing card shows at
        the barrier alone.

        Args:
            supposed: as for `known_work`.
            view: as for `known_work`.
        """
        view = view or self.view
        if view is not CostView.TRUE and self.trace.diverged is not None:
            if supposed is None:
                return self._known_of(view)[1]
            return self._replayed(self._table_work(supposed, view))
        carry = self.carry
        if self.stage in _MAY_STREAM and self.ops.any(carry.streaming):
            # The steps so far are played again on the expected costs; the real ones would tell how
            # long this batch's rows become.
            work = self.expected if supposed is None else supposed
            hoped = begin(self.actual, self._before)
            for stage, allowed in zip(STAGES, self._allowed, strict=False):
                hoped = advance(stage, hoped, work, allowed, self.ops)
            carry = picked_carry(carry.streaming, hoped, carry)
        return carry._replace(redo_s=0.0 * carry.redo_s, redo_j=0.0 * carry.redo_j)

    def row_length(self) -> Number:
        """Return the mean tokens of a row, as far as they are known."""
        hoped, real = self._expected_row_length, self._row_length
        if self.stage in _KNOWN_AT_ONCE:
            return hoped
        if self.stage in _MAY_STREAM:
            return real + self.carry.streaming * (hoped - real)
        return real

    def permitted(self, view: CostView | None = None) -> tuple[Number, Number]:
        """Tell whether a2 and a3 pass the guards now, 1.0 or 0.0 each.

        Args:
            view: what the guards know; None: as the simulation's.
        """
        work, carry = self.known_work(view=view), self.known_carry(view=view)
        return permitted(self.stage, carry, work, self.rules, self.row_length(), self.ops)

    def observation(self) -> tuple[tuple[Number, ...], tuple[Number, Number]]:
        """Return the input of a learned policy, and whether a2 and a3 pass the guards."""
        work, carry, row_length = self.known_work(), self.known_carry(), self.row_length()
        may = permitted(self.stage, carry, work, self.rules, row_length, self.ops)
        seen = self._observed(row_length)
        state = features(self.stage, carry, work, self.rules, seen, may, self.ops)
        return state, may

    # ------------------------------------------------------------ going on

    def step(self, action: Number, may: tuple[Number, Number] | None = None) -> Number:
        """Place the stage.

        Args:
            action: code of the action, an int or ``[n] int``.
            may: from `permitted`, when the caller has it already.

        Returns:
            The reward of the step, a float or ``[n] float64``.
        """
        stage = self.stage
        p2, p3 = self.permitted() if may is None else may
        # What the guards refuse goes to the GPU. In arrays a product picks the action or 0, which
        # is a1; the float path looks up whether the action is allowed.
        if self.index is None:
            allowed = action * ((action == FPGA) * p2 + (action == CONCURRENT) * p3)
        else:
            allowed = int(action) if (GPU + 1.0, p2, p3)[int(action)] > 0.0 else GPU
        self._allowed.append(allowed)
        self._known.clear()
        self.carry = advance(stage, self.carry, self.actual, allowed, self.ops)
        after = self._outlook(stage)
        # Differences of one potential: over an iteration they add up to its Eq. 7, whatever the
        # order, so a step is rewarded for what it changes and no earlier one is paid twice.
        reward = after - self._value
        self._value = after
        self.place += 1
        if self.place == N_STAGES:
            self._close_iteration()
        return reward

    def _outlook(self, stage: Stage) -> Number:
        time_s, energy_j, bubble_s = outlook(
            stage, self.carry, self.actual, self.rules.early, self.ops
        )
        return objective(time_s, energy_j, bubble_s, self._gpu_only_s, self._gpu_only_j)

    def _open_iteration(self) -> None:
        if self.done:
            return
        k = (self.iteration, self.pick)
        trace, number = self.trace, (lambda x: x) if self.index is None else float
        self.actual, self.expected = work_at(trace.actual, k), work_at(trace.expected, k)
        if trace.diverged is not None:
            self._table_actual = work_at(trace.table_actual, k)
            self._table_expected = work_at(trace.table_expected, k)
        self._gpu_only_s: Number = number(trace.gpu_only_s[k])
        self._gpu_only_j: Number = number(trace.gpu_only_j[k])
        self._row_length: Number = number(trace.row_length[k])
        self._expected_row_length: Number = number(trace.expected_row_length[k])
        self._before = self.between
        self._allowed: list[Any] = []
        self.carry = begin(self.actual, self.between)
        self._known.clear()
        if trace.diverged is not None:
            self._queues_s.append(self.carry.card_s)
        self._value = 0.0 * self._gpu_only_s

    def _close_iteration(self) -> None:
        totals = finish(self.carry, self.actual, self.ops)
        if self.iteration + 1 == self.trace.n_iterations:
            totals = with_deferred_done(totals, self.actual, self.ops)
        if self.trace.diverged is not None:
            self._measure()
        self.totals, self.between = totals, totals.after
        self.iteration, self.place = self.iteration + 1, 0
        self._open_iteration()

    def _measure(self) -> None:
        """Read what the stages of the iteration took."""
        diverged, k = self.trace.diverged, (slice(None), self.iteration, self.pick)
        assert diverged is not None  # the caller has looked
        used = np.zeros((N_TIMES, *np.shape(self.actual.generation_s)))
        for stage, allowed in zip(STAGES, self._allowed, strict=True):
            on_card = np.asarray(allowed != GPU, dtype=np.float64)
            if stage not in CARD_PLACE:
                used[GPU_PLACE[stage]] = 1.0
                continue
            used[GPU_PLACE[stage]] = 1.0 - on_card
            # A card that did not answer has taken no time that could be read.
            used[CARD_PLACE[stage]] = on_card * (np.asarray(self.actual.lost) <= 0.0)
        reading = diverged.reading[k]
        time = diverged.time[k] * reading[:N_TIMES]
        self.beliefs.read(used, time, diverged.power[k] * reading[N_TIMES:])

    def _observed(self, row_length: Number) -> Observed:
        k = (self.iteration, self.pick)
        noise = self.trace.noise[k]
        share = _POWER_SHARE[self.stage]
        n_rows = self.trace.n_rows[k]
        on_gpu, on_card = UNREAD, UNREAD
        if self.trace.diverged is not None and self.view is not CostView.NOMINAL:
            on_gpu, on_card = self.beliefs.readings(READ_STAGE[self.stage])
        log = np.log2 if self.index is None else math.log2
        return Observed(
            row_length=row_length,
            power_mean=share + 0.03 * noise[..., 0],
            power_spread=(0.04 + 0.01 * noise[..., 1]) * self._several,
            utilisation_mean=share + 0.05 * noise[..., 2],
            utilisation_spread=(0.05 + 0.01 * noise[..., 3]) * self._several,
            log_rows=log(n_rows),
            on_gpu=on_gpu,
            on_card=on_card,
        )


class EpisodeSums(NamedTuple):
    """Sums over episodes that were played, ``[n] float64`` each.

    Attributes:
        score: Eq. 7 against the iterations that leave the cards idle.
        energy_j: energy, J.
        time_s: time, s.
        bubble_s: time in which the GPUs stood still, s.
        score_alone: Eq. 7 against the same GPUs in a machine without cards.
    """

    score: Float64
    energy_j: Float64
    time_s: Float64
    bubble_s: Float64
    score_alone: Float64


def play(simulation: Simulation, policy: Any) -> EpisodeSums:
    """Play an episode to its end.

    Args:
        simulation: at its start.
        policy: called with the simulation; returns the action's code, one an episode.
    """
    sums: list[Number] = [0.0] * len(EpisodeSums._fields)
    trace, pick = simulation.trace, simulation.pick
    while not simulation.done:
        k = (simulation.iteration, pick)
        sums[0] = sums[0] + simulation.step(policy(simulation))
        if simulation.place == 0:
            totals = simulation.totals
            assert totals is not None
            sums[1] = sums[1] + totals.energy_j
            sums[2] = sums[2] + totals.time_s
            sums[3] = sums[3] + totals.bubble_s
            sums[4] = sums[4] + objective(
                totals.booked_s, totals.booked_j, totals.bubble_s,
                trace.gpu_only_s[k], trace.without_cards_j[k],
            )  # fmt: skip
    return EpisodeSums._make(np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in sums)


def rules_of(scenarios: Any) -> Rules:
    """Collect what may be done in scenarios side by side, ``[n] float64`` each."""

    def each(values: Any) -> Float64:
        return np.array([float(v) for v in values])

    allowed = [
        choices(
            s.abilities,
            s.table.card_usable,
            s.n_cards,
            has_critic=Stage.CRITIC_TRAIN in s.setting.stages,
        )
        for s in scenarios
    ]
    return Rules(
        stream=each(c.stream for c in allowed),
        early=each(c.early for c in allowed),
        defer=each(c.defer for c in allowed),
        usable=tuple(each(c.usable[i] for c in allowed) for i in range(3)),
        q_max=each(s.limits.q_max for s in scenarios),
        l_max=each(s.limits.l_max for s in scenarios),
        energy_limit=each(
            NO_LIMIT if s.limits.energy_margin is None else 1.0 + s.limits.energy_margin
            for s in scenarios
        ),
    )


def _scalars(rules: Rules) -> Rules:
    def one(value: Any) -> Any:
        return tuple(map(one, value)) if isinstance(value, tuple) else float(value[0])

    return Rules(*(one(value) for value in rules))
