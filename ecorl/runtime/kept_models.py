"""Frozen models that have no engine from the start, and so stay where the framework computes.

What an engine cannot run, or what it lacks on this machine, costs energy at most: the stage is
computed by the trainer itself as without ecorl, with one warning that says why. Only a mistake in
the configuration itself still ends the run before it begins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ecorl.config import EngineConfig, TorchEngineConfig
from ecorl.devices import DeviceProfile
from ecorl.engines.torch.loading import DTYPES
from ecorl.errors import BitstreamError, CheckpointError, ConfigError, EcorlError, UnsupportedModel
from ecorl.ledger import Ledger
from ecorl.records import (
    Action,
    FaultEvent,
    FaultKind,
    GuardRefusal,
    Placement,
    Role,
    StageWork,
    place_name,
)
from ecorl.runtime.training import KeptModel

logger = logging.getLogger(__name__)


def dtype_objection(config: EngineConfig, dtype: str) -> str | None:
    """Tell why an engine cannot compute in a model's own type, as a clause.

    Args:
        config: the ``engine`` table.
        dtype: in which the trainer computes with the model.

    Returns:
        The clause; None where it can, or computes in a type of its own.
    """
    if not isinstance(config.offload, TorchEngineConfig) or dtype in DTYPES:
        return None
    return f"the engine torch computes in {', '.join(DTYPES[:3])}, and this model is in {dtype}"


def reason_of(error: BaseException) -> str:
    """Say why an engine did not start, as a clause on one line.

    Args:
        error: as it was raised.

    Raises:
        ConfigError: the error itself, where the configuration has a mistake.
    """
    if isinstance(error, ConfigError):
        raise error
    if isinstance(error, UnsupportedModel):
        return error.reason
    told = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, BitstreamError):
        return f"engine.offload.bitstream cannot be loaded: {told}"
    if isinstance(error, CheckpointError):
        return f"its engine cannot load it ({told})"
    named = told if isinstance(error, EcorlError) else f"{type(error).__name__}: {told}"
    return f"its engine did not start ({named})"


def stays(gpu: DeviceProfile, reason: str) -> str:
    """Say that a stage stays where the framework computes, and why; without a subject.

    Args:
        gpu: profile of the device that stands for the framework's.
        reason: a clause.
    """
    return f"stays on the {place_name(gpu.kind)}: {reason}"


def warn(kept: Mapping[Role, KeptModel], gpu: DeviceProfile) -> None:
    """Warn of each model that has no engine, once.

    Args:
        kept: the models by role.
        gpu: profile of the device that stands for the framework's.
    """
    for role, own in kept.items():
        model = f"the {role} model ({own.name})" if own.name else f"the {role} model"
        logger.warning("%s %s", model, stays(gpu, own.reason))


class ModelsWithoutEngine:
    """The models of a run that have no engine, by role: what is decided about them, and recorded.

    Args:
        gpu: profile of the device that stands for the framework's.
    """

    def __init__(self, gpu: DeviceProfile) -> None:
        self._gpu = gpu
        self.by_role: dict[Role, KeptModel] = {}

    def placement(self, iteration: int, work: StageWork, policy: str) -> Placement | None:
        """The placement of such a role, of which there is nothing to choose; None of any other.

        Args:
            iteration: that it belongs to.
            work: what is to be done.
            policy: name of the policy, which is not asked.
        """
        kept = self.by_role.get(work.role)
        if kept is None:
            return None
        return Placement(
            iteration, work.stage, Action.GPU, Action.GPU, policy, stays(self._gpu, kept.reason),
            refusal=GuardRefusal.CANNOT_RUN, role_name=work.role_name,
        )  # fmt: skip

    def record(self, ledger: Ledger) -> None:
        """Record them, once a run.

        Args:
            ledger: the head's part of the run's record.
        """
        for role, own in self.by_role.items():
            detail = stays(self._gpu, own.reason)
            detail = f"{own.name} {detail}" if own.name else detail
            ledger.fault(FaultEvent(None, FaultKind.NO_ENGINE, role, detail))
