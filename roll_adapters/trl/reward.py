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
    """The first reward function of a trainer that is a model; the reward engine stands for it.

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
        """The call of the first reward function that is a model, or None."""
        for index, function in enumerate(trainer.reward_funcs):
            if isinstance(function, PreTrainedModel):
                return cls(trainer, index)
        return None

    def texts(self, prompts: list[Any], completions: list[Any]) -> list[str]:
        """What TRL lets a reward model read: prompt and completion as one text."""
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
        """The texts as rows of tokens, cut where TRL's model would read its reward."""
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
        """TRL's own call of the model, for some rows: one float32 scalar a row."""
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
