"""Where tokens stand on the card: rows, pages and levels, against a naive reading of the lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.card import decoder as decoder_module
from ecorl.engines.fpga.card.decoder import groups_of
from ecorl.engines.fpga.card.plan import MARK, N_OUTPUTS, POSITION, TOKEN, lay_out
from ecorl.engines.fpga.cycles.attention import PAGE
from ecorl.engines.fpga.int8_decoder import segments_of
from tests.examples import examples

LENGTHS = st.one_of(
    st.integers(0, 9), st.sampled_from([31, 63, 64, 65, 127, 128, 129, 191, 192, 200])
)


@st.composite
def batches(draw):
    """Rows, their completion tokens, and where results are wanted."""
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    rows, counts, wanted = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        n_prompt = draw(LENGTHS)
        prompt = rng.integers(1, 1000, n_prompt)
        for n in draw(st.lists(LENGTHS, min_size=1, max_size=4)):
            n = max(n, 1 - n_prompt)
            row = np.concatenate([prompt, rng.integers(1, 1000, n)])
            rows.append(row)
            counts.append(n)
            n_wanted = draw(st.integers(0, 3))
            places = rng.integers(0, len(row), n_wanted)
            at_the_end = draw(st.booleans())
            wanted.append(np.append(places, len(row) - 1) if at_the_end else places)
    return rows, counts, wanted


def laid_out(batch, most):
    """Segments, all wanted tokens, and each group with its layout."""
    rows, counts, wanted = batch
    segments = segments_of(rows, counts)
    tokens = np.sort(np.concatenate([segments.tokens(i, p) for i, p in enumerate(wanted)])).astype(
        np.int64
    )
    before, decoder_module.GROUP_TOKENS = decoder_module.GROUP_TOKENS, most
    try:
        groups = list(groups_of(segments, tokens))
    finally:
        decoder_module.GROUP_TOKENS = before
    layouts = [lay_out(segments, s0, s1, tokens[o0:o1]) for s0, s1, o0, o1 in groups]
    return segments, tokens, groups, layouts


def sequences(layout):
    """By segment the rows of its whole sequence, that of its parent included."""
    return [
        np.concatenate([layout.segments[s.parent].rows(), s.rows()]) if s.parent >= 0 else s.rows()
        for s in layout.segments
    ]


@settings(deadline=None, max_examples=examples(60))
@given(batch=batches(), most=st.sampled_from([1, 60, 300, 2048]))
def test_groups_hold_each_output_once_and_whole_families(batch, most):
    segments, tokens, groups, _ = laid_out(batch, most)
    assert [o for _, _, first, last in groups for o in range(first, last)] == list(
        range(len(tokens))
    )
    used = [s for s0, s1, _, _ in groups for s in range(s0, s1)]
    assert len(set(used)) == len(used)
    for s0, s1, first, last in groups:
        assert segments.parent[s0] == -1
        assert s1 == len(segments.parent) or segments.parent[s1] == -1
        assert first < last
        owners = np.searchsorted(segments.begin, tokens[first:last], side="right") - 1
        assert owners.min() >= s0
        assert owners.max() < s1


@settings(deadline=None, max_examples=examples(60))
@given(batch=batches(), most=st.sampled_from([60, 2048]))
def test_every_wanted_token_stands_in_the_tail_with_its_id_and_position(batch, most):
    rows = batch[0]
    segments, tokens, groups, layouts = laid_out(batch, most)
    truth = {}
    for i, row in enumerate(rows):
        for p, token in enumerate(segments.tokens(i, np.arange(len(row)))):
            truth[int(token)] = (int(row[p]), p)
    for (s0, _, first, last), layout in zip(groups, layouts, strict=True):
        own = tokens[first:last]
        assert (layout.output_rows >= layout.first_wanted).all()
        assert (np.diff(layout.output_rows) >= 0).all()
        found = layout.records[layout.output_rows]
        assert [tuple(r) for r in found[:, [TOKEN, POSITION]]] == [truth[int(t)] for t in own]
        counted = np.bincount(layout.output_rows, minlength=layout.stride)
        assert np.array_equal(layout.records[:, N_OUTPUTS], counted)
        for s, segment in enumerate(layout.segments):
            begin = int(segments.begin[s0 + s])
            for i, row in enumerate(segment.rows()):
                record = layout.records[row]
                assert (record[TOKEN], record[POSITION]) == truth[begin + i]


@settings(deadline=None, max_examples=examples(60))
@given(batch=batches())
def test_rows_are_disjoint_and_blocks_cover_them_once(batch):
    *_, layouts = laid_out(batch, 2048)
    for layout in layouts:
        used = np.concatenate([s.rows() for s in layout.segments])
        assert len(np.unique(used)) == len(used)
        assert used.max() + 1 == layout.n_rows <= layout.stride
        assert layout.stride % 16 == layout.first_wanted % 16 == 0
        idle = np.setdiff1d(np.arange(layout.stride), used)
        assert not layout.records[idle].any()
        assert not layout.records[:, MARK].any()
        tails = used[used >= layout.first_wanted]
        for wanted_only, covered in ((False, used), (True, tails)):
            blocks = layout.blocks(4, 2, wanted_only=wanted_only)
            runs = [np.arange(r, r + n) for r, n, _, _ in blocks]
            expected = np.concatenate([covered + h * layout.stride for h in range(4)])
            assert np.array_equal(np.sort(np.concatenate(runs)), np.sort(expected))
            assert (blocks[:, 1] <= 64).all()


class Pages:
    """What kv_cache_router and mha_int8 make of the lists: rows of tokens in place of keys."""

    def __init__(self, layout, n_heads):
        self.pages = {}
        self.table = {}
        self.layout, self.n_heads = layout, n_heads

    def level(self, jobs):
        written = dict(self.pages)  # a job reads what an earlier start has written, and no other
        new_pages, new_entries = [], []
        for source, kept, row, n, own, entry, *rest in jobs.tolist():
            assert rest == [0, 0]
            assert 0 <= kept <= PAGE
            assert n >= 0
            assert kept + n <= PAGE
            if own < 0:
                assert (kept, n) == (PAGE, 0)  # a page that is shared as it is
                target = source
            else:
                kept_rows = written[source][:kept] if kept else []
                assert len(kept_rows) == kept
                assert (source >= 0) == (kept > 0)
                self.pages[own] = [*kept_rows, *range(row, row + n)]
                new_pages.append(own)
                target = own
            self.table[entry] = target
            new_entries.append(entry)
        assert len(set(new_pages)) == len(new_pages)
        assert len(set(new_entries)) == len(new_entries)

    def keys(self, first_entry, n_pages):
        assert all(first_entry + i in self.table for i in range(n_pages))
        return [k for i in range(n_pages) for k in self.pages[self.table[first_entry + i]]]


@settings(deadline=None, max_examples=examples(100))
@given(batch=batches(), heads=st.sampled_from([(1, 1), (4, 2)]))
def test_each_query_finds_the_keys_of_its_sequence_in_the_pages(batch, heads):
    n_heads, n_kv = heads
    *_, layouts = laid_out(batch, 2048)
    for layout in layouts:
        pages = Pages(layout, n_kv)
        for jobs in layout.levels(n_kv):
            pages.level(jobs)
        assert all(0 <= p < n_kv * layout.n_pages for p in pages.pages)
        assert all(0 <= e < n_kv * layout.n_entries for e in pages.table)
        keys_of = {int(r): rows[: i + 1] for rows in sequences(layout) for i, r in enumerate(rows)}
        for wanted_only in (False, True):
            for row, n, entry, n_pages in layout.blocks(
                n_heads, n_kv, wanted_only=wanted_only
            ).tolist():
                head = row // layout.stride
                kv = head // (n_heads // n_kv)
                keys = np.array(pages.keys(entry, n_pages)) - kv * layout.stride
                for query in range(row - head * layout.stride, row - head * layout.stride + n):
                    own = keys_of[query]
                    position = layout.records[query, POSITION]
                    assert len(own) == position + 1
                    assert np.array_equal(keys[: position + 1], own)


@settings(deadline=None, max_examples=examples(60))
@given(batch=batches(), seed=st.integers(0, 2**31))
def test_marks_spread_as_one_would_naively(batch, seed):
    rng = np.random.default_rng(seed)
    *_, layouts = laid_out(batch, 2048)
    for layout in layouts:
        marks = (rng.random(layout.n_rows) < 0.03).astype(np.int32)
        expected = marks.copy()
        for rows in sequences(layout):
            for i, row in enumerate(rows):
                expected[row] |= marks[rows[: i + 1]].max()
        spread = layout.spread_marks(marks)
        assert np.array_equal(spread != 0, expected != 0)
