"""How a worker of ROLL's takes part in a run: an invitation travels with ROLL's config."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

from ecorl.engines.validate import EngineBoundary
from ecorl.runtime.ray.remote import RemoteRuntime
from ecorl.runtime.ray.runtime import RuntimeHandle
from ecorl.runtime.training import TrainingSide

logger = logging.getLogger(__name__)

_KEY = "ecorl_invitation"
"""Attribute of ROLL's config, which all of its workers are given; a plain dict."""


@dataclass(frozen=True, slots=True)
class WorkerInvitation:
    """What a worker needs to take part in a run.

    Attributes:
        scheduler: name of the run's scheduler.
        namespace: Ray namespace in which it has this name.
        compares: whether the first batch of an engine is compared with the exact path.
    """

    scheduler: str
    namespace: str
    compares: bool

    def open(self) -> RemoteRuntime | None:
        """Take part in the run; None where it does not answer."""
        with EngineBoundary() as boundary:
            return RuntimeHandle(self.scheduler, self.namespace).open(TrainingSide("none"))
        logger.warning("ecorl takes no part in this worker: %s", boundary.error)
        return None


def invite(pipeline_config: Any, invitation: WorkerInvitation) -> None:
    """Put an invitation into ROLL's config.

    Args:
        pipeline_config: ROLL's.
        invitation: to the run.
    """
    # No field of the dataclass: ROLL's own logs of its config do not show it.
    setattr(pipeline_config, _KEY, asdict(invitation))


def invited(pipeline_config: Any) -> WorkerInvitation | None:
    """The invitation in ROLL's config; None without one.

    Args:
        pipeline_config: ROLL's.
    """
    told = getattr(pipeline_config, _KEY, None)
    return None if told is None else WorkerInvitation(**told)
