from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.errors import ConfigError
from ecorl.trainer.elastic.task import EpochOrder, micro_batches, split_rows


@given(st.integers(0, 60), st.integers(1, 12))
def test_rows_are_split_in_order_and_as_evenly_as_can_be(n_rows, width):
    parts = split_rows(n_rows, width)
    assert [row for part in parts for row in part] == list(range(n_rows))
    sizes = [len(part) for part in parts]
    assert len(sizes) == width
    assert max(sizes) - min(sizes) <= 1
    # The first member has most: what is its own, buffers for example, stands for all.
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(0, 40), st.none() | st.integers(1, 50))
def test_micro_batches_hold_each_row_once_and_no_more_than_may_be(n_rows, most):
    parts = [range(n_rows)[part] for part in micro_batches(n_rows, most)]
    assert [row for part in parts for row in part] == list(range(n_rows))
    assert all(0 < len(part) <= (most or n_rows) for part in parts)


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 5))
def test_each_row_comes_once_an_epoch_whatever_the_batch(n_rows, batch_rows, seed):
    order = EpochOrder(n_rows, batch_rows, seed)
    stream = [row for step in range(3 * n_rows) for row in order.rows(step)]
    for epoch in range(3 * batch_rows):
        here = stream[epoch * n_rows : (epoch + 1) * n_rows]
        assert Counter(here) == Counter(range(n_rows))


def test_a_steps_rows_follow_from_its_number_and_the_seed():
    assert EpochOrder(100, 8, 1).rows(40) == EpochOrder(100, 8, 1).rows(40)
    assert EpochOrder(100, 8, 1).rows(40) != EpochOrder(100, 8, 2).rows(40)
    assert EpochOrder(100, 100).rows(0) != EpochOrder(100, 100).rows(1)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(ConfigError) as caught:
        EpochOrder(*sizes)
    assert caught.value.value == 0
