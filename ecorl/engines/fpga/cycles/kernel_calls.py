"""The kernel calls of a forward, and what the host adds to them: kernel starts and transfers.

The order of the operations is that of `ecorl.engines.fpga.kernels.sequence`; here each gets the
shape of its call. All tokens of a batch pass each kernel together. Attention works on blocks of 64
queries of one head and sequence, over pages of 64 keys up to the last query. The last layer goes on
with the wanted tokens only, and the head sees nothing else. A prompt that rows share is computed
once. The vocabulary is cut into blocks of 2,048 outputs. Biases of queries, keys and values, which
a `ModelShape` does not tell, are left out: they cost one more loop for each head.

``kv_cache_router`` is here too. Keys, values and scales of a page are arranged by processes that
run side by side, between those that load and those that store; for the assumptions see
`ecorl.engines.fpga.cycles.kernels`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

from ecorl.engines.fpga.cycles.attention import PAGE, MhaCall, page_beats
from ecorl.engines.fpga.cycles.hbm import WORD_BYTES, Memory
from ecorl.engines.fpga.cycles.kernels import CallTotals, GemmCall, ScoreCall, depth
from ecorl.engines.fpga.cycles.vector import VectorCall, token_beats
from ecorl.engines.fpga.kernels import sequence
from ecorl.records import ModelShape

_JOB_BYTES, _ENTRY_BYTES, _ROW_BYTES = 32, 4, 16


@dataclass(frozen=True, slots=True)
class RouterCounts:
    """Loop counts of kv_cache_router, in the order of its counters."""

    calls: int
    pages_written: int
    pages_copied: int
    pages_shared: int
    copy_cycles: int
    row_cycles: int
    emit_cycles: int
    bytes_tokens: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class RouterCall:
    """``kv_cache_router``: pages of equal heads for tokens ``[first, first + n)`` of a sequence.

    Attributes:
        d: head size on the card.
        first: tokens before them, which a shared prompt has written: its whole pages are shared,
            the page in which the two sequences diverge is copied.
        n: tokens.
        heads: whose pages follow one another.
    """

    kernel: ClassVar[str] = "kv_cache_router"
    d: int
    first: int
    n: int
    heads: int = 1

    def counts(self) -> RouterCounts:
        """Loop counts as the kernel's own counters have them."""
        shared, kept = divmod(self.first, PAGE)
        copied = self.heads * (1 if kept else 0)
        jobs, parts, beats = self._jobs, token_beats(self.d), page_beats(self.d)
        written = jobs - self.heads * shared
        token_bytes = 2 * (parts * WORD_BYTES + _ROW_BYTES)
        return RouterCounts(
            calls=1,
            pages_written=written,
            pages_copied=copied,
            pages_shared=self.heads * shared,
            copy_cycles=copied * beats,
            row_cycles=(written * PAGE - self.heads * kept) * parts,
            emit_cycles=written * beats,
            bytes_tokens=jobs * _JOB_BYTES + self._tokens * token_bytes,
            bytes_read=copied * beats * WORD_BYTES,
            bytes_written=written * beats * WORD_BYTES + jobs * _ENTRY_BYTES,
        )

    @property
    def _jobs(self) -> int:
        """Pages of all heads, shared ones among them."""
        return self.heads * -(-(self.first + self.n) // PAGE)

    @property
    def _tokens(self) -> int:
        """New tokens of all heads."""
        return self.heads * self.n

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port; pages are read and written through the same one."""
        c, codes = self.counts(), self._tokens * token_beats(self.d) * WORD_BYTES
        return {
            "keys": codes,
            "values": codes,
            "key_rows": self._tokens * _ROW_BYTES,
            "value_rows": self._tokens * _ROW_BYTES,
            "jobs": self._jobs * _JOB_BYTES,
            "pages": c.bytes_read + c.emit_cycles * WORD_BYTES,
            "table": self._jobs * _ENTRY_BYTES,
        }

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`; its loops move codes and compute no row function."""
        c = self.counts()
        return CallTotals(moved_bytes=c.bytes_tokens + c.bytes_read + c.bytes_written)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        A call lasts as long as its slowest process; before it the first job is read, and codes for
        it, of which the arrangement takes a page; after it the values and scales of the last page
        are stored.
        """
        c, parts = self.counts(), token_beats(self.d)
        processes = (
            memory.loop(self._jobs, 1, ii, _JOB_BYTES),
            memory.loop(c.copy_cycles, c.pages_copied, ii),
            memory.loop(self._tokens * parts, c.pages_written, ii),
            memory.loop(self._tokens, c.pages_written, ii, _ROW_BYTES),
            self._arrange(c, ii),
            memory.loop(c.emit_cycles, c.pages_written, ii),
            memory.loop(self._jobs, 1, ii, _ENTRY_BYTES),
        )
        first = 2 * memory.latency_cycles + ii * PAGE * parts + depth("move", "control", "bank")
        return first + max(processes) + ii * (page_beats(self.d) - self.d) + depth("move")

    def _arrange(self, c: RouterCounts, ii: int) -> float:
        """Cycles of the process of the keys; that of the values takes as many, the scales fewer.

        A page's loops follow one another: codes of the page that is copied, codes of new tokens,
        and those that leave.
        """
        trips = (c.pages_copied + c.pages_written) * self.d + c.row_cycles
        loops = c.pages_copied + 2 * c.pages_written
        banks = c.pages_written * depth("bank")
        return ii * trips + loops * depth("move", "control") + banks + self._jobs


Call: TypeAlias = GemmCall | VectorCall | RouterCall | MhaCall | ScoreCall

Calls: TypeAlias = tuple[tuple[Call, int], ...]
"""Calls, each with how often it occurs."""

GROUP_TOKENS = 2048
"""Tokens at which the host of a card closes a group of rows; rows with one prompt always stay in
one group. Large enough that a product fills the array, small enough that a batch makes several
groups, whose transfers then overlap each other's kernels."""

RECORD_BYTES, OUTPUT_BYTES = 64, 16
"""Bytes of a token's record, and of a log-prob, on the card; both travel to it and back."""

TRANSFERS = 7
"""Transfers of a batch that no kernel covers, each with its latency: records, pages, queries, tasks
and space for results before the first group, results and records after the last."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A batch as the cycle model sees it: lengths of rows, and which of their tokens are wanted.

    Attributes:
        lengths: tokens of each row.
        wanted: tokens of each row whose last hidden state is needed (1 for a reward, the number
            of completion tokens for log-probs).
        head_rows: outputs of the head: 1, or the vocabulary.
        first_positions: position of the first token of each row, for rows that continue a shared
            prompt; empty: all 0. The prompt is a row by itself, the last one before them that
            begins at position 0.
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

    @property
    def firsts(self) -> tuple[int, ...]:
        """Position of the first token of each row."""
        return self.first_positions or (0,) * len(self.lengths)


def forward_calls(model: ModelShape, batch: BatchShape) -> Calls:
    """List the calls of a forward.

    Args:
        model: the decoder's shape.
        batch: rows and wanted tokens.

    Returns:
        Each call with how often it occurs; nothing for a batch without wanted tokens.
    """
    if sum(batch.wanted) == 0:
        return ()
    return token_calls(
        model, sum(batch.lengths), sum(batch.wanted), batch.head_rows, batch.results
    ) + attention_calls(model, batch)


def link_bytes(batch: BatchShape) -> int:
    """Bytes over the host's link: token records and results.

    Lists of pages, queries and tasks, a few dozen bytes a start or page, are left out.
    """
    result = 2 * (RECORD_BYTES if batch.head_rows == 1 else OUTPUT_BYTES)
    return 2 * RECORD_BYTES * sum(batch.lengths) + result * batch.results


def kernel_starts(model: ModelShape, batch: BatchShape) -> int:
    """Count the starts of kernels in a forward.

    A call of `token_calls` is one start. The router writes all heads and rows of a layer in one
    start, and rows that continue inside a page in one more, since an earlier start has written that
    page: these are the rows behind a shared prompt, and the tokens from a row's first wanted one
    on, which are stored apart (`ecorl.engines.fpga.card.plan`). Attention computes all blocks of
    a layer in one start. A batch of more than `GROUP_TOKENS` tokens is cut into groups, each with
    all of these starts. Copies of a kernel are assumed to start together.

    Args:
        model: the decoder's shape.
        batch: rows and wanted tokens.

    Returns:
        Starts; 0 for a batch without wanted tokens.
    """
    wanted = sum(batch.wanted)
    if wanted == 0:
        return 0
    n_tokens = sum(batch.lengths)
    calls = token_calls(model, n_tokens, wanted, batch.head_rows, batch.results)
    n_attention = _router_starts(batch) + 1
    n_starts = sum(times for _, times in calls) + model.n_layers * n_attention
    return n_starts * -(-n_tokens // GROUP_TOKENS)


def _router_starts(batch: BatchShape) -> int:
    """Count the starts of the router in a layer: one more than a part waits for at most.

    A part that goes on inside a page waits for the one that began it
    (`ecorl.engines.fpga.card.plan`). A row's wanted tokens are assumed to end it.
    """
    most, prompt = 0, 0
    for first, n, wanted in zip(batch.firsts, batch.lengths, batch.wanted, strict=True):
        # Wanted tokens that begin inside a page wait for the row's tokens before them. A row that
        # begins inside its prompt's last page waits for all of the prompt, wanted token included;
        # one that begins with a page of its own waits for nothing.
        waits = int(0 < wanted < n and (first + n - wanted) % PAGE != 0)
        if first == 0:
            prompt = waits
        elif first % PAGE:
            waits += 1 + prompt
        most = max(most, waits)
    return 1 + most


@lru_cache(maxsize=1024)
def token_calls(
    model: ModelShape, n_tokens: int, n_wanted: int, head_rows: int, n_results: int
) -> Calls:
    """List the calls that depend on sums over rows alone: all but those of router and attention.

    Args:
        model: the decoder's shape.
        n_tokens: tokens of all rows.
        n_wanted: wanted tokens of all rows.
        head_rows: outputs of the head: 1, or the vocabulary.
        n_results: results of all rows.
    """
    calls: list[tuple[Call, int]] = []

    def add(
        steps: Sequence[sequence.ProductStep | sequence.VectorStep],
        m: int,
        times: int = 1,
        n: int = 1,
    ) -> None:
        calls.extend((call, times) for step in steps for call in _step_calls(step, model, m, n))

    add([sequence.EMBEDDING], n_tokens)
    layer = (*sequence.BEFORE_ATTENTION, *sequence.AFTER_ATTENTION)
    if model.n_layers > 1:
        add(layer, n_tokens, model.n_layers - 1)
    add(sequence.BEFORE_ATTENTION, n_tokens)
    add(sequence.AFTER_ATTENTION, n_wanted)
    add([sequence.FINAL_NORM], n_wanted)
    if head_rows == 1:
        add([sequence.HEAD_PRODUCT, sequence.REWARDS], n_wanted)
        return tuple(calls)
    whole, last = divmod(head_rows, sequence.HEAD_BLOCK)
    for n, times in ((sequence.HEAD_BLOCK, whole), (last, 1)):
        if n and times:
            add([sequence.HEAD_PRODUCT], n_wanted, times, n)
            calls.append((ScoreCall(sequence.LOGITS.operation, n_wanted, n, n_results), times))
    n_blocks = -(-head_rows // sequence.HEAD_BLOCK)
    calls.append((ScoreCall(sequence.FINISH.operation, n_wanted, n_blocks, n_results), 1))
    return tuple(calls)


def attention_calls(model: ModelShape, batch: BatchShape) -> Calls:
    """List the calls of the router and of attention in every layer.

    Args:
        model: the decoder's shape.
        batch: rows and wanted tokens.

    Returns:
        Each call with how often it occurs; rows of one length and first position are one entry.
    """
    calls: list[tuple[Call, int]] = []
    d, heads, kv_heads = sequence.card_head(model.head_dim), model.n_heads, model.n_kv_heads
    for (first, n), times in Counter(zip(batch.firsts, batch.lengths, strict=True)).items():
        if n:
            calls.append((RouterCall(d, first, n, kv_heads), model.n_layers * times))
            if model.n_layers > 1:
                calls.append((MhaCall(d, first, n, heads), (model.n_layers - 1) * times))
    last = Counter(zip(batch.firsts, batch.lengths, batch.wanted, strict=True))
    for (first, n, wanted), times in last.items():
        if wanted:
            calls.append((MhaCall(d, first + n - wanted, wanted, heads), times))
    return tuple(calls)


def _step_calls(
    step: sequence.ProductStep | sequence.VectorStep, model: ModelShape, m: int, head_rows: int
) -> list[Call]:
    """The calls of one step for m token rows: a product has one for each slice of its inputs."""
    shapes = sequence.linear_shapes(model, head_rows)
    n, k = shapes[step.linear] if step.linear is not None else (0, 0)
    slices = [last - first for first, last in sequence.input_slices(k)]
    if isinstance(step, sequence.ProductStep):
        return [GemmCall(m, n, size) for size in slices]
    return [
        VectorCall(
            step.operation, m, step.columns(model, n), head=step.head(model), parts=len(slices) or 1
        )
    ]
