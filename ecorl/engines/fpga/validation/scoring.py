"""Scores of held-out pairs in each precision: float32, FP16, INT8, and INT4 weights.

- float32, FP16: transformers' own class on the CPU, weights and activations in that type. (torch
  sums FP16 products in float32 and rounds the result.)
- INT8: the engine as a run uses it, outlier channels equalised.
- INT4: the same kernels and INT8 activations, weights rounded to 4 bits: a study of the weights
  alone.

The pairs come from a JSON-lines file, as token ids or as text::

    {"chosen_ids": [5, 9, 2], "rejected_ids": [5, 7, 2]}
    {"chosen": "...", "rejected": "..."}                      with a tokenizer beside the model
    {"prompt": "...", "chosen": "...", "rejected": "..."}     the prompt goes before both

Texts get no special tokens, as TRL's trainers give them to a reward model.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.engines import protocol
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.verdict import SIDES, PrecisionStudy, study_of
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.models.equalise import equalised
from ecorl.engines.models.text_tokenizer import DoubledBegin, begin_of, own_begin
from ecorl.engines.protocol import Int64
from ecorl.engines.torch import loading
from ecorl.engines.torch.loading import loading_errors
from ecorl.engines.torch.padding import pad_right
from ecorl.errors import CheckpointError, DataError, MissingToolError
from ecorl.records import Stage

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


EXACT, FP16, INT8, INT4 = "FP32", "FP16", "INT8", "INT4 weights"

TOKENS_PER_CALL = 4_096
"""Tokens with padding that go into one call; bounds the memory of a float forward."""

Tell = Callable[[int, str], None]
"""Called with the number of texts that were scored, and the precision."""


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The different texts of pairs.

    Attributes:
        rows: token ids ``[length] int64`` of each text, shortest first.
        names: line and side of each text's first occurrence.
        index: ``[n_pairs, 2]``, the text of each pair's chosen and rejected answer.
    """

    rows: tuple[protocol.Int64, ...]
    names: tuple[str, ...]
    index: protocol.Int64

    @classmethod
    def of(cls, pairs: Sequence[TokenPair]) -> PairTexts:
        """Collect the texts of pairs."""
        found: dict[bytes, tuple[protocol.Int64, str]] = {}
        keys = []
        for pair in pairs:
            for side, row in zip(SIDES, (pair.chosen, pair.rejected), strict=True):
                keys.append(row.tobytes())
                found.setdefault(keys[-1], (row, f"line {pair.line} {side}"))
        order = sorted(found, key=len)
        place = {key: i for i, key in enumerate(order)}
        return cls(
            rows=tuple(found[key][0] for key in order),
            names=tuple(found[key][1] for key in order),
            index=np.array([place[key] for key in keys], np.int64).reshape(-1, 2),
        )

    def calls(self) -> Iterator[slice]:
        """Yield slices of rows of similar length, one for each call of an engine."""
        start = 0
        for i, row in enumerate(self.rows):
            if i > start and (i + 1 - start) * len(row) > TOKENS_PER_CALL:
                yield slice(start, i)
                start = i
        yield slice(start, len(self.rows))


def study(
    checkpoint: Path,
    pairs: Sequence[TokenPair],
    *,
    device: str = "u55c",
    threads: int = 1,
    tell: Tell | None = None,
) -> PrecisionStudy:
    """Score all pairs in each precision and compare; a verdict beside the model is ignored.

    Args:
        checkpoint: folder of a reward model.
        pairs: held-out pairs.
        device: profile of the card.
        threads: host threads.
        tell: called with the progress, up to `n_scores`.

    Raises:
        CheckpointError: when the model cannot be loaded, is no reward model, does not fit the
            card, or has no finite score in float32.
        MissingToolError: without torch, transformers or a compiler.
    """
    texts = PairTexts.of(pairs)
    told = tell or (lambda _n, _name: None)
    # The engine comes first: it raises for a model that it cannot run before the long scoring.
    engine = FpgaEngine(checkpoint, Stage.REWARD, device, threads=threads, obey_verdict=False)
    with contextlib.closing(engine):
        exact = exact_scores(checkpoint, texts, threads, told)
        scores = {FP16: torch_scores(checkpoint, texts, "float16", threads, told, FP16)}
        scores[INT8] = _engine_scores(engine, texts, told, INT8)
    decoder = Int8Decoder(
        equalised(load_decoder(checkpoint)), CsimLibrary.load("fast"), threads, weight_bits=4
    )
    scores[INT4] = decoder_scores(decoder, texts, np.isfinite(scores[INT8]), told, INT4)
    return study_of(
        exact[texts.index], {name: values[texts.index] for name, values in scores.items()}
    )


