"""Generates and rewards a domain's prompts, one beside the other, and hands out whole batches."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
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
        self._sampled: list[asyncio.Task[DataProto]] = []
        self._orders: dict[int, list[int]] = {}
        self._loop: Any = None

    async def initialize(self) -> None:
        self._loop = safe_import_class(self.pipeline_config.user_defined_rollout_loop_cls)()

    async def get_batch(self, data: DataProto, global_step: int, batch_size: int) -> DataProto:
        """The samples of so many prompts, in the order of the prompts."""
        start = time.monotonic()
        self.meta_info = {**data.meta_info, "global_step": global_step}
        self.global_step = global_step
        # Those that were begun ahead of time come first.
        self._sample_up_to(batch_size)
        own, self._sampled = self._sampled[:batch_size], self._sampled[batch_size:]
        batch = self.collect_items_as_batch(await asyncio.gather(*own))
        batch.meta_info["metrics"] = {"time/scheduler/get_batch": time.monotonic() - start}
        if not self.is_val:
            self._sample_up_to(int(self.pipeline_config.async_generation_ratio * batch_size))
        return batch

    @staticmethod
    def collect_items_as_batch(finished_items: list[DataProto]) -> DataProto:
        return DataProto.concat(finished_items)

    async def pause_sampling(self) -> None:
        """Come to rest before weights change: what was begun is ended with the weights it has."""
        await asyncio.gather(*self._sampled, return_exceptions=True)

    async def shutdown(self) -> None:
        for task in self._sampled:
            task.cancel()
        await self.pause_sampling()
        self._sampled = []

    def get_scheduler_state(self) -> dict[str, Any]:
        return {"dataset_iter_count": self.dataset_iter_count}

    # ------------------------------------------------------------ prompts

    def _sample_up_to(self, n_prompts: int) -> None:
        while len(self._sampled) < n_prompts:
            self._sampled.append(asyncio.create_task(self._sample(self._next_prompt())))

    async def _sample(self, prompt_id: int) -> DataProto:
        while True:
            context = RolloutContext(scheduler=self, prompt_id=prompt_id, meta_info=self.meta_info)
            samples = await self._loop.process_new_prompt(context)
            if samples is not None:
                return samples
            # A loop may drop a prompt; another one takes its place.
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
