"""The learned policy in a run: cost table, state, guards, network.

The costs of the stages come from `ecorl.scheduler.run_costs`, the progress of the iteration from
the decisions so far in it (`SchedulerState.decided`), and the network's input from
`ecorl.scheduler.features`. An action that the guards would refuse is not considered. The proposal
depends on the state alone: equal states lead to equal proposals.

Reward and reference always have a choice. What else has one is for the framework to say
(`ecorl.records.Abilities`): handing over finished rows, an early forward pass, a critic's step that
is put off, or a critic on the cards. The network has learned all of them in the simulator. A
framework that names none leaves the choice of reward and reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ecorl.devices import Calibration, DeviceProfile, missing_gpu_figures
from ecorl.devices.card import CARD_FIGURES
from ecorl.records import (
    INFERENCE_STAGES,
    NO_ABILITIES,
    Abilities,
    Action,
    ActionCost,
    DeviceKind,
    GuardRefusal,
    Provenance,
    SchedulerState,
    Stage,
    weakest,
)
from ecorl.scheduler.features import READ_STAGE, Observed, features
from ecorl.scheduler.guards import Energies, GuardFacts, Objection, guard_objection, lets_pass
from ecorl.scheduler.iteration_costs import REST_C, iteration_before
from ecorl.scheduler.policies import Proposal, RunSetting
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.run_costs import RunTable, RunTables
from ecorl.scheduler.words import action_name, basis, joules, kept, stays
from ecorl.stages.figures import ACTIONS, Between, Carry, Work
from ecorl.stages.graph import FROZEN_STAGES, may_leave_gpu, may_run_otherwise
from ecorl.stages.guards import OffloadBid, energy_fits, offload_bids, permitted
from ecorl.stages.iteration import queue_s

ENERGY_MARGIN = 0.0
"""Energy guard of a policy that learned beside none, in a run whose config sets none either: a
network must not spend joules for time unless it is told that it may."""

_CARD_FIGURES = ("idle_w", *CARD_FIGURES)
_ON_GPU, _FPGA, _CONCURRENT = ACTIONS
_PLACE = {stage: place for place, stage in enumerate(INFERENCE_STAGES)}
"""Places of the stages that cards can run in `Work.gpu_s`, `gpu_j` and `card_s`."""


def load(path: Path | None) -> LearnedScheduler:
    """Make the learned policy; the entry point ``ecorl`` in the group ``ecorl.policies``."""
    return LearnedScheduler(PolicyFile(path))


def _needed_of(card: DeviceProfile, calibration: Calibration) -> Sequence[str]:
    """Name the figures that the price of a stage on the card, or what is in its place, needs."""
    if card.kind == DeviceKind.FPGA:
        return _CARD_FIGURES
    return () if calibration == "paper" else missing_gpu_figures(card)


def _with_choice(abilities: Abilities) -> frozenset[Stage]:
    """Return the stages that the policy decides about."""
    return frozenset(
        s for s in Stage if may_leave_gpu(s, abilities) or may_run_otherwise(s, abilities)
    )


class LearnedScheduler:
    """The learned policy in a run.

    Args:
        file: the network.
    """

    name = "learned"

    def __init__(self, file: PolicyFile) -> None:
        self.file = file
        self._tables: RunTables | None = None
        self._with_choice = _with_choice(NO_ABILITIES)

    def bind(self, setting: RunSetting) -> None:
        """Prepare for a run; called before the first decision.

        Raises:
            ConfigError: when a profile lacks a figure that a stage's price needs.
        """
        models = {s: m for s, m in setting.models.items() if m is not None}
        self._with_choice = _with_choice(setting.abilities)
        margin = self.file.energy_margin
        margin = ENERGY_MARGIN if margin is None else margin
        self._tables = RunTables(replace(setting, models=models), margin)
        if not any(stage in models for stage in FROZEN_STAGES):
            return
        missing = [] if setting.devices.calibration == "paper" else missing_gpu_figures(setting.gpu)
        for key in missing:
            setting.gpu.figure(key)  # refuses, and names the file
        for key in _needed_of(setting.card, setting.devices.calibration):
            setting.card.figure(key)

    def propose(self, state: SchedulerState) -> Proposal:
        """Propose the action with the greatest logit among those that the guards let pass."""
        if state.stage not in self._with_choice:
            return Proposal(Action.GPU, stays(state.place))
        table = self._tables.of(state) if self._tables is not None else None
        if table is None:
            reason = kept(state.place, "what the stages of this run cost is not known")
            return Proposal(Action.GPU, reason, (), GuardRefusal.COST_UNKNOWN)
        view = DecisionView(table, state)
        objections = view.objections
        if not view.bids and max(view.may) <= 0.0:
            # It never leaves the GPU; what else could be done with it is refused as a whole.
            reason = (
                f"as usual on the {state.place}: no other way is possible, or it would cost more "
                "energy"
            )
            return Proposal(Action.GPU, reason)
        if objections[0] is not None and objections[1] is not None:
            words, refusal = objections[1].words, objections[1].refusal
            return Proposal(Action.GPU, kept(state.place, words), view.costs(), refusal)
        logits = self.file.logits(view.inputs()).tolist()
        code = 0
        for other in (1, 2):
            if view.may[other - 1] > 0.0 and logits[other] > logits[code]:
                code = other
        return Proposal(ACTIONS[code], view.reason(code, logits), view.costs())


class DecisionView:
    """One decision of a run: what is known, what may be done, and what it would cost.

    A run knows of other open batches on the card only their number. They are assumed to have been
    there when generation ended, each like this iteration's reward batch (or its reference batch
    where the card cannot run the reward).

    Args:
        table: costs of batches of this kind.
        state: of the decision.

    Attributes:
        work: what the iteration's stages cost.
        carry: how far it has come.
        bids: modelled time and energy of a2 and of a3; none of a stage that never leaves the GPU.
        objections: of the guards to a2 and to a3, or None.
        may: whether a2 and a3 pass the guards, 1.0 or 0.0 each.
        provenance: of the stage's energy where the framework computes.
    """

    __slots__ = ("bids", "carry", "may", "objections", "provenance", "state", "table", "work")

    def __init__(self, table: RunTable, state: SchedulerState) -> None:
        self.table, self.state = table, state
        self.work: Work = table.work(state)
        self.provenance = _own_provenance(table, state)
        self.carry: Carry = _progress(state, self.work)
        self.bids: tuple[OffloadBid, ...] = ()
        self.objections: tuple[Objection | None, Objection | None] = (None, None)
        if state.stage not in _PLACE:
            mean_length = state.work.mean_length
            self.may = permitted(state.stage, self.carry, self.work, table.rules, mean_length)
            return
        bids = offload_bids(state.stage, self.carry, self.work, table.rules)
        self.bids = (bids[0], bids[-1])
        blocking = self._objection(bids[0])
        concurrent = self._objection(bids[-1]) if bids[-1] is not bids[0] else blocking
        self.objections = (blocking, concurrent)
        self.may = (1.0 if blocking is None else 0.0, 1.0 if concurrent is None else 0.0)

    def _passes(self, bid: OffloadBid) -> bool:
        """Whether no guard objects, by the arithmetic alone; words are made where one does."""
        state, rules, place = self.state, self.table.rules, _PLACE[self.state.stage]
        queue = (bid.queue_s, bid.card_s, rules.q_max)
        return (
            state.fpga_available
            and rules.usable[place] > 0.0
            and state.fpga_queue < rules.q_max
            and bool(energy_fits(bid.energy_j, self.work.gpu_j[place], rules.energy_limit))
            and lets_pass(
                state.stage, self.table.abilities, queue, (state.work.mean_length, rules.l_max)
            )
        )

    def _objection(self, bid: OffloadBid) -> Objection | None:
        if self._passes(bid):
            return None
        state, rules, place = self.state, self.table.rules, _PLACE[self.state.stage]
        gpu_j = self.work.gpu_j[place]
        # The simulator knows others' work in seconds alone. A run counts batches as well, and
        # Algorithm 1 will refuse by their number.
        by_number = state.fpga_queue >= rules.q_max
        facts = GuardFacts(
            stage=state.stage,
            available=state.fpga_available,
            can_run=rules.usable[place] > 0.0,
            queue=state.fpga_queue if by_number else bid.queue_s,
            batch=1.0 if by_number else bid.card_s,
            mean_length=state.work.mean_length,
            energies=lambda: Energies(bid.energy_j, gpu_j, self._basis()),
            why_not=self.table.why_not,
            abilities=self.table.abilities,
            n_tokens=state.work.n_output_tokens,
        )
        return guard_objection(facts, rules.q_max, rules.l_max, rules.energy_limit)

    def inputs(self) -> tuple[float, ...]:
        """Compute the network's input, in the order of `ecorl.scheduler.features.NAMES`."""
        state = self.state
        power_mean, power_spread = _mean_and_spread(state.gpu_power_share)
        used_mean, used_spread = _mean_and_spread(state.gpu_utilisation)
        on_gpu, on_card = self.table.levels.readings(READ_STAGE[state.stage])
        seen = Observed(
            state.work.mean_length, power_mean, power_spread, used_mean, used_spread,
            self.table.log_rows, on_gpu, on_card,
        )  # fmt: skip
        return features(state.stage, self.carry, self.work, self.table.rules, seen, self.may)

    def costs(self) -> tuple[ActionCost, ...]:
        """Return what each action would cost, for the record; without a card a1 alone.

        Nothing is returned for a stage that never leaves the GPU: it has no price of its own.
        """
        if not self.bids:
            return ()
        state, work, place = self.state, self.work, _PLACE[self.state.stage]
        provenance = self.table.table.provenance
        if self.provenance is not provenance:
            provenance = weakest(provenance, self.provenance)
        on_gpu = ActionCost(_ON_GPU, work.gpu_s[place], work.gpu_j[place], 0.0, provenance)
        if not state.fpga_available:
            return (on_gpu,)
        _, _, wait_s, energy_j = self.bids[0]
        blocking = ActionCost(_FPGA, wait_s, energy_j, wait_s, provenance)
        _, _, wait_s, energy_j = self.bids[1]
        return on_gpu, blocking, ActionCost(_CONCURRENT, wait_s, energy_j, wait_s, provenance)

    def _basis(self) -> str:
        return basis(self.table.table.provenance, self.provenance, self.state.place)

    def reason(self, code: int, logits: list[float]) -> str:
        """Write one sentence on a proposal for the record.

        Args:
            code: of the proposed action.
            logits: of the three actions.
        """
        state, work = self.state, self.work
        own = state.place
        chosen = action_name(ACTIONS[code], own, state.stage)
        if not self.bids:
            usual, _, other = (action_name(a, own, state.stage) for a in ACTIONS)
            return _CHOICE % (chosen, usual, logits[0], other, logits[2])
        place, bid = _PLACE[state.stage], self.bids[0]
        card_s, queued_s, _, energy_j = bid
        (card_j, own_j), unit = joules((energy_j, work.gpu_j[place]), state.work.n_output_tokens)
        return _OFFLOAD % (
            chosen, own, logits[0], logits[1], own, logits[2], card_j, own_j, unit, card_s,
            queued_s, own, work.gpu_s[place], self._basis(),
        )  # fmt: skip


