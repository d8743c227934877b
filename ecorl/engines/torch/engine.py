"""The exact path as an engine: transformers models on torch, with the forward that TRL runs.

The last bits of a float forward depend on the dtype, on the padding and on the rows that share a
forward. A `ScoreBatch` has neither the padding nor the batching of its trainer, so both are rebuilt
as in TRL. For log-probs, prompts are padded on the left to the longest prompt of the batch and
completions on the right to the longest completion, and the rows are cut into micro-batches; for
rewards, rows are padded on the right.

The result is bit for bit TRL's when the dtype is that of the trainer's model, on the same kind of
device, and the trainer runs its frozen models without autocast. Under mixed precision (``bf16`` or
``fp16`` of the training arguments) TRL casts inside the forward, which this engine does not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ecorl.engines.protocol import Float32, Int64, LogprobResult, ScoreBatch, ScoreResult
from ecorl.engines.torch.loading import (
    HOST_DEVICE,
    default_device,
    host_report,
    load_model,
    shape_of,
    torch_threads,
)
from ecorl.engines.validate import check_batch
from ecorl.errors import EngineCrashed, EngineError
from ecorl.records import Stage

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Int64Matrix: TypeAlias = npt.NDArray[np.int64]


class TorchEngine:
    """Computes rewards or reference log-probs with transformers.

    Args:
        checkpoint: folder of a causal language model (stage ``reference``) or of a sequence
            classifier with one label (``reward``, ``critic``).
        stage: the stage that it serves.
        device: name of the device profile that it is booked by.
        torch_device: where it computes, ``cpu`` or a CUDA device such as ``cuda:1``; None: on the
            CPU where the profile is ``host_cpu``, else on CUDA's first device.
        threads: number of torch threads during a call.
        dtype: dtype of the forward, one of `ecorl.engines.torch.loading.DTYPES`; ``auto`` is that
            of the checkpoint.

    Raises:
        ConfigError: for another dtype, or a CUDA device that is not there.
        CheckpointError: when the folder is missing, broken or of the wrong kind.
        MissingToolError: without torch and transformers, or without CUDA where it is asked for.
    """

    name = "torch"
    row_invariant = False

    def __init__(
        self,
        checkpoint: Path,
        stage: Stage,
        *,
        device: str = HOST_DEVICE,
        torch_device: str | None = None,
        threads: int = 1,
        dtype: str = "float32",
    ) -> None:
        self.device = device
        self.stage = stage
        self._threads = threads
        # One forward at a time: the temperature is a property of the patched model.
        self._lock = threading.Lock()
        self._model: Any = load_model(
            checkpoint, stage, torch_device or default_device(device), dtype
        )
        self.model = shape_of(self._model)
        self._head: _LogprobHead | None = None
        if stage is Stage.REFERENCE:
            self._head = _LogprobHead(self._model)

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Compute the scalar reward of each row, read at its last token.

        Returns:
            ``values`` is ``[n_rows] float32``.

        Raises:
            EngineError: when the engine is closed or of another stage, or the batch is not
                valid; `EngineCrashed` when the forward fails.
        """
        if self.stage is Stage.REFERENCE:
            raise EngineError("a reference engine does not score")
        started_s = self._begin(batch)
        values = np.zeros(len(batch), dtype=np.float32)
        if len(batch):
            ids, mask = pad_right(batch.token_ids)
            last = mask.sum(axis=1) - 1
            with self._lock, self._forward():
                for rows in micro_batches(batch):
                    values[rows] = _reward_forward(self._model, ids[rows], mask[rows], last[rows])
        return ScoreResult(batch.sample_ids, values, host_report(started_s))

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Compute the log-probability of each completion token given all earlier ones, in nats.

        Returns:
            ``values[i]`` is ``[n_completion[i]] float32``.

        Raises:
            EngineError: when the engine is closed or of another stage, or the batch is not
                valid; `EngineCrashed` when the forward fails.
        """
        if self._head is None:
            raise EngineError(f"an engine of stage {self.stage} does not give log-probs")
        started_s = self._begin(batch)
        n_keep = max(batch.n_completion, default=0)
        padded = np.zeros((len(batch), n_keep), dtype=np.float32)
        if n_keep:
            ids, mask = pad_like_trl(batch.token_ids, batch.n_completion)
            with self._lock, self._forward():
                for rows in micro_batches(batch):
                    padded[rows] = self._head(ids[rows], mask[rows], n_keep, batch.temperature)
        values = tuple(row[:n].copy() for row, n in zip(padded, batch.n_completion, strict=True))
        return LogprobResult(batch.sample_ids, values, host_report(started_s))

    def close(self) -> None:
        """Free the model; further calls raise `EngineError`."""
        with self._lock:
            self._model = self._head = None

    def _begin(self, batch: ScoreBatch) -> float:
        if self._model is None:
            raise EngineError("the torch engine is closed")
        check_batch(batch, self.stage)
        return time.perf_counter()

    @contextlib.contextmanager
    def _forward(self) -> Iterator[None]:
        """Disable gradients, set the thread count and turn torch's errors into `EngineCrashed`."""
        import torch

        try:
            with torch_threads(self._threads), torch.no_grad():
                yield
        except (RuntimeError, IndexError, ValueError) as error:
            raise EngineCrashed(f"{type(error).__name__}: {error}") from error


