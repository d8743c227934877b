"""The tokenizer beside a checkpoint, for texts in which the special tokens stand already.

It is read by the library `tokenizers` alone: transformers, which would also read older files, takes
seconds to import, and a service that is started again has clients that wait.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from ecorl.errors import CheckpointError

TOKENIZER_FILE = "tokenizer.json"


class TextTokenizer:
    """Turns texts into token ids; may be called from several threads.

    Args:
        folder: of the checkpoint.

    Raises:
        CheckpointError: when it holds no tokenizer.json, or one that cannot be read. The message
            does not name the folder.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise CheckpointError(f"the checkpoint holds no {TOKENIZER_FILE}")
        try:
            self._inner = Tokenizer.from_str(path.read_text("utf-8"))
        except Exception as error:  # the library raises no narrower class
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{TOKENIZER_FILE} cannot be read: {reason}") from error
        # The file may say how the rows of a training were cut and filled up.
        self._inner.no_truncation()
        self._inner.no_padding()

    def ids(self, text: str) -> list[int]:
        """Token ids of a text: special tokens are those that stand in it, and none is added."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def to_json(self) -> str:
        """The content of a tokenizer.json for it."""
        text: str = self._inner.to_str()
        return text

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Id of each token, the added ones too."""
        vocab: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return vocab

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token, as it is written in the vocabulary."""
        return max(map(len, self.vocab), default=1)
