"""Looks at the first prompt of a trainer that is made already, by what its policy reads of it."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from ecorl.engines.validate import EngineBoundary
from roll_adapters.trl.inputs.limits import watch_of

_OR_ELSE = "give prompts as messages, or "


class FirstPrompt:
    """Warns, once, where a policy reads the token that begins a text twice.

    Nothing is taken from a stream, and no transform of the user's is called: such a dataset is
    judged by the first prompt of the training, as are messages and what the user's own
    `rollout_func` reads.

    Args:
        trainer: of TRL.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._is_known = trainer, False
        with EngineBoundary():
            self._look_ahead()

    def _look_ahead(self) -> None:
        rows = self._trainer.train_dataset
        if not isinstance(rows, Dataset) or rows.format["type"] == "custom":
            return
        prompt = rows.select_columns("prompt")[0]["prompt"]  # decodes no images beside it
        if self._is_tokenised(prompt):
            ids = _tokenizer(self._trainer)(text=prompt, verbose=False)["input_ids"]
            self.read([prompt], [ids])

    def _is_tokenised(self, prompt: Any) -> bool:
        """Whether TRL gives a prompt to the tokenizer as it is."""
        return isinstance(prompt, str) and getattr(self._trainer, "rollout_func", None) is None

    def read(self, prompts: Any, prompt_ids: Any) -> None:
        """Look at the prompts of a batch; those of the first count.

        Args:
            prompts: texts or messages.
            prompt_ids: token ids of each, as the policy reads them.
        """
        if self._is_known:
            return
        self._is_known = True
        with EngineBoundary():
            adds = self._is_tokenised(prompts[0])
            watch = watch_of(_tokenizer(self._trainer), "the policy", adds=adds, or_else=_OR_ELSE)
            watch.look(list(prompt_ids[0]), "the first prompt")


def _tokenizer(trainer: Any) -> Any:
    processing = trainer.processing_class
    return getattr(processing, "tokenizer", processing)
