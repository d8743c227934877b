"""Generates and rewards a domain's prompts, one beside the other, and hands out whole batches."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.protocol import DataProto
from roll.utils.import_utils import safe_import_class


class RolloutContext:
    """What a rollout loop works with: one prompt, and the workers that answer it."""

    def __init__(
        self, scheduler: DynamicSamplingScheduler, prompt_id: int, meta_info: dict[str, Any]
    ) -> None:
        self._scheduler, self.prompt_id = scheduler, prompt_id
        self.meta_info = copy.deepcopy(meta_info)
        self.pipeline_config, self.is_val = scheduler.pipeline_config, scheduler.is_val
        self.domain: str | None = None
        self.sampling_start_step: int | None = None
        self._slots: asyncio.Semaphore | None = None

    def get_request_data(self, meta_info: dict[str, Any]) -> tuple[DataProto, str]:
        """The prompt, as who generates takes it, and its domain."""
        row = self._scheduler.row_of(self.prompt_id)
        self.domain = row["domain"]
        req = DataProto.from_single_dict(self._scheduler.collate([row]))
        req.meta_info = copy.deepcopy(meta_info)
        return req, self.domain

    @contextlib.asynccontextmanager
    async def do_generate_and_reward(self, max_concurrency: int) -> AsyncIterator[None]:
        """Samples are made within this block alone."""
        assert self._slots is None, "a prompt is sampled once"
        self._slots = asyncio.Semaphore(max_concurrency)
        self.sampling_start_step = self._scheduler.global_step
        yield

    async def generate(self, req: DataProto, domain: str) -> DataProto:
        assert self._slots is not None, "generate() belongs into do_generate_and_reward()"
        async with self._slots:
            return await self._scheduler.next_actor().generate_request.remote(req)

    async def compute_rewards(self, req: DataProto, domain: str) -> DataProto:
        assert self._slots is not None, "rewards belong into do_generate_and_reward()"
        reward_worker = self._scheduler.next_reward(domain)
        return await reward_worker.compute_rewards.remote(req)


@dataclass
class ExperienceItem:
    """A response that waits for a batch."""

    prompt_id: int
    data: DataProto


@dataclass
class ItemsGroup:
    """Prompts that were begun in one step."""

    finished_prompts: deque[list[ExperienceItem]] = field(default_factory=deque)


class ReplayBuffer:
    """Prompts between their begin and their batch.

    All that a step may begin is begun at once: without asynchronous generation its own batch, else
    further ones, as the ratio says. The first that are ready are the first that are handed over.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio, self.n_allowed = ratio, 0
        self.groups: dict[int, ItemsGroup] = {}
        self.prompt_id_to_start_step: dict[int, int] = {}

    def advance_step(self, step: int, n_prompts: int) -> None:
        if not self.n_allowed:
            self.n_allowed = math.ceil(n_prompts * self.ratio)
        self.n_allowed += n_prompts
        self.groups[step] = ItemsGroup()

    def commit(self, prompt_id: int, data: DataProto) -> None:
        step = self.prompt_id_to_start_step.pop(prompt_id)
        self.groups[step].finished_prompts.append([ExperienceItem(prompt_id, data)])

    def waiting(self) -> list[list[ExperienceItem]]:
        return [item for group in self.groups.values() for item in group.finished_prompts]

    def take(self, n_prompts: int) -> list[ExperienceItem]:
        """The oldest that are ready, in the order of their prompts."""
        taken: list[ExperienceItem] = []
        for group in self.groups.values():
            while group.finished_prompts and len(taken) < n_prompts:
                taken += group.finished_prompts.popleft()
        return sorted(taken, key=lambda item: item.prompt_id)


