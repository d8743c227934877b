"""The learned policy in a run: cost table, state, guards, network.

What the stages cost comes from `ecorl.scheduler.run_costs`, how far the iteration has come from the
decisions so far in it (`SchedulerState.decided`), the network's input from
`ecorl.scheduler.features`; an action that the guards would refuse is not even considered. All of it
is a function of the state: the same state gives the same proposal.

A run of this version neither streams finished rows nor moves training work, so only reward and
reference have a choice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ecorl.devices import missing_gpu_figures
from ecorl.devices.card import CARD_FIGURES
from ecorl.records import Action, ActionCost, SchedulerState, Stage, weakest
from ecorl.scheduler.features import Observed, features
from ecorl.scheduler.iteration_costs import REST_C, USUAL_SHARES, iteration_before
from ecorl.scheduler.policies import Proposal, RunSetting
from ecorl.scheduler.policy_file import (
    META_NAMES,
    META_RECORD,
    META_SCHEMA,
    PolicyFile,
    shipped_path,
)
from ecorl.scheduler.run_costs import RunTable, RunTables
from ecorl.stages import ACTIONS, FROZEN_STAGES, Between, Carry, Work, may_leave_gpu, permitted

__all__ = [
    "META_NAMES",
    "META_RECORD",
    "META_SCHEMA",
    "DecisionView",
    "LearnedScheduler",
    "PolicyFile",
    "load",
    "shipped_path",
]

_CARD_FIGURES = ("idle_w", *CARD_FIGURES)
_PLACE = {stage: place for place, stage in enumerate(FROZEN_STAGES)}
"""Places of the frozen stages in `Work.gpu_s`, `gpu_j` and `card_s`."""


def load(path: Path | None) -> LearnedScheduler:
    """Factory of the entry point ``ecorl`` in the group ``ecorl.policies``."""
    return LearnedScheduler(PolicyFile(path))


class LearnedScheduler:
    """The learned policy in a run.

    Args:
        file: the network.
    """

    name = "learned"

    def __init__(self, file: PolicyFile) -> None:
        self.file = file
        self._tables: RunTables | None = None

    def bind(self, setting: RunSetting) -> None:
        """Take what the run is; comes before the first decision.

        Raises:
            ConfigError: when a profile lacks a figure that a stage's price needs.
        """
        models = {s: m for s, m in setting.models.items() if m is not None}
        self._tables = RunTables(replace(setting, models=models), self.file.energy_margin)
        if not any(stage in models for stage in FROZEN_STAGES):
            return
        missing = [] if setting.devices.calibration == "paper" else missing_gpu_figures(setting.gpu)
        for key in missing:
            setting.gpu.figure(key)  # refuses, and names the file
        for key in _CARD_FIGURES:
            setting.card.figure(key)

    def propose(self, state: SchedulerState) -> Proposal:
        """The action with the greatest logit among those that the guards let through."""
        if not may_leave_gpu(state.stage):
            return Action.GPU, f"{state.stage} stays on the GPU", ()
        table = self._tables.of(state) if self._tables is not None else None
        if table is None:
            return Action.GPU, "what the stages cost is not known", ()
        view = DecisionView(table, state)
        if view.may[0] + view.may[1] <= 0.0:
            return Action.GPU, f"the guards leave a1 alone: {view.why_not()}", view.costs()
        logits = self.file.logits(view.inputs()).tolist()
        code = 0
        for other in (1, 2):
            if view.may[other - 1] > 0.0 and logits[other] > logits[code]:
                code = other
        return ACTIONS[code], view.reason(code, logits), view.costs()


class DecisionView:
    """One decision of a run: what is known, what may be done, and what it would cost.

    Batches that are open on the card beside this iteration's own are taken to have been there when
    generation ended, each like this iteration's reward batch (reference where the card cannot run
    the reward): a run counts them, and knows no more of them.

    Args:
        table: costs of batches of this kind.
        state: of the decision; its stage is reward or reference.

    Attributes:
        work: what the iteration's stages cost.
        carry: how far it has come.
        may: whether a2 and a3 pass the guards, 1.0 or 0.0 each.
    """

    __slots__ = ("carry", "may", "state", "table", "work")

    def __init__(self, table: RunTable, state: SchedulerState) -> None:
        self.table, self.state = table, state
        self.work: Work = table.work(state)
        self.carry: Carry = _progress(state, self.work)
        self.may = permitted(
            state.stage, self.carry, self.work, table.rules, state.work.mean_length
        )
        # The simulator knows others' work in seconds alone. A run counts batches as well, and
        # Algorithm 1 will refuse by their number.
        if state.fpga_queue >= table.rules.q_max:
            self.may = (0.0, 0.0)

    def inputs(self) -> tuple[float, ...]:
        """The network's input, `ecorl.scheduler.features.NAMES` in order."""
        state = self.state
        power_mean, power_spread = _mean_and_spread(state.gpu_power_share)
        used_mean, used_spread = _mean_and_spread(state.gpu_utilisation)
        seen = Observed(
            row_length=state.work.mean_length,
            shares=USUAL_SHARES,
            power_mean=power_mean,
            power_spread=power_spread,
            utilisation_mean=used_mean,
            utilisation_spread=used_spread,
            log_rows=self.table.log_rows,
        )
        return features(state.stage, self.carry, self.work, self.table.rules, seen, self.may)

    @property
    def backlog_s(self) -> float:
        """Time until the card gets to this stage, s."""
        return max(0.0, float(self.carry.card_s - self.carry.t_s))

    def costs(self) -> tuple[ActionCost, ...]:
        """What each action would cost; the record's own form."""
        state, work, place = self.state, self.work, _PLACE[self.state.stage]
        card_s = work.card_s[place]
        wait_s = self.backlog_s + card_s
        energy_j = work.card_active_w * card_s + work.gpu_idle_w * wait_s
        provenance = self.table.table.provenance
        if state.stage in self.table.measured:
            for path in state.paths:
                if path.stage is state.stage:
                    provenance = weakest(provenance, path.provenance)
        return (
            ActionCost(Action.GPU, work.gpu_s[place], work.gpu_j[place], 0.0, provenance),
            ActionCost(Action.FPGA, wait_s, energy_j, wait_s, provenance),
            ActionCost(Action.CONCURRENT, wait_s, energy_j, wait_s, provenance),
        )

    def why_not(self) -> str:
        """Which guard leaves a1 alone."""
        state, rules = self.state, self.table.rules
        if not rules.usable[_PLACE[state.stage]]:
            return "; ".join(self.table.table.notes) or "the card cannot run this stage"
        if not state.fpga_available:
            return "the FPGA path is not available"
        if state.work.mean_length > rules.l_max:
            return f"the mean length of {state.work.mean_length:.0f} is above {rules.l_max:.0f}"
        if state.fpga_queue >= rules.q_max:
            return f"the queue of {state.fpga_queue} has reached {rules.q_max:.0f}"
        return f"an offload's energy is above {rules.energy_limit:g} x the GPU path's"

    def reason(self, code: int, logits: list[float]) -> str:
        """One sentence for the record."""
        stage, work = self.state.stage, self.work
        place = _PLACE[stage]
        seen = "measured" if stage in self.table.measured else "modelled"
        # One format string: this is on the path of every decision.
        return _REASON % (
            ACTIONS[code].value,
            *logits,
            work.gpu_s[place],
            seen,
            work.card_s[place],
            self.backlog_s,
        )


