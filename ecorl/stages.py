"""Stage graphs per algorithm, and the one pure function of what a placement costs.

An iteration is a small graph of stages. What may overlap is what the graph allows: two stages of
which neither needs the other. Frozen models alone (reward, reference) may leave the GPU; critic,
generation and training work with weights that change every iteration.

`stage` is the only place in which time, waiting and energy of a placement are put together. With
``g`` and ``f`` the costs on GPU and card, ``b`` the backlog before the card gets to this stage,
``o`` the other work that the GPU has meanwhile, and ``s = b + f.time``:

    action       critical path    GPU energy           card energy
    a1 gpu       g.time           g.energy             f.idle (g.time + o)
    a2 fpga      s                g.idle s             f.energy + f.idle o
    a3 both      max(0, s - o)    g.idle max(0, s-o)   f.energy + f.idle max(0, o - s)

All three account for the same window, this stage and the other work ``o``, so they may be
compared; the other work's own energy is the same in each and left out. While the card works off
its backlog, its energy is charged to the stages in that backlog.

That is what a meter on a machine with the card would show. The scheduler decides by
`StageOutcome.own_energy_j`, which leaves the card's idle power out: a card that idles is no
reason to use it, and a machine without one would not pay for it. So the decision errs against
offloading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ecorl.devices import StageCost
from ecorl.errors import ConfigError
from ecorl.records import Action, Algorithm, Provenance, Stage, weakest

FROZEN_STAGES = (Stage.REWARD, Stage.REFERENCE)
"""Stages of frozen models: the only ones that may leave the GPU."""

_ORDER = list(Stage)


def may_leave_gpu(stage: Stage) -> bool:
    """Whether a stage may run anywhere but on the GPU: its model must be frozen."""
    return stage in FROZEN_STAGES


@dataclass(frozen=True, slots=True)
class StageGraph:
    """The stages of one iteration and what each needs.

    Attributes:
        algorithm: the algorithm that this is the graph of.
        needs: for each stage, the stages whose results it reads.

    Raises:
        ConfigError: when a stage needs one that is not in the graph, or the graph has a cycle.
    """

    algorithm: Algorithm
    needs: Mapping[Stage, tuple[Stage, ...]]

    def __post_init__(self) -> None:
        for stage, needed in self.needs.items():
            unknown = [n for n in needed if n not in self.needs]
            if unknown:
                names = [str(s) for s in self.needs]
                raise ConfigError(f"stages.{stage}", str(unknown[0]), f"one of {names}")
        self.order()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the order of the record enum."""
        return tuple(sorted(self.needs, key=_ORDER.index))

    def order(self) -> tuple[Stage, ...]:
        """The stages in an order in which each comes after all that it needs.

        Raises:
            ConfigError: when the graph has a cycle.
        """
        done: list[Stage] = []
        waiting = list(self.stages)
        while waiting:
            ready = [s for s in waiting if all(n in done for n in self.needs[s])]
            if not ready:
                cycle = ", ".join(str(s) for s in waiting)
                raise ConfigError("stages", cycle, "a graph without a cycle")
            done.append(ready[0])
            waiting.remove(ready[0])
        return tuple(done)

    def joins_before(self, stage: Stage) -> tuple[Stage, ...]:
        """All stages that must be complete before `stage` may start, in order of execution."""
        self._check(stage)
        found: set[Stage] = set()
        frontier = list(self.needs[stage])
        while frontier:
            one = frontier.pop()
            if one not in found:
                found.add(one)
                frontier.extend(self.needs[one])
        return tuple(s for s in self.order() if s in found)

    def may_overlap(self, one: Stage, other: Stage) -> bool:
        """Whether two different stages may run at the same time: neither needs the other."""
        self._check(one)
        self._check(other)
        if one == other:
            return False
        return one not in self.joins_before(other) and other not in self.joins_before(one)

    def overlapping(self, stage: Stage) -> tuple[Stage, ...]:
        """The stages that may run while `stage` does, in order of execution."""
        return tuple(s for s in self.order() if self.may_overlap(stage, s))

    def _check(self, stage: Stage) -> None:
        if stage not in self.needs:
            allowed = f"one of {[str(s) for s in self.stages]} ({self.algorithm})"
            raise ConfigError("stage", str(stage), allowed)