_CHOICE = "the learned policy's choice: %s (its scores: %s %.1f, %s %.1f)"
_OFFLOAD = (
    "the learned policy's choice: %s (its scores: %s %.1f, card %.1f, card beside %s %.1f); energy "
    "of the card %s against %s %s, time of the card %.3g s behind a queue of %.3g s, of the %s "
    "%.3g s (%s)"
)


def _own_provenance(table: RunTable, state: SchedulerState) -> Provenance:
    """Return the provenance of a stage's energy where the framework computes."""
    stage, computed = state.stage, table.table.provenance
    if stage in table.levels.measured:
        role_name = state.work.role_name
        for path in state.paths:
            if path.stage is stage and path.role_name == role_name and not path.on_card:
                if path.energy_j_per_token is None:  # a measured time at a computed power
                    return weakest(path.provenance, computed)
                return path.provenance
    return computed


def _progress(state: SchedulerState, work: Work) -> Carry:
    """Carry the iteration on to this stage by the decisions that were made in it so far."""
    # Those that were sent in this iteration are in `decided`, and counted among the open ones.
    n_own = sum(action is not _ON_GPU and stage in _PLACE for stage, action in state.decided)
    backlog_s, n_others = 0.0, state.fpga_queue - n_own
    if n_others > 0:
        batch_s = work.card_s[0] or work.card_s[1]
        backlog_s = work.generation_s + queue_s(n_others, batch_s, work.card_share)
    before = Between(backlog_s, REST_C, 0.0, 0.0)
    return iteration_before(state.stage, work, before, dict(state.decided))


def _mean_and_spread(shares: tuple[float | None, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of the known shares; 0.5 and 0.0 where none is known."""
    # Nearly always all are known, and a sum that fails is cheaper than a test of each.
    known: tuple[float, ...] = shares  # type: ignore[assignment]
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
