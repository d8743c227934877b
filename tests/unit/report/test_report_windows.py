"""Energy of windows of a run: of some steps, without the evaluations among them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.config import AccountingConfig
from ecorl.ledger import LEDGER_FILE, DeviceRecord, LedgerReader, PowerSecond, RawSampleRow
from ecorl.ledger.rollup import PowerRollup, in_units
from ecorl.records import (
    BarrierWait,
    EnergyMethod,
    EventKind,
    PowerSample,
    Provenance,
    Stage,
)
from ecorl.report.energy.causes import spending
from ecorl.report.energy.model import Cause
from ecorl.report.energy.readings import device_readings
from ecorl.report.energy.windows import cut_seconds, step_windows, window_evidence

MEASURED = Provenance.MEASURED


def course_w(t_s: float) -> float:
    """A power that changes within each second."""
    return 200.0 + 100.0 * math.sin(2.0 * t_s)


def course_j(t_s: float) -> float:
    """Its integral."""
    return 200.0 * t_s - 50.0 * math.cos(2.0 * t_s)


def readings(begin_s: float, end_s: float, step_s: float = 0.05, counter: bool = True):
    n = round((end_s - begin_s) / step_s)
    for i in range(n + 1):
        t_s = begin_s + i * step_s
        energy_j = course_j(t_s) - course_j(begin_s) if counter else None
        yield PowerSample("gpu0", t_s, course_w(t_s), energy_j, None, MEASURED, "nvml")


def seconds_of(samples, attempt=1):
    rollup = PowerRollup()
    for sample in samples:
        rollup.add(sample)
    rows = rollup.take(everything=True)
    head = (attempt, "gpu0", MEASURED, "nvml")
    return [PowerSecond(*head, row.second, *in_units(row)) for row in rows]


def raw_of(samples, attempt=1):
    return [
        RawSampleRow(
            attempt, s.device_id, s.provenance, s.source, s.t_s, s.power_w, s.energy_j, None, None
        )
        for s in samples
    ]


def energy_j(rows, spans):
    (found,) = device_readings(rows, spans)
    return found.energy_j


def cut(seconds, raw, window, attempt=(1000.0, 1020.0)):
    rows = cut_seconds(seconds, raw, {1: (1, window)}, {1: attempt}, {1: 2.0})
    return energy_j(rows, {1: window})


@pytest.mark.parametrize("counter", [True, False])
@given(a=st.floats(1000.5, 1018.0), length=st.floats(0.3, 15.0))
def test_a_window_has_the_joules_that_were_drawn_in_it(counter, a, length):
    b = min(a + length, 1019.4)
    samples = list(readings(1000.0, 1020.0, counter=counter))
    found_j = cut(seconds_of(samples), raw_of(samples), (a, b))
    # Held for 0.05 s a power is wrong by 10 W at most, by 5 W in the mean; between two readings of
    # the counter a straight line is wrong by 0.07 J at most.
    limit_j = 0.2 if counter else 0.5 + 5.0 * (b - a)
    assert abs(found_j - (course_j(b) - course_j(a))) < limit_j


@given(at=st.lists(st.floats(1000.2, 1019.8), min_size=1, max_size=5), is_raw=st.booleans())
def test_windows_side_by_side_add_up_to_the_whole(at, is_raw):
    samples = list(readings(1000.0, 1020.0))
    seconds, raw = seconds_of(samples), raw_of(samples) if is_raw else []
    edges = [1000.0, *sorted(at), 1020.0]
    windows = {i: (1, (a, b)) for i, (a, b) in enumerate(itertools.pairwise(edges)) if b - a > 0.01}
    rows = cut_seconds(seconds, raw, windows, {1: (1000.0, 1020.0)}, {1: 2.0})
    found = device_readings(rows, {i: span for i, (_, span) in windows.items()})
    whole_j = energy_j(seconds, {1: (1000.0, 1020.0)})
    assert math.fsum(r.energy_j for r in found) == pytest.approx(whole_j, abs=0.6 * len(windows))


@given(
    second=st.integers(1001, 1017),
    begin=st.floats(0.0, 0.6),
    length=st.floats(0.1, 0.39),
    every=st.integers(2, 20),
)
def test_a_window_may_begin_and_end_between_readings_of_power_alone(second, begin, length, every):
    """A counter that is slow to read is read with every second to twentieth reading."""
    samples = [
        s if i % every == 0 else dataclasses.replace(s, energy_j=None)
        for i, s in enumerate(readings(1000.0, 1020.0))
    ]
    a = second + begin
    found_j = cut(seconds_of(samples), raw_of(samples), (a, a + length))
    # A power that is held for 0.05 s is wrong by 5 W in the mean.
    limit_j = 5.0 * 0.05 * every + 0.2
    assert abs(found_j - (course_j(a + length) - course_j(a))) < limit_j


def test_a_reading_of_power_alone_does_not_hide_what_the_counter_gained_at_an_edge():
    """A model of power repeats the power of its last step where it is asked too soon."""
    told = [(0.0, 100.0, 0.0), (0.1, 100.0, 10.0), (0.15, 100.0, None), (0.3, 400.0, 90.0),
            (0.4, 400.0, 130.0)]  # fmt: skip
    samples = [
        PowerSample("gpu0", 1000.0 + t_s, power_w, energy_j, None, MEASURED, "nvml")
        for t_s, power_w, energy_j in told
    ]
    found_j = cut(seconds_of(samples), raw_of(samples), (1000.2, 1000.35), (1000.0, 1000.4))
    assert found_j == pytest.approx(40.0 + 20.0, abs=0.01)


def test_without_raw_readings_a_part_of_a_second_is_taken_in_proportion():
    samples = list(readings(1000.0, 1020.0))
    seconds = seconds_of(samples)
    of_second_j = {s.second: s.counted_j + s.alone_j for s in seconds}
    found_j = cut(seconds, [], (1003.25, 1004.5))
    assert found_j == pytest.approx(0.75 * of_second_j[1003] + 0.5 * of_second_j[1004])
    # What the ring holds no longer is in proportion, what it holds is exact.
    late = [r for r in raw_of(samples) if r.t_s > 1003.9]
    found_j = cut(seconds, late, (1003.25, 1004.5))
    exact_j = course_j(1004.5) - course_j(1004.0)
    assert found_j == pytest.approx(0.75 * of_second_j[1003] + exact_j, abs=0.05)


def test_a_second_at_the_begin_of_the_record_counts_by_what_of_it_there_is():
    samples = list(readings(1000.5, 1010.0))
    seconds = seconds_of(samples)
    first_j = seconds[0].counted_j + seconds[0].alone_j
    found_j = cut(seconds, [], (1000.75, 1001.0), attempt=(1000.5, 1010.0))
    assert found_j == pytest.approx(first_j / 2)


@pytest.mark.parametrize("counter", [True, False])
def test_a_gap_in_the_readings_is_filled_by_a_counter_alone(counter):
    whole = list(readings(1000.0, 1020.0, counter=counter))
    samples = [s for s in whole if not 1005.0 < s.t_s < 1012.0]
    rows = cut_seconds(
        seconds_of(samples), raw_of(samples), {1: (1, (1004.5, 1012.5))},
        {1: (1000.0, 1020.0)}, {1: 2.0},
    )  # fmt: skip
    (found,) = device_readings(rows, {1: (1004.5, 1012.5)})
    if counter:
        assert found.covered_s == pytest.approx(8.0)
        assert found.energy_j == pytest.approx(course_j(1012.5) - course_j(1004.5), abs=0.5)
    else:
        # The last reading stands for 2 s.
        assert found.covered_s == pytest.approx(0.5 + 2.0 + 0.5, abs=0.06)


def test_a_counter_that_fell_counts_by_the_power_readings():
    samples = list(readings(1000.0, 1020.0))
    begun_anew = [
        s if s.t_s < 1010.2 else PowerSample(
            "gpu0", s.t_s, s.power_w, course_j(s.t_s) - course_j(1010.2), None, MEASURED, "nvml"
        )
        for s in samples
    ]  # fmt: skip
    found_j = cut(seconds_of(begun_anew), raw_of(begun_anew), (1008.3, 1012.7))
    assert found_j == pytest.approx(course_j(1012.7) - course_j(1008.3), abs=1.0)


# ---------------------------------------------------------------- a whole record


def trained(run, n_steps: int = 6, evaluations=(0, 3)) -> dict[int, float]:
    """Steps of 2 s from 1001 s on; after some of them an evaluation of 1.5 s. Begins by step."""
    run.stated()
    run.ledger.device(DeviceRecord("gpu0", "h100", MEASURED, "nvml", 30.0))
    at, begins = 1001.0, {}
    for step in range(n_steps + 1):
        if step in evaluations:
            fields = {"role_name": "evaluation", "method": EnergyMethod.COUNTER}
            drawn_j = course_j(at + 1.5) - course_j(at)
            run.ran(Stage.GENERATION, (at, at + 1.5), drawn_j, iteration=step, tokens=500, **fields)
            at += 1.6
        if step == n_steps:
            break
        begins[step + 1] = at
        for stage, long_s in (
            (Stage.GENERATION, 0.7),
            (Stage.REWARD, 0.3),
            (Stage.ACTOR_TRAIN, 0.8),
        ):
            drawn_j = course_j(at + long_s) - course_j(at)
            run.ran(stage, (at, at + long_s), drawn_j, iteration=step + 1, tokens=40 + step)
            at += long_s
        run.clock(at + 0.2)
        run.ledger.barrier(BarrierWait(step + 1, Stage.REWARD, 0.2, 10, 0, 0))
        at += 0.2
    run.clock(at)
    run.ledger.event(EventKind.TRAINING_END, "")
    run.ledger.samples(readings(1000.0, at + 3.0))
    run.clock(at + 3.0)
    run.ledger.event(EventKind.FINISH, "")
    assert run.ledger.flush()
    return begins | {n_steps + 1: at}


def test_steps_of_a_warm_up_and_evaluations_are_in_no_figure(run):
    begins = trained(run)
    with LedgerReader(run.folder) as reader:
        windows = step_windows(reader, after_step=2)
        evidence = window_evidence(reader, windows, AccountingConfig(pue=1.0))
    # Step 3 ends where the evaluation after it begins.
    assert [attempt for attempt, _ in windows] == [1, 1]
    (a, b), (c, d) = (span for _, span in windows)
    assert (a, d) == (pytest.approx(begins[3]), pytest.approx(begins[7]))
    assert c - b == pytest.approx(1.5)
    assert {row.result.iteration for row in evidence.executions} == {3, 4, 5, 6}
    spent = spending(evidence, None)
    (column,) = spent.columns
    assert spent.n_output_tokens == sum(40 + step for step in range(2, 6))
    drawn_j = course_j(b) - course_j(a) + course_j(d) - course_j(c)
    assert column.energy_j == pytest.approx(drawn_j, rel=2e-4)
    assert Cause.EVALUATION not in column.by_cause
    assert column.by_cause[Cause.BARRIER_WAIT] > 0
    assert not column.at_least
    assert spent.gaps == ()
    assert column.carbon_g == pytest.approx(column.energy_kwh * 450.0)


def test_joules_and_tokens_straight_from_sqlite(run):
    """The same figure by another road: SQL over the raw readings and the executions."""
    trained(run)
    with LedgerReader(run.folder) as reader:
        windows = step_windows(reader, after_step=2)
        spent = spending(window_evidence(reader, windows), None)
    run.ledger.close()
    with contextlib.closing(sqlite3.connect(run.folder / LEDGER_FILE)) as db:
        bounds = db.execute(
            "WITH step AS (SELECT min(start_t_s) AS a FROM execution WHERE iteration > 2 AND "
            " role_name IS NULL), "
            "over AS (SELECT max(t_s) AS b FROM event WHERE kind = 'training_end') "
            "SELECT a, b FROM step, over"
        ).fetchone()
        counted = (
            "SELECT max(energy_j) FILTER (WHERE t_s <= ?1), min(energy_j) FILTER (WHERE t_s >= ?1) "
            "FROM raw_sample"
        )

        def at(t_s):
            low, high = db.execute(counted, (t_s,)).fetchone()
            return (low + high) / 2

        evaluated = db.execute(
            "SELECT start_t_s, end_t_s FROM execution WHERE role_name = 'evaluation' "
            "AND start_t_s > ?",
            bounds[:1],
        ).fetchall()
        tokens = db.execute(
            "SELECT sum(n_output_tokens) FROM execution WHERE stage = 'generation' AND "
            "role_name IS NULL AND iteration > 2"
        ).fetchone()[0]
        drawn_j = at(bounds[1]) - at(bounds[0]) - sum(at(b) - at(a) for a, b in evaluated)
    (column,) = spent.columns
    assert spent.n_output_tokens == tokens
    # Between two readings of the counter lie 15 J at most.
    assert column.energy_j == pytest.approx(drawn_j, abs=4 * 7.5)
    assert column.tokens_per_joule == pytest.approx(tokens / drawn_j, rel=0.02)


def test_a_window_may_end_before_training_does(run):
    begins = trained(run)
    with LedgerReader(run.folder) as reader:
        windows = step_windows(reader, until_s=begins[3])
        spent = spending(window_evidence(reader, windows), None)
        assert step_windows(reader, after_step=99) == []
        assert step_windows(reader, until_s=1000.5) == []
    assert spent.n_output_tokens == 40 + 41
    assert spent.columns[-1].energy_j == pytest.approx(
        course_j(begins[3]) - course_j(begins[1]), rel=1e-3
    )


def test_without_readings_the_energy_is_unknown_and_not_nought(run):
    run.ran(Stage.GENERATION, (1001, 1002), None, iteration=1)
    run.clock(1003.0)
    run.ledger.event(EventKind.TRAINING_END, "")
    assert run.ledger.flush()
    with LedgerReader(run.folder) as reader:
        spent = spending(window_evidence(reader, step_windows(reader)), None)
    assert spent.columns == ()
    assert spent.n_output_tokens == 100
