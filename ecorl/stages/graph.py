"""Stage graphs per algorithm.

An iteration is a small graph of stages. What may overlap is what the graph allows: two stages of
which neither needs the other. Frozen models alone (reward, reference) may leave the GPU; critic,
generation and training work with weights that change every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ecorl.records import NO_ABILITIES, Abilities, Algorithm, Stage

FROZEN_STAGES = (Stage.REWARD, Stage.REFERENCE)
"""Stages of frozen models: the only ones that may leave the GPU."""


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
        needs: for each stage, the stages whose results it reads; these come before it in `Stage`.
    """

    needs: Mapping[Stage, tuple[Stage, ...]]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the order of `Stage`, in which each comes after all that it needs."""
        return tuple(stage for stage in Stage if stage in self.needs)

    def joins_before(self, stage: Stage) -> tuple[Stage, ...]:
        """All stages that must be complete before `stage` may start, in order of execution."""
        found = set(self.needs[stage])
        for one in self.needs[stage]:
            found.update(self.joins_before(one))
        return tuple(s for s in self.stages if s in found)

    def overlapping(self, stage: Stage) -> tuple[Stage, ...]:
        """The stages that may run while `stage` does, in order of execution."""
        apart = {stage, *self.joins_before(stage)}
        return tuple(s for s in self.stages if s not in apart and stage not in self.joins_before(s))


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
    return StageGraph(needs)
