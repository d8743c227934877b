"""A small language model that is trained from nothing on English text of every Python.

The text is what ``help("if")`` and its like print: the reference of the language, which lies in the
standard library. Its bytes are the tokens. A paragraph that several topics share is kept once, so
that nothing of the held-out topics is trained on. The text differs a little from one release of
Python to the next: `Corpus.digest` tells which one it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 256
"""Bytes."""

SMALL = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
}
"""A Llama of 0.27 million weights. All sizes are multiples of 16, as FP8 needs them."""

CONTEXT = 64
"""Bytes of a row: a line of text or so."""

HELD_OUT_EVERY = 8
"""Each so many topics one is held out."""

_ROWS_AT_ONCE = 32
"""Rows of a forward pass of the evaluation."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes.

    Attributes:
        training: ``[n] uint8``.
        held_out: ``[n] uint8``, of other topics.
        digest: first digits of the SHA-256 of both.
    """

    training: Tensor
    held_out: Tensor
    digest: str


@cache
def corpus() -> Corpus:
    """Take the text out of the standard library."""
    seen: set[str] = set()
    parts: tuple[list[str], list[str]] = ([], [])
    for number, name in enumerate(sorted(topics)):
        is_held_out = number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        parts[is_held_out].append("\n".join(_paragraphs(topics[name], seen)))
    training, held_out = ("\n".join(part).encode() for part in parts)
    digest = hashlib.sha256(training + b"\0" + held_out).hexdigest()[:12]
    return Corpus(_as_tensor(training), _as_tensor(held_out), digest)


def _paragraphs(text: str, seen: set[str]) -> Iterator[str]:
    """Paragraphs that were not seen before, each on one line."""
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line and line not in seen:
            seen.add(line)
            yield line


def _as_tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def small_llama(seed: int, sizes: Mapping[str, int] = SMALL) -> LlamaForCausalLM:
    """Make the model with random weights, in float32.

    Args:
        seed: of the weights; torch's random state is afterwards as it was.
        sizes: dimensions of the model, as its configuration names them.
    """
    config = LlamaConfig(
        **sizes,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        use_cache=False,
        # torch's fused attention has no fast path for bfloat16 on all CPUs.
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


class Batches:
    """Rows drawn from the training text, the same for the same seed.

    Args:
        seed: of the places from which they are taken.
        n_rows: of a batch.
    """

    def __init__(self, seed: int, n_rows: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._n_rows, self._text = n_rows, corpus().training

    def next(self) -> Tensor:
        """The next batch, ``[n_rows, CONTEXT] int64``."""
        last = len(self._text) - CONTEXT
        starts = torch.randint(last + 1, (self._n_rows,), generator=self._generator)
        return _rows(self._text, starts)


def language_loss(model: nn.Module, rows: Tensor) -> Tensor:
    """Mean cross-entropy of each byte after those before it, nats.

    Args:
        model: of `small_llama`.
        rows: ``[n, CONTEXT] int64``.
    """
    found: Any = model(input_ids=rows, labels=rows)
    loss: Tensor = found.loss
    return loss


@torch.no_grad()
def held_out_loss(model: nn.Module, n_rows: int | None = None) -> float:
    """The same over the held-out text, in the precision of the weights.

    Args:
        model: of `small_llama`.
        n_rows: how many rows of it, evenly spread; None: all.
    """
    text = corpus().held_out
    starts = torch.arange(0, len(text) - CONTEXT + 1, CONTEXT)
    if n_rows is not None:
        starts = starts[:: max(1, len(starts) // n_rows)][:n_rows]
    rows, total = _rows(text, starts), 0.0
    for part in torch.split(rows, _ROWS_AT_ONCE):
        total += float(language_loss(model, part)) * len(part)
    return total / len(rows)


def _rows(text: Tensor, starts: Tensor) -> Tensor:
    return text[starts[:, None] + torch.arange(CONTEXT)].long()
