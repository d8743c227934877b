"""The gears of one process that trains. Calls come between two training stages, by Ray."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ecorl.control import Gear
from ecorl.errors import ConfigError
from ecorl.trainer.gears.formats import GearSupport, supported
from ecorl.trainer.gears.geared_model import GearedModel
from roll_adapters.ray_jobs.gears.orders import GearOrder, GearRefusal, StepReport

ATTRIBUTE = "_ecorl_gears"
"""Of an actor of Ray: its `WorkerGears`."""


class WorkerGears:
    """Puts the training stage of one process into the gear that was chosen for all of them.

    Args:
        model: that is trained.
        own: gear in which the framework itself computes.
        support: the gears, and which of them are simulated.

    Attributes:
        model: the gears of the model.
        gear: of the next training stage.
        safe: gear in which a step is computed anew.
        due: gears whose mismatch is to be measured in it.
        report: what became of the stage so far.

    Raises:
        ConfigError: when FP8 is asked for and no layer takes it.
        MissingToolError: when FP8 is asked for and torchao is not installed.
    """

    def __init__(self, model: nn.Module, own: Gear, support: GearSupport) -> None:
        self.model = GearedModel(model, own, support)
        self.gear = self.safe = own
        self.due: tuple[Gear, ...] = ()
        self.report = StepReport()

    @property
    def is_own(self) -> bool:
        """Whether the training stage is the framework's own, to the last bit."""
        return self.gear is self.model.own

    @contextmanager
    def engaged(self, gear: Gear) -> Iterator[None]:
        """Compute in a gear inside the block: forward and backward pass.

        Args:
            gear: `gear` or `safe`.
        """
        self.model.engage(gear)
        try:
            yield
        finally:
            self.model.release()

    def take_due(self) -> tuple[Gear, ...]:
        """The gears that are to be measured now; they are not due any more."""
        due, self.due = self.due, ()
        return due


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model evaluate inside the block: two passes then differ by their gears alone.

    With dropout they would differ by chance as well. Each module is in its own mode again after it,
    as a framework may train with parts of a model that evaluate all along.

    Args:
        model: of the framework.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def training_device() -> torch.device:
    """The device on which a process that trains computes: its GPU, or the CPU where it has none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def support_of(order: GearOrder) -> GearSupport:
    """What this process's device has of the gears.

    Args:
        order: the gears.

    Raises:
        ConfigError: for a gear that the device lacks.
    """
    return supported(order.gears, training_device(), may_simulate_fp8=order.simulate_fp8)


# ---------------------------------------------------------------- by Ray, in the actor's process


def refusal(actor: object, order: GearOrder) -> GearRefusal | None:
    """Tell what of an order this process cannot do; before its model is loaded.

    Args:
        actor: not looked at; Ray passes the actor.
        order: the gears.
    """
    try:
        support_of(order)
    except ConfigError as error:
        return GearRefusal(error.key, error.value, error.allowed)
    if Gear.FP8 in order.gears and importlib.util.find_spec("torchao") is None:
        allowed = "a list without FP8, or torchao where the actors run: pip install 'ecorl[gears]'"
        return GearRefusal("gears.allowed", [str(gear) for gear in order.gears], allowed)
    return None


def shift(actor: Any, gear: Gear, safe: Gear, due: Sequence[Gear]) -> Gear:
    """Shift a process for its next training stage.

    Args:
        actor: Ray passes it.
        gear: to compute in.
        safe: in which a step is computed anew.
        due: gears to measure.

    Returns:
        The gear that it is in now.
    """
    own: WorkerGears = getattr(actor, ATTRIBUTE)
    own.gear, own.safe, own.due = gear, safe, tuple(due)
    # Nobody has asked for that of a gear that cannot overflow.
    own.report = StepReport()
    return own.gear


def take_report(actor: Any) -> StepReport:
    """Tell what became of the last training stage, once.

    Args:
        actor: Ray passes it.
    """
    own: WorkerGears = getattr(actor, ATTRIBUTE)
    found, own.report = own.report, StepReport()
    return found
