"""One reward model of a TRL trainer: what it reads, and TRL's own call of it for some rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from trl.data_utils import apply_chat_template, is_conversational

from ecorl.engines.protocol import Int64, ScoreBatch, reward_position
from ecorl.records import Role, Stage, role_of

OTHER = "other"
"""Role name of what is no reward model, beside reward models: functions, tokenizing, gathering."""


class RewardModelCall:
    """A trainer's reward function that is a model, which an engine of its own may answer for.

    Args:
        trainer: the TRL trainer.
        index: its place among the trainer's reward functions.
        role_name: tells it from the trainer's other reward models; empty for the only one.
    """

    def __init__(self, trainer: Any, index: int, role_name: str = "") -> None:
        self.index, self.role_name = index, role_name
        self._trainer = trainer
        self.model = trainer.reward_funcs[index]
        self._tokenizer = trainer.reward_processing_classes[index]

    @classmethod
    def find_all(cls, trainer: Any) -> list[RewardModelCall]:
        """Find the reward functions that are models, in the trainer's order."""
        own = [i for i, f in enumerate(trainer.reward_funcs) if isinstance(f, PreTrainedModel)]
        if len(own) < 2:
            return [cls(trainer, i) for i in own]
        names = role_names([str(trainer.reward_func_names[i]) for i in own])
        return [cls(trainer, i, name) for i, name in zip(own, names, strict=True)]

    @property
    def role(self) -> Role:
        """Its role, e.g. ``reward`` or ``reward:math``."""
        return role_of(Stage.REWARD, self.role_name)

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
        rows = rows_to_score(self.model, self._tokenizer, texts)
        return ScoreBatch(
            sample_ids=sample_ids,
            token_ids=rows,
            n_completion=tuple(
                min(n, len(row) - 1) for n, row in zip(n_completion, rows, strict=True)
            ),
            reads_last=True,
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


def rows_to_score(model: Any, tokenizer: Any, texts: Sequence[str]) -> tuple[Int64, ...]:
    """Tokenise texts as TRL does, and cut each row where TRL's model reads its reward.

    A TRL trainer sets the pad token of its models, so that it may differ from the checkpoint's: an
    engine reads such rows at their last token (`ScoreBatch.reads_last`).

    Args:
        model: the trainer's reward model.
        tokenizer: of that model.
        texts: prompt and completion as one text each.
    """
    pad = model.config.get_text_config().pad_token_id
    found = tokenizer(text=list(texts), add_special_tokens=False)["input_ids"]
    rows = [np.asarray(ids, dtype=np.int64) for ids in found]
    return tuple(row[: reward_position(row, pad) + 1] for row in rows)


def role_names(names: Sequence[str]) -> list[str]:
    """Names of a stage's models that can stand in a role: each once, without colons and spaces.

    A name that several have, or that means the other reward functions, gets a number behind it.

    Args:
        names: what the trainer calls them, e.g. the last parts of their folders.
    """
    plain = [re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "model" for name in names]
    taken = {name for name in plain if plain.count(name) == 1 and name != OTHER} | {OTHER}
    found = []
    for name in plain:
        own = name
        if plain.count(name) > 1 or name == OTHER:
            own = next(o for o in (f"{name}-{i}" for i in itertools.count()) if o not in taken)
            taken.add(own)
        found.append(own)
    return found
