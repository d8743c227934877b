"""Reads held-out preference pairs from a JSON-lines file, as token ids or as text.

    {"chosen_ids": [5, 9, 2], "rejected_ids": [5, 7, 2]}
    {"chosen": "...", "rejected": "..."}                      with a tokenizer beside the model
    {"prompt": "...", "chosen": "...", "rejected": "..."}     the prompt goes before both

Texts get no special tokens, as TRL's trainers give them to a reward model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.engines.fpga.verdict import SIDES
from ecorl.engines.models.text_tokenizer import DoubledBegin, begin_of, own_begin
from ecorl.engines.protocol import Int64
from ecorl.engines.torch.loading import loading_errors
from ecorl.errors import CheckpointError, DataError, MissingToolError

ALLOWED = (
    'allowed is {"chosen_ids": [...], "rejected_ids": [...]} or {"chosen": "...", "rejected": '
    '"..."}, with or without "prompt": "..."'
)

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenPair:
    """One pair: token ids ``[length] int64`` of both texts, and its line in the file (from 1)."""

    chosen: Int64
    rejected: Int64
    line: int


@dataclass(frozen=True, slots=True)
class HeldOutPairs:
    """Different pairs; a repeated one, in either order, adds no information and is left out.

    Attributes:
        pairs: the different pairs, at their first occurrence.
        n_repeated: pairs that were left out.
    """

    pairs: tuple[TokenPair, ...]
    n_repeated: int


def different(pairs: Iterable[TokenPair], limit: int | None = None) -> HeldOutPairs:
    """Keep each pair once.

    Args:
        pairs: all pairs.
        limit: different pairs at most; None: all.
    """
    kept: dict[frozenset[bytes], TokenPair] = {}
    n_read = 0
    for pair in pairs:
        n_read += 1
        kept.setdefault(frozenset((pair.chosen.tobytes(), pair.rejected.tobytes())), pair)
        if limit is not None and len(kept) >= limit:
            break
    return HeldOutPairs(tuple(kept.values()), n_read - len(kept))


def read_pairs(
    path: Path, checkpoint: Path, vocab_size: int, limit: int | None = None
) -> HeldOutPairs:
    """Read and check pairs.

    Args:
        path: the JSON-lines file; empty lines are skipped.
        checkpoint: model folder, whose tokenizer turns text into tokens.
        vocab_size: token ids are below it.
        limit: different pairs at most; None: all.

    Raises:
        DataError: naming the file, the line, and what is allowed there.
        CheckpointError: when the tokenizer is there and cannot be loaded.
        MissingToolError: when text needs transformers, which is not installed.
    """
    reader = _Reader(path, checkpoint, vocab_size)
    found = different((reader.pair(number, line) for number, line in _lines(path)), limit)
    if not found.pairs:
        raise DataError(f"{path}: holds no pairs; a line is needed for each: {ALLOWED}")
    begin = DoubledBegin(f"the reward model ({checkpoint})", begin_of(checkpoint) or reader.begin())
    for pair in found.pairs:
        for row in (pair.chosen, pair.rejected):
            begin.look(row[:2].tolist(), f"{path}:{pair.line}")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        # Not splitlines, which also splits at U+2028: JSON may contain it.
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text file in UTF-8 ({error})") from error


class _Reader:
    """Turns lines into pairs; the tokenizer is loaded when a line needs it."""

    def __init__(self, path: Path, checkpoint: Path, vocab_size: int) -> None:
        self._path, self._checkpoint, self._vocab_size = path, checkpoint, vocab_size
        self._tokenizer: Any = None

    def begin(self) -> list[int]:
        """The token that begins a text to the tokenizer, if one was needed."""
        return [] if self._tokenizer is None else own_begin(self._tokenizer)

    def pair(self, number: int, line: str) -> TokenPair:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._error(number, "is not JSON", ALLOWED) from error
        if not isinstance(row, dict):
            raise self._error(number, "is not an object", ALLOWED)
        if "chosen_ids" in row or "rejected_ids" in row:
            chosen, rejected = (self._ids(number, f"{side}_ids", row) for side in SIDES)
        else:
            chosen, rejected = (self._text(number, side, row) for side in SIDES)
        return TokenPair(chosen, rejected, number)

    def _ids(self, number: int, key: str, row: dict[str, Any]) -> Int64:
        ids = row.get(key)
        whole = f"a list of token ids from 0 to {self._vocab_size - 1}, at least one"
        if not isinstance(ids, list) or not ids:
            given = "is missing" if key not in row else f"= {_short(ids)}"
            raise self._error(number, f'"{key}" {given}', f"allowed is {whole}")
        for place, token in enumerate(ids):
            good = isinstance(token, int) and not isinstance(token, bool)
            if not good or not 0 <= token < self._vocab_size:
                what = f'"{key}"[{place}] = {_short(token)}'
                raise self._error(number, what, f"allowed is {whole}")
        return np.asarray(ids, dtype=np.int64)

    def _text(self, number: int, key: str, row: dict[str, Any]) -> Int64:
        for name in ("prompt", key):
            text = row.get(name, "" if name == "prompt" else None)
            if not isinstance(text, str):
                given = "is missing" if name not in row else f"= {_short(text)}"
                raise self._error(number, f'"{name}" {given}', ALLOWED)
        if self._tokenizer is None:
            self._tokenizer = self._load(number)
        text = row.get("prompt", "") + row[key]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self._error(number, f'"{key}" holds half a character', ALLOWED) from error
        ids = self._tokenizer(text=text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise self._error(number, f'"{key}" has no tokens', "allowed is a text with some")
        if max(ids) >= self._vocab_size:
            raise self._error(
                number,
                f'the tokenizer makes token id {max(ids)} of "{key}"',
                f"allowed is 0 to {self._vocab_size - 1}: it does not belong to this model",
            )
        return np.asarray(ids, dtype=np.int64)

    def _load(self, number: int) -> Any:
        folder = self._checkpoint
        if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
            only = 'allowed is {"chosen_ids": [...], "rejected_ids": [...]}'
            raise self._error(number, f"is text, and {folder} holds no tokenizer", only)
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise MissingToolError(f"pairs of text need transformers: {error}") from error
        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except loading_errors() as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: {reason}") from error

    def _error(self, number: int, what: str, allowed: str) -> DataError:
        return DataError(f"{self._path}:{number}: {what}: {allowed}")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
