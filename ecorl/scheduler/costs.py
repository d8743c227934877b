"""What each action is expected to cost in a given state, from profiles and the stage function.

Under the ``roofline`` calibration the card's cost is that of the cycle model, the same that the
FPGA engine reports and the run books. `StageWork` holds sums over rows, not the rows: they count as
alike, each with a prompt of its own. Rows that are so are booked at what was decided by.

Of uneven rows two things differ:

- attention, the writing of its pages included;
- at most one kernel start a layer for each group of `GROUP_TOKENS` tokens: a second one of the
  router, needed where the wanted tokens of any row begin inside a page. It may be needed for the
  rows as they are and not for even ones, or the reverse.

So decision and booking are never further apart than the longer of their attention times plus these
starts. Either can be the higher. Attention grows with the square of a row, so uneven rows are
booked higher as a rule. But pages count in full, so the decision is too high where even rows end
just behind the end of a page; and so it is for log-probs where long completions have short prompts
and the reverse. With rows of 110 to 2,000 tokens the booked cost was found from 1.2 % lower to 7 %
higher for a 7 B model, from 2.5 % lower to 16 % higher for one of 0.5 B, and from 6 % lower to 43 %
higher for two layers of 64, whose time is mostly attention; with rows of up to 25 tokens it was
within 0.3 % for all of them.

Two more things `StageWork` does not tell. A prompt that rows share is computed and booked once, but
decided by once for each row: 8 rewards of a 7 B model behind one prompt of 200 tokens, with 56
tokens each, are booked at 35 % of what was decided by. And where the model has a gate, the token at
which it is read is booked as wanted as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ecorl.config import DeviceConfig
from ecorl.devices import Bound, DeviceProfile, StageCost, stage_cost
from ecorl.engines.fpga.cycles.model import CardTime, CycleModel, mean_rows
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.records import (
    Action,
    ActionCost,
    ModelShape,
    PathCost,
    Role,
    SchedulerState,
    Stage,
    StageWork,
    weakest,
)
from ecorl.scheduler.measured.readings import at_measured_level, seen_on
from ecorl.stages.figures import ACTIONS, Between, idle_work
from ecorl.stages.graph import may_leave_gpu, stage_graph
from ecorl.stages.iteration import advance, begin, queue_s


@dataclass(frozen=True, slots=True)
class RoleDevices:
    """The devices that serve a role, where they are not those of the training.

    Attributes:
        gpu: their profile.
        n_gpus: how many they are, 1 or more.

    Raises:
        ConfigError: when there is none.
    """

    gpu: DeviceProfile
    n_gpus: int = 1

    def __post_init__(self) -> None:
        if self.n_gpus < 1:
            raise ConfigError("n_gpus", self.n_gpus, "1 or more")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the actions are expected to cost.

    Attributes:
        costs: one entry an action, in the order of `Action`; empty when unknown.
        unknown: why nothing is known, in words; empty when it is.
        seen: what the run has measured of the stage and the costs were brought to, one entry a
            path; empty where they are nominal.
    """

    costs: tuple[ActionCost, ...]
    unknown: str = ""
    seen: tuple[PathCost, ...] = ()

    def of(self, action: Action) -> ActionCost | None:
        """The cost of one action, or None when unknown."""
        return next((cost for cost in self.costs if cost.action is action), None)


