"""The plan of a group of rows: kernel starts on a card's buffers, as pure data.

The host builds a plan once and then only starts kernels, one after the other. PCIe carries one
record of 64 bytes a token (with its id and position), the lists of pages and queries, a task of 64
bytes for each start, and the results. All else stays on the card, with one exception: during the
last layer's attention the records are read back once, so that a token with a number beyond its
format marks the tokens after it.

A plan follows the layout of the group's tokens. Tokens whose result is wanted come last. Behind the
last layer's keys and values only they are computed, and as one run of rows, so that nothing must be
gathered on the card. A segment (a run of tokens of one sequence) therefore has two parts: its
`head` and, from its first wanted token on, its `tail`.

Keys and values lie in pages of 64 positions (include/kv_pages.hpp). A page in which a tail begins,
or in which rows diverge from their prompt, continues a page that an earlier start of
kv_cache_router has written: each part has a level, and each level is one start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.card.image import BLOCK_ROWS, Bytes, CardModel, Words
from ecorl.engines.fpga.cycles.attention import PAGE, QUERY_BLOCK
from ecorl.engines.fpga.int8_decoder import Segments
from ecorl.engines.protocol import Int64

ROW_FIELDS = 16
MARK, TOKEN, POSITION, N_OUTPUTS = 2, 3, 4, 5
"""Fields of a row's record (``row_t``), each an int32."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of rows: positions ``[position, position + n)`` of one sequence from row `row` on."""

    row: int
    position: int
    n: int
    level: int


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment's place on the card.

    Attributes:
        parts: its head and its tail, those that are not empty.
        parent: the segment that it goes on from, or -1.
        position: of its first token.
        first_page: number of its first page that is not its parent's.
        first_entry: of its page table.
        length: its tokens.
    """

    parts: tuple[Part, ...]
    parent: int
    position: int
    first_page: int
    first_entry: int
    length: int

    @property
    def n_shared(self) -> int:
        """Whole pages of its parent."""
        return self.position // PAGE

    @property
    def n_pages(self) -> int:
        """Pages of its table, shared and own."""
        return -(-(self.position + self.length) // PAGE) if self.length else 0

    def rows(self) -> Int64:
        """Its rows in the order of the sequence."""
        runs = [np.arange(part.row, part.row + part.n) for part in self.parts]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """The layout of a group on the card.

    Attributes:
        n_rows: rows in use, those between heads and tails included.
        stride: rows of a head's buffers, a multiple of 16.
        first_wanted: row of the first tail, a multiple of 16; the rest are wanted rows.
        records: ``[stride, 16] int32``, the rows' records.
        segments: the group's.
        output_rows: ``[n_outputs] int64``, the row that each output reads, ascending.
        n_pages: pages of one head.
        n_entries: of one head's page tables.
    """

    n_rows: int
    stride: int
    first_wanted: int
    records: Words
    segments: tuple[PlacedSegment, ...]
    output_rows: Int64
    n_pages: int
    n_entries: int

    def levels(self, n_kv_heads: int) -> list[Words]:
        """Jobs of kv_cache_router in a layer, ``[n_jobs, 8] int32`` for each start."""
        n_levels = 1 + max((p.level for s in self.segments for p in s.parts), default=0)
        own = [self._jobs(level) for level in range(n_levels)]
        step = [self.n_pages, 0, self.stride, 0, self.n_pages, self.n_entries, 0, 0]
        return [_for_heads(jobs, n_kv_heads, step) for jobs in own]

    def blocks(self, n_heads: int, n_kv_heads: int, *, wanted_only: bool) -> Words:
        """Blocks of queries of mha_int8 in a layer.

        Args:
            n_heads: query heads.
            n_kv_heads: heads of keys and values.
            wanted_only: whether to leave out all rows but the wanted ones, as the last layer does.

        Returns:
            ``[n_blocks, 4] int32``: first row, queries, first entry of the page table, pages.
        """
        own = []
        for segment in self.segments:
            for part in segment.parts:
                if wanted_only and part.row < self.first_wanted:
                    continue
                for first in range(0, part.n, QUERY_BLOCK):
                    n = min(QUERY_BLOCK, part.n - first)
                    last = part.position + first + n - 1
                    own.append((part.row + first, n, segment.first_entry, last // PAGE + 1))
        blocks = np.asarray(own, np.int32).reshape(-1, 4)
        heads = np.repeat(np.arange(n_heads, dtype=np.int32), len(blocks))
        every = np.tile(blocks, (n_heads, 1))
        every[:, 0] += heads * self.stride
        every[:, 2] += heads // (n_heads // n_kv_heads) * self.n_entries
        return every

    def spread_marks(self, marks: Words) -> Words:
        """Spread each mark to the later tokens of its sequence, which attend to the marked one.

        Args:
            marks: ``[n_rows] int32``, those of all rows.

        Returns:
            ``[n_rows] int32``.
        """
        spread = marks.copy()
        for segment in self.segments:
            rows = segment.rows()
            if not len(rows):
                continue
            if segment.parent >= 0:
                spread[rows[0]] |= spread[self.segments[segment.parent].rows()[-1]]
            spread[rows] = np.bitwise_or.accumulate(spread[rows])
        return spread

    def _jobs(self, level: int) -> Words:
        jobs: list[tuple[int, ...]] = []
        for segment in self.segments:
            for part in segment.parts:
                if part.level == level:
                    jobs.extend(self._part_jobs(segment, part))
        return np.asarray(jobs, np.int32).reshape(-1, 8)

    def _part_jobs(self, segment: PlacedSegment, part: Part) -> Iterator[tuple[int, ...]]:
        parent = self.segments[segment.parent] if segment.parent >= 0 else None
        if part.position == segment.position and parent is not None:
            for i in range(segment.n_shared):
                entry = segment.first_entry + i
                yield (parent.first_page + i, PAGE, 0, 0, -1, entry, 0, 0)
        end = part.position + part.n
        for page in range(part.position // PAGE, -(-end // PAGE)):
            first = page * PAGE
            start = max(part.position, first)
            own = segment.first_page + page - segment.n_shared
            source = -1
            if start > first:  # continues its tail's own page, or the parent's last one
                begun = part.position > segment.position
                source = own if begun or parent is None else parent.first_page + page
            n = min(first + PAGE, end) - start
            row = part.row + start - part.position
            yield (source, start - first, row, n, own, segment.first_entry + page, 0, 0)


def lay_out(segments: Segments, first: int, last: int, wanted: Int64) -> TokenLayout:
    """Lay out segments ``[first, last)`` of a batch, which are whole families.

    Args:
        segments: of the batch.
        first: segment.
        last: segment.
        wanted: tokens of the batch whose outputs are wanted, ascending, at least one; repeated for
            a token with several outputs.
    """
    lengths, heads = _lengths(segments, first, last, wanted)
    first_wanted = -(-sum(heads) // BLOCK_ROWS) * BLOCK_ROWS
    next_head, next_tail = 0, first_wanted
    placed: list[PlacedSegment] = []
    n_pages = n_entries = 0
    token_rows = np.full(int(segments.begin[last] - segments.begin[first]), -1, np.int64)
    for s, (length, head) in enumerate(zip(lengths, heads, strict=True)):
        parent = int(segments.parent[first + s]) - first if segments.parent[first + s] >= 0 else -1
        position = lengths[parent] if parent >= 0 else 0
        parts = _parts(next_head, next_tail, position, head, length, _level(placed, parent))
        segment = PlacedSegment(parts, parent, position, n_pages, n_entries, length)
        placed.append(segment)
        begin = int(segments.begin[first + s] - segments.begin[first])
        token_rows[begin : begin + length] = segment.rows()
        next_head, next_tail = next_head + head, next_tail + length - head
        n_pages += max(segment.n_pages - segment.n_shared, 0)
        n_entries += segment.n_pages
    stride = -(-next_tail // BLOCK_ROWS) * BLOCK_ROWS
    output_rows = token_rows[wanted - segments.begin[first]]
    records = np.zeros((stride, ROW_FIELDS), np.int32)
    for s, segment in enumerate(placed):
        rows, begin = segment.rows(), int(segments.begin[first + s])
        records[rows, TOKEN] = segments.ids[begin : begin + segment.length]
        records[rows, POSITION] = segment.position + np.arange(segment.length)
    np.add.at(records[:, N_OUTPUTS], output_rows, 1)
    return TokenLayout(
        next_tail, stride, first_wanted, records, tuple(placed), output_rows, n_pages, n_entries
    )


def _lengths(
    segments: Segments, first: int, last: int, wanted: Int64
) -> tuple[list[int], list[int]]:
    """Count the tokens of each segment that are computed, and those of them in its head.

    Tokens behind the last wanted one of a sequence affect no result and are left out.
    """
    parents = {int(p) for p in segments.parent[first:last] if p >= 0}
    lengths, heads = [], []
    for s in range(first, last):
        begin, end = int(segments.begin[s]), int(segments.begin[s + 1])
        own = wanted[np.searchsorted(wanted, begin) : np.searchsorted(wanted, end)]
        length = end - begin
        if s not in parents:
            length = int(own[-1]) + 1 - begin if len(own) else 0
        lengths.append(length)
        heads.append(int(own[0]) - begin if len(own) else length)
    return lengths, heads


def _level(placed: Sequence[PlacedSegment], parent: int) -> int:
    """The first start in which pages that continue a parent's can be written."""
    if parent < 0 or placed[parent].length % PAGE == 0:
        return 0
    return 1 + max(part.level for part in placed[parent].parts)


