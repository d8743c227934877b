"""The tokenizer beside a checkpoint, for texts in which the special tokens stand already.

It is read by the library `tokenizers` alone: transformers, which would also read older files, takes
seconds to import, and a service that is started again has clients that wait.

A framework with a remote reward decodes what the policy sampled, special tokens kept, and the
service encodes the text with this tokenizer. The reward is that of the sample only if the same ids
come out: `survives_text` checks it.

`DoubledBegin` looks for rows that begin twice with the token that begins a text (BOS): a chat
template writes it, and many tokenizers add it to each text. A model that reads both has not been
trained on such rows: it answers worse, and no error says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ecorl.engines.torch.loading import loading_errors
from ecorl.errors import CheckpointError, MissingToolError

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
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def to_json(self) -> str:
        """The content of a tokenizer.json for it."""
        return str(self._inner.to_str())

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Id of each token, the added ones too."""
        return dict(self._inner.get_vocab(with_added_tokens=True))

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token, as it is written in the vocabulary."""
        return max(map(len, self.vocab), default=1)


_PROBES = 2000
"""Tokens of the vocabulary that are tried, spread over it, and special tokens at most."""

_WITHOUT_EFFECT = ("padding", "post_processor", "truncation", "version")
"""Parts of a tokenizer.json that do not change the ids of a text without added tokens."""


def survives_text(
    policy: Path, reward: Path, samples: Sequence[str | Sequence[int]] = ()
) -> str | None:
    """Tell why a policy's ids do not survive decoding, and encoding by a reward model's tokenizer.

    Sampled ids need not be the ones that a tokenizer itself gives for their text: a policy may
    write "ab" as "a", "b" where the merges give "ab". Text does not carry that difference, with
    equal tokenizers neither, and it is not counted here: compared are the ids that the policy's own
    tokenizer gives for a text with those of the reward model's.

    Args:
        policy: folder with the policy's tokenizer, which transformers loads.
        reward: folder of the reward model, with a tokenizer.json.
        samples: further texts, or token ids of the policy, that have to survive.

    Returns:
        One line with an example, or None when they survive.

    Raises:
        CheckpointError: when the policy's tokenizer cannot be loaded.
        MissingToolError: without transformers.
    """
    try:
        other = TextTokenizer(reward)
    except CheckpointError as error:
        return f"the reward model: {error}"
    own = _Policy(policy)
    reasons = _of_special_tokens(own, other)
    if not _are_equal(policy, reward):
        reasons = chain(reasons, _of_vocabulary(own, other), _of_tokens(own, other))
    return next(chain(reasons, _of_samples(own, other, samples)), None)


class _Policy:
    """A policy's tokenizer as a framework uses it."""

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise MissingToolError(f"a policy's tokenizer needs transformers: {error}") from error
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except loading_errors() as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: {reason}") from error

    def text(self, ids: Sequence[int]) -> str:
        """Decode ids as OpenRLHF does before it asks for a reward."""
        return str(self._inner.decode(list(ids), skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        return list(self._inner(text=text, add_special_tokens=False)["input_ids"])

    def vocab(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    def special_ids(self) -> list[int]:
        ids = {*self._inner.added_tokens_decoder, *self._inner.all_special_ids}
        return sorted(ids)[:_PROBES]


def _are_equal(policy: Path, reward: Path) -> bool:
    """Whether two folders hold tokenizers that give each text the same ids."""
    read = []
    for folder in (policy, reward):
        try:
            content = json.loads((folder / TOKENIZER_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            return False
        read.append({k: v for k, v in content.items() if k not in _WITHOUT_EFFECT})
    return bool(read[0] == read[1])


def _of_special_tokens(own: _Policy, other: TextTokenizer) -> Iterator[str]:
    for id in own.special_ids():
        text = own.text([id])
        if other.ids(text) != [id]:
            yield _line(f"the special token {_shown(text)}", [id], other.ids(text))


def _of_vocabulary(own: _Policy, other: TextTokenizer) -> Iterator[str]:
    for token, id in sorted(own.vocab().items(), key=lambda item: item[1]):
        found = other.vocab.get(token)
        if found != id:
            yield _line(f"the token {_shown(token)}", [id], [] if found is None else [found])


def _of_tokens(own: _Policy, other: TextTokenizer) -> Iterator[str]:
    """Try single tokens; equal vocabularies may still have other merges or another normaliser."""
    ids = sorted(own.vocab().values())
    for id in ids[:: max(1, -(-len(ids) // _PROBES))]:
        text = own.text([id])
        if text and "\ufffd" not in text and own.ids(text) != other.ids(text):
            yield _line(f"the text {_shown(text)}", own.ids(text), other.ids(text))


def _of_samples(
    own: _Policy, other: TextTokenizer, samples: Sequence[str | Sequence[int]]
) -> Iterator[str]:
    for sample in samples:
        ids = own.ids(sample if isinstance(sample, str) else own.text(sample))
        text = own.text(ids)
        if other.ids(text) != ids:
            yield _line(f"the text {_shown(text)}", ids, other.ids(text))


def _line(what: str, ids: Sequence[int], others: Sequence[int]) -> str:
    theirs = f"{_ids(others)} to the reward model's"
    return f"{what} is {_ids(ids)} to the policy's tokenizer and {theirs}"


def _ids(ids: Sequence[int]) -> str:
    if not ids:
        return "no token"
    more = ", ..." if len(ids) > 8 else ""
    return f"{'id' if len(ids) == 1 else 'ids'} {', '.join(map(str, ids[:8]))}{more}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
