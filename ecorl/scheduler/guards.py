"""Algorithm 1: a policy proposes, the guards decide.

The guards stand between any policy and the machines; none can be overridden, and each can only send
a stage back to the GPU, the exact path. `guard_objection` checks them in one order: Algorithm 1
(`place`) applies it to every proposal, the learned policy before it proposes.
`ecorl.stages.guards.permitted` is its arithmetic for the arrays of the simulator; both compare by
the same three functions of `ecorl.stages.guards`.

1. only frozen models (reward, reference) leave the GPU;
2. the FPGA path is up and not quarantined, and the card can run the stage;
3. the queue is below ``q_max``;
4. the mean row length, prompt and completion, is at most ``l_max``;
5. with an energy margin: the modelled energy is at most ``(1 + margin)`` times the GPU path's.

The paper's Algorithm 1 asks 3 and 4 of a3 alone and then sends a2 through unguarded, although
blocking on a long queue costs more than overlapping with it; here they hold for both.

The paper's length (Eq. 6, Algorithm 1) is the mean *generated* one, and its limit is where the
card's time T(length) leaves the budget (Lemma 1). A card passes over prompt and completion alike,
and a long prompt with a short answer takes it as long as the reverse, so the length of guard 4 is
that of whole rows. It is never below the generated one: the guard is the stricter for it.

The fifth guard is off by default. With it on, an unknown cost counts as too high: whoever asks
for proof that offloading pays gets the GPU where there is none. The energy is that which the run
will book for rows that are alike and share no prompt (see `ecorl.scheduler.costs` for others).

A framework may be able to do more (`ecorl.records.Abilities`). Then the critic may leave the GPU
under the same guards, and generation and training steps, which never leave it, may run otherwise
(a3). No cost model prices the latter, so with the fifth guard on they run as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ecorl.config import PlacementConfig
from ecorl.errors import EcorlError
from ecorl.records import (
    NO_ABILITIES,
    Abilities,
    Action,
    ActionCost,
    GuardRefusal,
    Placement,
    SchedulerState,
    Stage,
)
from ecorl.scheduler.costs import CostModel, Estimate
from ecorl.scheduler.policies import Policy, Proposal
from ecorl.scheduler.words import action_name, against, basis, kept
from ecorl.stages.graph import may_leave_gpu, may_run_otherwise
from ecorl.stages.guards import energy_fits, length_fits, queue_fits


class Energies(NamedTuple):
    """What an offload and the GPU path are expected to need.

    Attributes:
        offload_j: of the offload, J.
        own_j: of the GPU path, J.
        basis: where the two come from, in words.
    """

    offload_j: float
    own_j: float
    basis: str = "modelled"


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits that no policy can override.

    Attributes:
        q_max: queue at which offloading stops, batches.
        l_max: longest mean row that is offloaded, prompt and completion, tokens.
        energy_margin: an offload may cost at most ``1 + energy_margin`` times the GPU path's
            energy; None switches this guard off.
        costs: the cost model behind the energy guard; without it every cost is unknown.
        abilities: of the framework's training loop.
    """

    q_max: int = 8
    l_max: int = 2048
    energy_margin: float | None = None
    costs: CostModel | None = None
    abilities: Abilities = NO_ABILITIES

    @classmethod
    def from_config(
        cls,
        config: PlacementConfig,
        costs: CostModel | None = None,
        abilities: Abilities = NO_ABILITIES,
    ) -> Guards:
        """The guards of a placement configuration.

        Args:
            config: placement section of the configuration.
            costs: the cost model behind the energy guard.
            abilities: of the framework's training loop.
        """
        return cls(config.q_max, config.l_max, config.energy_margin, costs, abilities)


