"""The problem that a controller solves: tokens to train by a deadline, at the least emissions.

    minimise  sum over epochs of c_k P(s_k) dt    subject to  sum of tau(s_k) dt = B

with the actions s = (width, gear) of a `GearTable` (CarbonGearRL, Eq. 3), and with what the paper
leaves out: machines that draw power while they are kept, changes that cost time, a cap on the share
of tokens in low precision, and a soft deadline whose lateness costs grams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property

import numpy as np

from ecorl.control import Gear
from ecorl.controllers.problem.table import PAUSE, GearTable, TrainingAction
from ecorl.errors import ConfigError
from ecorl.units import JOULES_PER_KWH

HOUR_S = 3600.0

_DONE = 1e-9
"""Share of the budget below which what is left is rounding of sums."""


class Kept(StrEnum):
    """Until when the machines are kept, and draw power although nothing trains on them."""

    DEADLINE = "deadline"  # until the hard deadline, as a reservation is
    DONE = "done"  # until the last token


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is.

    Attributes:
        tokens_left: what the budget still lacks, tokens; 0 when it is met.
        low_tokens_left: how many of them may still be in low precision, tokens.
        action: what the training stage does at present.
    """

    tokens_left: float
    low_tokens_left: float
    action: TrainingAction = PAUSE


