"""Rows of different lengths in micro-batches of even tokens: what any packing keeps to."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.engines.packing import (
    PackedTokens,
    automatic_budget,
    pack,
    padded_tokens,
    partition,
    relative_difference,
)

LENGTHS = st.lists(st.integers(0, 60), max_size=40)
PAIRS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=30)
BUDGETS = st.integers(1, 400)


def rows_of(cut):
    return sorted(int(i) for rows in cut for i in rows)


def fewest(lengths, budget):
    """Micro-batches at least, found by trying every cut of every order that matters.

    Rows of one part: some best packing has its micro-batches one behind the other in sorted order.
    """
    ordered = sorted(lengths)
    best = [0]
    for end in range(1, len(ordered) + 1):
        fits = [
            best[begin] + 1
            for begin in range(end)
            if end - begin == 1 or (end - begin) * ordered[end - 1] <= budget
        ]
        best.append(min(fits))
    return best[-1]


@given(LENGTHS, BUDGETS)
def test_every_row_is_there_once_and_no_micro_batch_is_above_the_budget(lengths, budget):
    cut = pack(lengths, budget)
    assert rows_of(cut) == list(range(len(lengths)))
    for rows in cut:
        assert len(rows) == 1 or padded_tokens(lengths, [rows]) <= budget
        assert list(rows) == sorted(rows)


@given(PAIRS, BUDGETS)
def test_so_it_is_with_prompts_and_completions_that_are_padded_on_their_own(pairs, budget):
    cut = pack(pairs, budget)
    assert rows_of(cut) == list(range(len(pairs)))
    for rows in cut:
        own = np.array(pairs)[rows]
        size = len(rows) * (own[:, 0].max() + own[:, 1].max())
        assert padded_tokens(pairs, [rows]) == size
        assert len(rows) == 1 or size <= budget


@given(LENGTHS, BUDGETS)
def test_there_are_as_few_micro_batches_as_the_budget_allows(lengths, budget):
    cut = pack(lengths, budget)
    assert len(cut) == fewest(lengths, budget)
    short = [n for n in lengths if n <= budget]
    assert len(cut) >= len(lengths) - len(short) + -(-sum(short) // budget)


@given(LENGTHS.filter(len), BUDGETS)
def test_they_are_as_even_as_so_few_can_be(lengths, budget):
    """With a budget below the largest one that holds several rows, there would be more of them."""
    cut = pack(lengths, budget)
    largest = max((padded_tokens(lengths, [r]) for r in cut if len(r) > 1), default=0)
    if largest > 1:
        assert fewest(lengths, largest - 1) > len(cut)


@given(PAIRS, BUDGETS, st.randoms(use_true_random=False))
def test_the_same_lengths_give_the_same_and_an_order_of_rows_changes_no_size(pairs, budget, random):
    cut = pack(pairs, budget)
    assert [rows.tolist() for rows in pack(pairs, budget)] == [rows.tolist() for rows in cut]
    shuffled = random.sample(pairs, len(pairs))
    assert padded_tokens(shuffled, pack(shuffled, budget)) == padded_tokens(pairs, cut)


@given(PAIRS, BUDGETS)
def test_results_can_be_put_back_in_order(pairs, budget):
    found = np.full(len(pairs), -1)
    for rows in pack(pairs, budget):
        found[rows] = rows
    assert found.tolist() == list(range(len(pairs)))


@given(LENGTHS.filter(len))
def test_a_larger_budget_never_needs_more_micro_batches(lengths):
    counts = [len(pack(lengths, budget)) for budget in (1, 7, 50, 200, 10_000)]
    assert all(one >= other for one, other in pairwise(counts))
    assert counts[-1] == 1


@given(PAIRS, st.data())
def test_a_given_number_of_micro_batches_is_kept(pairs, data):
    n = data.draw(st.integers(1, len(pairs)))
    cut = partition(pairs, n)
    assert len(cut) == n
    assert all(len(rows) for rows in cut)
    assert rows_of(cut) == list(range(len(pairs)))


@given(LENGTHS.filter(len), BUDGETS)
def test_as_many_as_a_budget_asks_for_are_not_above_the_budget(lengths, budget):
    """Processes that pack into as many as the one with the most keep to their budgets too."""
    n = len(pack(lengths, budget))
    for more in range(n, len(lengths) + 1):
        cut = partition(lengths, more)
        assert all(len(r) == 1 or padded_tokens(lengths, [r]) <= budget for r in cut)


@given(PAIRS, st.integers(0, 200))
def test_an_automatic_budget_saves_at_least_what_its_passes_cost(pairs, fixed):
    whole = padded_tokens(pairs, [np.arange(len(pairs))])
    budget = automatic_budget(pairs, whole, fixed)
    assert 1 <= budget <= whole
    cut = pack(pairs, budget)
    assert padded_tokens(pairs, cut) + fixed * (len(cut) - 1) <= whole


@given(PAIRS, st.integers(0, 200), st.integers(0, 500))
def test_rows_with_less_padding_than_a_pass_costs_stay_together(pairs, fixed, room):
    whole = padded_tokens(pairs, [np.arange(len(pairs))])
    together = len(pack(pairs, automatic_budget(pairs, whole + room, fixed))) == 1
    assert together or whole - sum(map(sum, pairs)) > fixed


def test_rows_that_are_alike_stay_together_and_others_are_parted():
    alike = [100] * 32
    assert len(pack(alike, automatic_budget(alike, 3200, 64))) == 1
    uneven = [400] * 4 + [20] * 60
    cut = pack(uneven, automatic_budget(uneven, 64 * 400, 64))
    assert len(cut) > 1
    assert padded_tokens(uneven, cut) < 0.2 * 64 * 400


def test_no_rows_make_no_micro_batch_and_impossible_ones_are_refused():
    assert pack([], 10) == []
    assert automatic_budget([], 5, 1) == 5
    with pytest.raises(ValueError, match="budget"):
        pack([1], 0)
    with pytest.raises(ValueError, match="lengths"):
        pack([-1], 10)
    with pytest.raises(ValueError, match="lengths"):
        pack([[[1]]], 10)
    for n in (0, 3):
        with pytest.raises(ValueError, match=rf"2 rows .*{n}"):
            partition([4, 5], n)


def test_sums_of_packed_tokens_keep_the_largest_difference_that_is_known():
    one, two = PackedTokens(2, 50, 60, 90), PackedTokens(1, 10, 10, 10, 1e-7)
    assert one + two == PackedTokens(3, 60, 70, 100, 1e-7)
    assert (two + PackedTokens(0, 0, 0, 0, 3e-7)).difference == 3e-7
    assert (one + one).difference is None


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [([1.0, -4.0], [1.5, -4.0], 0.125), ([], [], 0.0), ([0.0], [0.0], 0.0), ([0.0], [2.0], 1.0)],
)
def test_a_difference_is_told_by_the_largest_value(one, other, difference):
    assert relative_difference(one, other) == difference
    assert relative_difference(other, one) == difference
