"""The exact path of ROLL as an engine: its own worker class, in an accelerator worker.

The numbers of a forward depend on its padding, its micro-batches and its dtype; all three are
ROLL's here. Rows are padded on the right to the pipeline's sequence length and handed to
``ActorWorker.compute_log_probs``, with the strategy ``hf_infer`` in one process.

Registered in the group ``ecorl.engines`` under the name ``roll``.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray import cloudpickle

from ecorl.engines.protocol import LogprobResult, ScoreBatch, ScoreResult
from ecorl.engines.torch.loading import HOST_DEVICE, host_report, loading_errors, shape_of
from ecorl.engines.torch.padding import micro_batches, pad_right
from ecorl.engines.validate import check_batch
from ecorl.errors import CheckpointError, EngineCrashed, EngineError
from ecorl.records import Stage
from roll_adapters.ray_jobs.environment import own_environment

_NAME = "ecorl-reference"
"""Name under which ROLL knows the worker."""


def packed(pipeline_config: Any, worker_config: Any) -> str:
    """Write ROLL's settings as text, for the options of this engine.

    Args:
        pipeline_config: ROLL's, of the job.
        worker_config: of the reference.
    """
    return base64.b64encode(cloudpickle.dumps((pipeline_config, worker_config))).decode("ascii")


class RollEngine:
    """Computes reference log-probs with ROLL's own worker class.

    Args:
        checkpoint: Hugging Face checkpoint folder.
        stage: reference.
        device: profile of the card that the worker is named for; the class computes on the
            process's first GPU, or on the host without one.
        settings: ROLL's, from `packed`.

    Raises:
        CheckpointError: when ROLL cannot load the model.
        EngineError: for another stage.
    """

    name = "roll"
    row_invariant = False

    def __init__(self, checkpoint: Path, stage: Stage, device: str, settings: str) -> None:
        if stage is not Stage.REFERENCE:
            raise EngineError(f"the roll engine computes references, no {stage}")
        # Without a GPU it computes on the host, whatever card the worker is named for.
        self.device = device if torch.cuda.is_available() else HOST_DEVICE
        self.stage = stage
        # One forward at a time, as in an actor.
        self._lock = threading.Lock()
        pipeline_config, worker_config = cloudpickle.loads(base64.b64decode(settings))
        self._width = int(pipeline_config.sequence_length)
        # A process group of its own.
        own = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "CLUSTER_NAME": _NAME}
        with own_environment(**own, WORKER_NAME=f"{_NAME}-{os.getpid()}"):
            self._worker: Any = _worker(pipeline_config, worker_config, checkpoint)
        model = getattr(self._worker.strategy, "model", None)
        self.model = shape_of(model) if hasattr(model, "config") else None

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Raise `EngineError`: ROLL has no class that rewards by a model. See `InferenceEngine`."""
        raise EngineError("the roll engine does not score")

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Compute the log-probability of each completion token, nats. See `InferenceEngine`.

        Raises:
            EngineError: also for a temperature other than 1: the class divides by none.
        """
        if self._worker is None:
            raise EngineError("the roll engine is closed")
        if batch.temperature != 1.0:
            raise EngineError(f"temperature {batch.temperature}: ROLL's references have 1")
        check_batch(batch, self.stage)
        started_s = time.perf_counter()
        values: list[Any] = []
        for part in micro_batches(batch):
            rows, counts = batch.token_ids[part], batch.n_completion[part]
            found = self._forward(rows, counts)
            for row, ids, n in zip(found, rows, counts, strict=True):
                end = len(ids) - 1
                values.append(row[end - n : end].copy())
        return LogprobResult(batch.sample_ids, tuple(values), host_report(started_s))

    def close(self) -> None:
        """Free the model; further calls raise `EngineError`."""
        with self._lock:
            self._worker = None

    def _forward(self, rows: Any, counts: Any) -> Any:
        """Log-probs of one micro-batch, ``[n, S - 1] float32``."""
        from roll.distributed.scheduler.protocol import DataProto

        ids, mask = pad_right(rows)
        tensors = _padded(ids, mask, counts, self._width)
        data = DataProto.from_dict(tensors=tensors)
        data.meta_info = {"is_offload_states": False, "global_step": 0}
        try:
            with self._lock, torch.no_grad():
                answer = self._worker.compute_log_probs(data)
        except (RuntimeError, IndexError, ValueError, KeyError, AttributeError) as error:
            raise EngineCrashed(f"{type(error).__name__}: {error}") from error
        return answer.batch["log_probs"].float().numpy()


def _padded(ids: Any, mask: Any, counts: Any, width: int) -> dict[str, torch.Tensor]:
    """ROLL's tensors of some rows, ``[n, width] int64``."""
    n, length = ids.shape
    tokens = np.zeros((n, width), dtype=np.int64)
    attention, response = np.zeros_like(tokens), np.zeros_like(tokens)
    tokens[:, :length], attention[:, :length] = ids, mask
    for i, count in enumerate(counts):
        end = int(attention[i].sum())
        response[i, end - count : end] = 1
    positions = np.clip(np.cumsum(attention, axis=1) - 1, 0, None)
    arrays = {
        "input_ids": tokens,
        "attention_mask": attention,
        "position_ids": positions,
        "response_mask": response,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _worker(pipeline_config: Any, worker_config: Any, checkpoint: Path) -> Any:
    """Make the worker and load its model."""
    from roll.pipeline.rlvr.actor_worker import ActorWorker

    worker_config.model_args.model_name_or_path = str(checkpoint)
    worker_config.strategy_args.strategy_name = "hf_infer"
    worker_config.strategy_args.strategy_config = {}
    worker_config.use_dynamic_batching_in_infer = False
    pipeline_config.resume_from_checkpoint = False
    try:
        with torch.random.fork_rng(devices=[]):
            worker = ActorWorker(worker_config=worker_config)
            worker.initialize(pipeline_config)
            worker.load_states()
    except loading_errors() as error:
        why = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint} cannot be loaded by ROLL: {why}") from error
    return worker
