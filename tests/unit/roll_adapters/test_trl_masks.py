"""Tokens of a TRL batch whatever its masks say: what is counted, sent and filled in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ProcessorMixin

from ecorl.engines.validate import check_batch
from ecorl.records import Stage
from ecorl.runtime.rollout import GeneratedRows
from roll_adapters.trl.masks import add_generated, computed, trained
from roll_adapters.trl.reference import ReferenceCall

PAD, EOS = 0, 2


@st.composite
def batches(draw):
    """A batch as TRL pads it, its rows as they were, and the pad token, which may be the EOS."""
    pad = draw(st.sampled_from([PAD, EOS]))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        prompt = draw(st.lists(st.integers(3, 9), min_size=1, max_size=4))
        # Of a turn, an environment and a turn; pad tokens may stand inside.
        inner = draw(st.lists(st.sampled_from([pad, 3, 4, 5]), max_size=6))
        cut_off = draw(st.booleans())
        rows.append((prompt, [*inner, draw(st.integers(3, 9)) if cut_off else EOS], cut_off))
    n_prompt, n_keep = (max(len(row[k]) for row in rows) for k in (0, 1))
    n_keep += draw(st.integers(0, 2))  # pad_to_multiple_of
    ids = torch.full((len(rows), n_prompt + n_keep), pad)
    mask = torch.zeros_like(ids)
    masks_cut_off = draw(st.booleans())
    for i, (prompt, completion, cut_off) in enumerate(rows):
        row = torch.tensor(prompt + completion)
        where = slice(n_prompt - len(prompt), n_prompt + len(completion))
        ids[i, where], mask[i, where] = row, 1
        if cut_off and masks_cut_off:  # mask_truncated_completions
            mask[i, n_prompt:] = 0
    return rows, ids, mask, n_keep, pad


def call_of(ids, mask, n_keep, pad, original=None):
    return ReferenceCall(original, None, ids, mask, n_keep, 2, pad)


@settings(deadline=None)
@given(batches())
def test_a_pass_computes_each_completion_whatever_the_loss_masks(batch):
    rows, ids, mask, n_keep, pad = batch
    lengths = [len(completion) for _, completion, _ in rows]
    assert computed(ids[:, -n_keep:], mask[:, -n_keep:], pad).sum(1).tolist() == lengths
    work = call_of(ids, mask, n_keep, pad).work(Stage.REFERENCE, None)
    whole = [len(prompt) + len(completion) for prompt, completion, _ in rows]
    assert (work.n_sequences, work.n_tokens) == (len(rows), sum(whole))
    assert (work.n_output_tokens, work.max_length) == (sum(lengths), max(whole))
    inputs = {"completion_ids": ids[:, -n_keep:], "completion_mask": mask[:, -n_keep:]}
    tokenizer = SimpleNamespace(pad_token_id=pad)
    for trainer in trainers_with(tokenizer):
        more = {"prompt_mask": mask[:, :-n_keep]}
        n_all = sum(lengths) + sum(len(prompt) for prompt, _, _ in rows)
        assert trained(trainer, inputs | more) == (len(rows), n_all, sum(lengths), None)
    hidden = trained(SimpleNamespace(processing_class=object()), inputs)
    assert hidden[:3] == (len(rows), 0, 0)
    assert "pad_token_id" in str(hidden.unknown)
    assert trained(trainer, {})[:3] == (0, 0, 0)


class Processor(ProcessorMixin):
    """Of a model that reads images."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer


def trainers_with(tokenizer):
    """TRL's, which keep the tokenizer that they pad with, and others."""
    yield SimpleNamespace(processing_class=tokenizer)
    yield SimpleNamespace(processing_class=Processor(tokenizer))
    yield SimpleNamespace(processing_class=object(), _tokenizer=tokenizer)
    # As some tokenizers with code of their own: the backend lies in ``tokenizer``.
    backend = SimpleNamespace(**vars(tokenizer), tokenizer=object())
    yield SimpleNamespace(processing_class=backend)
    yield SimpleNamespace(processing_class=backend, _tokenizer=backend)


