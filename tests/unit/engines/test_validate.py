from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.engines.protocol import EngineReport, LogprobResult, ScoreBatch, ScoreResult
from ecorl.engines.validate import (
    LOGPROB_EPSILON,
    check_batch,
    check_logprobs,
    check_result,
    check_score,
)
from ecorl.errors import EngineError, InvalidResult
from ecorl.records import Provenance, Stage

REPORT = EngineReport(None, None, Provenance.MEASURED, 0.0)


@pytest.fixture
def batch(make_batch):
    return make_batch(4)


@pytest.fixture
def scores(batch):
    return ScoreResult(batch.sample_ids, np.arange(4, dtype=np.float32), REPORT)


@pytest.fixture
def logprobs(batch):
    values = tuple(np.full(n, -1.5, dtype=np.float32) for n in batch.n_completion)
    return LogprobResult(batch.sample_ids, values, REPORT)


def test_good_answers_are_all_valid(batch, scores, logprobs):
    assert check_score(batch, scores).tolist() == [True] * 4
    assert check_logprobs(batch, logprobs).tolist() == [True] * 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_only_the_bad_reward_is_invalid(batch, scores, bad):
    scores.values[2] = bad
    assert check_score(batch, scores).tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    "bad",
    [
        lambda row: np.full_like(row, np.nan),
        lambda row: np.full_like(row, -np.inf),
        lambda row: np.full_like(row, 10 * LOGPROB_EPSILON),
        lambda row: row[:-1],
        lambda row: row[None],
        lambda row: row.astype(np.float64),
        lambda row: row.tolist(),
        lambda row: None,
    ],
)
def test_only_the_bad_logprob_row_is_invalid(batch, logprobs, bad):
    values = list(logprobs.values)
    values[1] = bad(values[1])
    result = replace(logprobs, values=tuple(values))
    assert check_logprobs(batch, result).tolist() == [True, False, True, True]


def test_one_nan_token_spoils_its_row_alone(batch, logprobs):
    logprobs.values[3][0] = np.nan
    assert check_logprobs(batch, logprobs).tolist() == [True, True, True, False]


def test_rounding_above_zero_is_no_fault(batch, logprobs):
    logprobs.values[0][0] = LOGPROB_EPSILON / 2
    assert check_logprobs(batch, logprobs).all()


def test_swapped_ids_spoil_the_swapped_rows(batch, scores, logprobs):
    a, b, c, d = batch.sample_ids
    assert check_score(batch, replace(scores, sample_ids=(b, a, c, d))).tolist() == [
        False,
        False,
        True,
        True,
    ]
    swapped = replace(logprobs, sample_ids=(a, c, b, d))
    assert check_logprobs(batch, swapped).tolist() == [True, False, False, True]


def test_a_consistent_but_short_answer_keeps_its_rows(batch, scores, logprobs):
    short = ScoreResult(scores.sample_ids[:2], scores.values[:2], REPORT)
    assert check_score(batch, short).tolist() == [True, True, False, False]
    short = LogprobResult(logprobs.sample_ids[:3], logprobs.values[:3], REPORT)
    assert check_logprobs(batch, short).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, np.float32),
        np.zeros(5, np.float32),
        np.zeros((4, 1), np.float32),
        np.zeros(4, np.float64),
        [0.0] * 4,
        None,
    ],
)
def test_unmatchable_rewards_raise(batch, scores, values):
    with pytest.raises(InvalidResult):
        check_score(batch, replace(scores, values=values))


@pytest.mark.parametrize("values", [None, 3.0, {}])
def test_log_probs_that_are_no_rows_raise(batch, logprobs, values):
    with pytest.raises(InvalidResult, match="no rows"):
        check_logprobs(batch, replace(logprobs, values=values))


def test_unmatchable_ids_raise(batch, scores, logprobs):
    strangers = ("x", "y", "z", "w")
    with pytest.raises(InvalidResult):
        check_score(batch, replace(scores, sample_ids=strangers))
    with pytest.raises(InvalidResult):
        check_logprobs(batch, replace(logprobs, sample_ids=strangers))
    with pytest.raises(InvalidResult):
        check_logprobs(batch, replace(logprobs, values=logprobs.values[:-1]))


def test_empty_batch_is_valid(make_batch):
    empty = make_batch(0)
    assert check_score(empty, ScoreResult((), np.zeros(0, np.float32), REPORT)).shape == (0,)
    assert check_logprobs(empty, LogprobResult((), (), REPORT)).shape == (0,)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"micro_batch": 0},
        {"n_completion": (1, 1)},
        {"token_ids": ()},
    ],
)
def test_unanswerable_batches_are_refused(batch, change):
    with pytest.raises(EngineError):
        check_batch(replace(batch, **change), Stage.REWARD)


def test_a_completion_needs_a_token_before_it(make_rows):
    whole_row = make_rows([1, 2, 3], n_completion=3)
    check_batch(whole_row, Stage.REWARD)
    with pytest.raises(EngineError, match="before it"):
        check_batch(whole_row, Stage.REFERENCE)
    with pytest.raises(EngineError, match="no tokens"):
        check_batch(make_rows([]), Stage.REWARD)


def test_a_result_is_its_usable_rows_and_figures(batch, scores, logprobs):
    scores.values[2] = np.nan
    report = replace(REPORT, device_time_s=-1.0, device_energy_j=2.0)
    checked = check_result(batch, replace(scores, report=report), Stage.REWARD)
    assert [None if v is None else float(v) for v in checked.values] == [0.0, 1.0, None, 3.0]
    assert (checked.report.device_time_s, checked.report.device_energy_j) == (None, 2.0)
    rows = check_result(batch, replace(logprobs, report="none"), Stage.REFERENCE)
    assert [v.tobytes() for v in rows.values] == [v.tobytes() for v in logprobs.values]
    assert rows.report is None


@pytest.mark.parametrize("stage", [Stage.REWARD, Stage.REFERENCE])
def test_anything_may_come_back_from_an_engine(batch, scores, logprobs, stage):
    good, other = (scores, logprobs) if stage is Stage.REWARD else (logprobs, scores)
    for result in (None, 17, other, replace(good, sample_ids=None), replace(good, values=None)):
        with pytest.raises(InvalidResult):
            check_result(batch, result, stage)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ((1.0, 2.5), (1.0, 2.5)),
        (None, None),
        ((2.0, 1.0), None),
        ((1.0,), None),
        ((float("nan"), 1.0), None),
        ("now", None),
    ],
)
def test_begin_and_end_of_a_call_are_kept_where_they_can_be(told, kept):
    batch = ScoreBatch(("a",), (np.array([1]),), (1,))
    result = ScoreResult(("a",), np.zeros(1, np.float32), replace(REPORT, span_s=told))
    assert check_result(batch, result, Stage.REWARD).report.span_s == kept