def _parts(
    head_row: int, tail_row: int, position: int, head: int, length: int, level: int
) -> tuple[Part, ...]:
    parts = []
    if head:
        parts.append(Part(head_row, position, head, level))
    if length > head:
        begins_inside = head > 0 and (position + head) % PAGE != 0
        tail_level = level + 1 if begins_inside else level
        parts.append(Part(tail_row, position + head, length - head, tail_level))
    return tuple(parts)


def _for_heads(jobs: Words, n_heads: int, step: Sequence[int]) -> Words:
    """Repeat the jobs of one head for each head, with its pages, rows and entries."""
    heads = np.repeat(np.arange(n_heads, dtype=np.int32), len(jobs))
    every = np.tile(jobs, (n_heads, 1))
    moved: npt.NDArray[np.bool_] = np.ones(every.shape, bool)
    moved[:, 0], moved[:, 4] = every[:, 0] >= 0, every[:, 4] >= 0
    return every + np.where(moved, heads[:, None] * np.asarray(step, np.int32), 0)


UNWRITTEN = np.int32(-(1 << 31))
"""Value of rewards, and of marks of log-probs, before the card writes them. The card never writes
such a mark, and such a reward only beside a mark."""


@dataclass(frozen=True, slots=True)
class At:
    """A place in a buffer: its name and the offset, bytes.

    The offset is a multiple of 64: Vitis HLS assumes that of every address that a kernel gets
    (``m_axi_alignment_byte_size``), and a kernel reads from a wrong place otherwise.
    """

    buffer: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelStart:
    """One start of a kernel: its name in `hls_kernels`, and its arguments by name."""

    kernel: str
    arguments: Mapping[str, At | int]


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """All that a card computes for a group of rows.

    Attributes:
        model: the model that it was built for; other weights have other constants.
        layout: where its tokens stand.
        inputs: bytes of the buffers of `INPUTS`.
        before: starts up to the last layer's keys and values.
        attend: the last layer's attention, which neither reads nor writes the rows' records: the
            host spreads their marks meanwhile.
        after: starts once the marks have been spread.
        sizes: bytes of each buffer that are used.
        result: the buffer that holds the results, ``values`` or ``outputs``.
        output_at: ``[n_outputs] int64``, where each output stands in it: a row, or a result.
        n_tokens: rows that are computed.
    """

    model: CardModel
    layout: TokenLayout
    inputs: Mapping[str, Bytes]
    before: tuple[KernelStart, ...]
    attend: tuple[KernelStart, ...]
    after: tuple[KernelStart, ...]
    sizes: Mapping[str, int]
    result: str
    output_at: Int64
    n_tokens: int