class DynamicSamplingScheduler:
    def __init__(
        self,
        pipeline_config: Any,
        actor_cluster: Cluster,
        reward_clusters: dict[str, Cluster],
        dataset: list[dict[str, Any]],
        collect_fn_cls: Callable[..., Any] | None = None,
        collect_fn_kwargs: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
        is_val: bool = False,
    ) -> None:
        self.pipeline_config, self.is_val = pipeline_config, is_val
        self.actor_cluster, self.reward_clusters = actor_cluster, reward_clusters
        self.dataset, self.meta_info, self.global_step = dataset, {}, -1
        self.collate = collect_fn_cls(**(collect_fn_kwargs or {}))
        self.dataset_iter_count: int = (state or {}).get("dataset_iter_count", 0)
        self._actors = itertools.cycle(actor_cluster.workers)
        self._rewards = {d: itertools.cycle(c.workers) for d, c in reward_clusters.items()}
        self.replay_buffer = ReplayBuffer(0 if is_val else pipeline_config.async_generation_ratio)
        self._sampled: set[asyncio.Task[None]] = set()
        self._orders: dict[int, list[int]] = {}
        self._loop: Any = None
        self._n_begun = 0

    async def initialize(self) -> None:
        self._loop = safe_import_class(self.pipeline_config.user_defined_rollout_loop_cls)()

    async def get_batch(self, data: DataProto, global_step: int, batch_size: int) -> DataProto:
        """The samples of so many prompts, in the order of the prompts."""
        start = time.monotonic()
        self.meta_info = {**data.meta_info, "global_step": global_step}
        self.global_step = global_step
        buffer = self.replay_buffer
        buffer.advance_step(global_step, batch_size)
        while self._n_begun < buffer.n_allowed:
            self._n_begun += 1
            task = asyncio.create_task(self._sample(self._next_prompt()))
            self._sampled.add(task)
        while len(buffer.waiting()) < batch_size:
            done, self._sampled = await asyncio.wait(
                self._sampled, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        batch = self.collect_items_as_batch(buffer.take(batch_size))
        batch.meta_info["metrics"] = {"time/scheduler/get_batch": time.monotonic() - start}
        return batch

    @staticmethod
    def collect_items_as_batch(finished_items: list[ExperienceItem]) -> DataProto:
        return DataProto.concat([item.data for item in finished_items])

    async def pause_sampling(self) -> None:
        """Come to rest before weights change: what was begun is ended with the weights it has."""
        await asyncio.gather(*self._sampled, return_exceptions=True)

    async def shutdown(self) -> None:
        for task in self._sampled:
            task.cancel()
        await self.pause_sampling()
        self._sampled = set()

    def get_scheduler_state(self) -> dict[str, Any]:
        return {"dataset_iter_count": self.dataset_iter_count}

    # ------------------------------------------------------------ prompts

    async def _sample(self, prompt_id: int) -> None:
        while True:
            self.replay_buffer.prompt_id_to_start_step[prompt_id] = self.global_step
            context = RolloutContext(scheduler=self, prompt_id=prompt_id, meta_info=self.meta_info)
            samples = await self._loop.process_new_prompt(context)
            if samples is not None:
                self.replay_buffer.commit(prompt_id, samples)
                return
            # A loop may drop a prompt; another one takes its place.
            del self.replay_buffer.prompt_id_to_start_step[prompt_id]
            prompt_id = self._next_prompt()

    def _next_prompt(self) -> int:
        self.dataset_iter_count += 1
        return self.dataset_iter_count - 1

    def row_of(self, prompt_id: int) -> dict[str, Any]:
        """The data set's rows in an order of each round's own."""
        turn, place = divmod(prompt_id, len(self.dataset))
        if turn not in self._orders:
            order = list(range(len(self.dataset)))
            random.Random(f"{self.pipeline_config.seed}-{turn}").shuffle(order)
            self._orders[turn] = order
        return self.dataset[self._orders[turn][place]]

    def next_actor(self) -> Any:
        return next(self._actors)

    def next_reward(self, domain: str) -> Any:
        return next(self._rewards[domain])
