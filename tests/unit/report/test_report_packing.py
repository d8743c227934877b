"""The line that says what adaptive micro-batches saved, and by how much results differ."""

from __future__ import annotations

from ecorl.engines.packing import PackedTokens
from ecorl.report.render.page import render_html
from ecorl.runtime.packed_tokens import PackingTally


def packed(run, step, difference=None):
    """A step of 40 rows: 600 tokens of their own, 700 computed of 1,000."""
    tally = PackingTally()
    tally.note("reward", PackedTokens(2, 200, 250, 400))
    tally.note("actor_train", PackedTokens(3, 400, 450, 600, difference))
    tally.end_step(run.ledger, step, None)


def test_it_sums_up_all_that_was_computed_and_tells_the_largest_difference(run, snapshot):
    run.standard()
    packed(run, 1, 2e-7)
    packed(run, 2, 3.4e-7)
    packed(run, 3)
    report = run.report()
    # 300 of 1,000 tokens a step are left out, of which 400 are padding.
    (remark,) = report.remarks
    snapshot(remark)
    assert remark[1:] in render_html(report).replace("\u00a0", " ")


def test_steps_that_a_resume_has_superseded_do_not_count(run, snapshot):
    run.standard()
    packed(run, 1)
    packed(run, 2)
    run.resume(1030.0, 1)
    packed(run, 2)
    (remark,) = run.report().remarks
    snapshot(remark)


def test_without_a_comparison_or_padding_it_says_so(run, snapshot):
    tally = PackingTally()
    tally.note("reward", PackedTokens(1, 90, 90, 90))
    tally.end_step(run.ledger, 1, None)
    (remark,) = run.report().remarks
    snapshot(remark)


def test_a_run_without_them_says_nothing(run):
    run.standard()
    run.ledger.metric(1, "rewards/mean", 1.0)
    assert run.report().remarks == ()
    tally = PackingTally()
    tally.end_step(run.ledger, 1, None)
    assert run.report().remarks == ()


def test_a_difference_that_is_no_number_is_no_difference(run, snapshot):
    packed(run, 1, float("nan"))
    (remark,) = run.report().remarks
    snapshot(remark)
