"""The guards: conditions that keep a stage on the GPU, whatever a policy proposes.

`guard_objection` checks them in one order. Algorithm 1 applies it to every proposal, the learned
policy before it proposes. `ecorl.stages.permitted` is its arithmetic for the arrays
of the simulator; both compare by the same three functions of `ecorl.stages.guards`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ecorl.config import PlacementConfig
from ecorl.records import NO_ABILITIES, Abilities, GuardRefusal, Stage
from ecorl.scheduler.costs import CostModel
from ecorl.scheduler.words import against
from ecorl.stages import energy_fits, length_fits, may_leave_gpu, queue_fits


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
