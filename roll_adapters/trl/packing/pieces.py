"""One call of a TRL trainer for log-probs, cut into micro-batches and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ecorl.engines.packing import Indices, PackedTokens

LogProbs = tuple[torch.Tensor, torch.Tensor | None, Any]
"""Log-probs and entropies of completion tokens, ``[n_rows, n_keep]``, and a loss of experts."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A micro-batch: some rows, and the columns in which one of them has a token.

    Attributes:
        rows: their indices, on the device of the rows.
        begin: first column.
        end: column behind the last.
        n_keep: columns of completions among them.
    """

    rows: torch.Tensor
    begin: int
    end: int
    n_keep: int

    @property
    def n_tokens(self) -> int:
        """Its tokens, padding included."""
        return len(self.rows) * (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class LogProbCall:
    """Arguments of ``_get_per_token_logps_and_entropies`` without images.

    Attributes:
        original: the trainer's own method.
        model: that computes them.
        input_ids: ``[n_rows, width] int64``, prompts padded on the left, completions on the right.
        attention_mask: same shape, 1 for real tokens.
        n_keep: columns of the completions.
        options: further arguments of the method, which say nothing of single rows.
    """

    original: Callable[..., LogProbs]
    model: Any
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    n_keep: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_inputs(
        cls, original: Callable[..., LogProbs], model: Any, inputs: Mapping[str, Any]
    ) -> LogProbCall:
        """Make the call that the loss makes for a micro-batch.

        Args:
            original: the trainer's own method.
            model: that is trained.
            inputs: of the micro-batch.
        """
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        return cls(original, model, ids, mask, int(inputs["completion_ids"].shape[1]))

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole batch, padding included."""
        return int(self.input_ids.numel())

    def lengths(self, *, trims_prompts: bool) -> Indices:
        """Columns that each row needs: of its prompt and of its completion, ``[n_rows, 2]``.

        Both are at least 1: a token's log-prob is read at the token before it.

        Args:
            trims_prompts: whether a row's results stay where there is less padding before it.
        """
        mask = self.attention_mask.bool().cpu().numpy()
        n_prompt = mask.shape[1] - self.n_keep
        prompts = _reach(mask[:, :n_prompt][:, ::-1])
        if not trims_prompts:
            prompts[:] = n_prompt
        return np.maximum(np.stack([prompts, _reach(mask[:, n_prompt:])], axis=1), 1)

    def pieces(self, cut: Sequence[Indices], lengths: Indices) -> list[PackedRows]:
        """Make the micro-batches.

        Args:
            cut: indices of the rows of each.
            lengths: from `lengths`.
        """
        n_prompt = self.input_ids.shape[1] - self.n_keep
        found = []
        for rows in cut:
            prompt, completion = (int(n) for n in lengths[rows].max(axis=0))
            index = torch.from_numpy(rows).to(self.input_ids.device)
            found.append(PackedRows(index, n_prompt - prompt, n_prompt + completion, completion))
        return found

    def of(self, piece: PackedRows) -> LogProbs:
        """Compute a micro-batch.

        Args:
            piece: from `pieces`.
        """
        columns = slice(piece.begin, piece.end)
        ids, mask = self.input_ids[piece.rows, columns], self.attention_mask[piece.rows, columns]
        return self.original(self.model, ids, mask, piece.n_keep, **self.options)

    def whole(self, batch_size: int | None) -> LogProbs:
        """Compute all rows as the trainer does.

        Args:
            batch_size: rows of its forward passes; None: all.
        """
        return self.original(
            self.model,
            self.input_ids,
            self.attention_mask,
            self.n_keep,
            batch_size,
            **self.options,
        )

    def packed(self, pieces: Sequence[PackedRows]) -> LogProbs:
        """Compute all rows micro-batch by micro-batch.

        Args:
            pieces: of all rows.
        """
        log_probs = entropies = None
        for piece in pieces:
            found = self.of(piece)
            log_probs = self.put(log_probs, found[0], piece)
            entropies = None if found[1] is None else self.put(entropies, found[1], piece)
        assert log_probs is not None
        return log_probs, entropies, None

    def put(
        self, whole: torch.Tensor | None, part: torch.Tensor, piece: PackedRows
    ) -> torch.Tensor:
        """Put the results of a micro-batch where its rows stand, with 0 where there is no token.

        Args:
            whole: where they are put; None: nothing is known yet.
            part: ``[n, piece.n_keep]``.
            piece: whose results they are.

        Returns:
            ``[n_rows, n_keep]``, through which gradients of `part` flow.
        """
        if whole is None:
            whole = part.new_zeros((self.input_ids.shape[0], self.n_keep))
        whole[piece.rows, : piece.n_keep] = part
        return whole

    def told(self, pieces: Sequence[PackedRows]) -> PackedTokens:
        """Say what packing made of the rows.

        Args:
            pieces: of all rows.
        """
        n_computed = sum(piece.n_tokens for piece in pieces)
        return PackedTokens(len(pieces), int(self.attention_mask.sum()), n_computed, self.n_tokens)


def _reach(mask: np.ndarray[Any, Any]) -> Indices:
    """Number of columns up to the last one with a token, by row; 0 for a row without one."""
    last = mask.shape[1] - np.argmax(mask[:, ::-1], axis=1) if mask.shape[1] else 0
    return np.where(mask.any(axis=1), last, 0).astype(np.int64)
