"""Which calls of the kernels make up a forward pass, in the order of NUMERICS.md's operations.

All tokens of a batch pass each kernel together. Attention takes blocks of 64 queries of one head
and sequence over pages of 64 keys up to the last query. The last layer goes on with the wanted
tokens only, and the head sees nothing else. A prompt that rows share is computed once. The
vocabulary is taken in blocks of 2,048 outputs. Biases of queries, keys and values, which a
`ModelShape` does not tell, are left out: one more loop for each head.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ecorl.engines.fpga.csim.library import MAX_K
from ecorl.engines.fpga.csim.structs import HEAD_BLOCK
from ecorl.engines.fpga.cycles.attention import PAGE, MhaCall, RouterCall, card_head
from ecorl.engines.fpga.cycles.kernels import GemmCall
from ecorl.engines.fpga.cycles.score import ScoreCall
from ecorl.engines.fpga.cycles.vector import VectorCall
from ecorl.records import ModelShape

Call: TypeAlias = GemmCall | VectorCall | RouterCall | MhaCall | ScoreCall

Calls: TypeAlias = tuple[tuple[Call, int], ...]
"""Calls, each with how often it comes."""

GROUP_TOKENS = 2048
"""Tokens at which the host of a card calls a group full; a family of rows with one prompt is never
parted. Large enough that a product fills the array, small enough that a batch makes several groups,
whose transfers then pass beside each other's kernels."""

LAYER_STARTS = 13
"""Kernel starts of a layer whose products take one slice each and whose rows share no prompt: norm,
product, head, router, attention, context, product, residual, norm, product, gate, product,
residual."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What the cycle model must know of a batch.

    Attributes:
        lengths: tokens of each row.
        wanted: tokens of each row whose last hidden state is needed (1 for a reward, the number
            of completion tokens for log-probs).
        head_rows: outputs of the head: 1, or the vocabulary.
        first_positions: of the first token of each row, where rows go on from a shared prompt that
            is a row of its own; empty: all 0.
        n_results: results that cross the link; None: one a row for a reward, else all wanted.
    """

    lengths: tuple[int, ...]
    wanted: tuple[int, ...]
    head_rows: int
    first_positions: tuple[int, ...] = ()
    n_results: int | None = None

    @property
    def results(self) -> int:
        """Results that cross the link."""
        if self.n_results is not None:
            return self.n_results
        return len(self.lengths) if self.head_rows == 1 else sum(self.wanted)


def forward_calls(model: ModelShape, batch: BatchShape) -> Calls:
    """Every call of a forward; none for a batch of which nothing is wanted."""
    if sum(batch.wanted) == 0:
        return ()
    return token_calls(
        model, sum(batch.lengths), sum(batch.wanted), batch.head_rows, batch.results
    ) + attention_calls(model, batch)


RECORD_BYTES, OUTPUT_BYTES = 64, 16
"""Of a token row, and of a log-prob, on the card; both travel to it and back."""

TRANSFERS = 7
"""Transfers of a batch that no kernel covers, each with its latency: records, pages, queries, tasks
and room for results before the first group, results and records after the last."""


def link_bytes(batch: BatchShape) -> int:
    """Bytes over the host's link: token rows and results.

    Lists of pages, queries and tasks, a few dozen bytes a start or page, are left out.
    """
    result = 2 * (RECORD_BYTES if batch.head_rows == 1 else OUTPUT_BYTES)
    return 2 * RECORD_BYTES * sum(batch.lengths) + result * batch.results


