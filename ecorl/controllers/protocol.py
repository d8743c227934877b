"""What a controller is, and what it is shown when it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.control import GearChoice
from ecorl.controllers.problem.training import Progress
from ecorl.grid import Intensity


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known when a decision is taken; nothing of it lies in the future but the forecast.

    Attributes:
        intensity: of the grid now; None: unknown.
        forecast: of the intensity, made by the feed's provider or for it; None without one.
        past: what was told of the intensity so far, g/kWh, NaN where a value is missing; it ends
            with the interval under way, or before it where values come late. None without one.
        progress: how far the training is; None where it has no token budget.
        spot_price: what a worker costs now, in any currency an hour; None: unknown.
        utilisation: share of their time that the workers compute, 0 to 1; None: unknown.
        waited_s: for how long the run has waited so far, s.
        has_begun: whether training has begun.
        left_s: how long training would take from here on without a pause, s; None: unknown, as
            before the first step. Then nothing can be kept free for it, and the deadline is that
            of the wait alone.
        is_asking: whether the feeds may still answer for the first time.
        is_stopping: whether training was asked to stop, by a signal for instance.
        is_over_budget: whether the run has emitted what it may.
    """

    intensity: Intensity | None
    forecast: Forecast | None = None
    past: Series | None = None
    progress: Progress | None = None
    spot_price: float | None = None
    utilisation: float | None = None
    waited_s: float = 0.0
    has_begun: bool = False
    left_s: float | None = None
    is_asking: bool = False
    is_stopping: bool = False
    is_over_budget: bool = False


class Controller(Protocol):
    """Decides what the training stage does until the next decision.

    A controller looks at nothing but what it is shown, and what it remembers of earlier decisions:
    it reads no clock and no file, and where it draws at random it does so by a seed of its own. It
    need not care for the budget: `ecorl.controllers.step.control_step` keeps the promise for it.
    """

    name: str

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """Choose command, width and gear.

        Args:
            now_s: time, s since 1970; never earlier than at the decision before.
            seen: what is known.

        Returns:
            The choice. Its width and gear are of the problem's table, or width 0 in a pause.
        """
        ...

    def memory(self) -> Mapping[str, object]:
        """What it has to remember for its next decisions, in values that JSON can hold."""
        ...

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from a memory, in place of its own.

        Args:
            memory: of a controller of the same kind, for the same problem.
        """
        ...


class Memoryless:
    """Base of controllers that decide by what they are shown alone."""

    def memory(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Nothing is recalled.

        Args:
            memory: empty.
        """
