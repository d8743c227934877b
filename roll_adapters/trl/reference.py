"""One call of a TRL trainer for reference log-probs: its rows, and TRL's own answer to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ecorl.engines.protocol import ScoreBatch
from ecorl.records import ModelShape, Stage, StageWork


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """Arguments of ``_get_per_token_logps_and_entropies`` for the reference model.

    Attributes:
        original: the trainer's own method.
        model: the reference model.
        input_ids: ``[n_rows, n_prompt + logits_to_keep] int64``, prompts padded on the left,
            completions on the right.
        attention_mask: same shape, 1 for real tokens.
        logits_to_keep: length of the completions' part.
        batch_size: rows a forward, or None for all at once.
    """

    original: Callable[..., Any]
    model: Any
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    logits_to_keep: int
    batch_size: int | None

    @property
    def n_rows(self) -> int:
        """Number of rows in the call."""
        return int(self.input_ids.shape[0])

    @property
    def mask(self) -> torch.Tensor:
        """``[n_rows, logits_to_keep] bool``: where completions have real tokens."""
        return self.attention_mask[:, -self.logits_to_keep :].bool()

    def work(self, shape: ModelShape | None) -> StageWork:
        """Describe the call as work of the reference stage; ``shape`` is the reference model's."""
        mask = self.mask
        return StageWork(
            stage=Stage.REFERENCE,
            n_sequences=self.n_rows,
            n_tokens=int(self.attention_mask.sum()),
            n_output_tokens=int(mask.sum()),
            max_length=int(self.attention_mask.sum(1).max()),
            model=shape,
        )

    def batch(self, sample_ids: tuple[str, ...], temperature: float) -> ScoreBatch:
        """Make the rows for an engine, without padding.

        Args:
            sample_ids: one id a row.
            temperature: the logits are divided by it.
        """
        ids = self.input_ids.cpu().numpy()
        keep = self.attention_mask.bool().cpu().numpy()
        return ScoreBatch(
            sample_ids=sample_ids,
            token_ids=tuple(row[k].astype(np.int64) for row, k in zip(ids, keep, strict=True)),
            n_completion=tuple(int(n) for n in self.mask.sum(1).cpu()),
            temperature=temperature,
            micro_batch=self.batch_size,
        )

    def unfilled(self) -> torch.Tensor:
        """Make the tensor that the barrier fills, ``[n_rows, logits_to_keep] float32``.

        It holds NaN until then, so that a loss that reads it too early is NaN and not wrong.
        """
        shape = (self.n_rows, self.logits_to_keep)
        return torch.full(shape, torch.nan, dtype=torch.float32, device=self.input_ids.device)

    def exact(self, rows: Sequence[int]) -> list[Any]:
        """Compute some rows as TRL itself does; one ``[n_completion] float32`` a row."""
        index = torch.as_tensor(list(rows), device=self.input_ids.device)
        with torch.no_grad():
            answers = self.original(
                self.model,
                self.input_ids[index],
                self.attention_mask[index],
                self.logits_to_keep,
                self.batch_size,
            )[0]
        masks = self.mask[index].cpu()
        return [a[m].numpy() for a, m in zip(answers.float().cpu(), masks, strict=True)]

    def fill(self, target: torch.Tensor, rows: Sequence[Any]) -> None:
        """Write the answers into the tensor from `unfilled`, with 0 where there is no token.

        Args:
            target: the tensor; it is changed in place, since TRL holds it already.
            rows: one ``[n_completion] float32`` a row.
        """
        # Filled on the host first: one copy to the device, however many rows there are.
        filled = torch.zeros(target.shape, dtype=torch.float32)
        filled[self.mask.cpu()] = torch.from_numpy(np.concatenate(rows))
        target.copy_(filled)
