"""Rows between ROLL's padded batches and an engine, and the numbers that ROLL logs of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.validate import check_batch
from ecorl.records import Stage
from roll_adapters.roll.stages.metrics import trainer_metrics
from roll_adapters.roll.stages.rows import StepRows, sizes_of
from tests.fakes.openrlhf import engine_answers
from tests.fakes.roll_batches import ROWS, Batch, own_logprobs, step_batch


@st.composite
def steps(draw):
    """Rows of a step, and ROLL's batch of them: any order, any part of the step's rows."""
    n_rows = draw(st.integers(1, 6))
    rows = []
    for _ in range(n_rows):
        prompt = draw(st.lists(st.integers(1, 99), min_size=1, max_size=4))
        response = draw(st.lists(st.tuples(st.integers(1, 99), st.booleans()), max_size=6))
        mask = [0] * len(prompt) + [int(taken) for _, taken in response]
        rows.append((prompt + [token for token, _ in response], mask))
    order = draw(st.permutations(range(n_rows + 2)))[:n_rows]
    return rows, step_batch(rows, order, draw(st.integers(0, 3)))


def first_taken(mask):
    return mask.index(1) if 1 in mask else len(mask)


def random_values(draw, counts):
    numbers = st.floats(-9, 0, width=32)
    vectors = [draw(st.lists(numbers, min_size=n, max_size=n)) for n in counts]
    return [np.array(vector, np.float32) for vector in vectors]


@settings(deadline=None)
@given(steps(), st.integers(1, 9))
def test_an_engine_gets_the_real_tokens_and_all_from_the_first_of_the_response_on(step, n):
    rows, padded = step
    batch = StepRows(padded, "5").batch(n)
    assert [row.tolist() for row in batch.token_ids] == [tokens for tokens, _ in rows]
    assert list(batch.n_completion) == [len(mask) - first_taken(mask) for _, mask in rows]
    assert {row.dtype for row in batch.token_ids} == {np.dtype(np.int64)}
    assert (batch.micro_batch, batch.temperature) == (n, 1.0)
    check_batch(batch, Stage.REFERENCE)


@settings(deadline=None)
@given(steps())
def test_rows_are_named_by_their_prompt_id_and_not_by_their_place(step):
    _, padded = step
    rows = StepRows(padded, "5")
    names = [f"5.{number}" for number in padded.batch["prompt_id"].tolist()]
    assert list(rows.batch(None).sample_ids) == names
    assert len(rows) == len(names)


@settings(deadline=None)
@given(steps(), st.data())
def test_what_an_engine_answers_is_picked_out_of_roll_s_shape_again(step, data):
    rows, padded = step
    found = StepRows(padded, "5")
    values = random_values(data.draw, found.batch(None).n_completion)
    table = found.logprobs(values)
    assert table.dtype == torch.float32
    assert table.shape == padded.batch["input_ids"][:, 1:].shape
    for row, value, (tokens, mask) in zip(table, values, rows, strict=True):
        # The value of token j + 1 stands in column j; where there is no response there is 0.
        behind = value * np.array(mask[len(mask) - len(value) :], np.float32)
        n = len(tokens) - 1
        np.testing.assert_array_equal(row[n - len(value) : n].numpy(), behind)
        assert int((row != 0).sum()) == int((behind != 0).sum())


@settings(deadline=None)
@given(steps(), st.data())
def test_log_probs_and_picked_rows_invert_each_other(step, data):
    _, padded = step
    found = StepRows(padded, "5")
    own = own_logprobs(padded)
    some = data.draw(st.permutations(range(len(found))))
    some = some[: data.draw(st.integers(0, len(some)))]
    picked = found.picked(some, own[some])
    answers = engine_answers(Stage.REFERENCE, found.batch(None))
    for row, value in zip(some, picked, strict=True):
        assert value.dtype == np.float32
        assert value.shape == answers[row].shape
        answers[row] = value
    torch.testing.assert_close(found.logprobs(answers), own)


def test_roll_s_answers_may_come_in_half_precision():
    rows = StepRows(step_batch(ROWS), "1")
    answers = own_logprobs(step_batch(ROWS)).to(torch.bfloat16)
    assert {value.dtype for value in rows.picked(range(len(ROWS)), answers)} == {
        np.dtype(np.float32)
    }


def test_a_row_without_a_response_has_nothing_to_compute():
    rows = StepRows(step_batch([([3, 4], [0, 0]), ([5, 6], [0, 1])]), "1")
    assert rows.batch(None).n_completion == (0, 1)
    assert rows.picked([0], torch.full((1, 1), -1.0))[0].shape == (0,)
    none, one = np.zeros(0, np.float32), np.array([-2], np.float32)
    assert rows.logprobs([none, one]).tolist() == [[0.0], [-2.0]]


def test_what_is_said_between_the_turns_of_a_response_is_computed_and_masked():
    rows = StepRows(step_batch([([3, 4, 5, 6, 7], [0, 1, 0, 0, 1])], n_padding=1), "1")
    assert rows.batch(None).n_completion == (4,)
    four = np.array([-1, -2, -3, -4], np.float32)
    assert rows.logprobs([four]).tolist() == [[-1.0, 0.0, 0.0, -4.0, 0.0]]


@settings(deadline=None)
@given(steps(), st.integers(1, 3))
def test_sizes_count_what_a_pass_computes(step, passes):
    rows, padded = step
    work = sizes_of(padded).work(Stage.ACTOR_TRAIN, None, passes=passes)
    assert work.n_sequences == len(rows) * passes
    assert work.n_tokens == sum(len(tokens) for tokens, _ in rows) * passes
    n_output = sum(len(mask) - first_taken(mask) for _, mask in rows)
    assert work.n_output_tokens == n_output * passes
    assert work.max_length == max(len(tokens) for tokens, _ in rows)


@pytest.mark.parametrize(
    "completions",
    [
        # Of distillation and fine-tuning.
        {"labels": torch.tensor([[-100, 5, 6, -100], [-100, -100, -100, 7]])},
        # Of preference pairs, as ROLL's collator for DPO makes them.
        {"prompt_id_lens": torch.tensor([1, 3])},
    ],
    ids=["labels", "prompt_id_lens"],
)
def test_without_a_mask_of_responses_what_follows_the_prompt_is_counted(completions):
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    found = sizes_of(SimpleNamespace(batch={"attention_mask": mask, **completions}))
    assert (found.n_rows, found.n_tokens, found.n_output_tokens, found.max_length) == (2, 7, 3, 4)


@pytest.mark.parametrize("key", ["attention_mask", "input_ids", "prompt_id", "response_mask"])
def test_a_batch_without_a_tensor_is_an_error(key):
    tensors = {k: t for k, t in step_batch(ROWS).batch.items() if k != key}
    with pytest.raises(KeyError, match=key):
        StepRows(Batch(tensors), "1")


# ---------------------------------------------------------------- metrics


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1, 1.0), (0.5, 0.5), (np.float32(0.5), 0.5), (np.array([2.0]), 2.0),
        (torch.tensor(0.5), 0.5), (torch.tensor([3]), 3.0), (float("nan"), None),
        (np.float64("inf"), None),
    ],
)  # fmt: skip
def test_scalars_of_any_kind_are_metrics(value, told):
    assert list(trainer_metrics({"a": value})) == [("a", told)]


def test_metrics_are_known_by_one_name_and_what_is_no_number_is_left_out():
    values = {
        "critic/rewards/mean": 1.0, "critic/score/mean": 2.0, "actor/lr": 0.1,
        "actor/total_loss@sum": 0.5, "actor/ratio_max@max": 3.0,
    }  # fmt: skip
    others = {"text": "a", "flag": True, "many": np.ones(2), "rows": torch.ones(3), "none": None}
    told = dict(trainer_metrics(values | others))
    assert told == {
        "reward": 1.0, "critic/score/mean": 2.0, "learning_rate": 0.1, "loss": 0.5,
        "actor/ratio_max": 3.0,
    }  # fmt: skip
