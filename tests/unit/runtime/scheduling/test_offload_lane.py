from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.engines.protocol import EngineReport
from ecorl.errors import EngineCrashed, EngineTimeout
from ecorl.records import Provenance, Stage
from ecorl.runtime.scheduling.offload import LanePlace, OffloadLane
from ecorl.scheduler import Quarantine
from tests.examples import examples

SHORT_S = 0.02

PLACE = LanePlace("here", ("fpga0",))


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def join_one(toys, reply, batch, stage=Stage.REWARD, deadline_s=600.0):
    lane = OffloadLane(toys.Told(reply, stage), max_faults=3, place=PLACE)
    return lane.join(lane.submit(batch), deadline_s), lane


@pytest.mark.parametrize("stage", [Stage.REWARD, Stage.REFERENCE])
def test_a_healthy_answer_arrives_bit_for_bit(toys, stage):
    batch = toys.make_batch(4)
    outcome, lane = join_one(toys, lambda b: toys.answer(b, stage), batch, stage)
    wanted = toys.answer(batch, stage).values
    assert (outcome.fault, outcome.bad_rows, outcome.n_missing) == (None, (), 0)
    assert outcome.report == toys.report
    assert all(same_bits(outcome.values[i], wanted[i]) for i in range(4))
    assert lane.available


