"""Stage graphs per algorithm.

An iteration is a small graph of stages. What may overlap is what the graph allows: two stages of
which neither needs the other. Frozen models alone (reward, reference) may leave the GPU; critic,
generation and training work with weights that change every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ecorl.errors import ConfigError
from ecorl.records import NO_ABILITIES, Abilities, Algorithm, Stage

FROZEN_STAGES = (Stage.REWARD, Stage.REFERENCE)
"""Stages of frozen models: the only ones that may leave the GPU."""

_ORDER = list(Stage)


def may_leave_gpu(stage: Stage, abilities: Abilities = NO_ABILITIES) -> bool:
    """Whether a stage may run anywhere but on the GPU.

    Its model must be frozen, or a critic's in a framework that sends its weights each time.

    Args:
        stage: the stage.
        abilities: of the framework.
    """
    return stage in FROZEN_STAGES or (abilities.offload_critic and stage is Stage.CRITIC)


def may_run_otherwise(stage: Stage, abilities: Abilities) -> bool:
    """Whether a stage that stays on the GPU has an a3: another time to run, or to hand over rows.

    Args:
        stage: the stage.
        abilities: of the framework.
    """
    return bool(
        (abilities.stream and stage is Stage.GENERATION)
        or (abilities.early_forward and stage is Stage.ACTOR_TRAIN)
        or (abilities.defer_critic and stage is Stage.CRITIC_TRAIN)
    )


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
        """Tell whether two different stages may run at the same time: neither needs the other.

        Args:
            one: a stage.
            other: another; the order does not matter.

        Raises:
            ConfigError: when one of them is not in the graph.
        """
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
