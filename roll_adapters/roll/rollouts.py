"""What happens in the actors that schedule ROLL's rollouts: generation and rewards are timed.

ROLL generates and rewards sample by sample inside these actors, past the dispatch of its driver.
`WatchedScheduler` stands in the place of its class and keeps the times until the driver asks for
them. Generation lasted while at least one response was computed, without the times for which ROLL
holds back all requests (updates of the weights); a reward while at least one was waited for. Both
are booked to the step whose batch holds the response, which for an asynchronous rollout may be a
later one than that in which it was generated. Rewards by ecorl's own workers are booked when they
are computed, to the step whose batch is collected at the time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from roll.distributed.scheduler import generate_scheduler

from roll_adapters.ray_jobs.intervals import Interval, without
from roll_adapters.ray_jobs.sizes import RolloutSizes
from roll_adapters.roll.stages.rows import sizes_of
from roll_adapters.roll.times import NOTHING, STEP, RolloutTimes, TakenTimes

_PAUSES = 16
"""Pauses of a rollout that are remembered: more than a response outlasts."""

OWN_WORKERS = "roll_adapters."
"""With which the paths of ecorl's own worker classes begin; they tell of themselves."""


class WatchedContext(generate_scheduler.RolloutContext):
    """The rollout of one prompt, whose calls are timed."""

    async def generate(self, req: Any, domain: str) -> Any:
        """Generate the responses to a prompt. See ROLL."""
        start_s = time.time()
        with self._under_way("", start_s):
            data = await super().generate(req=req, domain=domain)
        self._note(lambda times: times.generated(_sizes(req, data), self._awake(start_s)))
        return data

    async def compute_rewards(self, req: Any, domain: str) -> Any:
        """Reward the responses to a prompt. See ROLL."""
        if domain in getattr(self._scheduler, "ecorl_told_elsewhere", ()):
            req.meta_info[STEP] = self._scheduler.ecorl_step
            try:
                return await super().compute_rewards(req=req, domain=domain)
            finally:
                req.meta_info.pop(STEP, None)
        start_s = time.time()
        with self._under_way(domain, start_s):
            rewards = await super().compute_rewards(req=req, domain=domain)
        self._note(lambda times: times.rewarded(domain, sizes_of(req), _since(start_s)))
        return rewards

    @contextmanager
    def _under_way(self, domain: str, start_s: float) -> Iterator[None]:
        """Have it known that a call of training is under way; a domain is that of a reward."""
        running = {} if self.is_val else getattr(self._scheduler, "ecorl_running", {})
        key = object()
        running[key] = (domain, start_s)
        try:
            yield
        finally:
            del running[key]

    def _awake(self, start_s: float) -> list[Interval]:
        return without((start_s, time.time()), self._scheduler.ecorl_pauses)

    def _note(self, note: Callable[[RolloutTimes], None]) -> None:
        """Note a call of training; what cannot be counted is not measured."""
        pending = getattr(self._scheduler, "ecorl_pending", None)
        if pending is None or self.is_val:
            return
        try:
            note(pending.setdefault(self.prompt_id, RolloutTimes()))
        except (LookupError, AttributeError, TypeError, ValueError, RuntimeError):
            return  # a rollout loop of the user's may hand over what ROLL's own does not


class WatchedScheduler(generate_scheduler.DynamicSamplingScheduler):
    """Schedules rollouts as ROLL's own class does, and keeps their times."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        generate_scheduler.RolloutContext = WatchedContext
        self.ecorl_pending: dict[int, RolloutTimes] = {}
        self.ecorl_done: dict[int, RolloutTimes] = {}
        self.ecorl_running: dict[object, tuple[str, float]] = {}
        self.ecorl_pauses: deque[Interval] = deque(maxlen=_PAUSES)
        self.ecorl_step = 0
        super().__init__(*args, **kwargs)
        self.ecorl_told_elsewhere = frozenset(
            domain
            for domain, cluster in self.reward_clusters.items()
            if str(cluster.worker_config.worker_cls).startswith(OWN_WORKERS)
        )

    async def get_batch(self, data: Any, global_step: int, batch_size: int) -> Any:
        """Collect the batch of a step. See ROLL."""
        self.ecorl_step = global_step
        if self.ecorl_pauses:
            begin_s, end_s = self.ecorl_pauses.pop()
            self.ecorl_pauses.append((begin_s, min(end_s, time.time())))
        batch = await super().get_batch(data, global_step, batch_size)
        self._end_prompts(global_step)
        self.ecorl_step = global_step + 1
        return batch

    async def pause_sampling(self) -> None:
        """Hold all requests back until the next batch is asked for. See ROLL."""
        await super().pause_sampling()
        # The driver asks for it as well where the scheduler has paused already.
        if not self.ecorl_pauses or self.ecorl_pauses[-1][1] < math.inf:
            self.ecorl_pauses.append((time.time(), math.inf))

    def _end_prompts(self, step: int) -> None:
        """Book prompts that are neither under way nor wait for a later batch to a step."""
        open_prompts = _open_prompts(self)
        for prompt_id in self.ecorl_pending.keys() - open_prompts:
            done = self.ecorl_done.setdefault(step, RolloutTimes())
            done.merge(self.ecorl_pending.pop(prompt_id))

    async def take_rollout_times(self, step: int) -> TakenTimes:
        """Give what was seen and not given yet.

        Args:
            step: whose batch was collected, 0-based; batches of later ones are kept.
        """
        taken = TakenTimes()
        for number in [n for n in self.ecorl_done if n <= step]:
            taken.done[number] = self.ecorl_done.pop(number).condensed()
        for times in self.ecorl_pending.values():
            taken.ahead.merge(times)
        for domain, start_s in self.ecorl_running.values():
            if domain:
                taken.ahead.rewarded(domain, NOTHING, (start_s, time.time()))
            else:
                since = without((start_s, time.time()), self.ecorl_pauses)
                taken.ahead.generated(NOTHING, since)
        taken.ahead.condensed()
        return taken


def _open_prompts(scheduler: Any) -> set[int]:
    """Prompts in ROLL's buffer: those under way, and those whose responses are in no batch yet."""
    try:
        buffer = scheduler.replay_buffer
        waiting = [item for group in buffer.groups.values() for item in group.finished_prompts]
        return {*buffer.prompt_id_to_start_step, *(r.prompt_id for item in waiting for r in item)}
    except (AttributeError, TypeError):
        return set()


def _since(start_s: float) -> Interval:
    return start_s, time.time()


def _sizes(req: Any, data: Any) -> RolloutSizes:
    """Rows and tokens of the responses to one prompt.

    A response that an update of the weights has cut goes on in a call of its own, whose prompt
    holds what there is of it: the row was counted before, its tokens are read again.
    """
    responses = data.meta_info["output_token_ids"] if data is not None else []
    n_prompt, n_output = int(req.batch["attention_mask"][0].sum()), sum(map(len, responses))
    longest = n_prompt + max(map(len, responses), default=0)
    n_rows = 0 if "pre_output_token_ids" in req.meta_info else len(responses)
    return RolloutSizes(n_rows, len(responses) * n_prompt + n_output, n_output, longest)