@pytest.mark.parametrize(
    ("reply", "fault", "part"),
    [
        (lambda toys, b: EngineCrashed("it broke"), "EngineCrashed", "it broke"),
        (lambda toys, b: EngineTimeout("slow"), "EngineTimeout", "slow"),
        (lambda toys, b: KeyError("surprise"), "KeyError", "surprise"),
        (lambda toys, b: "cancel", "Cancelled", "cancelled"),
        (lambda toys, b: toys.answer(b, Stage.REFERENCE), "InvalidResult", "without scores"),
        (lambda toys, b: 17, "InvalidResult", "without scores"),
        (lambda toys, b: toys.answer(b.rows([0, 1]), Stage.REWARD), "InvalidResult", "3 rows"),
        (
            lambda toys, b: toys.replace(toys.answer(b, Stage.REWARD), sample_ids=None),
            "InvalidResult",
            "",
        ),
        (
            lambda toys, b: toys.replace(toys.answer(b, Stage.REWARD), values=None),
            "InvalidResult",
            "NoneType",
        ),
        (
            lambda toys, b: toys.replace(toys.answer(b, Stage.REWARD), values=np.zeros((5, 2))),
            "InvalidResult",
            "[5, 2] float64",
        ),
        (
            lambda toys, b: toys.replace(toys.answer(b, Stage.REWARD), sample_ids=tuple("abcde")),
            "InvalidResult",
            "none of the 5 rows",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_named_and_never_raised(toys, reply, fault, part):
    batch = toys.make_batch(5)
    outcome, _ = join_one(toys, lambda b: reply(toys, b), batch)
    assert outcome.fault == fault
    assert part in outcome.detail
    assert "\n" not in outcome.detail
    assert sorted([*outcome.values, *outcome.bad_rows]) == list(range(5))


def test_no_answer_before_the_deadline_restarts_the_engine(toys):
    batch, begin_s = toys.make_batch(3), time.monotonic()
    outcome, lane = join_one(toys, lambda b: None, batch, deadline_s=SHORT_S)
    assert outcome.fault == "EngineTimeout"
    assert outcome.bad_rows == (0, 1, 2)
    assert outcome.n_missing == 3
    assert outcome.report is None
    assert SHORT_S <= outcome.wait_s <= time.monotonic() - begin_s
    assert lane.engine.n_restarts == 1


def test_a_late_answer_is_dropped_and_counted_at_the_next_join(toys):
    first, second = toys.make_batch(3, seed=1), toys.make_batch(2, seed=2)
    replies = [None, *[toys.answer(second, Stage.REWARD)] * 2]
    lane = OffloadLane(toys.Told(lambda b: replies.pop(0)), max_faults=3, place=PLACE)
    assert lane.join(lane.submit(first), SHORT_S).n_late == 0
    lane.engine.futures[0].set_result(toys.answer(first, Stage.REWARD))
    outcome = lane.join(lane.submit(second), 240.0)
    assert (outcome.n_late, outcome.fault, outcome.bad_rows) == (3, None, ())
    assert same_bits(outcome.values[1], toys.answer(second, Stage.REWARD).values[1])
    assert lane.join(lane.submit(second), 240.0).n_late == 0  # each is counted once


def test_quarantine_keeps_batches_away_and_a_probe_ends_it(toys):
    batch = toys.make_batch(2)
    replies = [EngineCrashed("a"), EngineCrashed("b"), toys.answer(batch, Stage.REWARD)]
    lane = OffloadLane(toys.Told(lambda b: replies.pop(0)), max_faults=2, place=PLACE)
    clock = [0.0]
    lane._quarantine = Quarantine(2, backoff_s=10.0, clock=lambda: clock[0])
    for name in ("a", "b"):
        assert lane.available
        assert lane.join(lane.submit(batch), 240.0).detail == name
    assert not lane.available
    kept_away = lane.join(lane.submit(batch), 240.0)
    assert (kept_away.fault, kept_away.bad_rows) == ("EngineQuarantined", (0, 1))
    assert len(lane.engine.futures) == 2  # nothing was sent
    assert lane._quarantine._faults_in_row == 2  # and not sending is no fault of the engine
    clock[0] = 10.5
    assert lane.available
    assert lane.join(lane.submit(batch), 240.0).fault is None
    assert lane.available


@pytest.mark.parametrize(("n_bad", "stays"), [(1, True), (2, True), (3, False), (5, False)])
def test_a_few_rows_that_an_engine_cannot_take_do_not_quarantine_it(toys, n_bad, stays):
    batch = toys.make_batch(5)
    good = toys.answer(batch, Stage.REWARD)
    values = good.values.copy()
    values[:n_bad] = np.nan
    lane = OffloadLane(toys.Told(lambda b: replace(good, values=values)), max_faults=2, place=PLACE)
    for _ in range(3):
        if lane.available:
            outcome = lane.join(lane.submit(batch), 240.0)
            assert (outcome.fault, outcome.bad_rows) == ("InvalidResult", tuple(range(n_bad)))
    assert lane.available == stays


def test_an_unavailable_engine_makes_the_lane_unavailable(toys):
    lane = OffloadLane(toys.Told(lambda b: None), max_faults=3, place=PLACE)
    lane.engine.available = False
    assert not lane.available


@pytest.mark.parametrize(
    ("report", "wanted"),
    [
        ("nonsense", None),
        (None, None),
        (EngineReport(math.nan, 1.0, Provenance.MODELLED, 0.1), (None, 1.0)),
        (EngineReport(-1.0, math.inf, Provenance.MODELLED, 0.1), (None, None)),
        (EngineReport("1", True, Provenance.MODELLED, 0.1), (None, None)),
        (EngineReport(np.float32(0.5), 2, Provenance.MODELLED, 0.1), (0.5, 2.0)),
        (EngineReport(1.0, 1.0, "modelled?", 0.1), None),
        (EngineReport(1.0, 1.0, Provenance.MODELLED, math.nan), None),
    ],
)
def test_figures_that_cannot_be_true_are_missing_and_the_rows_are_kept(toys, report, wanted):
    batch = toys.make_batch(2)
    outcome, _ = join_one(toys, lambda b: toys.answer(b, Stage.REWARD, report), batch)
    assert (outcome.bad_rows, outcome.fault) == ((), None)
    if wanted is None:
        assert outcome.report is None
    else:
        assert (outcome.report.device_time_s, outcome.report.device_energy_j) == wanted


def test_with_a_thread_and_injected_faults(toys):
    from ecorl.config import FaultInjection

    faults = (
        FaultInjection(kind="raise", calls=(0,)),
        FaultInjection(kind="nan", calls=(1,), rows=(1, 3)),
        FaultInjection(kind="shape", calls=(2,)),
    )
    lane = OffloadLane(toys.threaded(faults)(Stage.REFERENCE, "u55c"), max_faults=9, place=PLACE)
    try:
        batch = toys.make_batch(4)
        seen = [lane.join(lane.submit(batch), 240.0) for _ in range(4)]
    finally:
        lane.close()
        lane.close()
    assert [s.fault for s in seen] == ["EngineCrashed", "InvalidResult", "InvalidResult", None]
    assert [s.bad_rows for s in seen] == [(0, 1, 2, 3), (1, 3), (0, 1, 2, 3), ()]
    wanted = toys.answer(batch, Stage.REFERENCE).values
    assert all(same_bits(seen[1].values[i], wanted[i]) for i in (0, 2))


def test_a_hung_thread_is_left_behind_and_serves_again(toys, hang):
    from ecorl.config import FaultInjection

    faults = (FaultInjection(kind="hang", calls=(0,)),)
    lane = OffloadLane(toys.threaded(faults)(Stage.REWARD, "u55c"), max_faults=9, place=PLACE)
    try:
        batch = toys.make_batch(2)
        assert lane.join(lane.submit(batch), SHORT_S).fault == "EngineTimeout"
        assert not lane.available
        stuck = lane.join(lane.submit(batch), 240.0)
        assert (stuck.fault, stuck.bad_rows) == ("EngineCrashed", (0, 1))
        assert "stuck" in stuck.detail
        hang.set()
        limit_s = time.monotonic() + 240
        while not lane.available:
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        assert lane.join(lane.submit(batch), 240.0).fault is None
    finally:
        lane.close()


# ---------------------------------------------------------------- whatever fails, in whatever way

ROW_FAULTS = ("nan", "inf", "-inf", "id", "missing id")
WHOLE_FAULTS = (
    None, "raise", "timeout", "cancel", "dtype", "longer values", "other type", "ids", "unasked",
)  # fmt: skip


def spoil(toys, batch, stage, rows, whole):
    """An answer with the given faults, and the rows that may be used."""
    if whole == "raise":
        return EngineCrashed("no"), ()
    if whole in ("timeout", "cancel"):
        return None if whole == "timeout" else "cancel", ()
    n = len(batch)
    result = toys.answer(batch, stage)
    ids, values = list(batch.sample_ids), [np.array(v) for v in result.values]
    for i, kind in rows.items():
        if kind in ("nan", "inf", "-inf"):
            values[i] = np.full_like(values[i], float(kind))
        else:
            ids[i] = "someone else's" if kind == "id" else ""
    good = tuple(i for i in range(n) if i not in rows)
    matched = [i for i in range(n) if ids[i] == batch.sample_ids[i]]
    if n and not matched:
        good = ()
    if whole == "unasked":
        ids, values = [*ids, "extra"], [*values, values[0] if n else np.float32(0)]
    if stage is Stage.REFERENCE:
        packed = tuple(values)
        if whole == "dtype":
            packed, good = tuple(v.astype(np.float64) for v in values), ()
    else:
        packed = np.array(values, dtype=np.float64 if whole == "dtype" else np.float32)
        good = () if whole == "dtype" else good
    if whole == "longer values":
        packed, good = packed[:-1] if n else packed, good if not n else ()
    if whole == "ids":
        ids, good = [*ids, "x"], ()
    result = toys.replace(result, sample_ids=tuple(ids), values=packed)
    return ("other" if whole == "other type" else result), () if whole == "other type" else good


@given(data=st.data(), n=st.integers(1, 6), stage=st.sampled_from([Stage.REWARD, Stage.REFERENCE]))
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_row_is_a_good_value_or_a_bad_row_and_never_both(toys, data, n, stage):
    batch = toys.make_batch(n, seed=n)
    rows = data.draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from(ROW_FAULTS)))
    whole = data.draw(st.sampled_from(WHOLE_FAULTS))
    told, good = spoil(toys, batch, stage, rows, whole)
    outcome, _ = join_one(toys, lambda b: told, batch, stage, deadline_s=0.01)
    assert tuple(sorted(outcome.values)) == good
    assert outcome.bad_rows == tuple(i for i in range(n) if i not in good)
    wanted = toys.answer(batch, stage).values
    assert all(same_bits(outcome.values[i], wanted[i]) for i in good)
    assert (outcome.fault is None) == (len(good) == n)
