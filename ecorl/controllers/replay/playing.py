"""One training played along a recorded series: what it emits, when it is done, and what it did."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import HOUR_S, Kept, Progress, TrainingProblem
from ecorl.controllers.protocol import Controller, Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.step import action_of, control_step
from ecorl.errors import ConfigError

Watch = Callable[[float, GearChoice, Progress], None]
"""Is told the begin of each epoch, the choice, and the progress before it."""


@dataclass(frozen=True, slots=True)
class PlayedTraining:
    """A training that was played.

    Attributes:
        controller: name of who decided.
        carbon_g: emitted by all kept machines, gCO2e.
        energy_j: drawn by them, J.
        tokens: trained by the deadline.
        deficit: what the budget lacked at the deadline, tokens; 0 where it is met.
        done_s: when the last token was trained, s since 1970; None where some are missing.
        late_g: what lateness after the soft deadline counts as, gCO2e; not among `carbon_g`.
        running_s: time with training, s, changes included.
        tokens_by_gear: tokens by gear.
        worker_s: workers times the time that they trained, s.
        n_width_changes, n_gear_changes: changes between two epochs.
        n_pauses: how often training stood still before it was done.
        n_epochs: number of decisions.
        n_shielded: in how many of them the budget decided.
    """

    controller: str
    carbon_g: float
    energy_j: float
    tokens: float
    deficit: float
    done_s: float | None
    late_g: float
    running_s: float
    tokens_by_gear: Mapping[Gear, float]
    worker_s: float
    n_width_changes: int
    n_gear_changes: int
    n_pauses: int
    n_epochs: int
    n_shielded: int

    @property
    def cost_g(self) -> float:
        """Emissions and what lateness counts as, gCO2e: what a controller minimises."""
        return self.carbon_g + self.late_g


class Training:
    """A training under way along a series; one epoch after the other.

    Args:
        problem: what has to be met; its epochs divide the intervals of the series.
        truth: the intensities that count, g/kWh, without a missing value between start and
            deadline.

    Raises:
        ConfigError: when the series does not reach from start to deadline, lacks a value there, or
            its intervals are no multiple of the epoch.
    """

    def __init__(self, problem: TrainingProblem, truth: Series) -> None:
        self.problem = problem
        self._values, self._first, self._per_step = _aligned(problem, truth)
        self.now_s = problem.start_s
        self.progress = problem.begin()
        self.done_s: float | None = None
        self.carbon_g = self.energy_j = self.running_s = self.worker_s = 0.0
        self.tokens_by_gear: dict[Gear, float] = {}
        self.n_width_changes = self.n_gear_changes = self.n_pauses = 0
        self.n_epochs = 0

    @property
    def is_over(self) -> bool:
        """Whether all is trained, or the deadline has come."""
        return self.done_s is not None or self.now_s >= self.problem.deadline_s - 1e-6

    def run(self, action: TrainingAction) -> None:
        """Spend one epoch with an action.

        Args:
            action: of the problem's table, or a pause.
        """
        p, before = self.problem, self.progress.action
        g_per_kwh = self._values[self._first + self.n_epochs // self._per_step]
        epoch_s = min(p.epoch_s, p.deadline_s - self.now_s)
        change_s = min(epoch_s, p.change_s(before, action))
        if change_s:
            self._spend(max(p.draw_w(before), p.draw_w(action)), g_per_kwh, change_s)
        if before.width != action.width:
            self.n_width_changes += 1
        elif before.gear is not action.gear:
            self.n_gear_changes += 1
        rate = p.rate(action)
        useful_s = epoch_s - change_s
        if rate:
            useful_s = min(useful_s, self.progress.tokens_left / rate)
            if action.is_low:
                useful_s = min(useful_s, self.progress.low_tokens_left / rate)
            tokens = useful_s * rate
            self.progress = p.after(self.progress, action, tokens)
            assert action.gear is not None
            self.tokens_by_gear[action.gear] = self.tokens_by_gear.get(action.gear, 0.0) + tokens
            self.running_s += change_s + useful_s
            self.worker_s += action.width * useful_s
        else:
            self.n_pauses += not before.is_pause or not self.n_epochs
            p_left = self.progress
            self.progress = Progress(p_left.tokens_left, p_left.low_tokens_left, action)
        self._spend(p.draw_w(action), g_per_kwh, useful_s)
        rest_s = epoch_s - change_s - useful_s
        if self.progress.tokens_left <= 0.0:
            self.done_s = self.now_s + epoch_s - rest_s
        if rest_s > 0.0 and (self.done_s is None or p.kept is Kept.DEADLINE):
            self._spend(p.draw_w(PAUSE), g_per_kwh, rest_s)
        self.now_s += epoch_s
        self.n_epochs += 1

    def keep_until_deadline(self) -> None:
        """Add what is drawn after the last token by machines that are kept until the deadline."""
        p = self.problem
        if p.kept is not Kept.DEADLINE:
            return
        left_s = max(0.0, p.deadline_s - self.now_s)
        n = math.ceil(left_s / p.epoch_s - 1e-9)
        numbers = np.arange(self.n_epochs, self.n_epochs + n) // self._per_step + self._first
        lengths_s = np.minimum(p.epoch_s, left_s - p.epoch_s * np.arange(n))
        draw_w = p.draw_w(PAUSE)
        self.energy_j += draw_w * left_s
        grams_s = float(np.sum(self._values[numbers] * lengths_s))
        self.carbon_g += p.grams(draw_w, grams_s, 1.0)

    def _spend(self, draw_w: float, g_per_kwh: float, seconds: float) -> None:
        """Count a draw."""
        self.energy_j += draw_w * seconds
        self.carbon_g += self.problem.grams(draw_w, float(g_per_kwh), seconds)


def play(
    controller: Controller,
    problem: TrainingProblem,
    knowledge: Knowledge,
    truth: Series | None = None,
    *,
    spot: Series | None = None,
    watch: Watch | None = None,
) -> PlayedTraining:
    """Play one training until it is done.

    Args:
        controller: who decides, new for each training.
        problem: what has to be met.
        knowledge: what it knows along the way.
        truth: the intensities that count; by default those that it is told.
        spot: price of a worker along the way, in any currency an hour.
        watch: is told each epoch.

    Raises:
        ConfigError: when the series does not fit the problem.
    """
    training = Training(problem, truth or knowledge.series)
    n_shielded, waited_s = 0, 0.0
    while not training.is_over:
        now_s = training.now_s
        view = knowledge.at(now_s)
        progress = training.progress
        rate = problem.rate(problem.fastest(progress))
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            past=view.past,
            progress=progress,
            spot_price=None if spot is None else spot.at(now_s),
            waited_s=waited_s,
            has_begun=training.running_s > 0.0,
            left_s=progress.tokens_left / rate if rate else None,
        )
        found = control_step(controller, problem, now_s, seen)
        if watch is not None:
            watch(now_s, found, progress)
        n_shielded += found.why is Why.SHIELDED
        action = action_of(found)
        if found.command is Command.PAUSE:
            waited_s += problem.epoch_s
        training.run(action)
    training.keep_until_deadline()
    return outcome(controller.name, training, n_shielded)


def outcome(name: str, training: Training, n_shielded: int = 0) -> PlayedTraining:
    """What became of a training.

    Args:
        name: of who decided.
        training: which is over.
        n_shielded: in how many epochs the budget decided.
    """
    p, done_s = training.problem, training.done_s
    late_g = 0.0
    if p.soft_deadline_s is not None:
        end_s = p.deadline_s if done_s is None else done_s
        late_g = max(0.0, end_s - p.soft_deadline_s) / HOUR_S * p.late_g_per_h
    left = training.progress.tokens_left
    return PlayedTraining(
        controller=name,
        carbon_g=training.carbon_g,
        energy_j=training.energy_j,
        tokens=p.tokens - left,
        deficit=left,
        done_s=done_s,
        late_g=late_g,
        running_s=training.running_s,
        tokens_by_gear=training.tokens_by_gear,
        worker_s=training.worker_s,
        n_width_changes=training.n_width_changes,
        n_gear_changes=training.n_gear_changes,
        n_pauses=training.n_pauses,
        n_epochs=training.n_epochs,
        n_shielded=n_shielded,
    )


def _aligned(problem: TrainingProblem, truth: Series) -> tuple[FloatArray, int, int]:
    """Values, number of the first interval, and epochs in an interval."""
    per_step = truth.step_s / problem.epoch_s
    if abs(per_step - round(per_step)) > 1e-9 or round(per_step) < 1:
        allowed = f"a part of the trace's intervals, which are of {truth.step_s:g} s"
        raise ConfigError(f"{problem.key}.epoch_s", problem.epoch_s, allowed)
    first = (problem.start_s - truth.start_s) / truth.step_s
    if abs(first - round(first)) > 1e-6:
        allowed = f"a begin of the trace's intervals, which are of {truth.step_s:g} s"
        raise ConfigError(f"{problem.key}.start", problem.start_s, allowed)
    begin = round(first)
    n = math.ceil((problem.deadline_s - problem.start_s) / truth.step_s - 1e-9)
    if begin < 0 or begin + n > len(truth.values):
        days = n * truth.step_s / 86400.0
        allowed = (
            f"a trace that reaches from start to deadline, {days:.3g} days; from the start on it "
            f"holds {max(0, len(truth.values) - max(0, begin)) * truth.step_s / 86400.0:.3g}"
        )
        raise ConfigError(f"{problem.key}.deadline", f"{days:.3g} days on", allowed)
    part = truth.values[begin : begin + n]
    if not np.isfinite(part).all():
        missing = int(np.count_nonzero(~np.isfinite(part)))
        allowed = (
            f"a trace without missing values between start and deadline; {missing} are missing"
        )
        raise ConfigError(f"{problem.key}.trace", missing, allowed)
    return truth.values, begin, round(per_step)
