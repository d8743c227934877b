"""Checks the texts of a run by the tokens that its models make of them.

A text that is no token, one with an id that a model does not know, and one that is longer than a
model can take end a training with an error from deep below, some of them after hours.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.config import FilesTask
from ecorl.engines.models.text_tokenizer import TOKENIZER_FILE
from ecorl.errors import CheckpointError, DataError
from ecorl.runtime.progress import ProgressTask, progress
from roll_adapters.trl.inputs.finding import Finding
from roll_adapters.trl.inputs.limits import TextModel, text_model
from roll_adapters.trl.inputs.rows import PAIR_KEYS, PROMPT_KEYS, Row, numbered_rows

logger = logging.getLogger(__name__)

_BATCH = 1000
"""Texts that are handed to a tokenizer at once."""

_PARALLEL = "TOKENIZERS_PARALLELISM"
"""The variable by which the library `tokenizers` takes one core or all of them, at each call."""

_SHOWN_FROM = 20_000
"""Texts from which on progress is shown: fewer take about a second."""


@dataclass(frozen=True, slots=True)
class _Models:
    """The models of a run, and the tokens that a completion may have."""

    policy: TextModel
    reward: TextModel
    same_tokenizer: bool
    completion: int

    @property
    def share_tokens(self) -> bool:
        """Whether what was found of the policy's tokens holds for the reward model's too."""
        ours, theirs = self.policy.limits.vocabulary, self.reward.limits.vocabulary
        return self.same_tokenizer and ours is not None and theirs is not None and ours <= theirs


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts of one key of a file, with the lines on which they stand."""

    path: Path
    key: str
    rows: Sequence[Row]
    texts: Sequence[str]

    def where(self, index: int) -> str:
        return f"{self.path}:{self.rows[index].line}"


def check_tokens(task: FilesTask, completion: int, console: Console) -> Iterator[Finding]:
    """Check the prompts and pairs of a run; each file that is good is told when it is known.

    Prompts are read by the policy, with the special tokens that its tokenizer adds, and together
    with a completion by the reward model, without; pairs by the reward model alone.

    Args:
        task: the run's files.
        completion: ``trainer.max_completion_length``, tokens.
        console: where progress is shown if it takes long.

    Raises:
        CheckpointError: for a tokenizer or a config that does not load, or do not fit each other.
        DataError: for a text that cannot be used; file and line are named.
    """
    models = _models(task, completion)
    for key, path in (("task.prompts", task.prompts), ("task.eval_prompts", task.eval_prompts)):
        if path is not None:
            rows = numbered_rows(path.expanduser(), PROMPT_KEYS, key)
            yield Finding(key, str(path), _check_prompts(path, rows, models, console))
    if task.pairs is not None:
        rows = numbered_rows(task.pairs.expanduser(), PAIR_KEYS, "task.pairs")
        text = _check_pairs(task.pairs, rows, models.reward, console)
        yield Finding("task.pairs", str(task.pairs), text)


def _models(task: FilesTask, completion: int) -> _Models:
    policy = text_model(task.policy.expanduser(), "the policy", adds=True)
    reward = text_model(task.reward.expanduser(), "the reward model")
    for model in (policy, reward):
        _check_vocabulary(model)
    return _Models(policy, reward, _same_tokenizer(policy.folder, reward.folder), completion)


def _same_tokenizer(one: Path, other: Path) -> bool:
    files = one / TOKENIZER_FILE, other / TOKENIZER_FILE
    return all(file.is_file() for file in files) and filecmp.cmp(*files, shallow=False)


def _check_vocabulary(model: TextModel) -> None:
    """Refuse a pad token that the model has no embedding for; warn of other tokens."""
    tokenizer, n_ids = model.tokenizer, model.limits.vocabulary
    if n_ids is None:
        return
    pad = tokenizer.pad_token_id
    if pad is not None and pad >= n_ids:
        raise CheckpointError(
            f"{model.folder}: the pad token of the tokenizer has id {pad}, and {model.name} has "
            f"embeddings for ids below {n_ids} (vocab_size): resize its embeddings, or name "
            "another pad_token in tokenizer_config.json"
        )
    if len(tokenizer) > n_ids:
        logger.warning(
            "%s: the tokenizer knows %d tokens and %s has embeddings for %d (vocab_size): a text "
            "with one of the others would end the run",
            model.folder, len(tokenizer), model.name, n_ids,
        )  # fmt: skip


# ---------------------------------------------------------------- files


def _check_prompts(path: Path, rows: Sequence[Row], models: _Models, console: Console) -> str:
    """Check prompts with room for their completions; say how many and how long they are."""
    texts = _Texts(path, "prompt", rows, [row.values["prompt"] for row in rows])
    policy, reward, room = models.policy, models.reward, models.completion
    n_passes = 1 if models.share_tokens else 2
    with _shown(path, n_passes * len(rows), console) as bar:
        lengths = _lengths(texts, policy, bar, special=True)
        if models.share_tokens:
            theirs = [n - policy.n_added for n in lengths]
        else:
            theirs = _lengths(texts, reward, bar)
    _check_alone(texts, policy, lengths)
    _check_alone(texts, reward, theirs)
    _check_room(texts, policy, lengths, room, is_sure=True)
    # With another tokenizer a completion has another number of tokens, which nobody knows yet.
    _check_room(texts, reward, theirs, room, is_sure=models.same_tokenizer)
    text = f"{_count(len(rows), 'prompt')}, longest {_count(max(lengths), 'token')}"
    limit = policy.limits.positions
    if limit is None:
        return text
    return f"{text} + {room} of completion = {max(lengths) + room:,} of {limit:,} positions"