_REASON = (
    "the network ranks %s first (logits %.1f, %.1f, %.1f); GPU %.3g s (%s), card %.3g s "
    "behind %.3g s"
)


def _progress(state: SchedulerState, work: Work) -> Carry:
    """How far the iteration has come, from what was decided in it so far."""
    decided = dict(state.decided)
    n_own = 0
    if state.stage is Stage.REFERENCE and decided.get(Stage.REWARD, Action.GPU) is not Action.GPU:
        n_own = 1  # sent in this iteration, so it is in `decided` and counted among the open ones
    backlog_s, n_others = 0.0, state.fpga_queue - n_own
    if n_others > 0:
        backlog_s = work.generation_s + n_others * (work.card_s[0] or work.card_s[1])
    before = Between(backlog_s=backlog_s, temperature_c=REST_C, deferred_s=0.0, deferred_j=0.0)
    return iteration_before(state.stage, work, before, decided)


def _mean_and_spread(shares: tuple[float | None, ...]) -> tuple[float, float]:
    """Mean and standard deviation of the shares that are known; the middle where none is."""
    known: tuple[float, ...] = shares  # type: ignore[assignment]  # nearly always
    try:
        total = sum(known)
    except TypeError:
        known = tuple(s for s in shares if s is not None)
        total = sum(known)
    n = len(known)
    if n == 0:
        return 0.5, 0.0
    mean = total / n
    # hypot is the root of the sum of squares, in one call.
    square = math.hypot(*known) ** 2 / n - mean * mean
    return mean, math.sqrt(square) if square > 0.0 else 0.0
