"""What a rollout's actor has seen of generation and rewards, by the step they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field

from roll_adapters.ray_jobs.intervals import Interval, union
from roll_adapters.ray_jobs.sizes import RolloutSizes

STEP = "ecorl_step"
"""Key of a request's ``meta_info`` that tells ecorl's own reward workers its step, 0-based."""


@dataclass(slots=True)
class StageTimes:
    """What a stage has computed so far for one step.

    Attributes:
        sizes: rows and tokens.
        intervals: when, as times of the day, s.
    """

    sizes: RolloutSizes = field(default_factory=lambda: RolloutSizes(0, 0, 0, 0))
    intervals: list[Interval] = field(default_factory=list)

    def add(self, sizes: RolloutSizes, intervals: list[Interval]) -> None:
        """Add what was computed in some calls."""
        a, b = self.sizes, sizes
        self.sizes = RolloutSizes(
            a.n_rows + b.n_rows,
            a.n_tokens + b.n_tokens,
            a.n_output_tokens + b.n_output_tokens,
            max(a.max_length, b.max_length),
        )
        self.intervals += intervals


@dataclass(slots=True)
class RolloutTimes:
    """What one or several of them have seen.

    Attributes:
        generation: by step, 0-based as ROLL counts.
        rewards: by step and domain.
    """

    generation: dict[int, StageTimes] = field(default_factory=dict)
    rewards: dict[tuple[int, str], StageTimes] = field(default_factory=dict)

    def generated(self, step: int, sizes: RolloutSizes, interval: Interval) -> None:
        """Note the responses of one call."""
        self.generation.setdefault(step, StageTimes()).add(sizes, [interval])

    def rewarded(self, step: int, domain: str, sizes: RolloutSizes, interval: Interval) -> None:
        """Note the rewards of one call."""
        self.rewards.setdefault((step, domain), StageTimes()).add(sizes, [interval])

    def merge(self, other: RolloutTimes) -> None:
        """Add what another one has seen."""
        for step, times in other.generation.items():
            self.generation.setdefault(step, StageTimes()).add(times.sizes, times.intervals)
        for key, times in other.rewards.items():
            self.rewards.setdefault(key, StageTimes()).add(times.sizes, times.intervals)

    def split(self, step: int) -> tuple[RolloutTimes, RolloutTimes]:
        """What belongs to steps up to one, and what to later ones.

        Args:
            step: 0-based.
        """
        parts = RolloutTimes(), RolloutTimes()
        for number, times in self.generation.items():
            parts[number > step].generation[number] = times
        for key, times in self.rewards.items():
            parts[key[0] > step].rewards[key] = times
        return parts

    def condensed(self) -> RolloutTimes:
        """The same with intervals that overlap put together: less to send."""
        for times in (*self.generation.values(), *self.rewards.values()):
            times.intervals = union(times.intervals)
        return self
