"""Which tokens of a batch are computed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecorl.engines.fpga import int8_decoder as module
from ecorl.engines.fpga.int8_decoder import segments_of


def rebuilt(found, row):
    """The tokens of a row out of its segments."""
    return np.concatenate([found.ids[found.begin[s] : found.begin[s + 1]] for s in found.rows[row]])


def batch(seed, sizes, n_prompts):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 9, rng.integers(0, 6)) for _ in range(n_prompts)]
    rows, counts = [], []
    for n in sizes:
        prompt = prompts[rng.integers(n_prompts)]
        n = n if len(prompt) else max(n, 1)
        rows.append(np.concatenate([prompt, rng.integers(0, 9, n)]))
        counts.append(n)
    return rows, counts


@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    n_prompts=st.integers(1, 3),
    most=st.sampled_from([1, 7, 20, 8192]),
)
def test_every_row_is_its_segments(seed, sizes, n_prompts, most):
    rows, counts = batch(seed, sizes, n_prompts)
    before, module.MAX_FAMILY_TOKENS = module.MAX_FAMILY_TOKENS, most
    try:
        found = segments_of(rows, counts)
    finally:
        module.MAX_FAMILY_TOKENS = before
    for index, row in enumerate(rows):
        assert np.array_equal(rebuilt(found, index), row)
        positions = np.arange(len(row))
        tokens = found.tokens(index, positions)
        assert np.array_equal(found.ids[tokens], row)
    for segment, parent in enumerate(found.parent):
        if parent >= 0:
            assert found.parent[parent] == -1
            assert (found.parent[parent + 1 : segment + 1] == parent).all()
    assert found.n_tokens <= sum(map(len, rows))


def test_a_shared_prompt_is_computed_once_in_parts_of_bounded_size(monkeypatch):
    prompt = np.arange(10)
    rows = [np.concatenate([prompt, np.full(5, i)]) for i in range(6)]
    assert segments_of(rows, [5] * 6).n_tokens == 10 + 6 * 5
    assert segments_of(rows).n_tokens == 90
    monkeypatch.setattr(module, "MAX_FAMILY_TOKENS", 20)
    assert segments_of(rows, [5] * 6).n_tokens == 3 * (10 + 2 * 5)


def test_an_empty_batch():
    found = segments_of([], [])
    assert (found.n_tokens, found.rows) == (0, ())
