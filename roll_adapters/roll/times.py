"""What a rollout's actor has seen of generation and rewards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ecorl.records import Stage
from roll_adapters.ray_jobs.intervals import Interval, union
from roll_adapters.ray_jobs.sizes import RolloutSizes

STEP = "ecorl_step"
"""Key of a request's ``meta_info`` that tells ecorl's own reward workers its step, 0-based."""


NOTHING = RolloutSizes(0, 0, 0, 0)


@dataclass(slots=True)
class StageTimes:
    """What a stage has computed.

    Attributes:
        sizes: rows and tokens.
        intervals: when, as times of the day, s.
    """

    sizes: RolloutSizes = NOTHING
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
    """What was computed for some prompts.

    Attributes:
        generation: of their responses.
        rewards: of their responses, by domain.
    """

    generation: StageTimes = field(default_factory=StageTimes)
    rewards: dict[str, StageTimes] = field(default_factory=dict)

    def generated(self, sizes: RolloutSizes, intervals: list[Interval]) -> None:
        """Note the responses of one call."""
        self.generation.add(sizes, intervals)

    def rewarded(self, domain: str, sizes: RolloutSizes, interval: Interval) -> None:
        """Note the rewards of one call."""
        self.rewards.setdefault(domain, StageTimes()).add(sizes, [interval])

    def merge(self, other: RolloutTimes) -> None:
        """Add what was computed for other prompts."""
        self.generation.add(other.generation.sizes, other.generation.intervals)
        for domain, times in other.rewards.items():
            self.rewards.setdefault(domain, StageTimes()).add(times.sizes, times.intervals)

    def stages(self) -> Iterator[tuple[Stage, str, StageTimes]]:
        """Each stage that has computed anything, with the domain of a reward."""
        if self.generation.intervals:
            yield Stage.GENERATION, "", self.generation
        for domain, times in sorted(self.rewards.items()):
            yield Stage.REWARD, domain, times

    def condensed(self) -> RolloutTimes:
        """The same with intervals that overlap put together: less to send."""
        for times in (self.generation, *self.rewards.values()):
            times.intervals = union(times.intervals)
        return self


@dataclass(slots=True)
class TakenTimes:
    """What the actors of a rollout tell when a batch is there.

    Attributes:
        done: by the step whose batch holds the responses, 0-based as ROLL counts. What was
            computed for prompts that came into no batch is in the step that dropped them.
        ahead: computed for prompts whose responses are in no batch yet, with the times but not the
            sizes of calls that are under way.
    """

    done: dict[int, RolloutTimes] = field(default_factory=dict)
    ahead: RolloutTimes = field(default_factory=RolloutTimes)

    def merge(self, other: TakenTimes) -> None:
        """Add what another actor tells."""
        for step, times in other.done.items():
            self.done.setdefault(step, RolloutTimes()).merge(times)
        self.ahead.merge(other.ahead)