def _check_pairs(path: Path, rows: Sequence[Row], reward: TextModel, console: Console) -> str:
    """Check preference pairs, whose texts are the prompt with either answer.

    An answer may be empty: what is scored is the prompt then.
    """
    longest = 0
    with _shown(path, 2 * len(rows), console) as bar:
        for key in PAIR_KEYS[1:]:
            both = [row.values["prompt"] + row.values[key] for row in rows]
            texts = _Texts(path, f"prompt + {key}", rows, both)
            lengths = _lengths(texts, reward, bar)
            _check_alone(texts, reward, lengths)
            longest = max(longest, *lengths)
    text = f"{_count(len(rows), 'pair')}, longest {_count(longest, 'token')}"
    limit = reward.limits.positions
    return text if limit is None else f"{text} of {limit:,} positions"


# ---------------------------------------------------------------- texts


def _lengths(
    texts: _Texts, model: TextModel, bar: ProgressTask | None, *, special: bool = False
) -> list[int]:
    """Count the tokens of each text; refuse one that is none, or that the model does not know."""
    found: list[int] = []
    n_ids, n_added = model.limits.vocabulary, model.n_added if special else 0
    for start in range(0, len(texts.texts), _BATCH):
        batch = list(texts.texts[start : start + _BATCH])
        for index, ids in enumerate(_encoded(model.tokenizer, batch, special=special), start):
            if len(ids) <= n_added:
                raise DataError(
                    f'{texts.where(index)}: "{texts.key}" = {_cut(texts.texts[index])} is empty: '
                    f"the tokenizer of {model.name} makes no token of it"
                )
            if n_ids is not None and max(ids) >= n_ids:
                raise DataError(
                    f'{texts.where(index)}: "{texts.key}" has the token id {max(ids)}, and '
                    f"{model.name} ({model.folder}) has embeddings for ids below {n_ids} "
                    "(vocab_size): this tokenizer is not of this model"
                )
            model.begin.look(ids, f'{texts.where(index)}: "{texts.key}"')
            found.append(len(ids))
        if bar is not None:
            bar.advance(len(batch))
    return found


def _encoded(tokenizer: Any, batch: list[str], *, special: bool) -> list[list[int]]:
    """Token ids of texts; without offsets, and so in half the time, where the tokenizer can."""
    if tokenizer.is_fast:
        inner = tokenizer.backend_tokenizer
        return [e.ids for e in inner.encode_batch_fast(batch, add_special_tokens=special)]
    found: list[list[int]] = tokenizer(
        text=batch, add_special_tokens=special, return_attention_mask=False, verbose=False
    )["input_ids"]
    return found


def _check_alone(texts: _Texts, model: TextModel, lengths: Sequence[int]) -> None:
    """Refuse a text that is by itself longer than a model can take."""
    limit = model.limits.positions
    long = [] if limit is None else [i for i, n in enumerate(lengths) if n > limit]
    if long:
        raise DataError(
            f'{texts.where(long[0])}: "{texts.key}" has {lengths[long[0]]} tokens, and '
            f"{model.name} has {limit} positions ({_how_many(len(long))}): shorten or leave it out"
        )


def _check_room(
    texts: _Texts, model: TextModel, lengths: Sequence[int], room: int, *, is_sure: bool
) -> None:
    """Refuse prompts that leave no room for a completion, where a model fails then; else warn.

    Args:
        texts: the prompts.
        model: reads them with their completions.
        lengths: of the prompts, tokens.
        room: longest completion, tokens of the policy.
        is_sure: whether the model makes as many tokens of a completion as the policy.
    """
    limit = model.limits.positions
    long = [] if limit is None else [i for i, n in enumerate(lengths) if n + room > limit]
    if limit is None or not long:
        return
    first, fits = long[0], limit - max(lengths)
    mend = "shorten them" if fits < 1 else f"{fits} fits all of them"
    line = (
        f"{texts.where(first)}: {_count(lengths[first], 'token')} of prompt and "
        f"trainer.max_completion_length = {room} are more than the {limit} positions of "
        f"{model.name} ({_how_many(len(long))}): {mend}"
    )
    if model.limits.ends_there and is_sure:
        raise DataError(line)
    logger.warning("%s; beyond its positions a model answers badly, or not at all", line)


# ---------------------------------------------------------------- words


@contextlib.contextmanager
def _shown(path: Path, n_texts: int, console: Console) -> Iterator[ProgressTask | None]:
    """Show progress where there are many texts, and let all cores work on them."""
    if n_texts < _SHOWN_FROM:
        yield None
        return
    before = os.environ.get(_PARALLEL)
    os.environ[_PARALLEL] = "true"
    try:
        with progress(f"checking {path.name}", n_texts, console) as bar:
            yield bar
    finally:
        # Off again for training, where processes may be forked.
        if before is None:
            del os.environ[_PARALLEL]
        else:
            os.environ[_PARALLEL] = before


def _count(n: int, what: str) -> str:
    return f"1 {what}" if n == 1 else f"{n:,} {what}s"


def _how_many(n: int) -> str:
    return "1 such row" if n == 1 else f"{n:,} such rows, this is the first"


def _cut(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 30 else f"{shown[:30]}..."
