"""The small language model's text, batches and loss."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.studies.trainer import language_model
from benchmarks.studies.trainer.language_model import (
    CONTEXT,
    VOCABULARY,
    Batches,
    corpus,
    held_out_loss,
    language_loss,
    small_llama,
)


def test_the_text_is_english_and_nothing_held_out_is_trained_on():
    text = corpus()
    training, held_out = (bytes(part.tolist()).decode() for part in (text.training, text.held_out))
    assert len(training) > 100_000
    assert len(held_out) > 10_000
    assert " the " in training
    shared = set(training.split("\n")) & set(held_out.split("\n"))
    assert shared == set()
    language_model.corpus.cache_clear()
    assert corpus().digest == text.digest


def test_sizes_are_those_that_fp8_takes():
    model = small_llama(0)
    assert 2e5 < sum(w.numel() for w in model.parameters()) < 1e6
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert all(m.in_features % 16 == m.out_features % 16 == 0 for m in linear)


def test_weights_and_batches_follow_the_seed_alone():
    state = torch.random.get_rng_state()
    first, again, other = small_llama(1), small_llama(1), small_llama(2)
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    rows = Batches(3, 2).next()
    assert rows.shape == (2, CONTEXT)
    assert torch.equal(rows, Batches(3, 2).next())
    assert not torch.equal(rows, Batches(4, 2).next())


def test_an_untrained_model_knows_nothing():
    model = small_llama(0)
    loss = held_out_loss(model, n_rows=8)
    assert loss == pytest.approx(math.log(VOCABULARY), abs=0.3)
    rows = Batches(0, 2).next()
    scores = model(input_ids=rows).logits[:, :-1].flatten(0, 1)
    by_hand = torch.nn.functional.cross_entropy(scores, rows[:, 1:].flatten())
    assert language_loss(model, rows).item() == pytest.approx(by_hand.item(), rel=1e-5)
