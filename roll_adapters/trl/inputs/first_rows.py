"""Looks at the first prompt of a trainer that is made already, by what its policy reads of it."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from ecorl.engines.containment import EngineBoundary
from ecorl.engines.models.doubled_begin import DoubledBegin
from roll_adapters.trl.inputs.limits import watch_of

_FIRST = "the first prompt"
_OR_ELSE = "give prompts as messages, or "


class FirstPrompt:
    """Warns, once, where a policy reads the token that begins a text twice.

    Nothing is taken from a stream, and no transform of the user's is called: such a dataset is
    judged by the first prompt of the training.

    Args:
        trainer: of TRL.
    """

    def __init__(self, trainer: Any) -> None:
        self._watch: DoubledBegin | None = None
        with EngineBoundary():
            self._watch = self._made(trainer)

    def _made(self, trainer: Any) -> DoubledBegin | None:
        """Look at the first row, and keep what looks at the first prompt where that shows none."""
        processing = trainer.processing_class
        tokenizer = getattr(processing, "tokenizer", processing)
        watch = watch_of(tokenizer, "the policy", adds=True, or_else=_OR_ELSE)
        rows = trainer.train_dataset
        is_plain = isinstance(rows, list) or (
            isinstance(rows, Dataset) and rows.format["type"] != "custom"
        )
        prompt = rows[0]["prompt"] if is_plain else None
        if not isinstance(prompt, str):
            return watch
        watch.look(tokenizer(text=prompt, verbose=False)["input_ids"], _FIRST)
        return None

    def read(self, prompt_ids: Any) -> None:
        """Look at the prompts of a batch; those of the first count.

        Args:
            prompt_ids: token ids of each, as the policy reads them.
        """
        watch, self._watch = self._watch, None
        if watch is not None:
            with EngineBoundary():
                watch.look(list(prompt_ids[0]), _FIRST)
