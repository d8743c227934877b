"""A controller in a live run: when it runs and when it pauses, so that it is over by a deadline.

A run obeys *run* and *pause*. Its problem is therefore one of time: what is left of the training,
in seconds of running as its own steps have taken them, has to fit before the deadline. Width and
gear stay as they are.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ecorl.carbon.series import Series
from ecorl.config import Config
from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.controllers.catalogue import build
from ecorl.controllers.problem.table import PAUSE, GearTable, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Controller, Seen
from ecorl.controllers.rules.prices import read_prices
from ecorl.controllers.step import control_step
from ecorl.errors import ConfigError, DataError
from ecorl.kinds import Provenance

logger = logging.getLogger(__name__)

TIMED_STEPS = 3
"""Number of steps that are made before anything is planned, so that their time is known. Invented:
the first is longer than the others, and a median of three does not go by it."""

_SHORTEST_S = 1e-9

_AS_IT_IS = TrainingAction(1, Gear.BF16)
"""Stands for training as the framework does it; its width and gear are told to nobody."""


class PlannedRun:
    """Decides for one run; not thread-safe.

    Args:
        config: the run's; its controller is set.
        began_s: when the run began, s since 1970.
        memory: what it remembered when the run was interrupted; empty without that.

    Raises:
        ConfigError: when the prices of workers cannot be read.
    """

    def __init__(
        self, config: Config, began_s: float, memory: Mapping[str, object] | None = None
    ) -> None:
        c = config.carbon.control
        assert c.controller is not None
        self._config, self._control, self._name = config, c, c.controller
        self._prices = _prices(c.spot_prices)
        self._began_s = began_s
        self._deadline_s: float | None = None
        self._recalled: Mapping[str, object] | None = None
        if c.deadline is not None:
            self._deadline_s = c.deadline.timestamp()
        elif c.deadline_in_s is not None:
            self._deadline_s = began_s + c.deadline_in_s
        self._recall(memory or {})
        self._controller: Controller | None = None
        self._problem: TrainingProblem | None = None
        self._known_w: float | None = None
        self._told_late = self._is_running = False

    @property
    def memory(self) -> Mapping[str, object]:
        """What it goes on from after a resume: the deadline, and what the controller remembers."""
        own = self._recalled if self._controller is None else self._controller.memory()
        return {"deadline_s": self._deadline_s, "controller": dict(own or {})}

    def _recall(self, memory: Mapping[str, object]) -> None:
        deadline_s, own = memory.get("deadline_s"), memory.get("controller")
        # A deadline of the config may have been put off; one by slack was set once and for all.
        if self._control.slack is not None and isinstance(deadline_s, float):
            self._deadline_s = deadline_s
        if isinstance(own, Mapping):
            self._recalled = own

    def decide(
        self,
        now_s: float,
        seen: Seen,
        steps_s: deque[float],
        steps_left: int | None,
        power_w: float | None,
        day_s: float,
    ) -> GearChoice:
        """Decide whether training runs until the next decision.

        Args:
            now_s: time, s since 1970.
            seen: what is known of the grid.
            steps_s: how long the newest steps took, s.
            steps_left: steps that training has before it; None: unknown.
            power_w: what the machines draw while training runs, W; None: unknown.
            day_s: length of a day of the grid, s.
        """
        if steps_left is None:
            return self._running(now_s, Why.TIMING, "nobody says how many steps are left")
        if len(steps_s) < TIMED_STEPS:
            told = f"{TIMED_STEPS} steps are timed before anything is planned"
            return self._running(now_s, Why.TIMING, told)
        step_s = statistics.median(steps_s)
        left_s = steps_left * step_s
        problem = self._planned(now_s, left_s, step_s, power_w, day_s)
        if problem is None or self._controller is None:
            told = "the steps that are left take longer than until the deadline"
            return self._running(now_s, Why.SHIELDED, told)
        action = _AS_IT_IS if self._is_running else PAUSE
        progress = Progress(left_s, 0.0, action)
        price = None if self._prices is None else self._prices.at(now_s)
        seen = replace(seen, progress=progress, spot_price=price)
        found = control_step(self._controller, problem, now_s, seen)
        self._is_running = found.command is Command.RUN
        # Emissions go with the power, and it may be known only after the problem was made.
        now_w = self._known_w if power_w is None else power_w
        table_w = float(problem.table.power_w[0, 0])
        return _as_it_is(found, None if now_w is None else step_s * now_w / table_w)

    def _planned(
        self, now_s: float, left_s: float, step_s: float, power_w: float | None, day_s: float
    ) -> TrainingProblem | None:
        """The run's problem, made when its steps are timed; None while the deadline is too early.

        Later ticks are of the same problem: what is left of it is the progress.
        """
        if self._deadline_s is None:
            # What was run so far counts too: the slack is of the whole run.
            ran_s = now_s - self._began_s
            self._deadline_s = self._began_s + (self._control.slack or 1.0) * (ran_s + left_s)
        late_s = now_s + left_s - self._deadline_s
        if late_s > self._control.reserve * left_s:
            self._tell_late(late_s)
        if self._problem is not None:
            return self._problem
        soft = self._config.carbon.soft_deadline
        try:
            problem = TrainingProblem(
                self._table(power_w or 1.0),
                tokens=max(left_s, _SHORTEST_S),
                start_s=now_s,
                deadline_s=self._deadline_s,
                epoch_s=max(self._config.carbon.recheck_s + step_s, self._control.width_change_s),
                width_change_s=self._control.width_change_s,
                soft_deadline_s=None if soft is None else soft.timestamp(),
                late_g_per_h=self._control.late_g_per_h,
                pue=self._config.accounting.pue,
            )
        except ConfigError:
            return None
        self._problem, self._known_w = problem, power_w
        self._controller = build(self._name, problem, day_s=day_s, seed=self._control.seed)
        if self._recalled:
            self._controller.recall(self._recalled)
        return problem

    def _table(self, power_w: float) -> GearTable:
        """Running as it is: a token is a second of it, and the reserve makes it look slower."""
        return GearTable(
            gears=(Gear.BF16,),
            widths=(1,),
            power_w=np.array([[power_w]]),
            tokens_per_s=np.array([[1.0 / (1.0 + self._control.reserve)]]),
            provenance=Provenance.MEASURED,
            source="the run's own steps",
        )

    def _tell_late(self, late_s: float) -> None:
        """Say once that the deadline cannot be kept, and which one can."""
        if self._told_late or self._deadline_s is None:
            return
        self._told_late = True
        logger.warning(
            "carbon.control: the deadline of %s cannot be kept; training runs without a pause and "
            "is over by about %s, %.0f s later",
            _told(self._deadline_s),
            _told(self._deadline_s + late_s),
            late_s,
        )

    def _running(self, now_s: float, why: Why, reason: str) -> GearChoice:
        self._is_running = True
        again_s = now_s + self._config.carbon.recheck_s
        return GearChoice(now_s, Command.RUN, why, self._name, reason, again_s)


def _told(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _prices(path: Path | None) -> Series | None:
    if path is None:
        return None
    try:
        return read_prices(path.expanduser())
    except DataError as error:
        allowed = f"a CSV of time and price ({error})"
        raise ConfigError("carbon.control.spot_prices", str(path), allowed) from error


def _as_it_is(found: GearChoice, tokens: float | None) -> GearChoice:
    """A choice about seconds of training as one about steps, width and gear being as they are.

    Args:
        found: the choice.
        tokens: what a step is in the problem's tokens, at the power drawn now; None: unknown.
    """
    price, reason = found.price_g_per_token, found.reason
    price_g_per_step = None if price is None or tokens is None else price * tokens
    if found.why is Why.PRICED:
        runs = found.command is Command.RUN
        reason = f"hours until the deadline are {'dirtier' if runs else 'cleaner'}"
    return replace(
        found,
        reason=reason,
        width=None,
        gear=None,
        price_g_per_token=None,
        price_g_per_step=price_g_per_step,
    )
