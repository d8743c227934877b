"""The verdict where the reward rose and right answers fell: with both figures, and when not."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from ecorl.report.render.page import render_html
from ecorl.report.render.text import print_report
from ecorl.report.training import is_correctness, is_reward

UP = [1.0, 2.0, 1.0, 2.0]  # against zeros: 1.5 at a standard error of 1 / (2 root 3), 5.2 of them


def evaluated(run, reward_after, correct_before, correct_after, name="correct"):
    run.ledger.evaluation("reward", "before", [0.0] * len(reward_after))
    run.ledger.evaluation(name, "before", correct_before)
    run.ledger.evaluation("reward", "after", reward_after)
    run.ledger.evaluation(name, "after", correct_after)
    return run.report()


def about_learning(report):
    return [s for s in report.verdict if "reward" in s]


def test_a_reward_that_rose_while_right_answers_fell_is_told_with_both_figures(run, snapshot):
    report = evaluated(run, UP, [1.0, 1.0, 1.0, 0.0], [0.0] * 4)
    # Right answers: -1, -1, -1, 0: mean -0.75, standard deviation 0.5, error 0.25: 3 of them.
    snapshot("\n".join(about_learning(report)))
    assert math.isclose(1.5 / (math.sqrt(1 / 3) / 2), 5.196, abs_tol=1e-3)


def test_it_stands_in_the_terminal_and_on_the_page(run):
    report = evaluated(run, UP, [1.0, 1.0, 1.0, 0.0], [0.0] * 4)
    out = io.StringIO()
    print_report(report, Console(file=out, width=80))
    assert about_learning(report)[0] in " ".join(out.getvalue().replace("- ", "").split())
    page = render_html(report).replace("\u00a0", " ")
    assert about_learning(report)[0] in page


def test_a_fall_that_may_be_chance_is_told_as_one(run, snapshot):
    report = evaluated(run, UP, [1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0])
    snapshot("\n".join(about_learning(report)))


@pytest.mark.parametrize(
    ("reward", "before", "after"),
    [
        (UP, [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]),  # both rose
        (UP, [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]),  # nothing fell
        ([9.0, -9.0, 1.0, 0.0], [1.0] * 4, [0.0] * 4),  # a rise that is chance
        ([-1.0, -2.0, -1.0, -2.0], [1.0] * 4, [0.0] * 4),  # both fell
        ([1.0], [1.0], [0.0]),  # one item has no standard error
    ],
)
def test_it_is_not_told_where_it_is_not_so(run, reward, before, after):
    assert about_learning(evaluated(run, reward, before, after)) == []


def test_every_item_alike_is_no_chance_and_has_no_error_to_count_in(run, snapshot):
    report = evaluated(run, [1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    snapshot("\n".join(about_learning(report)))


def test_small_falls_are_shown_with_a_digit_more(run, snapshot):
    n = 400
    before = [1.0] * (n // 2) + [0.0] * (n // 2)
    after = [0.0, *before[1:]]
    report = evaluated(run, [1.0, 2.0] * (n // 2), before, after)
    snapshot("\n".join(about_learning(report)))


def test_evaluations_of_a_users_own_are_known_by_their_names(run, snapshot):
    report = evaluated(run, UP, [40.0, 41.0, 42.0, 43.0], [2.0, 3.0, 3.0, 4.0], "math/accuracy")
    snapshot("\n".join(about_learning(report)))


@pytest.mark.parametrize(
    ("name", "correct", "reward"),
    [
        ("correct", True, False),
        ("eval_correctness", True, False),
        ("Exact-Match", True, False),
        ("reward", False, True),
        ("eval/reward", False, True),
        ("incorrectly", False, False),
        ("length", False, False),
    ],
)
def test_what_an_evaluation_is_of_is_read_from_whole_words(name, correct, reward):
    assert is_correctness(name) is correct
    assert is_reward(name) is reward


def test_only_evaluations_of_one_time_are_compared(run):
    run.ledger.evaluation("reward", "before", [0.0] * 4)
    run.ledger.evaluation("correct", "before", [1.0] * 4)
    run.ledger.evaluation("reward", "after", UP)
    run.ledger.evaluation("correct", "half-way", [0.0, 0.0, 0.0, 1.0])
    assert about_learning(run.report()) == []
