"""Takes part in a run, from a process of OpenRLHF's trainer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ecorl.config.trainer import GearsConfig
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Role, Stage
from ecorl.runtime.ray.runtime import RuntimeHandle
from ecorl.runtime.training import TrainingSide
from roll_adapters.openrlhf.gears.actor import prepare
from roll_adapters.openrlhf.hooks import TrainerHooks
from roll_adapters.ray_jobs.gears.control import JobGears
from roll_adapters.ray_jobs.policy_training import PolicyTraining
from roll_adapters.ray_jobs.widths.handover import Handover
from roll_adapters.ray_jobs.widths.leaving import Leaving

logger = logging.getLogger(__name__)

KEY = "ecorl"
"""Name under which `Invitation` travels beside OpenRLHF's flags, as a plain dict."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a process of the trainer needs to take part in the run.

    Attributes:
        scheduler: name of the run's scheduler.
        namespace: Ray namespace in which it has this name.
        from_step: step that the training goes on from, 0 for a fresh one.
        normalised: mean and standard deviation of the roles whose values are normalised.
        compared: stages whose first batch from an engine is compared with the exact path.
        gears: the run's ``[gears]``; None: its training stays as OpenRLHF has it.
        low_share: largest share of the tokens in low precision, 0 to 1.
        gear_memory: what the run knew of its gears when it was interrupted.
        widths: numbers of the actor's processes that may be chosen between; fewer than two: it
            stays.
        left: what the job before this one has left, as a dict; empty for the first.
    """

    scheduler: str
    namespace: str
    from_step: int
    normalised: dict[Role, tuple[float, float]]
    compared: tuple[Stage, ...] = ()
    gears: GearsConfig | None = None
    low_share: float = 1.0
    gear_memory: dict[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    left: dict[str, Any] = field(default_factory=dict)


def invite(args: Any, invitation: Invitation) -> None:
    """Put an invitation beside OpenRLHF's flags, which all of its actors get.

    Args:
        args: OpenRLHF's flags, nested.
        invitation: to the run.
    """
    setattr(args, KEY, asdict(invitation))


def open_hooks(
    args: Any, actors: Sequence[Any] = (), n_optimizer_steps: int | None = None
) -> TrainerHooks | None:
    """Open the run that the flags invite to; None without one, or where it does not answer.

    Args:
        args: OpenRLHF's flags, nested.
        actors: handles of the policy's processes; empty in a process that drives no training.
        n_optimizer_steps: of the whole training; None: unknown here.
    """
    told = getattr(args, KEY, None)
    if told is None:
        return None
    with EngineBoundary() as boundary:
        invitation = Invitation(**told)
        handle = RuntimeHandle(invitation.scheduler, invitation.namespace)
        runtime = handle.open(TrainingSide("none"))
        gears = None
        if invitation.gears is not None and actors:
            gears = JobGears(
                invitation.gears,
                invitation.low_share,
                actors,
                prepare,
                runtime.record,
                invitation.gear_memory,
            )
        leaving = None
        if len(invitation.widths) > 1 and actors:
            left = Handover(**invitation.left) if invitation.left else None
            leaving = Leaving(len(actors), invitation.widths, left)
        return TrainerHooks(
            runtime,
            args,
            invitation.from_step,
            invitation.normalised,
            invitation.compared,
            PolicyTraining(len(actors) or None, gears, leaving, n_optimizer_steps),
        )
    logger.warning("ecorl takes no part in this training: %s", boundary.error)
    return None
