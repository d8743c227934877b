"""Policies: they propose an action, and the guards let it pass or not (see `algorithm1`).

A third party registers a learned policy under the entry-point group ``ecorl.policies``: a
callable that takes the configured path (or None) and returns a `Policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from ecorl import config as cfg
from ecorl.devices import DeviceProfile
from ecorl.errors import ConfigError
from ecorl.records import (
    NO_ABILITIES,
    Abilities,
    Action,
    ActionCost,
    GuardRefusal,
    ModelShape,
    Role,
    SchedulerState,
    Stage,
    weakest,
)
from ecorl.scheduler.costs import CostModel, Estimate, RoleDevices
from ecorl.scheduler.words import action_name, adjusted, joules, stays
from ecorl.stages.graph import may_leave_gpu

GROUP = "ecorl.policies"

_TIE_ORDER = (Action.GPU, Action.CONCURRENT, Action.FPGA)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The action that a policy proposes for a stage.

    Attributes:
        action: where the stage shall run.
        reason: one sentence for the record.
        costs: what each action is expected to cost; empty when none were computed.
        refusal: the guard that left the policy nothing but the GPU, or None.
    """

    action: Action
    reason: str
    costs: tuple[ActionCost, ...] = ()
    refusal: GuardRefusal | None = None


@runtime_checkable
class Policy(Protocol):
    """Maps a state to an action."""

    name: str

    def propose(self, state: SchedulerState) -> Proposal:
        """Propose an action, with a reason and what each action is expected to cost."""
        ...


@dataclass(frozen=True, slots=True)
class RunSetting:
    """What a run tells its learned policy before it starts.

    Attributes:
        gpu: profile of the GPU path.
        card: profile of the card.
        devices: how many GPUs, and the calibration.
        models: shape of each stage's model.
        q_max: queue at which the guards stop offloading, batches.
        l_max: longest mean row that they let through, tokens.
        energy_margin: of the energy guard; None: it is off.
        abilities: of the framework's training loop.
        n_cards: cards; each answers a batch on its own.
        by_role: devices of the roles that the training's own do not serve, where they are known.
    """

    gpu: DeviceProfile
    card: DeviceProfile
    devices: cfg.DeviceConfig
    models: Mapping[Stage, ModelShape]
    q_max: float
    l_max: float
    energy_margin: float | None
    abilities: Abilities = NO_ABILITIES
    n_cards: int = 1
    by_role: Mapping[Role, RoleDevices] = field(default_factory=dict)


@runtime_checkable
class Binds(Protocol):
    """A learned policy that has to know models, devices and guards of the run."""

    def bind(self, setting: RunSetting) -> None:
        """Prepare for a run; called once, before the first decision.

        Raises:
            ConfigError: when a figure that the policy needs is missing.
        """
        ...


class Static:
    """A fixed action a stage; stages that are not named stay on the GPU."""

    name = "static"

    def __init__(self, actions: Mapping[Stage, Action]) -> None:
        self.actions = dict(actions)

    def propose(self, state: SchedulerState) -> Proposal:
        """Propose the configured action."""
        action = self.actions.get(state.stage, Action.GPU)
        if action is Action.GPU and not may_leave_gpu(state.stage):
            return Proposal(action, stays(state.place))
        return Proposal(action, f"as placement.policy.{state.stage} in the config says")


class Threshold:
    """Concurrent while rows and queue are short, else GPU.

    Args:
        max_length: longest mean row that is offloaded, prompt and completion, tokens.
        max_queue: longest queue that is added to, batches.
    """

    name = "threshold"

    def __init__(self, max_length: int, max_queue: int) -> None:
        self.max_length, self.max_queue = max_length, max_queue

    def propose(self, state: SchedulerState) -> Proposal:
        """Propose a3 within both thresholds, else the GPU."""
        if not may_leave_gpu(state.stage):
            return Proposal(Action.GPU, stays(state.place))
        length, queue = state.work.mean_length, state.fpga_queue
        rows, waiting = f"mean {length:.0f} tokens", f"{queue} batch{'es' * (queue != 1)}"
        longest = f"placement.policy.max_length = {self.max_length}"
        most = f"placement.policy.max_queue = {self.max_queue}"
        if length > self.max_length:
            return Proposal(Action.GPU, f"its rows are too long ({rows}; {longest})")
        if queue > self.max_queue:
            return Proposal(Action.GPU, f"the card's queue is too long ({waiting}; {most})")
        reason = f"its rows ({rows}; {longest}) and the card's queue ({waiting}; {most}) are short"
        return Proposal(Action.CONCURRENT, reason)