def pad_right(rows: tuple[Int64, ...]) -> tuple[Int64Matrix, Int64Matrix]:
    """Pad on the right with 0; returns ids and attention mask, ``[n_rows, longest] int64``."""
    return _pad(rows, [0] * len(rows), max(len(row) for row in rows))


def pad_like_trl(
    rows: tuple[Int64, ...], n_completion: tuple[int, ...] | list[int]
) -> tuple[Int64Matrix, Int64Matrix]:
    """Pad prompts on the left and completions on the right, over the whole batch.

    The pad token is 0 whatever the tokenizer says: masked positions have no weight in the
    attention, so that it does not affect any result.

    Args:
        rows: token ids of each row, prompt and completion, ``[length] int64``.
        n_completion: number of completion tokens at the end of each row.

    Returns:
        Token ids and attention mask, ``[n_rows, longest prompt + longest completion] int64``.
    """
    n_prompt = [len(row) - n for row, n in zip(rows, n_completion, strict=True)]
    longest = max(n_prompt)
    return _pad(rows, [longest - n for n in n_prompt], longest + max(n_completion))


def _pad(rows: tuple[Int64, ...], starts: list[int], width: int) -> tuple[Int64Matrix, Int64Matrix]:
    ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[index, start : start + len(row)] = row
        mask[index, start : start + len(row)] = 1
    return ids, mask


def micro_batches(batch: ScoreBatch) -> Iterator[slice]:
    """Yield the slices of rows that share a forward, in order."""
    size = batch.micro_batch or len(batch)
    for start in range(0, len(batch), size):
        yield slice(start, start + size)


def _reward_forward(model: Any, ids: Int64Matrix, mask: Int64Matrix, last: Int64) -> Float32:
    """Rewards of one micro-batch, ``[n] float32``.

    The classifier's own forward searches for the last token that is not its pad token, and reads
    too early where a row ends with that token; the true position is known here.
    """
    import torch

    device = model.device
    hidden = model.base_model(
        input_ids=torch.from_numpy(ids).to(device),
        attention_mask=torch.from_numpy(mask).to(device),
        use_cache=False,
    ).last_hidden_state
    rows = torch.arange(len(ids), device=device)
    logits = model.score(hidden)[rows, torch.from_numpy(last).to(device), 0]
    return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)


class _LogprobHead:
    """Computes log-probs of completion tokens, by TRL's fused head or, without TRL, an equivalent.

    The equivalent divides the model's logits at the completion positions by the temperature and
    subtracts their log-sum-exp, in float32.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._temperature: float | None = None
        self._fuse = _trl_fused_head()

    def __call__(
        self, ids: Int64Matrix, mask: Int64Matrix, n_keep: int, temperature: float
    ) -> Float32:
        """Log-probs of the last `n_keep` positions, ``[n_rows, n_keep] float32``."""
        import torch

        device = self._model.device
        token_ids = torch.from_numpy(ids).to(device)
        attention = torch.from_numpy(mask).to(device)
        if self._fuse is None:
            values = self._plain(token_ids, attention, n_keep, temperature)
        else:
            values = self._fused(token_ids, attention, n_keep, temperature)
        return np.asarray(values.float().cpu().numpy(), dtype=np.float32)

    def _fused(
        self, ids: torch.Tensor, mask: torch.Tensor, n_keep: int, temperature: float
    ) -> torch.Tensor:
        if temperature != self._temperature and self._fuse is not None:
            # TRL binds the temperature when it patches `forward`; drop the former patch first.
            vars(self._model).pop("forward", None)
            self._fuse(self._model, temperature=temperature)
            self._temperature = temperature
        # TRL's fused head computes log-probs where the label is not -100, and so only where they
        # are asked for.
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :-n_keep] = -100
        output = self._model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        values: torch.Tensor = output.log_probs[:, -n_keep:]
        return values

    def _plain(
        self, ids: torch.Tensor, mask: torch.Tensor, n_keep: int, temperature: float
    ) -> torch.Tensor:
        # One position more than asked for: a token's log-prob is read at the token before it.
        logits = self._model(
            input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=n_keep + 1
        ).logits[:, :-1]
        logits = logits.float() * (1 / temperature)
        targets = ids[:, -n_keep:].unsqueeze(-1)
        values: torch.Tensor = logits.gather(-1, targets).squeeze(-1) - logits.logsumexp(-1)
        return values


def _trl_fused_head() -> Callable[..., None] | None:
    try:
        from trl.trainer.utils import add_fused_lm_head
    except ImportError:
        logger.info("TRL's fused head is not there; log-probs come from the model's own logits")
        return None
    fuse: Callable[..., None] = add_fused_lm_head
    return fuse
