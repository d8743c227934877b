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

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ecorl.engines.packing import COMPARED_EVERY, relative_difference
from ecorl.engines.protocol import (
    EngineReport,
    Float32,
    Int64,
    LogprobResult,
    ScoreBatch,
    ScoreResult,
)
from ecorl.engines.torch import loading, padding
from ecorl.engines.validate import EngineBoundary, check_batch
from ecorl.errors import EngineError
from ecorl.records import Stage

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


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
        device: str = loading.HOST_DEVICE,
        torch_device: str | None = None,
        threads: int = 1,
        dtype: str = "float32",
    ) -> None:
        self.device = device
        self.stage = stage
        self._threads = threads
        # One forward at a time: the temperature is a property of the patched model.
        self._lock = threading.Lock()
        self._model: Any = loading.load_model(
            checkpoint, stage, torch_device or loading.default_device(device), dtype
        )
        self.model = loading.shape_of(self._model)
        self._pad: int | None = self._model.config.get_text_config().pad_token_id
        self._n_packed = 0
        self._head: _LogprobHead | None = None
        if stage is Stage.REFERENCE:
            self._head = _LogprobHead(self._model)

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Compute the scalar reward of each row, read at `ScoreBatch.reward_positions`.

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
        report = None
        if len(batch):
            with self._lock, loading.forward_pass(self._threads):
                forwards = list(padding.reward_forwards(batch))
                values = self._rewards(batch, forwards)
                report = self._report(batch, forwards, values, started_s)
        return ScoreResult(batch.sample_ids, values, report or loading.host_report(started_s))

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
        padded = np.zeros((len(batch), 0), dtype=np.float32)
        report = None
        if max(batch.n_completion, default=0):
            with self._lock, loading.forward_pass(self._threads):
                forwards = self._log_prob_forwards(batch)
                padded = self._log_probs(batch, forwards)
                report = self._report(batch, forwards, padded, started_s)
        values = tuple(row[:n].copy() for row, n in zip(padded, batch.n_completion, strict=True))
        return LogprobResult(batch.sample_ids, values, report or loading.host_report(started_s))

    def close(self) -> None:
        """Free the model; further calls raise `EngineError`."""
        with self._lock:
            self._model = self._head = None

    def _rewards(self, batch: ScoreBatch, forwards: Sequence[padding.ForwardPass]) -> Float32:
        values = np.zeros(len(batch), dtype=np.float32)
        read = np.array(batch.reward_positions(self._pad))
        for forward in forwards:
            values[forward.rows] = _reward_forward(self._model, forward, read[forward.rows])
        return values

    def _log_prob_forwards(self, batch: ScoreBatch) -> list[padding.ForwardPass]:
        trims = batch.token_budget is not None and padding.has_relative_positions(self._model)
        return list(padding.log_prob_forwards(batch, trims_prompts=trims))

    def _log_probs(self, batch: ScoreBatch, forwards: Sequence[padding.ForwardPass]) -> Float32:
        assert self._head is not None
        values = np.zeros((len(batch), max(batch.n_completion)), dtype=np.float32)
        for forward in forwards:
            values[forward.rows, : forward.n_keep] = self._head(forward, batch.temperature)
        return values

    def _report(
        self,
        batch: ScoreBatch,
        forwards: list[padding.ForwardPass],
        values: Float32,
        started_s: float,
    ) -> EngineReport:
        """Report the time, and of packed rows what it saved; now and then they are compared.

        The rows are then computed once more without packing, behind the span that the report
        names, so that it counts to no time and no energy of theirs.
        """
        report = loading.host_report(started_s)
        if batch.token_budget is None:
            return report
        packing = padding.packed_tokens(batch, forwards, None)
        if packing.n_computed == packing.n_unpacked:
            return replace(report, packing=packing)  # as they were: there is nothing to compare
        self._n_packed += 1
        if (self._n_packed - 1) % COMPARED_EVERY:
            return replace(report, packing=packing)
        end_s = time.monotonic()
        # A comparison is for the record alone: the answer stands without it.
        with EngineBoundary():
            packing = replace(packing, difference=self._difference(batch, values))
        span_s = (end_s - report.host_time_s, end_s)
        return replace(report, packing=packing, span_s=span_s)

    def _difference(self, batch: ScoreBatch, values: Float32) -> float:
        """Largest difference to the same rows unpacked, as a share of the largest value."""
        plain = padding.as_padded(batch)
        others = (
            self._rewards(plain, list(padding.reward_forwards(plain)))
            if self._head is None
            else self._log_probs(plain, self._log_prob_forwards(plain))
        )
        return relative_difference(_real(batch, values), _real(batch, others))

    def _begin(self, batch: ScoreBatch) -> float:
        if self._model is None:
            raise EngineError("the torch engine is closed")
        check_batch(batch, self.stage)
        return time.perf_counter()


def _real(batch: ScoreBatch, values: Float32) -> Float32:
    """Values of rows, without those at places where a row has no token."""
    if values.ndim == 1:
        return values
    n_completion = np.array(batch.n_completion)
    real: Float32 = values[np.arange(values.shape[1]) < n_completion[:, np.newaxis]]
    return real


def _reward_forward(model: Any, forward: padding.ForwardPass, read: Int64) -> Float32:
    """Rewards of one micro-batch, ``[n] float32``, each read at a position of its row.

    The classifier's own forward finds these positions by its pad token, and takes no second row
    without one; rows are padded with other tokens here.
    """
    import torch

    device = model.device
    hidden = model.base_model(
        input_ids=torch.from_numpy(forward.ids).to(device),
        attention_mask=torch.from_numpy(forward.mask).to(device),
        use_cache=False,
    ).last_hidden_state
    rows = torch.arange(len(forward.ids), device=device)
    logits = model.score(hidden)[rows, torch.from_numpy(read).to(device), 0]
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

    def __call__(self, forward: padding.ForwardPass, temperature: float) -> Float32:
        """Log-probs at the completions' positions, ``[n_rows, n_keep] float32``."""
        import torch

        device = self._model.device
        token_ids = torch.from_numpy(forward.ids).to(device)
        attention = torch.from_numpy(forward.mask).to(device)
        if self._fuse is None:
            values = self._plain(token_ids, attention, forward.n_keep, temperature)
        else:
            values = self._fused(token_ids, attention, forward.n_keep, temperature)
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
