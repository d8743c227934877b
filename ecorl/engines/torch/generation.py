"""Generation by transformers on torch: the back-end of the `GenerationEngine` protocol.

`ecorl.engines.registry.build_generation_engine` makes one. No run of ecorl generates with it: the
framework that ecorl attaches to generates itself. It is for those who drive an engine of their own.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.engines.protocol import GenerationRequest, GenerationResult, Int64
from ecorl.engines.torch.engine import pad_like_trl
from ecorl.engines.torch.loading import HOST_DEVICE, host_report, load_model, torch_threads
from ecorl.errors import EngineCrashed, EngineError
from ecorl.records import Stage


class TorchGenerationEngine:
    """Completions by transformers' ``generate``.

    The sampling seed comes with the request; torch's global random state is put back after each
    call, so the caller's stream of random numbers is as if no call had been made.

    Args:
        checkpoint: folder of the policy to begin with, a causal language model.
        device: device profile; ``host_cpu`` runs on the CPU, any other on CUDA.
        threads: torch threads during a call.
        dtype: what the weights are computed in, one of `ecorl.engines.torch.loading.DTYPES`.

    Raises:
        ConfigError: for another dtype.
        CheckpointError: when the folder is missing, broken or of the wrong kind.
        MissingToolError: without torch and transformers, or without CUDA where it is asked for.
    """

    name = "torch"

    def __init__(
        self,
        checkpoint: Path,
        *,
        device: str = HOST_DEVICE,
        threads: int = 1,
        dtype: str = "float32",
    ) -> None:
        self.device = device
        self.version: int | None = None
        self._threads, self._dtype = threads, dtype
        self._lock = threading.Lock()
        self._model: Any = load_model(checkpoint, Stage.GENERATION, device, dtype)

    def load_weights(self, version: int, path: str) -> None:
        """Take the policy's weights from a checkpoint folder.

        Raises:
            CheckpointError: when it cannot be read; the former weights stay.
        """
        model = load_model(Path(path), Stage.GENERATION, self.device, self._dtype)
        with self._lock:
            self._model, self.version = model, version

    def generate(self, request: GenerationRequest) -> GenerationResult:
        """Complete each prompt; greedy when ``temperature`` is 0.

        Raises:
            EngineError: when the engine is closed; `EngineCrashed` when the forward fails.
        """
        started_s = time.perf_counter()
        with self._lock:
            if self._model is None:
                raise EngineError("the torch engine is closed")
            rows = self._generate(request) if request.sample_ids else ()
        return GenerationResult(request.sample_ids, rows, host_report(started_s))

    def close(self) -> None:
        """Drop the model."""
        with self._lock:
            self._model = None

    def _generate(self, request: GenerationRequest) -> tuple[Int64, ...]:
        import torch

        config = self._generation_config(request)
        ids, mask = pad_like_trl(request.token_ids, [0] * len(request.token_ids))
        device = self._model.device
        cuda = [device.index or 0] if device.type == "cuda" else []
        try:
            with (
                torch.random.fork_rng(devices=cuda),
                torch_threads(self._threads),
                torch.no_grad(),
            ):
                torch.manual_seed(request.seed)
                output = self._model.generate(
                    input_ids=torch.from_numpy(ids).to(device),
                    attention_mask=torch.from_numpy(mask).to(device),
                    generation_config=config,
                )
        except (RuntimeError, IndexError, ValueError) as error:
            raise EngineCrashed(f"{type(error).__name__}: {error}") from error
        completions = output[:, ids.shape[1] :].cpu().numpy()
        ends = config.eos_token_id
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        return tuple(_cut_at_end(row, ends) for row in completions)

    def _generation_config(self, request: GenerationRequest) -> Any:
        from transformers import GenerationConfig

        own = self._model.generation_config
        config = {
            "max_new_tokens": request.max_new_tokens,
            "eos_token_id": own.eos_token_id,
            "bos_token_id": own.bos_token_id,
            "pad_token_id": own.pad_token_id if own.pad_token_id is not None else 0,
            "do_sample": request.temperature > 0,
        }
        if request.temperature > 0:
            # The whole distribution: transformers' own default keeps the 50 likeliest tokens.
            config |= {"temperature": request.temperature, "top_k": 0, "top_p": 1.0}
        return GenerationConfig(**config)


def _cut_at_end(row: Int64, ends: list[int]) -> Int64:
    """The row up to its first end token, that token included."""
    hits = np.flatnonzero(np.isin(row, ends))
    return row[: hits[0] + 1].copy() if len(hits) else row.copy()
