from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_adapters.demo import arithmetic as task

NUMBERS = st.integers(1000, 8999)
SEEDS = st.integers(0, 2**32 - 1)
ANSWERS = st.text(task.CHARACTERS, max_size=9)
NOT_A_NUMBER = st.text(task.CHARACTERS, max_size=9)


def test_the_example_of_the_module():
    assert task.prompt_of(4721) == "9999-4721="
    assert task.answer_of(4721) == "5278"


@given(NUMBERS)
def test_the_answer_to_a_prompt_is_the_answer_of_its_number(number):
    answer = task.answer_to(task.prompt_of(number))
    assert answer == task.answer_of(number)
    assert int(answer) + number == 9999
    assert len(answer) == task.N_DIGITS  # no leading zero is ever lost


@given(NUMBERS)
def test_no_borrow_crosses_a_digit(number):
    digits = "".join(str(9 - int(d)) for d in str(number))
    assert task.answer_of(number) == digits


def test_the_numbers_are_each_there_once_and_shuffled():
    numbers = task.all_numbers(np.random.default_rng(3))
    assert sorted(numbers.tolist()) == list(range(1000, 9000))
    assert numbers.tolist() != list(range(1000, 9000))
    assert (task.all_numbers(np.random.default_rng(3)) == numbers).all()


@given(ANSWERS, ANSWERS)
def test_badness_is_zero_for_the_truth_alone_and_symmetric(truth, answer):
    bad = task.badness(truth, answer)
    assert bad >= 0
    assert (bad == 0) == (truth == answer)
    assert bad == task.badness(answer, truth)
    assert bad >= task.LENGTH_PENALTY * abs(len(truth) - len(answer))
    assert bad <= max(len(truth), len(answer)) * task.LENGTH_PENALTY


@given(st.text("0123456789", min_size=4, max_size=4), st.integers(0, 3), st.sampled_from("+-="))
def test_each_wrong_digit_costs_one_and_a_missing_one_three(truth, place, sign):
    wrong = truth[:place] + sign + truth[place + 1 :]
    assert task.badness(truth, wrong) == 1
    assert task.badness(truth, truth[:-1]) == task.LENGTH_PENALTY
    assert task.badness(truth, truth + "0") == task.LENGTH_PENALTY


@given(NUMBERS, SEEDS)
def test_a_corrupted_answer_can_be_written_with_the_tokenizer(number, seed):
    answer = task.corrupt(task.answer_of(number), np.random.default_rng(seed))
    assert set(answer) <= set(task.CHARACTERS)
    assert len(answer) <= task.N_DIGITS + 3


def test_corruption_makes_every_kind_of_mistake_and_not_only_mistakes():
    rng = np.random.default_rng(0)
    answers = [task.corrupt("5278", rng) for _ in range(2000)]
    lengths = {len(a) for a in answers}
    assert lengths >= {0, 2, 3, 4, 5, 6}
    assert any(set(a) & set("+-=") for a in answers)
    assert sum(task.badness("5278", a) == 1 for a in answers) > 300
    assert 0 < sum(a == "5278" for a in answers) < 600


@given(NUMBERS, st.lists(ANSWERS, max_size=4), SEEDS)
def test_an_annotator_without_noise_prefers_the_less_bad(number, samples, seed):
    pairs = task.ranked_pairs(number, samples, 0.0, np.random.default_rng(seed))
    truth = task.answer_of(number)
    assert pairs
    for pair in pairs:
        assert pair.prompt == task.prompt_of(number)
        assert task.badness(truth, pair.chosen) < task.badness(truth, pair.rejected)


@given(NUMBERS, st.lists(ANSWERS, max_size=4), SEEDS)
def test_an_annotator_who_always_errs_prefers_the_worse(number, samples, seed):
    pairs = task.ranked_pairs(number, samples, 1.0, np.random.default_rng(seed))
    truth = task.answer_of(number)
    assert all(task.badness(truth, p.chosen) > task.badness(truth, p.rejected) for p in pairs)


def test_the_share_of_wrong_comparisons_is_the_noise():
    rng = np.random.default_rng(1)
    pairs = [p for _ in range(600) for p in task.ranked_pairs(4721, ["5279", "52"], 0.2, rng)]
    wrong = [task.badness("5278", p.chosen) > task.badness("5278", p.rejected) for p in pairs]
    assert np.mean(wrong) == pytest.approx(0.2, abs=0.03)


@given(NUMBERS, SEEDS)
def test_a_ranking_depends_on_the_seed_alone(number, seed):
    first, second = (
        task.ranked_pairs(number, ["1"], 0.1, np.random.default_rng(seed)) for _ in range(2)
    )
    assert first == second


@given(NUMBERS, SEEDS)
def test_well_formed_answers_get_worse_by_one_digit_each(number, seed):
    truth = task.answer_of(number)
    answers = task.worsening(truth, np.random.default_rng(seed))
    assert [task.badness(truth, answer) for answer in answers] == list(range(task.N_DIGITS + 1))
    assert all(len(answer) == task.N_DIGITS and answer.isdecimal() for answer in answers)


def test_most_comparisons_are_between_well_formed_answers():
    rng = np.random.default_rng(2)
    rankings = [task.ranked_pairs(4721, ["52", "x"], 0.0, rng) for _ in range(400)]
    formed = [
        all(
            len(a) == task.N_DIGITS and a.isdecimal() for p in pairs for a in (p.chosen, p.rejected)
        )
        for pairs in rankings
    ]
    assert 0.6 < np.mean(formed) < 0.95
    assert not all(formed), "the format is taught as well"


TOKENIZER = task.build_tokenizer()


@given(st.text(task.CHARACTERS, max_size=30))
def test_text_survives_the_tokenizer_one_token_a_character(text):
    ids = TOKENIZER.encode(text).ids
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_the_vocabulary_is_the_special_tokens_and_the_characters():
    vocab = TOKENIZER.get_vocab()
    assert sorted(vocab.values()) == list(range(3 + len(task.CHARACTERS)))
    assert [TOKENIZER.id_to_token(i) for i in range(3)] == [task.PAD, task.BOS, task.EOS]
