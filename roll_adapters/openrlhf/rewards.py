"""Times what of a rollout was generation and what was reward.

OpenRLHF fetches rewards inside the rollout: as soon as a completion is there, its actor asks the
reward service or function, while other completions are still generated. Each response brings the
times of its own parts along; generation then lasted while at least one completion was computed, and
the reward while at least one was waited for.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Mapping
from typing import Any

from ecorl.records import ModelShape, Stage, StageWork
from roll_adapters.ray_jobs.intervals import Interval, monotonic, union

TIMES = "_ecorl_times"
"""Key of a response under which its times travel."""

_fetches: contextvars.ContextVar[list[tuple[float, float]] | None] = contextvars.ContextVar(
    "ecorl_reward_fetches", default=None
)


class TimedEngine:
    """A rollout engine that notes when it generates.

    Args:
        engine: OpenRLHF's own.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.intervals: list[Interval] = []

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate one completion. See OpenRLHF."""
        start_s = time.time()
        try:
            return await self._engine.generate(*args, **kwargs)
        finally:
            self.intervals.append((start_s, time.time()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


async def timed_execution(execute: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run one rollout of OpenRLHF's executor, and let its response tell its times.

    They are times of the day: the response may be read on another machine.

    Args:
        execute: OpenRLHF's own method.
        arguments: of the call, by name.
    """
    engine = TimedEngine(arguments["llm_engine"])
    fetches: list[Interval] = []
    token = _fetches.set(fetches)
    try:
        response = await execute(**{**arguments, "llm_engine": engine})
    finally:
        _fetches.reset(token)
    if isinstance(response, dict):
        response[TIMES] = (engine.intervals, fetches)
    return response


async def timed_fetch(fetch: Callable[[], Any]) -> Any:
    """Fetch a reward, and note when.

    Args:
        fetch: OpenRLHF's own way.
    """
    start_s = time.time()
    try:
        return await fetch()
    finally:
        noted = _fetches.get()
        if noted is not None:
            noted.append((start_s, time.time()))


class ResponseTimes:
    """The responses of one rollout batch: their tokens, and when their parts were computed."""

    def __init__(self) -> None:
        self.n_responses = 0
        self._n_tokens = self._n_made = self._n_completion = self._longest = 0
        self._generated: list[Interval] = []
        self._fetched: list[Interval] = []

    def add(self, response: Mapping[str, Any]) -> None:
        """Add a response of OpenRLHF's executor."""
        n_tokens = len(response["observation_tokens"])
        self.n_responses += 1
        self._n_tokens += n_tokens
        actions = response["action_ranges"]
        self._n_made += sum(end - start for start, end in actions)
        # What an environment says between actions and behind them is read with them.
        self._n_completion += n_tokens - min((start for start, _ in actions), default=n_tokens)
        self._longest = max(self._longest, n_tokens)
        generated, fetched = response.get(TIMES, ((), ()))
        self._generated += generated
        self._fetched += fetched

    def work(self, stage: Stage, shape: ModelShape | None) -> StageWork:
        """Describe generation, or the rewards of all responses.

        Args:
            stage: which of the two.
            shape: of its model.
        """
        n_output = self._n_made if stage is Stage.GENERATION else self._n_completion
        n, longest = self.n_responses, self._longest
        return StageWork(stage, n, self._n_tokens, n_output, longest, shape)

    @property
    def generation(self) -> list[Interval]:
        """When at least one completion was computed, monotonic s of this machine."""
        return monotonic(union(self._generated))

    @property
    def rewards(self) -> list[Interval]:
        """When at least one reward was waited for, monotonic s of this machine."""
        return monotonic(union(self._fetched))