class Profiling:
    """Another policy, with every other batch of the profiling phase kept on the GPU path.

    Without it a policy that always offloads never learns what the GPU path costs, and the EDI
    matrix cannot say whether offloading pays. Which batches these are depends on their number
    alone, so that a resumed run repeats them; and on that of batches, not of iterations, since
    where several steps train on one batch only some iterations have anything to place.

    The paper profiles for 500 steps. Here the phase is as long as a cell of the EDI matrix is a
    running mean (see `ecorl.edi`): 20 unless configured, which is 1 / alpha for the paper's alpha
    of 0.05. There the weight of the next reading, 1 / n, meets that of Eq. 5, so a longer mean
    would only delay the tracking, and a run of some tens of steps would never leave the phase.
    ``n_profiling = 500`` is the paper's. With this policy each path gets half of the batches.

    Args:
        inner: the policy.
        n_profiling: rollout batches of the profiling phase.
        explores: whether the other batches of the phase leave the GPU whatever the inner policy
            says, so that the card's side is seen as well.
    """

    def __init__(self, inner: Policy, n_profiling: int, *, explores: bool = False) -> None:
        self.name = inner.name
        self._inner, self._n_profiling, self._explores = inner, n_profiling, explores

    def propose(self, state: SchedulerState) -> Proposal:
        """Propose the GPU in the phase's first, third, ... batch, else as the inner policy."""
        profiling = state.batch < self._n_profiling and state.batch % 2 == 0
        if profiling and may_leave_gpu(state.stage):
            reason = f"profiling: run on the {state.place} this time, to learn its cost there"
            return Proposal(Action.GPU, reason)
        proposal = self._inner.propose(state)
        if self._explores and state.batch < self._n_profiling and may_leave_gpu(state.stage):
            reason = "profiling: run on the card this time, to learn its cost there"
            return Proposal(Action.CONCURRENT, reason, proposal.costs)
        return proposal


class Lookahead:
    """The action with the least weighted sum of energy and time, each relative to the GPU path.

    Waiting counts on both sides: a GPU that stands at the barrier draws idle power and the
    iteration gets longer. When costs are unknown, and on a tie, the GPU; between the two offloads
    a tie (no overlap is known of) goes to the concurrent one, which is never the slower.

    Args:
        costs: the cost model.
        energy_weight: weight of energy.
        time_weight: weight of time on the critical path.
        measured: whether costs are brought to the level of what the run has measured.
    """

    name = "lookahead"

    def __init__(
        self,
        costs: CostModel,
        energy_weight: float = 0.5,
        time_weight: float = 0.5,
        *,
        measured: bool = True,
    ) -> None:
        self.costs, self.energy_weight, self.time_weight = costs, energy_weight, time_weight
        self.measured = measured

    def propose(self, state: SchedulerState) -> Proposal:
        """Propose the cheapest action, with the arithmetic in the reason."""
        if not may_leave_gpu(state.stage):
            return Proposal(Action.GPU, stays(state.place))
        estimate = self.costs.estimate(state, measured=self.measured)
        gpu = estimate.of(Action.GPU)
        if gpu is None:
            return Proposal(Action.GPU, f"what it would cost is unknown ({estimate.unknown})")
        ranked = sorted(
            estimate.costs, key=lambda c: (self._score(c, gpu), _TIE_ORDER.index(c.action))
        )
        best = ranked[0]
        rival = ranked[1] if best.action is Action.GPU else gpu
        weights = f"weight of energy {self.energy_weight:g}, of time {self.time_weight:g}"
        reason = f"cheapest ({weights}): {_compared(best, rival, state, estimate)}"
        return Proposal(best.action, reason, estimate.costs)

    def _score(self, cost: ActionCost, gpu: ActionCost) -> float:
        energy = cost.energy_j / gpu.energy_j if gpu.energy_j > 0 else 1.0
        time = cost.time_s / gpu.time_s if gpu.time_s > 0 else 1.0
        return self.energy_weight * energy + self.time_weight * time


