"""What is computed in short for a plain iteration is what the general functions say of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.records import Stage
from ecorl.stages import (
    CONCURRENT,
    FPGA,
    GPU,
    SCALAR,
    Between,
    Rules,
    advance,
    after_generation,
    begin,
    cards_speed,
    is_plain,
    offload_bids,
    outlook,
    plain_bids,
)
from ecorl.stages.plain import plain_ends, plain_send
from tests.fakes.iterations import works

RW, RF = Stage.REWARD, Stage.REFERENCE
FIXED = {
    "slow": 1.0, "lost": 0.0, "off_policy": 0.0, "sleeps": 0.0, "arriving_s": 0.0,
    "late_arriving_s": 0.0, "yielding": 0.0, "timeout_s": 0.0,
}  # fmt: skip
WORK = st.sampled_from([1.0, 0.5, 0.2]).flatmap(lambda share: works(**FIXED, card_share=share))
"""Iterations in which nothing goes on beside this job's own whole batches."""

BACKLOG = st.one_of(st.just(0.0), st.floats(1e-3, 100.0))
CAN = st.sampled_from([0.0, 1.0])
RULES = st.builds(
    Rules, CAN, st.just(0.0), CAN, st.tuples(CAN, CAN, CAN), st.just(8.0), st.just(2048.0),
    st.just(1e30),
)  # fmt: skip
CASES = st.tuples(
    WORK, BACKLOG, st.sampled_from([23.0, 88.0, 110.0]), st.sampled_from([GPU, FPGA, CONCURRENT])
)


def before_stage(stage, work, backlog_s, temperature_c, code):
    """The iteration before a stage, by the general functions."""
    carry = begin(work, Between(backlog_s, temperature_c, 0.0, 0.0))
    carry = advance(Stage.GENERATION, carry, work, GPU)
    return carry if stage is RW else advance(RW, carry, work, code)


@settings(deadline=None)
@given(CASES)
def test_after_generation_an_iteration_is_what_begin_and_advance_make_of_it(case):
    work, backlog_s, temperature_c, _ = case
    found = after_generation(work, backlog_s, temperature_c, cards_speed(work, temperature_c))
    assert found == before_stage(RW, *case)


@settings(deadline=None)
@given(st.sampled_from([RW, RF]), CASES, RULES)
def test_the_bids_are_those_of_the_guards(stage, case, rules):
    work, carry = case[0], before_stage(stage, *case)
    assert is_plain(stage, carry, work, rules)
    bids = offload_bids(stage, carry, work, rules)
    found = plain_bids(stage, carry, work, rules)
    for one, other in ((found[0], bids[0]), (found[1], bids[-1])):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-12)


@settings(deadline=None)
@given(st.sampled_from([RW, RF]), CASES, RULES)
def test_the_ends_are_those_of_the_outlook(stage, case, rules):
    work, carry = case[0], before_stage(stage, *case)
    sent = plain_send(0 if stage is RW else 1, carry, work)
    ends = plain_ends(stage, carry, work, rules, sent)
    own = advance(stage, carry, work, CONCURRENT)
    assert sent[2:] == pytest.approx((own.card_s, own.own_s, own.pending_s), rel=1e-12)
    by_gpu = advance(stage, carry, work, GPU)
    wanted = [outlook(stage, at, work, 0.0, SCALAR) for at in (by_gpu, own)]
    if stage is RW and rules.usable[1]:
        wanted.append(outlook(RF, advance(RF, own, work, CONCURRENT), work, 0.0, SCALAR))
    assert len(ends) == len(wanted)
    for one, other in zip(ends, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    "changes",
    [{"slow": 1.2}, {"lost": 0.5}, {"off_policy": 1.0}, {"sleeps": 1.0}],
)
@settings(deadline=None, max_examples=5)
@given(CASES, RULES)
def test_an_iteration_beside_which_something_goes_on_is_not_plain(changes, case, rules):
    work, carry = case[0], before_stage(RW, *case)
    assert is_plain(RW, carry, work, rules)
    assert not is_plain(RW, carry, work._replace(**changes), rules)
    assert not is_plain(Stage.CRITIC, carry, work, rules)
    assert not is_plain(RW, carry._replace(streaming=1.0), work, rules)
    assert not is_plain(RW, carry._replace(asleep=1.0), work, rules)
    assert not is_plain(RW, carry, work, rules._replace(early=1.0))