def kernel_starts(model: ModelShape, batch: BatchShape) -> int:
    """Starts of kernels in a forward; 0 for a batch of which nothing is wanted.

    A call of `token_calls` is one start. The router takes all heads and rows of a layer in one, but
    rows that go on inside a page in one more, since that page was written by the one before: those
    behind a shared prompt, and those from a row's first wanted token on, which stand apart
    (`ecorl.engines.fpga.card.tokens`). Attention takes all blocks of a layer in one. A batch of
    more than `GROUP_TOKENS` tokens goes in groups, each with all of these starts. Copies of a
    kernel are taken to start together.
    """
    wanted = sum(batch.wanted)
    if wanted == 0:
        return 0
    n_tokens = sum(batch.lengths)
    calls = token_calls(model, n_tokens, wanted, batch.head_rows, batch.results)
    once = sum(times for _, times in calls) + model.n_layers * (_router_levels(batch) + 1)
    return once * -(-n_tokens // GROUP_TOKENS)


def _router_levels(batch: BatchShape) -> int:
    """Starts of the router in a layer; one more than there are where families differ.

    The wanted tokens of a run are taken to end it.
    """
    firsts = batch.first_positions or (0,) * len(batch.lengths)
    roots, others = 0, 0
    for first, n, wanted in zip(firsts, batch.lengths, batch.wanted, strict=True):
        apart = int(0 < wanted < n and (first + n - wanted) % PAGE != 0)
        if first == 0:
            roots = max(roots, apart)
        else:
            others = max(others, apart + (1 if first % PAGE else -1 - roots))
    return 1 + roots + max(others, 0)


@lru_cache(maxsize=1024)
def token_calls(
    model: ModelShape, n_tokens: int, n_wanted: int, head_rows: int, n_results: int
) -> Calls:
    """The calls whose work depends on sums over rows alone: all but the pages and attention."""
    calls: list[tuple[Call, int]] = [(VectorCall("embed", n_tokens, model.hidden_size), 1)]
    if model.n_layers > 1:
        calls += [(call, model.n_layers - 1) for call in _layer(model, n_tokens, n_tokens)]
    calls += [(call, 1) for call in _layer(model, n_tokens, n_wanted)]
    calls.append((VectorCall("norm", n_wanted, model.hidden_size), 1))
    if head_rows == 1:
        calls.append((GemmCall(n_wanted, 1, model.hidden_size), 1))
        calls.append((VectorCall("fixed", n_wanted, 1), 1))
        return tuple(calls)
    whole, last = divmod(head_rows, HEAD_BLOCK)
    for n, times in ((HEAD_BLOCK, whole), (last, 1)):
        if n and times:
            calls.append((GemmCall(n_wanted, n, model.hidden_size), times))
            calls.append((ScoreCall("logits", n_wanted, n, n_results), times))
    calls.append((ScoreCall("finish", n_wanted, -(-head_rows // HEAD_BLOCK), n_results), 1))
    return tuple(calls)


def attention_calls(model: ModelShape, batch: BatchShape) -> Calls:
    """The router and attention in every layer; equal runs of tokens are counted, not listed."""
    calls: list[tuple[Call, int]] = []
    firsts = batch.first_positions or (0,) * len(batch.lengths)
    d, heads, kv_heads = card_head(model.head_dim), model.n_heads, model.n_kv_heads
    for (first, n), times in Counter(zip(firsts, batch.lengths, strict=True)).items():
        if n:
            calls.append((RouterCall(d, first, n), model.n_layers * kv_heads * times))
            if model.n_layers > 1:
                calls.append((MhaCall(d, first, n), (model.n_layers - 1) * heads * times))
    last = Counter(zip(firsts, batch.lengths, batch.wanted, strict=True))
    for (first, n, wanted), times in last.items():
        if wanted:
            calls.append((MhaCall(d, first + n - wanted, wanted), heads * times))
    return tuple(calls)


def _layer(model: ModelShape, n_tokens: int, n_out: int) -> list[Call]:
    """One layer less its pages and attention; all behind these for `n_out` tokens only."""
    hidden, inner, d = model.hidden_size, model.intermediate_size, card_head(model.head_dim)
    heads, kv_heads = model.n_heads, model.n_kv_heads
    width = heads * model.head_dim
    qkv = heads + 2 * kv_heads
    return [
        VectorCall("norm", n_tokens, hidden),
        GemmCall(n_tokens, qkv * model.head_dim, hidden),
        VectorCall("head", n_tokens, qkv * d, head=d, turned=heads + kv_heads),
        VectorCall("context", n_out, heads * d, head=d),
        *_product(n_out, hidden, width),
        VectorCall("residual", n_out, hidden, parts=-(-width // MAX_K)),
        VectorCall("norm", n_out, hidden),
        GemmCall(n_out, 2 * inner, hidden),
        VectorCall("gate", n_out, inner),
        *_product(n_out, hidden, inner),
        VectorCall("residual", n_out, hidden, parts=-(-inner // MAX_K)),
    ]


def _product(m: int, n: int, k: int) -> list[Call]:
    """A product; one whose k is too long for the kernel in slices."""
    return [GemmCall(m, n, min(MAX_K, k - at)) for at in range(0, k, MAX_K)]