class GuardFacts(NamedTuple):
    """The facts of one decision that the guards look at.

    Attributes:
        stage: the stage that would leave the GPU.
        available: whether the FPGA path is up and not quarantined.
        can_run: whether the card can run the stage at all.
        queue: work that is ahead of it on the card, in batches, or in s.
        batch: one batch in the unit of `queue`: 1, or its time on the card, s.
        mean_length: mean row, prompt and completion, tokens.
        energies: computes both energies, or says in a string why they are not known. It is called
            only where the energy guard is on and no other guard refuses, since pricing takes time.
        why_not: why the card cannot run the stage, for the record.
        abilities: of the framework's training loop.
        n_tokens: output tokens of the batch; 0 where they are not known.
    """

    stage: Stage
    available: bool
    can_run: bool
    queue: float
    batch: float
    mean_length: float
    energies: Callable[[], Energies | str]
    why_not: str = ""
    abilities: Abilities = NO_ABILITIES
    n_tokens: int = 0


def lets_pass(
    stage: Stage,
    abilities: Abilities,
    queue: tuple[float, float, float],
    length: tuple[float, float],
) -> bool:
    """Whether a stage may leave the GPU for all that no energy says.

    It is `guard_objection` for a card that is there and can run the stage, without its words: on
    the path of a decision, facts are gathered only where a sentence has to be made of them.

    Args:
        stage: the stage that would leave the GPU.
        abilities: of the framework.
        queue: work ahead on the card, one batch in the same unit, and the limit in batches.
        length: mean row and its limit, tokens.
    """
    return bool(queue_fits(*queue) and length_fits(*length) and may_leave_gpu(stage, abilities))


class Objection(NamedTuple):
    """A guard's refusal: which guard, and one clause for the record."""

    refusal: GuardRefusal
    words: str


def guard_objection(
    facts: GuardFacts, q_max: float, l_max: float, energy_limit: float | None
) -> Objection | None:
    """Return the first guard's objection to a stage leaving the GPU; None when all let it pass.

    Args:
        facts: what the decision rests on.
        q_max: queue at which offloading stops, batches.
        l_max: longest mean row that is offloaded, tokens.
        energy_limit: an offload's energy over the GPU path's, at most; None: no limit.
    """
    # The energies come last: they alone have to be computed, which takes up to milliseconds.
    if not may_leave_gpu(facts.stage, facts.abilities):
        return Objection(
            GuardRefusal.NOT_FROZEN,
            f"training changes the model of {facts.stage}, and only models that stay as they are "
            "can be offloaded",
        )
    if not facts.available:
        return Objection(
            GuardRefusal.UNAVAILABLE,
            "no card is available for it now (none has its model ready, or it is set aside after "
            "failures)",
        )
    if not facts.can_run:
        return Objection(
            GuardRefusal.CANNOT_RUN, facts.why_not or f"the card cannot run the {facts.stage} stage"
        )
    if not queue_fits(facts.queue, facts.batch, q_max):
        n = facts.queue / facts.batch if facts.batch > 0 else 0.0
        batches = "batch" if n == 1 else "batches"
        words = f"the card's queue is full ({n:.3g} {batches}; placement.q_max = {q_max:g})"
        return Objection(GuardRefusal.QUEUE_FULL, words)
    if not length_fits(facts.mean_length, l_max):
        words = (
            f"its rows are too long (mean {facts.mean_length:.0f} tokens; "
            f"placement.l_max = {l_max:g})"
        )
        return Objection(GuardRefusal.TOO_LONG, words)
    if energy_limit is None:
        return None
    energies = facts.energies()
    if isinstance(energies, str):
        words = f"it is not known whether offloading would cost more energy ({energies})"
        return Objection(GuardRefusal.COST_UNKNOWN, words)
    if not energy_fits(energies.offload_j, energies.own_j, energy_limit):
        return Objection(GuardRefusal.ENERGY, _too_dear(facts, energies, energy_limit))
    return None


def _too_dear(facts: GuardFacts, energies: Energies, energy_limit: float) -> str:
    allowed = ""
    if energy_limit != 1.0:
        allowed = f"; up to {energy_limit:.4g} times as much is allowed"
    told = against(energies.offload_j, energies.own_j, facts.n_tokens)
    return f"offloading would cost more energy ({told}, {energies.basis}{allowed})"


