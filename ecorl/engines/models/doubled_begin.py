"""Rows that begin twice with the token that begins a text (BOS).

A chat template writes it, and many tokenizers add it to each text. A model that reads both has not
been trained on such rows: it answers worse, and no error says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class DoubledBegin:
    """Warns, once, of a model's rows that begin twice.

    Args:
        model: what to call the model.
        begin: tokens that begin a text; empty: there are none, and nothing is warned of.
        text: how they are written, where that is known.
        mend: what to do where the text has the token once and a tokenizer adds another.
        adds: whether rows come from a tokenizer that adds the token.
    """

    def __init__(
        self,
        model: str,
        begin: Sequence[int],
        text: str = "",
        mend: str = "",
        *,
        adds: bool = False,
    ) -> None:
        self._model, self._begin, self._mend, self._adds = model, list(begin), mend, adds
        self._token = f"{text or 'the token that begins a text'} (id {', '.join(map(str, begin))})"
        self._has_told = False

    def look(self, row: Sequence[int], where: str) -> None:
        """Look at the first tokens of a row.

        Args:
            row: token ids.
            where: the row for the warning, e.g. its file and line.
        """
        n = len(self._begin)
        if self._has_told or not n or list(row[: 2 * n]) != self._begin * 2:
            return
        self._has_told = True
        is_added = self._adds and list(row[2 * n : 3 * n]) != self._begin
        why = (
            f"the text has it, and the tokenizer adds one; {self._mend}"
            if is_added
            else "leave one out"
        )
        logger.warning(
            "%s: %s reads %s twice: %s",
            where, self._model, self._token, why,
        )  # fmt: skip


def added_begin(tokenizer: Any) -> list[int]:
    """Tokens that a tokenizer of transformers adds before each text; empty where it cannot be told.

    Args:
        tokenizer: the tokenizer, told to add its special tokens.
    """
    specials = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    added = tokenizer(text="", verbose=False)["input_ids"]
    # Not any word: a vocabulary without it may have no token for unknown words, and refuse it.
    for id, text in specials if added else ():
        if id not in added:
            ids = list(tokenizer(text=text, verbose=False)["input_ids"])
            return ids[: ids.index(id)] if id in ids else []
    return []


def own_begin(tokenizer: Any) -> list[int]:
    """The token that begins a text where it stands in the text itself; see `only_begin`.

    Args:
        tokenizer: of transformers.
    """
    return only_begin(tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)


def begin_of(folder: Path) -> list[int]:
    """The token that begins a text by a checkpoint's config.json; see `only_begin`.

    Args:
        folder: of the checkpoint.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        ids = (config.get(f"{name}_token_id") for name in ("bos", "eos", "pad"))
    except (OSError, ValueError, AttributeError):
        return []
    return only_begin(*ids)


def only_begin(bos: Any, *others: Any) -> list[int]:
    """The token that begins a text, where it has no other meaning.

    Args:
        bos: its id.
        *others: ids of what ends texts or fills rows up, numbers or lists of them: a row may begin
            with several of those.
    """
    taken = [id for other in others for id in (other if isinstance(other, list) else [other])]
    return [bos] if isinstance(bos, int) and bos not in taken else []