class CostModel:
    """Costs of the three actions: cycle model and roofline, or the paper's calibration.

    The backlog is taken as batches like the one at hand. The work that may overlap with a stage
    is that of the stages which the graph lets run beside it, which come after it in the iteration
    and which cannot leave the GPU, as far as their models' shapes are known. A later frozen stage
    counts as no overlap, since it is not yet placed and may leave as well; an unknown one neither,
    so that a concurrent placement is never made to look better than it is. Energy is that
    of the devices that run the stage and of GPUs that wait; the card's idle power counts for
    neither side (see `ecorl.stages`).

    Args:
        gpu: profile of the GPU path.
        fpga: profile of the card, or of the GPU or processor in its place.
        devices: how many GPUs and cards, and which calibration. One card answers a batch: more
            of them shorten the queue, not a batch.
        models: shapes of the models by stage, for the overlapping work.
        by_role: devices of the roles that others than the training ones serve, for example a
            reference model on GPUs of another kind. A stage's entry counts for all its models that
            have none of their own.
    """

    def __init__(
        self,
        gpu: DeviceProfile,
        fpga: DeviceProfile,
        devices: DeviceConfig | None = None,
        models: Mapping[Stage, ModelShape] | None = None,
        by_role: Mapping[Role, RoleDevices] | None = None,
    ) -> None:
        self.gpu, self.fpga = gpu, fpga
        self.devices = devices or DeviceConfig()
        self.models = dict(models or {})
        self.by_role = dict(by_role or {})

    def estimate(self, state: SchedulerState, *, measured: bool = False) -> Estimate:
        """Expected time, energy and wait of each action; never raises for unknown figures.

        Args:
            state: at the decision.
            measured: whether nominal costs are brought to the level that the run has measured, of
                each stage on each path from its second execution there on.
        """
        if not may_leave_gpu(state.stage):
            return Estimate((), "its model is being trained, so nothing was compared")
        try:
            gpu, fpga = self.gpu_cost(state.work), self.fpga_cost(state.work)
            seen: list[PathCost | None] = [None, None]
            if measured:
                work, role = state.work, state.work.role
                seen = [seen_on(state, role, on_card=on_card) for on_card in (False, True)]
                gpu = at_measured_level(gpu, work, seen[0], self.gpu_cost)
                fpga = at_measured_level(fpga, work, seen[1], self.fpga_cost)
            overlap_s = self.overlap_s(state, measured=measured)
        except PhysicalBoundError as error:
            return Estimate((), str(error))
        if gpu.time_s is None or fpga.time_s is None:
            return Estimate((), gpu.note if gpu.time_s is None else fpga.note)
        backlog_s = queue_s(state.fpga_queue, fpga.time_s, 1.0 / self.devices.n_accelerators)
        costs = []
        for action in Action:
            cost = placement_cost(action, gpu, fpga, backlog_s, overlap_s)
            if cost is None:
                return Estimate((), f"the idle power of {gpu.device} or {fpga.device} is not known")
            costs.append(cost)
        return Estimate(tuple(costs), seen=tuple(path for path in seen if path is not None))

    def gpu_cost(self, work: StageWork) -> StageCost:
        """Cost of some work on the GPUs that serve its role, by default the training ones."""
        own = self.by_role.get(work.role) or self.by_role.get(work.stage)
        served = own or RoleDevices(self.gpu, self.devices.n_gpus)
        return stage_cost(work, served.gpu, served.n_gpus, self.devices.calibration)

    def fpga_cost(self, work: StageWork) -> StageCost:
        """Cost of some work on one card: what the engine would book for rows that are alike.

        Of a GPU or processor in the card's place it is the roofline's. In the paper's calibration
        it is the printed figure, which no engine books.
        """
        bound = stage_cost(work, self.fpga, 1, self.devices.calibration)
        if self.devices.calibration == "paper" or not bound.known:
            return bound
        if self.fpga.kind != "fpga":
            # Another accelerator in the card's place: no array, no cycles.
            return bound
        if work.model is None or not may_leave_gpu(work.stage):
            return bound
        return _by_cycles(CycleModel(work.model, self.fpga).batch(mean_rows(work)), bound)

    def overlap_s(self, state: SchedulerState, *, measured: bool = False) -> float:
        """Known work that is sure to run on the GPUs beside this stage and after it, s.

        Args:
            state: at the decision.
            measured: as for `estimate`.
        """
        graph = stage_graph(state.algorithm, with_reference=True)
        if state.stage not in graph.stages:
            return 0.0
        later = graph.stages[graph.stages.index(state.stage) + 1 :]
        total_s = 0.0
        for other in graph.overlapping(state.stage):
            if other in later and other in self.models and not may_leave_gpu(other):
                work = replace(state.work, stage=other, model=self.models[other], role_name="")
                cost = self.gpu_cost(work)
                if measured:
                    seen = seen_on(state, work.role, on_card=False)
                    cost = at_measured_level(cost, work, seen, self.gpu_cost)
                total_s += cost.time_s or 0.0
        return total_s


def _by_cycles(card: CardTime, bound: StageCost) -> StageCost:
    """The cycle model's figures in place of the bound's."""
    terms: dict[Bound, float] = {
        "compute": card.array_s + card.vector_s,  # kernels follow one another
        "memory": card.memory_s,
        "link": card.link_s,
        "launch": card.launch_s,
    }
    return replace(
        bound,
        compute_s=terms["compute"],
        memory_s=terms["memory"],
        link_s=terms["link"],
        launch_s=terms["launch"],
        time_s=card.time_s,
        energy_j=card.energy_j,
        power_w=card.energy_j / card.time_s if card.time_s > 0 else bound.idle_power_w,
        ops=2.0 * card.macs,
        memory_bytes=float(card.memory_bytes),
        bound=max(terms.items(), key=lambda term: term[1])[0],
    )


def placement_cost(
    action: Action, gpu: StageCost, fpga: StageCost, backlog_s: float, overlap_s: float
) -> ActionCost | None:
    """What a stage costs under one placement; None when a figure that it needs is not known.

    With ``g`` and ``f`` the costs on GPU and card, ``b`` the backlog before the card gets to this
    stage, ``o`` the other work that the GPU has meanwhile, and ``s = b + f.time``:

        action       critical path    energy
        a1 gpu       g.time           g.energy
        a2 fpga      s                f.energy + g.idle s
        a3 both      max(0, s - o)    f.energy + g.idle max(0, s - o)

    The times are those of `ecorl.stages.iteration.advance`, the function that the simulator runs
    on. The card's idle power is left out: a card that idles is no reason to use it, and a machine
    without one would not pay for it. So the decision errs against offloading.

    Args:
        action: where it runs.
        gpu: its cost on the GPUs.
        fpga: its cost on the cards.
        backlog_s: time until the cards get to it, s.
        overlap_s: other work that the GPUs have meanwhile, s; used by a3 alone.
    """
    if gpu.idle_power_w is None or fpga.idle_power_w is None:
        return None
    if gpu.time_s is None or gpu.energy_j is None or fpga.time_s is None or fpga.energy_j is None:
        return None
    provenance = weakest(gpu.provenance, fpga.provenance)
    if action is Action.GPU:
        return ActionCost(action, gpu.time_s, gpu.energy_j, 0.0, provenance)
    work = idle_work()._replace(card_s=(fpga.time_s, 0.0, 0.0))
    carry = begin(work, Between(backlog_s, 0.0, 0.0, 0.0))
    carry = advance(Stage.REWARD, carry, work, ACTIONS.index(action))
    wait_s = float(carry.bubble_s + max(0.0, carry.pending_s - carry.t_s - overlap_s))
    energy_j = gpu.idle_power_w * wait_s + fpga.energy_j
    return ActionCost(action, wait_s, energy_j, wait_s, provenance)
