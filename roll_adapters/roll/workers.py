"""A worker of ROLL's whose reward model can move: name it as ``worker_cls`` under ``rewards``.

    rewards:
      general:
        worker_cls: roll_adapters.roll.workers.RewardModelWorker
        model_args: {model_name_or_path: reward-model}     # a sequence classifier with one label

ROLL rewards sample by sample, while others are still generated. Requests that arrive while a batch
is computed make up the next one, of up to ``infer_batch_size`` rows. Each batch is a stage: it goes
where the run's policy places it, and rows that an engine does not answer are computed here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto

from ecorl.engines.protocol import Float32, ScoreBatch
from ecorl.engines.torch.engine import TorchEngine
from ecorl.engines.torch.loading import HOST_DEVICE
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Stage
from ecorl.runtime.handles import Iteration
from ecorl.runtime.overhead import HookTime
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.ray_jobs.comparison import record_comparison
from roll_adapters.ray_jobs.models import local_folder
from roll_adapters.ray_jobs.sizes import RolloutSizes, completion_lengths
from roll_adapters.roll.invitation import WorkerInvitation, invited
from roll_adapters.roll.stages.roles import REWARD_PREFIX, reward_role
from roll_adapters.roll.stages.rows import made_of
from roll_adapters.roll.times import STEP

logger = logging.getLogger(__name__)

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(slots=True, eq=False)
class _Request:
    """Samples that wait for their rewards."""

    token_ids: list[Any]
    n_completion: list[int]
    ids: list[str]
    step: int
    answer: asyncio.Future[Float32]


class RewardModelWorker(Worker):
    """Rewards responses by a scalar reward model, here or on an accelerator worker.

    Args:
        worker_config: ROLL's.
    """

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config=worker_config)
        self._waiting: list[_Request] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "ecorl-reward")
        self._exact_lock = threading.Lock()
        self._runtime: RemoteRuntime | None = None
        self._invitation: WorkerInvitation | None = None
        self._iterations: dict[int, Iteration] = {}
        self._count = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def initialize(self, pipeline_config: Any) -> None:
        """Load the model. See ROLL."""
        super().initialize(pipeline_config)
        self._invitation = invited(pipeline_config)
        self._domain = str(self.cluster_name).removeprefix(REWARD_PREFIX)
        arguments = self.worker_config.model_args
        folder = local_folder(str(arguments.model_name_or_path))
        if folder is None:
            raise FileNotFoundError(f"reward model {arguments.model_name_or_path} is not here")
        device = "cuda" if torch.cuda.is_available() else HOST_DEVICE
        dtype = _DTYPES.get(str(arguments.dtype), "float32")
        self._engine = TorchEngine(folder, Stage.REWARD, device=device, dtype=dtype)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_states(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the model stays loaded. See ROLL."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the model stays loaded. See ROLL."""

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    async def compute_rewards(self, data: Any) -> Any:
        """Reward some responses.

        Args:
            data: ROLL's ``DataProto`` with ``input_ids``, ``attention_mask`` and ``response_mask``
                ``[n, S] int64``, padded on the right, and ``responses`` ``[n, R]``.

        Returns:
            A ``DataProto`` with ``token_level_rewards`` ``[n, R] float32``, all 0, and
            ``response_level_rewards`` and ``scores`` ``[n] float32``.
        """
        request = self._request(data)
        self._waiting.append(request)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        scores = torch.from_numpy(await request.answer)
        tensors = {
            "token_level_rewards": torch.zeros_like(data.batch["responses"], dtype=torch.float32),
            "response_level_rewards": scores,
            "scores": scores.clone(),
        }
        return DataProto.from_dict(tensors=tensors)

    def _request(self, data: Any) -> _Request:
        attention = data.batch["attention_mask"].bool()
        rows = [
            ids[mask].numpy().astype(np.int64)
            for ids, mask in zip(data.batch["input_ids"], attention, strict=True)
        ]
        step = int(data.meta_info.get(STEP, data.meta_info.get("global_step", 0)))
        first = self._count
        self._count += len(rows)
        ids = [f"{step + 1}.{self.rank}.{first + i}" for i in range(len(rows))]
        counts = completion_lengths(data.batch["attention_mask"], made_of(data)).tolist()
        return _Request(rows, counts, ids, step, asyncio.get_running_loop().create_future())

    # ------------------------------------------------------------ batches

    async def _work(self) -> None:
        """Compute what waits, a batch after the other, until nothing does."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken = self._take()
            try:
                values = await loop.run_in_executor(self._thread, self._rewards, taken)
            except Exception as error:  # noqa: BLE001 - ROLL's own caller is given it
                for request in taken:
                    if not request.answer.cancelled():
                        request.answer.set_exception(error)
                continue
            start = 0
            for request in taken:
                end = start + len(request.ids)
                if not request.answer.cancelled():
                    request.answer.set_result(values[start:end])
                start = end

    def _take(self) -> list[_Request]:
        """Requests of one step, of no more rows than a batch has; at least one request."""
        first = self._waiting[0]
        taken: list[_Request] = []
        n_rows = 0
        for request in [r for r in self._waiting if r.step == first.step]:
            if taken and n_rows + len(request.ids) > int(self.worker_config.infer_batch_size):
                break
            taken.append(request)
            n_rows += len(request.ids)
        self._waiting = [r for r in self._waiting if r not in taken]
        return taken

    def _rewards(self, requests: Sequence[_Request]) -> Float32:
        """Reward a batch where the policy places it: ``[n] float32``."""
        batch = ScoreBatch(
            sample_ids=tuple(i for r in requests for i in r.ids),
            token_ids=tuple(ids for r in requests for ids in r.token_ids),
            n_completion=(0,) * sum(len(r.ids) for r in requests),
        )
        values: Float32 | None = None
        with EngineBoundary() as boundary:
            values = self._placed(batch, requests)
        if values is None:
            if boundary.error is not None:
                logger.warning("ecorl: %s: %s", type(boundary.error).__name__, boundary.error)
            values = self._exact(batch, range(len(batch)))
        return values

    def _placed(self, batch: ScoreBatch, requests: Sequence[_Request]) -> Float32 | None:
        """Reward a batch as a stage of the run; None where this process takes no part in one."""
        runtime = self._joined()
        if runtime is None:
            return None
        lengths = [len(ids) for ids in batch.token_ids]
        n_output = sum(n for r in requests for n in r.n_completion)
        sizes = RolloutSizes(len(batch), sum(lengths), n_output, max(lengths))
        shape = runtime.training.models.get(reward_role(self._domain))
        work = sizes.work(Stage.REWARD, shape, role_name=self._domain)
        run = runtime.on_stage_start(self._iteration(runtime, requests[0].step), work)
        if run.placement.on_gpu or not runtime.submit(run, lambda: batch, lands_here=True):
            values = self._exact(batch, range(len(batch)))
            runtime.on_stage_end(run)
            return values
        landed = runtime.land(run)
        filled = runtime.fill(run, landed, lambda bad: list(self._exact(batch, bad)))
        if self._invitation is not None and self._invitation.compares:
            # Once an attempt of a run, on its first batch.
            self._invitation = None
            exact = list(self._exact(batch, range(len(batch))))
            record_comparison(runtime.record, Stage.REWARD, filled, exact)
        return np.asarray(filled, dtype=np.float32).reshape(-1)

    def _joined(self) -> RemoteRuntime | None:
        if self._runtime is None and self._invitation is not None:
            self._runtime = self._invitation.open()
            if self._runtime is None:
                self._invitation = None  # asked once
        return self._runtime

    async def leave_run(self) -> HookTime:
        """Wait until the run has all that this worker told it; gives ecorl's own time here."""
        if self._runtime is None:
            return HookTime()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._runtime.close)
        return self._runtime.clock.time

    def _iteration(self, runtime: RemoteRuntime, step: int) -> Iteration:
        if step not in self._iterations:
            self._iterations = {step: runtime.begin_iteration(step + 1, step)}
        return self._iterations[step]

    def _exact(self, batch: ScoreBatch, rows: Sequence[int]) -> Float32:
        """Reward some rows with the model of this process: ``[len(rows)] float32``."""
        some = ScoreBatch(
            sample_ids=tuple(batch.sample_ids[i] for i in rows),
            token_ids=tuple(batch.token_ids[i] for i in rows),
            n_completion=tuple(batch.n_completion[i] for i in rows),
        )
        with self._exact_lock:
            return self._engine.score(some).values
