"""Rows between padded micro-batches and an engine: any padding, any masks, any order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.records import Stage
from roll_adapters.openrlhf.rows import RolloutRows
from tests.fakes.openrlhf import engine_answers, micro_batch, own_answer


@st.composite
def rollouts(draw):
    """Micro-batches of rows, and the ids of the rows by their numbers."""
    n_rows = draw(st.integers(1, 7))
    rows = []
    for _ in range(n_rows):
        tokens = draw(st.lists(st.integers(1, 99), min_size=1, max_size=8))
        n_prompt = draw(st.integers(1, len(tokens)))
        taken = draw(st.lists(st.booleans(), min_size=8, max_size=8))
        actions = [k + 1 >= n_prompt and taken[k] for k in range(len(tokens) - 1)]
        rows.append((tokens, actions))
    index = draw(st.permutations(range(n_rows)))
    cuts = draw(st.sets(st.integers(1, n_rows - 1))) if n_rows > 1 else set()
    edges = [0, *sorted(cuts), n_rows]
    parts = [
        micro_batch(rows[a:b], index[a:b], draw(st.integers(0, 2))) for a, b in pairwise(edges)
    ]
    # By the number of the row: the id of row i stands at its index.
    ids = [""] * n_rows
    for place, number in enumerate(index):
        ids[number] = f"row {place}"
    return rows, parts, ids


def first_action(actions):
    return actions.index(True) if True in actions else len(actions)


@settings(deadline=None)
@given(rollouts())
def test_an_engine_gets_the_real_tokens_and_all_from_the_first_action_on(rollout):
    rows, parts, ids = rollout
    batch = RolloutRows(parts, ids).batch(Stage.REFERENCE, 0.7)
    assert [list(row) for row in batch.token_ids] == [tokens for tokens, _ in rows]
    assert list(batch.n_completion) == [len(a) - first_action(a) for _, a in rows]
    assert all(row.dtype == np.int64 for row in batch.token_ids)
    assert batch.temperature == 0.7
    assert RolloutRows(parts, ids).batch(Stage.REWARD, 0.7).temperature == 1.0


@settings(deadline=None)
@given(rollouts())
def test_rows_are_named_by_their_index_and_not_by_their_place(rollout):
    rows, parts, ids = rollout
    assert RolloutRows(parts, ids).sample_ids == tuple(f"row {i}" for i in range(len(rows)))


@settings(deadline=None)
@given(rollouts())
def test_answers_come_back_in_the_shape_of_the_framework(rollout):
    _, parts, ids = rollout
    rows = RolloutRows(parts, ids)
    for stage, put in ((Stage.REWARD, rows.rewards), (Stage.REFERENCE, rows.logprobs)):
        found = put(engine_answers(stage, rows.batch(stage, 1.0)))
        for mine, part in zip(found, parts, strict=True):
            assert mine.dtype == torch.float32
            # The value of token j + 1 stands in column j; where there is no action there is 0.
            torch.testing.assert_close(mine, own_answer(stage, part), rtol=0, atol=1e-6)


@settings(deadline=None)
@given(rollouts(), st.data())
def test_the_exact_path_s_answers_are_picked_row_by_row(rollout, data):
    _, parts, ids = rollout
    rows = RolloutRows(parts, ids)
    bad = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    sizes = [len(part.index) for part in parts]
    holders = np.repeat(np.arange(len(parts)), sizes)
    numbers = rows.micro_batches_of(bad)
    assert numbers == sorted({int(holders[row]) for row in bad})
    for stage in (Stage.REWARD, Stage.REFERENCE):
        own = {n: own_answer(stage, parts[n]) for n in numbers}
        picked = rows.picked(stage, bad, own)
        everything = engine_answers(stage, rows.batch(stage, 1.0))
        for value, row in zip(picked, bad, strict=True):
            assert np.shape(value) == np.shape(everything[row])
        # Put among an engine's answers they give what the framework itself would have.
        filled = [*everything]
        for value, row in zip(picked, bad, strict=True):
            filled[row] = value
        put = rows.logprobs if stage is Stage.REFERENCE else rows.rewards
        for mine, part in zip(put(filled), parts, strict=True):
            torch.testing.assert_close(mine, own_answer(stage, part), rtol=0, atol=1e-6)


@settings(deadline=None)
@given(rollouts(), st.integers(1, 3))
def test_a_pass_computes_real_tokens_and_all_from_the_first_action_on(rollout, passes):
    rows, parts, ids = rollout
    found = RolloutRows(parts, ids)
    work = found.sizes.work(Stage.ACTOR_TRAIN, None, passes=passes)
    assert work.n_sequences == len(rows) * passes == len(found) * passes
    assert work.n_tokens == sum(len(tokens) for tokens, _ in rows) * passes
    n_output = sum(found.batch(Stage.REFERENCE, 1.0).n_completion)
    assert n_output == sum(len(actions) - first_action(actions) for _, actions in rows)
    assert work.n_output_tokens == n_output * passes
    assert work.max_length == max(len(tokens) for tokens, _ in rows)
    assert found.sizes.work(Stage.ACTOR_TRAIN, None, has_output=False).n_output_tokens == 0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([3], 3), ([2, 2], 2), ([2, 2, 1], 2), ([2, 1, 2], None), ([2, 3], None), ([1, 1, 2], None)],
)
def test_micro_batches_that_an_engine_would_cut_otherwise_are_not_named(sizes, expected):
    numbers = iter(range(sum(sizes)))
    parts = [micro_batch([([5, 6, 7], [False, True])] * n, [next(numbers)] * n) for n in sizes]
    rows = RolloutRows(parts, [str(i) for i in range(sum(sizes))])
    assert rows.batch(Stage.REWARD, 1.0).micro_batch == expected


def test_no_rows_at_all():
    rows = RolloutRows([], [])
    assert len(rows) == 0
    assert rows.sizes.work(Stage.REWARD, None).max_length == 0
    assert len(rows.batch(Stage.REWARD, 1.0)) == 0


def test_an_index_without_an_id_is_an_error():
    with pytest.raises(IndexError):
        RolloutRows([micro_batch([([1, 2], [True])], [3])], ["only one"])
