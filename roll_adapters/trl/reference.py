"""One call of a TRL trainer for log-probs: its rows, and TRL's own answer to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ecorl.engines.protocol import ScoreBatch
from ecorl.records import ModelShape, Stage, StageWork
from roll_adapters.trl.masks import computed, reach


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """Arguments of ``_get_per_token_logps_and_entropies``, as a rule for the reference model.

    Attributes:
        original: the trainer's own method.
        model: the reference model, or the policy before it trains.
        input_ids: ``[n_rows, n_prompt + logits_to_keep] int64``, prompts padded on the left,
            completions on the right.
        attention_mask: same shape, 0 for padding and for completions that the loss leaves out.
        logits_to_keep: length of the completions' part.
        batch_size: rows a forward, or None for all at once.
        pad_token_id: of the policy's tokenizer.
    """

    original: Callable[..., Any]
    model: Any
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    logits_to_keep: int
    batch_size: int | None
    pad_token_id: int

    @property
    def n_rows(self) -> int:
        """Number of rows in the call."""
        return int(self.input_ids.shape[0])

    @property
    def attended(self) -> torch.Tensor:
        """``[n_rows, logits_to_keep] bool``: the part of completions that is not masked."""
        return self.attention_mask[:, -self.logits_to_keep :].bool()

    @property
    def sent(self) -> torch.Tensor:
        """``[n_rows, logits_to_keep] bool``: the tokens of completions that an engine computes.

        They are those that the trainer's own pass computes, but for masked ones before others:
        there the others are computed as if they were not there.
        """
        attended = self.attended
        return attended | (self._computed & ~reach(attended))

    @property
    def _computed(self) -> torch.Tensor:
        ids = self.input_ids[:, -self.logits_to_keep :]
        return computed(ids, self.attended, self.pad_token_id)

    def work(self, stage: Stage, shape: ModelShape | None) -> StageWork:
        """Describe the call as work of a stage.

        Args:
            stage: the stage.
            shape: of its model.
        """
        n_completion = self._computed.sum(1)
        n_tokens = self.attention_mask[:, : -self.logits_to_keep].sum(1) + n_completion
        return StageWork(
            stage=stage,
            n_sequences=self.n_rows,
            n_tokens=int(n_tokens.sum()),
            n_output_tokens=int(n_completion.sum()),
            max_length=int(n_tokens.max()),
            model=shape,
        )

    def batch(self, sample_ids: tuple[str, ...], temperature: float) -> ScoreBatch:
        """Make the rows for an engine, without padding.

        Args:
            sample_ids: one id a row.
            temperature: the logits are divided by it.
        """
        ids = self.input_ids.cpu().numpy()
        sent = self.sent
        prompts = self.attention_mask[:, : -self.logits_to_keep].bool()
        keep = torch.cat([prompts, sent], dim=1).cpu().numpy()
        return ScoreBatch(
            sample_ids=sample_ids,
            token_ids=tuple(row[k].astype(np.int64) for row, k in zip(ids, keep, strict=True)),
            n_completion=tuple(int(n) for n in sent.sum(1).cpu()),
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
        masks = self.sent[index].cpu()
        return [a[m].numpy() for a, m in zip(answers.float().cpu(), masks, strict=True)]

    def fill(self, target: torch.Tensor, rows: Sequence[Any]) -> None:
        """Write the answers into the tensor from `unfilled`, with 0 where none counts.

        Args:
            target: the tensor; it is changed in place, since TRL holds it already.
            rows: one ``[n_completion] float32`` a row.
        """
        # Filled on the host first: one copy to the device, however many rows there are.
        filled = torch.zeros(target.shape, dtype=torch.float32)
        filled[self.sent.cpu()] = torch.from_numpy(np.concatenate(rows))
        target.copy_(filled.masked_fill(~self.attended.cpu(), 0.0))