@settings(deadline=None)
@given(batches())
def test_an_engine_computes_what_trl_would_and_the_mask_s_places_stay_0(batch):
    rows, ids, mask, n_keep, pad = batch
    call = call_of(ids, mask, n_keep, pad)
    sent = call.batch(tuple(map(str, range(len(rows)))), 0.5)
    check_batch(sent, Stage.REFERENCE)
    assert [row.tolist() for row in sent.token_ids] == [p + c for p, c, _ in rows]
    assert list(sent.n_completion) == [len(c) for _, c, _ in rows]
    work = call.work(Stage.REFERENCE, None)
    assert (sent.n_tokens, sum(sent.n_completion)) == (work.n_tokens, work.n_output_tokens)
    answers = [row[len(row) - n :].astype(np.float32) - 10 for row, n in zip(
        sent.token_ids, sent.n_completion, strict=True
    )]  # fmt: skip
    target = call.unfilled()
    call.fill(target, answers)
    kept = mask[:, -n_keep:]
    assert torch.equal(target, (ids[:, -n_keep:].float() - 10) * kept)
    # A value of a masked place may be anything.
    call.fill(target, [np.full_like(a, np.nan) if c else a for a, (_, _, c) in zip(
        answers, rows, strict=True
    )])  # fmt: skip
    masked = ~kept.bool().any(1)
    assert torch.equal(target[masked], torch.zeros_like(target[masked]))


@settings(deadline=None)
@given(batches())
def test_rows_that_an_engine_did_not_answer_come_from_trl_with_its_own_mask(batch):
    rows, ids, mask, n_keep, pad = batch
    seen = []

    def original(model, ids, mask, n_keep, batch_size):
        seen.append(mask)
        return ids[:, -n_keep:].float() * mask[:, -n_keep:], None, None

    bad = list(range(0, len(rows), 2))
    found = call_of(ids, mask, n_keep, pad, original).exact(bad)
    assert torch.equal(seen[0], mask[bad])
    for row, values in zip(bad, found, strict=True):
        is_kept = float(mask[row, -n_keep:].any())
        assert values.tolist() == [token * is_kept for token in rows[row][1]]


def test_masked_tokens_before_others_are_computed_and_not_sent():
    """A mask of a trainer of the user's own: TRL's model computes later tokens without them."""
    ids, mask = torch.tensor([[7, 3, 4, 5, 6]]), torch.tensor([[1, 1, 0, 0, 1]])
    call = call_of(ids, mask, 4, PAD)
    assert call.work(Stage.REFERENCE, None).n_output_tokens == 4
    sent = call.batch(("a",), 1.0)
    assert (sent.token_ids[0].tolist(), sent.n_completion) == ([7, 3, 6], (2,))


def rows_of(*outputs):
    found = GeneratedRows()
    for output, n_sampled in outputs:
        add_generated(found, output, n_sampled)
    return found.prompts, found.completions, found.n_foreign, found.n_dropped


PROMPTS, COMPLETIONS = [[5, 6], [5]], [[7, 7, 8, 8, 8, 7, EOS], [7, EOS]]


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1, 0, 0, 0, 1, 1], [1, 1]],
        [[True, True, False, False, False, True, True], [True, True]],
        [torch.tensor([1, 1, 0, 0, 0, 1, 1]), torch.tensor([1, 1])],
        [[1, 1, 0, 0, 0], [1]],  # TRL takes what it does not reach for the policy's
    ],
    ids=["numbers", "booleans", "tensors", "shorter"],
)
def test_what_tools_and_environments_wrote_is_not_the_policy_s(mask):
    grpo = (PROMPTS, COMPLETIONS, mask, ["", ""], None, {}, None, [])
    assert rows_of((grpo, 0)) == ([2, 1], [7, 2], 3, 0)
    # Of an evaluation all batches together.
    assert rows_of((grpo, 0), (grpo, 6)) == ([2, 1] * 2, [7, 2] * 2, 6, 0)


def test_without_a_mask_all_is_the_policy_s_and_what_was_cut_off_too():
    grpo = (PROMPTS, COMPLETIONS, None, ["", ""], None, {}, None, [])
    rloo = (PROMPTS, COMPLETIONS, ["", ""])
    assert rows_of((grpo, 9)) == rows_of((rloo, 9)) == ([2, 1], [7, 2], 0, 0)
    assert rows_of((rloo, 12)) == ([2, 1], [7, 2], 0, 3)
