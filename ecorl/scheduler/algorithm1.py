"""Algorithm 1: a policy proposes, the guards decide.

The guards stand between any policy and the machines; none can be overridden, and each can only
send a stage back to the GPU, the exact path:

1. only frozen models (reward, reference) leave the GPU;
2. the FPGA path is up and not quarantined;
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
will book for rows of one length (see `ecorl.scheduler.costs` for uneven ones).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ecorl.config import PlacementConfig
from ecorl.errors import EcorlError
from ecorl.records import Action, ActionCost, Placement, SchedulerState
from ecorl.scheduler.costs import CostModel
from ecorl.scheduler.policies import Policy, Proposal
from ecorl.stages import may_leave_gpu

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


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits that no policy can override.

    Attributes:
        q_max: queue at which offloading stops, batches.
        l_max: longest mean row that is offloaded, prompt and completion, tokens.
        energy_margin: an offload may cost at most ``1 + energy_margin`` times the GPU path's
            energy; None switches this guard off.
        costs: the cost model behind the energy guard; without it every cost is unknown.
    """

    q_max: int = 8
    l_max: int = 2048
    energy_margin: float | None = None
    costs: CostModel | None = None

    @classmethod
    def from_config(cls, config: PlacementConfig, costs: CostModel | None = None) -> Guards:
        """The guards of a placement configuration."""
        return cls(config.q_max, config.l_max, config.energy_margin, costs)


def place(state: SchedulerState, policy: Policy, guards: Guards) -> Placement:
    """Decide where one stage runs (Algorithm 1, lines 1 to 10).

    Never raises for a fault of the policy: a policy that fails, or proposes what is no action,
    is answered by the GPU, and the reason says so.

    Args:
        state: the state before encoding.
        policy: who proposes.
        guards: the limits.
    """
    proposed, reason, costs = _ask(policy, state)
    action = proposed
    if proposed is not Action.GPU:
        objection, costs = _objection(proposed, state, guards, costs)
        if objection:
            action = Action.GPU
            reason = f"{proposed} proposed ({reason}); kept on the GPU: {objection}"
    return Placement(state.iteration, state.stage, proposed, action, policy.name, reason, costs)


def _ask(policy: Policy, state: SchedulerState) -> Proposal:
    try:
        action, reason, costs = policy.propose(state)
        return Action(action), str(reason), tuple(costs)
    except _POLICY_FAULTS as error:
        log.warning("policy %s failed on %s: %s", policy.name, state.stage, error)
        name = type(error).__name__
        return Action.GPU, f"the policy failed ({name}: {error}), so the GPU it is", ()


def _objection(
    action: Action, state: SchedulerState, guards: Guards, costs: tuple[ActionCost, ...]
) -> tuple[str, tuple[ActionCost, ...]]:
    """The first guard that objects, in words (empty when none does), and the costs to record."""
    if not may_leave_gpu(state.stage):
        return f"the model of {state.stage} is not frozen", costs
    if not state.fpga_available:
        return "the FPGA path is not available", costs
    if state.fpga_queue >= guards.q_max:
        return f"the queue of {state.fpga_queue} has reached q_max = {guards.q_max}", costs
    if not state.work.mean_length <= guards.l_max:
        length = state.work.mean_length
        return f"the mean length of {length:.0f} is above l_max = {guards.l_max}", costs
    if guards.energy_margin is None:
        return "", costs
    return _energy_objection(action, state, guards, guards.energy_margin, costs)


def _energy_objection(
    action: Action,
    state: SchedulerState,
    guards: Guards,
    margin: float,
    costs: tuple[ActionCost, ...],
) -> tuple[str, tuple[ActionCost, ...]]:
    if guards.costs is None:
        return "the energy guard is on and there is no cost model", costs
    # The guard asks its own cost model: the costs that come with a proposal are a claim.
    estimate = guards.costs.estimate(state)
    gpu, offload = estimate.of(Action.GPU), estimate.of(action)
    if gpu is None or offload is None:
        return f"the energy guard is on and costs are unknown ({estimate.unknown})", costs
    if not offload.energy_j <= (1.0 + margin) * gpu.energy_j:
        words = (
            f"its modelled energy of {offload.energy_j:.3g} J is above (1 + {margin:g}) x the "
            f"GPU path's {gpu.energy_j:.3g} J"
        )
        return words, estimate.costs
    return "", estimate.costs