@cache
def stage_graph(algorithm: Algorithm, with_reference: bool | None = None) -> StageGraph:
    """The stage graph of an algorithm.

    PPO has a critic; GRPO, RLOO and REINFORCE++ have none. DAPO drops the KL term and with it the
    reference (the EcoRL-Sched paper counts the reference among all variants; DAPO's own paper
    removes it). PPO's critic trains on returns, which need rewards and the KL penalty, and on the
    old values.

    Args:
        algorithm: the algorithm.
        with_reference: whether the run has a KL term; None means what the algorithm prescribes.
    """
    reference = algorithm is not Algorithm.DAPO if with_reference is None else with_reference
    critic = algorithm is Algorithm.PPO
    inference = [Stage.REWARD]
    if reference:
        inference.append(Stage.REFERENCE)
    if critic:
        inference.append(Stage.CRITIC)
    needs: dict[Stage, tuple[Stage, ...]] = {Stage.GENERATION: ()}
    needs.update(dict.fromkeys(inference, (Stage.GENERATION,)))
    needs[Stage.ACTOR_TRAIN] = tuple(inference)
    if critic:
        needs[Stage.CRITIC_TRAIN] = tuple(inference)
    return StageGraph(algorithm, needs)


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What one placement costs, modelled.

    Attributes:
        action: the placement.
        critical_s: time that the stage adds to the iteration, s.
        device_s: time on the device that runs it, s.
        queue_wait_s: time before the card gets to it, s; 0 on the GPU.
        barrier_wait_s: time that the GPU stands still for it, s; 0 on the GPU.
        gpu_energy_j: energy of the GPUs for the stage or for waiting, J.
        fpga_energy_j: energy of the cards over the window, idle power included, J; 0.0 where
            there is no card.
        own_energy_j: energy of the devices that run the stage, and of GPUs that wait for it, J;
            the card's idle power is left out.
        window_s: the stage and the other work together, s.
        provenance: the weakest of the costs that it was made from.
    """

    action: Action
    critical_s: float
    device_s: float
    queue_wait_s: float
    barrier_wait_s: float
    gpu_energy_j: float
    fpga_energy_j: float
    own_energy_j: float
    window_s: float
    provenance: Provenance

    @property
    def energy_j(self) -> float:
        """Energy of GPUs and cards together, without the other work's own, J."""
        return self.gpu_energy_j + self.fpga_energy_j

    @property
    def power_w(self) -> float:
        """`energy_j` over the window, W; 0.0 for an empty window."""
        return self.energy_j / self.window_s if self.window_s > 0 else 0.0


def stage(
    action: Action,
    gpu: StageCost,
    fpga: StageCost | None,
    backlog_s: float = 0.0,
    overlap_s: float = 0.0,
) -> StageOutcome | None:
    """What a stage costs under one placement; see the module's table for the formulas.

    Args:
        action: where it runs.
        gpu: its cost on the GPUs.
        fpga: its cost on the cards, or None where there is no card.
        backlog_s: time until the cards get to it, s.
        overlap_s: other work that the GPUs have meanwhile, s; used by a3 alone.

    Returns:
        The outcome, or None when a figure that it needs is not known.

    Raises:
        ValueError: when a duration is negative or not finite.
    """
    for name, seconds in (("backlog_s", backlog_s), ("overlap_s", overlap_s)):
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"{name} = {seconds}: a finite duration of 0 s or more is needed")
    if action is Action.GPU:
        return _on_gpu(gpu, fpga, overlap_s)
    if fpga is None or fpga.time_s is None or fpga.energy_j is None:
        return None
    if gpu.idle_power_w is None or fpga.idle_power_w is None:
        return None
    span_s = backlog_s + fpga.time_s
    used_s = overlap_s if action is Action.CONCURRENT else 0.0
    wait_s = max(0.0, span_s - used_s)
    card_idle_s = max(0.0, overlap_s - span_s) if action is Action.CONCURRENT else overlap_s
    return StageOutcome(
        action=action,
        critical_s=wait_s,
        device_s=fpga.time_s,
        queue_wait_s=backlog_s,
        barrier_wait_s=wait_s,
        gpu_energy_j=gpu.idle_power_w * wait_s,
        fpga_energy_j=fpga.energy_j + fpga.idle_power_w * card_idle_s,
        own_energy_j=gpu.idle_power_w * wait_s + fpga.energy_j,
        window_s=wait_s + overlap_s,
        provenance=weakest(gpu.provenance, fpga.provenance),
    )


def _on_gpu(gpu: StageCost, fpga: StageCost | None, overlap_s: float) -> StageOutcome | None:
    if gpu.time_s is None or gpu.energy_j is None:
        return None
    window_s = gpu.time_s + overlap_s
    card_j, provenance = 0.0, gpu.provenance
    if fpga is not None:
        if fpga.idle_power_w is None:
            return None
        card_j = fpga.idle_power_w * window_s
        provenance = weakest(provenance, fpga.provenance)
    return StageOutcome(
        action=Action.GPU,
        critical_s=gpu.time_s,
        device_s=gpu.time_s,
        queue_wait_s=0.0,
        barrier_wait_s=0.0,
        gpu_energy_j=gpu.energy_j,
        fpga_energy_j=card_j,
        own_energy_j=gpu.energy_j,
        window_s=window_s,
        provenance=provenance,
    )