def n_scores(pairs: Sequence[TokenPair]) -> int:
    """Number of scores that `study` computes: texts times precisions."""
    return 4 * len(PairTexts.of(pairs).rows)


def exact_scores(checkpoint: Path, texts: PairTexts, threads: int, tell: Tell) -> protocol.Float32:
    """Compute the float32 scores of all texts.

    Args:
        checkpoint: folder of a reward model.
        texts: what to score.
        threads: host threads.
        tell: called with the progress.

    Returns:
        ``[n_texts] float32``.

    Raises:
        CheckpointError: when a score is not finite, since there is nothing to compare with.
    """
    values = torch_scores(checkpoint, texts, "float32", threads, tell, EXACT)
    lost = np.flatnonzero(~np.isfinite(values))
    if lost.size:
        raise CheckpointError(
            f"{checkpoint}: the model itself has no finite score in float32 for {lost.size} of "
            f"{len(values)} texts, first {texts.names[lost[0]]}"
        )
    return values


def torch_scores(
    checkpoint: Path, texts: PairTexts, dtype: str, threads: int, tell: Tell, name: str
) -> protocol.Float32:
    """Compute scores in a dtype by transformers' own class, which also chooses where to read them.

    Args:
        checkpoint: folder of a reward model.
        texts: what to score.
        dtype: ``float32`` or ``float16``.
        threads: host threads.
        tell: called with the progress.
        name: of the precision.

    Returns:
        ``[n_texts] float32``, NaN and infinity included.
    """
    import torch

    model = loading.load_model(checkpoint, Stage.REWARD, loading.HOST, dtype)
    pad = model.config.get_text_config().pad_token_id
    # Without a pad token the class takes one row at a time.
    takes_many = pad is not None and 0 <= pad < model.config.get_text_config().vocab_size
    values = np.empty(len(texts.rows), np.float32)
    with loading.forward_pass(threads):
        for call in texts.calls():
            n_rows = call.stop - call.start
            size = n_rows if takes_many else 1
            for start in range(call.start, call.stop, size):
                ids, mask = pad_right(texts.rows[start : start + size])
                ids = np.where(mask, ids, pad if takes_many else 0)
                inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
                logits = model(**inputs, use_cache=False).logits
                values[start : start + size] = logits[:, 0].float().numpy()
            tell(n_rows, name)
    return values


def decoder_scores(
    decoder: Int8Decoder, texts: PairTexts, runnable: np.ndarray, tell: Tell, name: str
) -> protocol.Float32:
    """Compute scores by a decoder.

    Args:
        decoder: of the reward model.
        texts: what to score.
        runnable: ``[n_texts] bool``, the texts that the decoder can run.
        tell: called with the progress.
        name: of the precision.

    Returns:
        ``[n_texts] float32``, NaN for the texts that cannot be run.
    """
    values = np.full(len(texts.rows), np.nan, np.float32)
    for call in texts.calls():
        chosen = np.flatnonzero(runnable[call]) + call.start
        rows = [texts.rows[i] for i in chosen]
        read = [
            np.array([protocol.reward_position(row, decoder.config.pad_token_id)]) for row in rows
        ]
        values[chosen] = [value for found in decoder.score_at(rows, read) for value in found]
        tell(call.stop - call.start, name)
    return values


def _engine_scores(
    engine: protocol.InferenceEngine, texts: PairTexts, tell: Tell, name: str
) -> protocol.Float32:
    values = np.empty(len(texts.rows), np.float32)
    for call in texts.calls():
        rows = texts.rows[call]
        batch = protocol.ScoreBatch(texts.names[call], rows, (0,) * len(rows))
        values[call] = engine.score(batch).values
        tell(len(rows), name)
    return values
