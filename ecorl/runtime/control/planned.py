"""A controller in a live run: when it trains, how wide and in which gear, so that it is in time.

What is left of the training, in seconds of its own steps (`ecorl.runtime.control.live_plan`), has
to fit before the deadline. Gears and widths are chosen between as far as the adapter tells that the
training stage can be shifted; elsewhere there is one of each, and the controller runs and pauses.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ecorl.carbon.series import Series
from ecorl.config import Config
from ecorl.control import AS_IT_IS, Command, Gear, GearChoice, TrainingStage, Why
from ecorl.controllers.catalogue import build
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.problem.table import PAUSE, GearTable, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Controller, Seen
from ecorl.controllers.rules.prices import read_prices
from ecorl.controllers.step import choice, control_step
from ecorl.errors import ConfigError, DataError
from ecorl.runtime.control.live_plan import LivePlan, LiveProblem, live_plan, untimed
from ecorl.runtime.control.step_record import Ran, StepRecord

logger = logging.getLogger(__name__)

TIMED_STEPS = 3
"""Number of steps that are made before anything is planned, so that their time is known. Invented:
the first is longer than the others, and a median of three does not go by it."""

_SHORTEST_S = 1e-9


class PlannedRun:
    """Decides for one run; not thread-safe.

    Args:
        config: the run's; its controller is set.
        began_s: when the run began, s since 1970.
        memory: what it remembered when the run was interrupted; empty without that.
        width_change_s: what the run's newest change of the width has cost, s; None: the config's
            figure counts.

    Raises:
        ConfigError: when the prices of workers or the table of gears cannot be read, or the table
            lacks a gear that may be chosen.
    """

    def __init__(
        self,
        config: Config,
        began_s: float,
        memory: Mapping[str, object] | None = None,
        width_change_s: float | None = None,
    ) -> None:
        c = config.carbon.control
        assert c.controller is not None
        self._config, self._control, self._name = config, c, c.controller
        self._change_s = c.width_change_s if width_change_s is None else width_change_s
        self._prices = _prices(c.spot_prices)
        self._shape = _shape(config)
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
        self._plan: LivePlan | None = None
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
        steps: StepRecord,
        steps_left: int | None,
        day_s: float,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Decide what the training stage does until the next decision.

        Args:
            now_s: time, s since 1970.
            seen: what is known of the grid.
            steps: times and powers of the run's steps.
            steps_left: steps that training has before it; None: unknown.
            day_s: length of a day of the grid, s.
            stage: what the training stage did last, and what it can be told to do.
        """
        if steps_left is None:
            return self._running(now_s, Why.TIMING, "nobody says how many steps are left")
        to_time = untimed(steps, stage, self._shape, TIMED_STEPS)
        step_s = steps.step_s
        if to_time is not None or step_s is None or steps.n < TIMED_STEPS:
            told = f"{TIMED_STEPS} steps are timed before anything is planned"
            return self._running(now_s, Why.TIMING, told, to_time if stage.gears else None)
        plan = live_plan(steps, stage, self._shape, self._control.reserve, steps_left)
        problem = self._planned(now_s, steps_left, step_s, plan, day_s)
        if problem is None or self._controller is None:
            told = "the steps that are left take longer than until the deadline"
            return self._running(now_s, Why.SHIELDED, told, *_fastest(plan, stage))
        left = steps_left * plan.step_tokens
        low = left if stage.low_steps_left is None else stage.low_steps_left * plan.step_tokens
        action = plan.present if self._is_running else PAUSE
        progress = Progress(left, min(low, left), action)
        price = None if self._prices is None else self._prices.at(now_s)
        seen = replace(seen, progress=progress, spot_price=price)
        found = control_step(self._controller, problem, now_s, seen)
        if found.command is Command.PAUSE and self._is_ending(problem, left, plan.present):
            told = "what is left takes no longer than until the next decision"
            found = choice(self._name, now_s, problem, seen, plan.present, Why.ENDING, told)
        self._is_running = found.command is Command.RUN
        # Emissions go with the power, and it may be known only after the problem was made.
        now_w = steps.power_w(Ran.of(stage)) or _some_power_w(steps)
        table_w = float(problem.table.power(plan.present))
        tokens = None if now_w is None else plan.step_tokens * now_w / table_w
        return _of_steps(found, tokens, stage)

    def _is_ending(self, problem: TrainingProblem, left: float, present: TrainingAction) -> bool:
        """Whether training runs, and is over before another decision would count.

        A plan that goes by hours waits with the last steps for luck: that saves next to nothing,
        and the run would be over hours later.
        """
        return self._is_running and left <= problem.epoch_s * problem.rate(present)

    def pressed(
        self, now_s: float, steps: StepRecord, steps_left: int | None, stage: TrainingStage
    ) -> tuple[Gear | None, int | None]:
        """Gear and width at which the deadline is met when nobody can decide any more.

        Args:
            now_s: time, s since 1970.
            steps: times and powers of the run's steps.
            steps_left: steps that training has before it; None: unknown.
            stage: what the training stage did last, and what it can be told to do.

        Returns:
            The fastest ones where the present ones are too slow; else None and None, as they are.
        """
        step_s = steps.step_s
        if self._deadline_s is None or steps_left is None or step_s is None:
            return None, None
        if not (stage.gears or stage.widths):
            return None, None
        left_s = (1.0 + self._control.reserve) * steps_left * step_s
        if now_s + left_s <= self._deadline_s:
            return None, None
        plan = live_plan(steps, stage, self._shape, self._control.reserve, steps_left)
        return _fastest(plan, stage)

    def _planned(
        self, now_s: float, steps_left: int, step_s: float, plan: LivePlan, day_s: float
    ) -> TrainingProblem | None:
        """The run's problem, made when its steps are timed; None while the deadline is too early.

        Later ticks are of the same problem for as long as what can be chosen costs the same: what
        is left of it is the progress.
        """
        if self._deadline_s is None:
            # What was run so far counts too: the slack is of the whole run.
            ran_s, left_s = now_s - self._began_s, steps_left * step_s
            self._deadline_s = self._began_s + (self._control.slack or 1.0) * (ran_s + left_s)
        left = steps_left * plan.step_tokens
        fastest_s = left / float(plan.clock.tokens_per_s.max() * (1.0 + self._control.reserve))
        late_s = now_s + fastest_s - self._deadline_s
        if late_s > self._control.reserve * fastest_s:
            self._tell_late(late_s)
        if self._problem is not None and self._plan is not None and self._plan.is_like(plan):
            return self._problem
        try:
            problem = self._problem_of(plan, plan.clock, now_s, left, step_s)
            decided = self._problem_of(plan, plan.table, now_s, left, step_s)
        except ConfigError:
            # Too late for a plan that was not made before, and for one that was made otherwise.
            self._problem = None
            return None
        if self._controller is not None:
            self._recalled = self._controller.memory()
        self._problem, self._plan = problem, plan
        self._controller = build(self._name, decided, day_s=day_s, seed=self._control.seed)
        if self._recalled:
            self._controller.recall(self._recalled)
        return problem

    def _problem_of(
        self, plan: LivePlan, table: GearTable, now_s: float, left: float, step_s: float
    ) -> LiveProblem:
        """What is left of the run as a problem."""
        c, soft = self._control, self._config.carbon.soft_deadline
        assert self._deadline_s is not None
        return LiveProblem(
            table,
            tokens=max(left, _SHORTEST_S),
            start_s=now_s,
            deadline_s=self._deadline_s,
            epoch_s=max(self._config.carbon.recheck_s + step_s, self._change_s),
            width_change_s=self._change_s,
            low_share=max(c.low_share, _SHORTEST_S),
            soft_deadline_s=None if soft is None else soft.timestamp(),
            late_g_per_h=c.late_g_per_h,
            pue=self._config.accounting.pue,
            tried=plan.tried,
            held=plan.present.width,
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

    def _running(
        self,
        now_s: float,
        why: Why,
        reason: str,
        gear: Gear | None = None,
        width: int | None = None,
    ) -> GearChoice:
        self._is_running = True
        again_s = now_s + self._config.carbon.recheck_s
        return GearChoice(
            now_s, Command.RUN, why, self._name, reason, again_s, gear=gear, width=width
        )


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


def _shape(config: Config) -> GearTable | None:
    """The table by which gears and widths are planned with, if there is one."""
    path, gears = config.carbon.control.table, config.gears.allowed
    if path is None or not gears:
        return None
    table = read_table(path)
    missing = [str(gear) for gear in gears if gear not in table.gears]
    if missing:
        allowed = f"a table with all of gears.allowed: {', '.join(missing)} is not in it"
        raise ConfigError("carbon.control.table", str(path), allowed)
    return table


def _fastest(plan: LivePlan, stage: TrainingStage) -> tuple[Gear | None, int | None]:
    """Gear and width of the highest throughput here, None for what cannot be chosen."""
    left = stage.low_steps_left
    may_be_low = left is None or left >= 1.0
    actions = [a for a in plan.clock.actions() if may_be_low or not a.is_low]
    best: TrainingAction = max(actions or plan.clock.actions(), key=plan.clock.rate)
    return best.gear if stage.gears else None, best.width if stage.widths else None


def _some_power_w(steps: StepRecord) -> float | None:
    known = [power_w for power_w in map(steps.power_w, steps.ran()) if power_w is not None]
    return known[-1] if known else None


def _of_steps(found: GearChoice, tokens: float | None, stage: TrainingStage) -> GearChoice:
    """A choice about seconds of training as one about steps, and about what can be changed.

    Args:
        found: the choice.
        tokens: what a step is in the problem's tokens, at the power drawn now; None: unknown.
        stage: what the training stage can be told to do.
    """
    price, reason = found.price_g_per_token, found.reason
    price_g_per_step = None if price is None or tokens is None else price * tokens
    runs = found.command is Command.RUN
    if found.why is Why.PRICED:
        reason = f"hours until the deadline are {'dirtier' if runs else 'cleaner'}"
        chosen = [str(found.gear)] if stage.gears and runs else []
        chosen += [f"{found.width} wide"] if stage.widths and runs else []
        reason += f": {', '.join(chosen)}" if chosen else ""
    return replace(
        found,
        reason=reason,
        width=found.width if stage.widths else None,
        gear=found.gear if stage.gears else None,
        price_g_per_token=None,
        price_g_per_step=price_g_per_step,
    )
