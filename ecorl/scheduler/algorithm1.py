"""Algorithm 1: a policy proposes, the guards decide.

The guards (`ecorl.scheduler.guards`) stand between any policy and the machines; none can be
overridden, and each can only send a stage back to the GPU, the exact path:

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

from ecorl.errors import EcorlError
from ecorl.records import Action, ActionCost, GuardRefusal, Placement, SchedulerState
from ecorl.scheduler.costs import Estimate
from ecorl.scheduler.guards import (
    Energies,
    GuardFacts,
    Guards,
    Objection,
    guard_objection,
    lets_pass,
)
from ecorl.scheduler.policies import Policy, Proposal
from ecorl.scheduler.words import action_name, basis, kept
from ecorl.stages import may_run_otherwise

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
