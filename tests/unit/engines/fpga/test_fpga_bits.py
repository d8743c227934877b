"""A row has the same bits whatever surrounds it: batch, order, threads, build, what ran before."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_models import REWARDS, decoder, rows_of, same_bits

from tests.examples import examples


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


@pytest.mark.parametrize("name", ["llama_reward", "qwen_lm_tied"])
def test_strict_and_fast_give_the_same_bits(models, name, require_tool):
    require_tool("hls_headers")
    fast, strict = decoder(models(name)[0]), decoder(models(name)[0], "strict")
    rows = rows_of(1, 5, 20, 9, seed=7)
    assert same_bits(fast.hidden(rows), strict.hidden(rows))
    if name in REWARDS:
        assert same_bits(fast.score(rows), strict.score(rows))
    else:
        counts = [0, 4, 10, 8]
        a, b = (m.logprobs(rows, counts, 1.3) for m in (fast, strict))
        assert same_bits(np.concatenate(a), np.concatenate(b))


POOL = [1, 1, 2, 3, 12, 12, 12, 31, 40, 63, 64, 65, 120, 257, 300]


@functools.cache
def alone(folder):
    """The reward of each row of the pool, scored by itself."""
    model = decoder(folder)
    return [model.score([row])[0] for row in rows_of(*POOL, seed=8)]


@pytest.fixture(scope="module")
def reward_folder(models):
    return models("llama_reward")[0]


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), threads=st.sampled_from([1, 2]))
def test_a_row_has_the_same_bits_in_any_batch(reward_folder, data, threads):
    pool, wanted = rows_of(*POOL, seed=8), alone(reward_folder)
    picked = data.draw(st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=24))
    model = shared_decoder(reward_folder)
    model.threads = threads
    assert same_bits(model.score([pool[i] for i in picked]), [wanted[i] for i in picked])


@functools.cache
def shared_decoder(folder):
    return decoder(folder)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_logprobs_of_a_row_have_the_same_bits_in_any_batch(lm_folder, data):
    pool = rows_of(*POOL[2:], seed=9)
    model = shared_decoder(lm_folder)
    picked = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=10))
    counts = [data.draw(st.integers(0, len(pool[i]) - 1)) for i in picked]
    together = model.logprobs([pool[i] for i in picked], counts, 0.9)
    for i, n, values in zip(picked, counts, together, strict=True):
        (single,) = model.logprobs([pool[i]], [n], 0.9)
        assert same_bits(values, single)
        # fewer completion tokens are a suffix of more
        if n > 1:
            (suffix,) = model.logprobs([pool[i]], [n // 2], 0.9)
            assert same_bits(values[n - n // 2 :], suffix)


@pytest.fixture(scope="module")
def lm_folder(models):
    return models("qwen_lm_tied")[0]


def test_a_prefix_has_the_same_bits_as_the_whole_row(models):
    """Causality: later tokens cannot reach earlier ones."""
    model = decoder(models("llama_lm")[0])
    (row,) = rows_of(300, seed=10)
    whole = model.hidden([row])
    for n in (1, 17, 64, 65, 256, 299):
        assert same_bits(model.hidden([row[:n]]), whole[:n])


def test_threads_do_not_change_a_bit(models):
    folder, _ = models("llama_reward")
    rows = rows_of(*range(1, 60), 300, 200, seed=11)
    assert same_bits(decoder(folder).hidden(rows), decoder(folder, threads=2).hidden(rows))


def test_positions_beyond_the_first_table(models):
    """The rotary tables grow on demand; results do not depend on when."""
    folder, _ = models("llama_reward")
    early, late = decoder(folder), decoder(folder)
    short, long = rows_of(20, 512, seed=12)
    late.score([long])
    assert same_bits(early.score([short]), late.score([short]))
    assert same_bits(early.score([long]), late.score([long]))
