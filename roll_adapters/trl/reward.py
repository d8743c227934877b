"""One reward model of a TRL trainer: what it reads, and TRL's own call of it for some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from trl.data_utils import apply_chat_template, is_conversational

from ecorl.engines.protocol import ScoreBatch


class RewardModelCall:
    """A trainer's first reward function that is a model, which the reward engine answers for.

    Args:
        trainer: the TRL trainer.
        index: its place among the trainer's reward functions.
    """

    def __init__(self, trainer: Any, index: int) -> None:
        self.index = index
        self._trainer = trainer
        self.model = trainer.reward_funcs[index]
        self._tokenizer = trainer.reward_processing_classes[index]

    @classmethod
    def find(cls, trainer: Any) -> RewardModelCall | None:
        """Find the first reward function that is a model; None when none is."""
        for index, function in enumerate(trainer.reward_funcs):
            if isinstance(function, PreTrainedModel):
                return cls(trainer, index)
        return None

    def texts(self, prompts: list[Any], completions: list[Any]) -> list[str]:
        """Join prompts and completions into the texts that TRL lets a reward model read.

        Args:
            prompts: one a row: a text, or a list of chat messages.
            completions: one a row, of the same kind.
        """
        if is_conversational({"prompt": prompts[0]}):
            return [
                apply_chat_template(
                    {"messages": p + c}, self._tokenizer, **self._trainer.chat_template_kwargs
                )["text"]
                for p, c in zip(prompts, completions, strict=True)
            ]
        return [p + c for p, c in zip(prompts, completions, strict=True)]

    def batch(
        self, sample_ids: tuple[str, ...], texts: list[str], n_completion: Sequence[int]
    ) -> ScoreBatch:
        """Make the rows of tokens, each cut where TRL's model would read its reward.

        Args:
            sample_ids: one id a row.
            texts: from `texts`.
            n_completion: tokens of each row's completion.
        """
        pad = self.model.config.pad_token_id
        rows = []
        for ids in self._tokenizer(text=texts, add_special_tokens=False)["input_ids"]:
            row = np.asarray(ids, dtype=np.int64)
            # A reward is read at the last token that is not padding, wherever that token is.
            real = np.flatnonzero(row != pad) if pad is not None else np.arange(len(row))
            rows.append(row[: real[-1] + 1] if len(real) else row[:1])
        return ScoreBatch(
            sample_ids=sample_ids,
            token_ids=tuple(rows),
            n_completion=tuple(
                min(n, len(row) - 1) for n, row in zip(n_completion, rows, strict=True)
            ),
        )

    def exact(self, texts: list[str], rows: Sequence[int]) -> list[Any]:
        """Score some rows as TRL itself does.

        Args:
            texts: of all rows.
            rows: indices of the rows to score.

        Returns:
            One float32 scalar a row.
        """
        inputs = self._tokenizer(
            text=[texts[i] for i in rows],
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        ).to(self._trainer.accelerator.device)
        with torch.inference_mode():
            scores = self.model(**inputs).logits[:, 0]
        return list(scores.float().cpu().numpy())