log = logging.getLogger(__name__)

_POLICY_FAULTS = (
    EcorlError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
# What a policy from elsewhere may throw without ending the training run. A policy that wraps a
# library with exceptions of its own must turn them into one of these.


def place(state: SchedulerState, policy: Policy, guards: Guards) -> Placement:
    """Decide where one stage runs (Algorithm 1, lines 1 to 10).

    Never raises for a fault of the policy: a policy that fails, or proposes what is no action,
    is answered by the GPU, and the reason says so.

    Args:
        state: the state before encoding.
        policy: who proposes.
        guards: the limits.
    """
    work = state.work
    if work.kept_because:
        # There is nothing to choose, so nobody is asked.
        own, reason = Action.GPU, work.kept_because
        return Placement(
            state.iteration, work.stage, own, own, policy.name, reason, role_name=work.role_name
        )
    proposal = _ask(policy, state)
    action, reason, costs = proposal.action, proposal.reason, proposal.costs
    refusal = proposal.refusal
    if action is not Action.GPU:
        objection, costs = _objection(action, state, guards, costs)
        if objection is not None:
            refusal = objection.refusal
            wish = action_name(action, state.place, state.stage)
            reason = f"{kept(state.place, objection.words)}; proposed: {wish} ({reason})"
            action = Action.GPU
    return Placement(
        state.iteration,
        state.stage,
        proposal.action,
        action,
        policy.name,
        reason,
        costs,
        refusal,
        state.work.role_name,
    )


def _ask(policy: Policy, state: SchedulerState) -> Proposal:
    try:
        proposal: object = policy.propose(state)
        if not isinstance(proposal, Proposal) or not isinstance(proposal.action, Action):
            raise TypeError(f"{proposal!r} is no Proposal of an Action")
        return proposal
    except _POLICY_FAULTS as error:
        log.warning("policy %s failed on %s: %s", policy.name, state.stage, error)
        why = f"the policy failed ({type(error).__name__}: {error})"
        return Proposal(Action.GPU, kept(state.place, why))


def _objection(
    action: Action, state: SchedulerState, guards: Guards, costs: tuple[ActionCost, ...]
) -> tuple[Objection | None, tuple[ActionCost, ...]]:
    """The first guard that objects to an offload, and the costs to record."""
    if action is Action.CONCURRENT and may_run_otherwise(state.stage, guards.abilities):
        if guards.energy_margin is None:
            return None, costs
        wish = action_name(action, state.place, state.stage)
        words = f"placement.energy_margin is set, and what '{wish}' would cost is not known"
        return Objection(GuardRefusal.COST_UNKNOWN, words), costs
    length = (state.work.mean_length, guards.l_max)
    if (
        guards.energy_margin is None
        and state.fpga_available
        and lets_pass(state.stage, guards.abilities, (state.fpga_queue, 1.0, guards.q_max), length)
    ):
        return None, costs
    estimates: list[Estimate] = []

    def energies() -> Energies | str:
        if guards.costs is None:
            return "there is no cost model"
        # The guard asks its own cost model: the costs that come with a proposal are a claim.
        estimate = guards.costs.estimate(state)
        gpu, offload = estimate.of(Action.GPU), estimate.of(action)
        if gpu is None or offload is None:
            return estimate.unknown
        estimates.append(estimate)
        told = basis(offload.provenance, gpu.provenance, state.place)
        return Energies(offload.energy_j, gpu.energy_j, told)

    facts = GuardFacts(
        stage=state.stage,
        available=state.fpga_available,
        can_run=True,  # a card that cannot has no engine, so it is not available
        queue=state.fpga_queue,
        batch=1.0,
        mean_length=length[0],
        energies=energies,
        abilities=guards.abilities,
        n_tokens=state.work.n_output_tokens,
    )
    margin = guards.energy_margin
    limit = None if margin is None else 1.0 + margin
    objection = guard_objection(facts, guards.q_max, guards.l_max, limit)
    return objection, estimates[0].costs if estimates else costs
