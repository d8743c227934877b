"""The rows of a step, between ROLL's padded batches and an engine's plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ecorl.engines.protocol import Float32, Int64, ScoreBatch
from roll_adapters.ray_jobs.sizes import RolloutSizes

ORDER = "prompt_id"
"""Key of the tensor ``[B] int64`` by which rows are told apart within a step. ROLL reorders a batch
to even out the load of its workers: a row's place in it says nothing."""

_NO_LABEL = -100
"""Label of a token that a loss leaves out, in all of Hugging Face's models."""


def sizes_of(batch: Any) -> RolloutSizes:
    """Count the tokens that a pass over a batch computes.

    Args:
        batch: ROLL's ``DataProto``, as for `made_of`.
    """
    return RolloutSizes.of([(batch.batch["attention_mask"], made_of(batch))])


def made_of(batch: Any) -> Any:
    """Find where the completions of a batch begin: ``[B, S]``, as for `completion_lengths`.

    Args:
        batch: ROLL's ``DataProto`` with ``attention_mask`` and ``response_mask`` ``[B, S]``;
            without one (distillation, fine-tuning) the tokens with a label count as the
            response's, and of preference pairs (``prompt_id_lens``) those behind the prompt.
    """
    tensors = batch.batch
    attention = tensors["attention_mask"].long()
    if "response_mask" in tensors:
        made = tensors["response_mask"].bool()
        if "prompt_mask" in tensors:  # tells of a response that the loss leaves out as a whole
            made = made | (attention.bool() & ~tensors["prompt_mask"].bool())
        return made
    if "prompt_id_lens" in tensors:
        return attention * (attention.cumsum(1) > tensors["prompt_id_lens"][:, None])
    return tensors["labels"] != _NO_LABEL


class StepRows:
    """Rows of a step as an engine takes them, and its answers as ROLL takes those.

    A batch has ``input_ids``, ``attention_mask`` and ``response_mask`` ``[B, S] int64``, padded on
    the right. Log-probs are ``[B, S - 1] float32``: entry j is of token j + 1.

    Args:
        batch: ROLL's ``DataProto``; its tensors must stay as they are.
        label: of the step; the ids of its rows begin with it.
    """

    def __init__(self, batch: Any, label: str) -> None:
        tensors = batch.batch
        self._mask = tensors["response_mask"].cpu()
        self._order = tensors[ORDER].cpu()
        self._attention = tensors["attention_mask"].cpu().bool()
        self._ids = tensors["input_ids"].cpu()
        self._lengths = self._attention.sum(1).tolist()
        self._label = label

    def __len__(self) -> int:
        return len(self._order)

    @cached_property
    def _first(self) -> list[int]:
        """Place of each row's first token of the response; its length for a row without one."""
        found = []
        for mask, length in zip(self._mask.bool(), self._lengths, strict=True):
            where = torch.nonzero(mask[:length])
            found.append(int(where[0]) if len(where) else length)
        return found

    def batch(self, micro_batch: int | None) -> ScoreBatch:
        """Make the rows for an engine, without padding.

        A response reaches from its first token to the row's last one; where another party spoke in
        between (several turns) its tokens are computed and masked later.

        Args:
            micro_batch: rows a forward pass on the exact path.
        """
        token_ids: list[Int64] = [
            ids[mask].numpy().astype(np.int64)
            for ids, mask in zip(self._ids, self._attention, strict=True)
        ]
        lengths = zip(self._lengths, self._first, strict=True)
        return ScoreBatch(
            sample_ids=tuple(f"{self._label}.{row}" for row in self._order.tolist()),
            token_ids=tuple(token_ids),
            n_completion=tuple(length - first for length, first in lengths),
            micro_batch=micro_batch,
        )

    def logprobs(self, values: Sequence[Float32]) -> torch.Tensor:
        """Put the log-probs of responses into ROLL's shape, 0 where there is no response.

        Args:
            values: one ``[n_completion] float32`` a row.

        Returns:
            ``[B, S - 1] float32``.
        """
        filled = torch.zeros((len(self), self._mask.shape[1] - 1), dtype=torch.float32)
        for i, value in enumerate(values):
            end = self._lengths[i] - 1
            filled[i, end - len(value) : end] = torch.from_numpy(np.asarray(value, np.float32))
        masked: torch.Tensor = filled * self._mask[:, 1:].float()
        return masked

    def responses(self, logprobs: torch.Tensor) -> list[Float32]:
        """Those of the response's own tokens, without what was said in between.

        Args:
            logprobs: ``[B, S - 1] float32``.
        """
        masks = self._mask[:, 1:].bool()
        return [row[mask].float().cpu().numpy() for row, mask in zip(logprobs, masks, strict=True)]

    def picked(self, rows: Sequence[int], logprobs: torch.Tensor) -> list[Float32]:
        """Pick the answers to some rows out of ROLL's own.

        Args:
            rows: indices of the rows.
            logprobs: ``[len(rows), S - 1] float32``, in their order.

        Returns:
            One ``[n_completion] float32`` a row.
        """
        return [
            answer[self._first[row] - 1 : self._lengths[row] - 1].float().cpu().numpy()
            for row, answer in zip(rows, logprobs, strict=True)
        ]