@dataclass(frozen=True)
class TrainingProblem:
    """Tokens to train by a deadline.

    Attributes:
        table: power and throughput by width and gear.
        tokens: the budget B, tokens.
        start_s: when training may begin, s since 1970.
        deadline_s: when the last token has to be trained, s since 1970: a promise.
        epoch_s: time between two decisions, s.
        base_w: drawn for as long as the machines are kept, be it in a pause, W.
        idle_w: drawn by each kept worker that does not train, W; no more than by one that does.
        kept: until when the machines are kept.
        width_change_s: time without training when the width changes, a pause begins or ends, s; the
            workers of the wider width draw their power meanwhile. At most an epoch.
        gear_change_s: time without training when the gear alone changes, s; at most an epoch.
        low_share: largest share of the budget that may be in low precision, 0 to 1.
        soft_deadline_s: when training should be over, s since 1970; None without one.
        late_g_per_h: what an hour after the soft deadline counts as, gCO2e.
        pue: power usage effectiveness, at least 1.
        key: where the problem stands in the user's config, for error messages.

    Raises:
        ConfigError: when a figure cannot be, and when the budget cannot be met, with the earliest
            deadline that can.
    """

    table: GearTable
    tokens: float
    start_s: float
    deadline_s: float
    epoch_s: float = 300.0
    base_w: float = 0.0
    idle_w: float = 0.0
    kept: Kept = Kept.DEADLINE
    width_change_s: float = 0.0
    gear_change_s: float = 0.0
    low_share: float = 1.0
    soft_deadline_s: float | None = None
    late_g_per_h: float = 0.0
    pue: float = 1.0
    key: str = "carbon.control"

    def __post_init__(self) -> None:
        if not self.tokens > 0:
            raise ConfigError(f"{self.key}.tokens", self.tokens, "a number of tokens above 0")
        self._check_costs()
        if not self.rate(self.fastest(self.begin())):
            allowed = "a share above 0, or a table with a gear that is not of low precision"
            raise ConfigError(f"{self.key}.low_share", self.low_share, allowed)
        earliest_s = self.earliest_deadline_s()
        if earliest_s > self.deadline_s * (1 + 1e-15):
            most = self.most_tokens(self.deadline_s - self.start_s)
            allowed = (
                f"at most {most:.4g} by {_told(self.deadline_s)}; these take until "
                f"{_told(earliest_s)}, the earliest feasible deadline"
            )
            raise ConfigError(f"{self.key}.tokens", self.tokens, allowed)

    def _check_costs(self) -> None:
        """Refuse changes longer than an epoch, and idle workers that draw more than others."""
        for name in ("width_change_s", "gear_change_s"):
            value = getattr(self, name)
            if not 0.0 <= value <= self.epoch_s:
                allowed = f"from 0 up to an epoch, {self.key}.epoch_s = {self.epoch_s:g}"
                raise ConfigError(f"{self.key}.{name}", value, allowed)
        least_w = float((self.table.power_w / np.array(self.table.widths)).min())
        if not 0.0 <= self.idle_w <= least_w * (1.0 + 1e-9):
            allowed = f"from 0 up to what a worker that trains draws, {least_w:.4g} W in the table"
            raise ConfigError(f"{self.key}.idle_w", self.idle_w, allowed)

    # ------------------------------------------------------------ actions

    def rate(self, action: TrainingAction) -> float:
        """Throughput, tokens/s.

        Args:
            action: of the table, or a pause.
        """
        return self.table.rate(action)

    def draw_w(self, action: TrainingAction) -> float:
        """What all kept machines draw, W.

        Args:
            action: of the table, or a pause.
        """
        idle = self.table.widths[-1] - action.width
        return self.base_w + self.idle_w * idle + self.table.power(action)

    def change_s(self, before: TrainingAction, after: TrainingAction) -> float:
        """Time without training when one action follows another, s.

        Args:
            before: the action of the last epoch.
            after: that of the next.
        """
        if before.width != after.width:
            return self.width_change_s
        return 0.0 if before.gear is after.gear else self.gear_change_s

    def grams(self, draw_w: float, g_per_kwh: float, seconds: float) -> float:
        """Emissions of a draw, gCO2e.

        Args:
            draw_w: power, W.
            g_per_kwh: intensity of the grid.
            seconds: for how long.
        """
        return draw_w * seconds / JOULES_PER_KWH * self.pue * g_per_kwh

    # ------------------------------------------------------------ budget and deadline

    def begin(self) -> Progress:
        """The progress of a training that has not begun."""
        return Progress(self.tokens, self.low_share * self.tokens)

    def after(self, progress: Progress, action: TrainingAction, tokens: float) -> Progress:
        """The progress after some more tokens.

        Args:
            progress: before.
            action: with which they were trained.
            tokens: number of them.
        """
        left = progress.tokens_left - tokens
        if left <= _DONE * self.tokens:
            left = 0.0
        low_left = progress.low_tokens_left - (tokens if action.is_low else 0.0)
        if low_left <= _DONE * self.tokens:
            low_left = 0.0
        return Progress(left, low_left, action)

    def fastest(self, progress: Progress) -> TrainingAction:
        """The action with the highest throughput that the cap still allows.

        Args:
            progress: so far.
        """
        return self._fastest if progress.low_tokens_left > 0.0 else self._fastest_high

    def needed_s(self, progress: Progress) -> float:
        """The time in which the rest of the budget is trained at full speed, s.

        Where full speed is another action than the present one, its change is paid for, although
        the last few tokens may take less time without it: the promise is kept either way.

        Args:
            progress: so far.
        """
        left = progress.tokens_left
        if left <= 0.0:
            return 0.0
        best = self.fastest(progress)
        rate = self.rate(best)
        change_s = self.change_s(progress.action, best)
        if not best.is_low or progress.low_tokens_left >= left:
            return change_s + left / rate
        # The epoch in which the last tokens in low precision are trained goes on without them.
        low_s = change_s + progress.low_tokens_left / rate
        low_s = math.ceil(low_s / self.epoch_s - 1e-9) * self.epoch_s
        rest = self._fastest_high
        rest_rate = self.rate(rest)
        if rest_rate <= 0.0:
            return math.inf
        rest_s = (left - progress.low_tokens_left) / rest_rate
        return low_s + self.change_s(best, rest) + rest_s

    def most_tokens(self, seconds: float) -> float:
        """The largest budget that can be trained in a time, tokens.

        Args:
            seconds: from the begin on.
        """
        # Whatever the cap, the time of training grows in proportion to the budget. What changes and
        # a broken epoch take does not, and is at most what it is here or one epoch more.
        training_s = self._least_training_s
        other_s = self.needed_s(self.begin()) - training_s
        if 0.0 < self.low_share < 1.0:
            other_s = self.change_s(PAUSE, self._fastest) + self.gear_change_s + self.epoch_s
        return max(0.0, seconds - other_s) * self.tokens / training_s

    def earliest_deadline_s(self) -> float:
        """The earliest deadline by which the budget can be met, s since 1970."""
        return self.start_s + self.needed_s(self.begin())

    @cached_property
    def _fastest(self) -> TrainingAction:
        return max(self.table.actions(), key=self.rate)

    @cached_property
    def _fastest_high(self) -> TrainingAction:
        """The fastest action that is not of low precision; a pause where there is none."""
        actions = [action for action in self.table.actions() if not action.is_low]
        return max(actions, key=self.rate, default=PAUSE)

    @cached_property
    def _least_training_s(self) -> float:
        """The least time of training the whole budget if changes took none, s."""
        progress = self.begin()
        best, rest = self.fastest(progress), self._fastest_high
        low = min(self.tokens, progress.low_tokens_left) if best.is_low else 0.0
        high = self.tokens - low
        time_s = low / self.rate(best) if low else 0.0
        if not high:
            return time_s
        return time_s + high / self.rate(rest) if self.rate(rest) else math.inf

    # ------------------------------------------------------------ parts of it

    def of(
        self, gears: tuple[Gear, ...] | None = None, widths: tuple[int, ...] | None = None
    ) -> TrainingProblem:
        """The same problem with some gears and widths only.

        The machines that are kept stay those of the whole problem.

        Args:
            gears: which are kept; None: all.
            widths: which are kept; None: all.

        Raises:
            ConfigError: when the budget cannot be met with them.
        """
        part = self.table.only(gears, widths)
        released = self.table.widths[-1] - part.widths[-1]
        return replace(self, table=part, base_w=self.base_w + self.idle_w * released)


def _told(t_s: float) -> str:
    try:
        return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "a time that no calendar reaches"