def _compared(
    best: ActionCost, rival: ActionCost, state: SchedulerState, estimate: Estimate
) -> str:
    """Energy and time of two actions, each with its name, and where they come from."""
    pair = (best, rival)
    numbers, unit = joules((best.energy_j, rival.energy_j), state.work.n_output_tokens)
    names = [action_name(cost.action, state.place, state.stage) for cost in pair]
    told = [
        f"{name} {number} {unit} and {cost.time_s:.3g} s"
        for name, number, cost in zip(names, numbers, pair, strict=True)
    ]
    origins = [str(weakest(best.provenance, rival.provenance))]
    origins += filter(None, [adjusted(estimate.seen, state.place)])
    return f"{told[0]}, {told[1]} ({', '.join(origins)})"


def load_policy(name: str, path: Path | None = None) -> Policy:
    """Load a learned policy by entry point.

    Args:
        name: name within the group ``ecorl.policies``.
        path: file handed to its factory.

    Raises:
        ConfigError: when there is none of that name (the message lists what there is), or it
            cannot be loaded or is no policy.
    """
    found: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
    key = "placement.policy.name"
    if name not in found:
        raise ConfigError(key, name, f"one of {sorted(found)} (entry points in {GROUP})")
    try:
        policy = found[name].load()(path)
    except ConfigError:
        raise
    except (ImportError, AttributeError, TypeError, ValueError, OSError, RuntimeError) as error:
        raise ConfigError(key, name, f"a policy that loads ({error})") from error
    if not isinstance(policy, Policy):
        raise ConfigError(key, name, f"a factory of a Policy; it made {type(policy).__name__}")
    return policy


def build_policy(
    config: cfg.PlacementConfig,
    gpu: DeviceProfile,
    fpga: DeviceProfile,
    devices: cfg.DeviceConfig | None = None,
    models: Mapping[Stage, ModelShape] | None = None,
    abilities: Abilities = NO_ABILITIES,
    by_role: Mapping[Role, RoleDevices] | None = None,
) -> Policy:
    """Build the policy that the configuration asks for.

    Args:
        config: placement section of the configuration.
        gpu: profile of the GPU path.
        fpga: profile of the card.
        devices: how many of each, and the calibration.
        models: shapes of the models by stage, for what may overlap.
        abilities: of the framework's training loop.
        by_role: devices of the roles that the training's own do not serve.

    Raises:
        ConfigError: when a learned policy cannot be loaded.
    """
    devices = devices or cfg.DeviceConfig()
    setting = RunSetting(
        gpu, fpga, devices, dict(models or {}), config.q_max, config.l_max, config.energy_margin,
        abilities, devices.n_accelerators, dict(by_role or {}),
    )  # fmt: skip
    policy = _chosen(config, setting)
    if not config.profile_both_paths:
        return policy
    # A rule that is fixed in the config decides on its own; one that prices by what was measured
    # wants to see both.
    measures = isinstance(config.policy, cfg.LookaheadPolicyConfig) and config.policy.measured
    explores = measures or isinstance(config.policy, cfg.LearnedPolicyConfig)
    return Profiling(policy, config.n_profiling, explores=explores)


def _chosen(config: cfg.PlacementConfig, setting: RunSetting) -> Policy:
    chosen = config.policy
    if isinstance(chosen, cfg.StaticPolicyConfig):
        return Static({Stage.REWARD: chosen.reward, Stage.REFERENCE: chosen.reference})
    if isinstance(chosen, cfg.ThresholdPolicyConfig):
        return Threshold(chosen.max_length, chosen.max_queue)
    if isinstance(chosen, cfg.LookaheadPolicyConfig):
        costs = CostModel(
            setting.gpu, setting.card, setting.devices, setting.models, setting.by_role
        )
        return Lookahead(costs, chosen.energy_weight, chosen.time_weight, measured=chosen.measured)
    learned = load_policy(chosen.name, chosen.path)
    if isinstance(learned, Binds):
        learned.bind(setting)
    return learned
