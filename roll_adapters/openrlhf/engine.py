"""The exact path of OpenRLHF as an engine: its own actor classes, in an accelerator worker.

The numbers of a forward depend on its padding, its micro-batches and its dtype; all three are the
framework's here. Rows are padded on the right to the longest of their micro-batch and handed to
``ReferenceModelActor.forward`` or ``RewardModelActor.forward``, which set position ids, divide the
logits by the temperature and read the reward as they always do.

Registered in the group ``ecorl.engines`` under the name ``openrlhf``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ecorl.engines.protocol import Int64, LogprobResult, ScoreBatch, ScoreResult
from ecorl.engines.torch.loading import HOST_DEVICE, host_report, loading_errors, shape_of
from ecorl.engines.torch.padding import micro_batches, pad_right
from ecorl.engines.validate import check_batch
from ecorl.errors import CheckpointError, EngineCrashed, EngineError
from ecorl.records import ModelShape, Stage
from roll_adapters.openrlhf.flags import args_of
from roll_adapters.ray_jobs.environment import own_environment


class OpenRlhfEngine:
    """Computes rewards or reference log-probs with OpenRLHF's own actor class.

    Args:
        checkpoint: Hugging Face checkpoint folder.
        stage: reward or reference.
        device: profile of the card that the worker is named for; the class computes on the
            process's first GPU, or on the host without one.
        flags: OpenRLHF's flags as JSON, from `options_for`.

    Raises:
        CheckpointError: when OpenRLHF cannot load the model.
        EngineCrashed: when its process group cannot be made.
    """

    name = "openrlhf"
    row_invariant = False

    def __init__(self, checkpoint: Path, stage: Stage, device: str, flags: str) -> None:
        # Without a GPU it computes on the host, whatever card the worker is named for.
        self.device = device if torch.cuda.is_available() else HOST_DEVICE
        self.stage = stage
        # One forward at a time, as in an actor.
        self._lock = threading.Lock()
        args = args_of(flags)
        self._temperature = float(args.rollout.temperature)
        # Its model stays here, whatever the job's own copy does.
        args.ref.offload = args.reward.offload = False
        with own_environment():
            self._actor: Any = _actor(stage, args, checkpoint)
        self.model = _shape(self._actor.model)

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Compute the scalar reward of each row, read at its last token. See `InferenceEngine`."""
        if self.stage is Stage.REFERENCE:
            raise EngineError("a reference engine does not score")
        started_s = self._begin(batch)
        values = np.zeros(len(batch), dtype=np.float32)
        for part, ids, mask in self._padded(batch):
            found = self._forward(sequences=ids, attention_mask=mask, pad_sequence=True)
            values[part] = found.float().numpy()
        return ScoreResult(batch.sample_ids, values, host_report(started_s))

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Compute the log-probability of each completion token, nats. See `InferenceEngine`.

        Raises:
            EngineError: also for another temperature than the job's: the class divides by its own.
        """
        if self.stage is not Stage.REFERENCE:
            raise EngineError(f"an engine of stage {self.stage} does not give log-probs")
        if batch.temperature != self._temperature:
            raise EngineError(f"temperature {batch.temperature}, the job's is {self._temperature}")
        started_s = self._begin(batch)
        values: list[Any] = []
        for _, ids, mask in self._padded(batch):
            found = self._forward(sequences=ids, action_mask=mask[:, 1:], attention_mask=mask)
            ends = (mask.sum(1) - 1).tolist()
            for row, end in zip(found.float().numpy(), ends, strict=True):
                n = batch.n_completion[len(values)]
                values.append(row[end - n : end].copy())
        return LogprobResult(batch.sample_ids, tuple(values), host_report(started_s))

    def close(self) -> None:
        """Free the model; further calls raise `EngineError`."""
        with self._lock:
            self._actor = None

    def _begin(self, batch: ScoreBatch) -> float:
        if self._actor is None:
            raise EngineError("the openrlhf engine is closed")
        check_batch(batch, self.stage)
        return time.perf_counter()

    def _padded(self, batch: ScoreBatch) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """The micro-batches, padded as OpenRLHF pads them; masked tokens do not count."""
        for part in micro_batches(batch):
            rows: tuple[Int64, ...] = batch.token_ids[part]
            ids, mask = pad_right(rows)
            yield part, torch.from_numpy(ids), torch.from_numpy(mask)

    def _forward(self, **tensors: Any) -> torch.Tensor:
        try:
            with self._lock, torch.no_grad():
                answer: torch.Tensor = self._actor.forward(**tensors)
                return answer
        except (RuntimeError, IndexError, ValueError) as error:
            raise EngineCrashed(f"{type(error).__name__}: {error}") from error


def _actor(stage: Stage, args: Any, checkpoint: Path) -> Any:
    """Make the actor and load its model."""
    if not torch.cuda.is_available():
        _compute_on_cpu()
    from openrlhf.trainer.ray import launcher
    from openrlhf.utils import get_strategy

    kind = launcher.ReferenceModelActor if stage is Stage.REFERENCE else launcher.RewardModelActor
    # The class itself, without the actor that Ray makes of it: this process is one already.
    actor = kind.__ray_metadata__.modified_class(1, 0, None, None)
    # The strategy remembers the number of processes of its own group: one.
    try:
        with torch.random.fork_rng(devices=[]):
            actor.init_model_from_pretrained(get_strategy(args), str(checkpoint))
    except loading_errors() as error:
        why = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint} cannot be loaded by OpenRLHF: {why}") from error
    return actor


def _compute_on_cpu() -> None:
    """Prepare this process, which has no GPU, for classes that ask CUDA for their device."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    cpu = torch.device("cpu")
    replaced: dict[str, Any] = {"current_device": lambda: cpu}
    for name in ("empty_cache", "synchronize", "set_device"):
        replaced[name] = lambda *_, **__: None
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)
    from openrlhf.utils.deepspeed import deepspeed as strategy

    make = strategy.init_device_mesh
    strategy.init_device_mesh = lambda _, *args, **kwargs: make("cpu", *args, **kwargs)


def _shape(model: Any) -> ModelShape:
    """Count the parts of the model behind DeepSpeed's and OpenRLHF's wrappers."""
    while hasattr(model, "module"):
        model = model.module
    inner = getattr(model, "model", model) if not hasattr(model, "config") else model
    while hasattr(inner, "module"):
        inner = inner.module
    return shape_of(inner)
