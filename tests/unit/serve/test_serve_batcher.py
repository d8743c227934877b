"""Micro-batches: who goes with whom, what each gets back, and what a fault costs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import numpy as np
import pytest
from stub_service import NO_NUMBER, RAISE, REFUSE, StubEngine, logprobs_of, reward_of, until

from ecorl.engines.lanes.threaded import ThreadedEngine
from ecorl.engines.protocol import EngineReport, ScoreResult
from ecorl.records import Provenance, Stage
from ecorl.serve import batcher as module
from ecorl.serve.batcher import MicroBatcher
from ecorl.serve.http_errors import HttpError
from ecorl.serve.metrics import ServiceMetrics
from ecorl.serve.parsing import ScoreRows
from ecorl.serve.responses import UNKNOWN
from ecorl.serve.settings import ServeSettings


def rows_of(*rows, n_completion=0, temperature=1.0):
    arrays = tuple(np.asarray(row, np.int64) for row in rows)
    return ScoreRows((None,) * len(rows), arrays, (n_completion,) * len(rows), temperature)


@contextlib.asynccontextmanager
async def batching(engine, **settings):
    settings = {"batch_delay_s": 0.0} | settings
    batcher = MicroBatcher(ThreadedEngine(engine), ServeSettings(**settings), ServiceMetrics())
    work = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        engine.gate.set()
        work.cancel()
        await asyncio.wait({work})


def run(test):
    """Run a coroutine function as the test."""

    def runs():
        asyncio.run(test())

    runs.__name__ = test.__name__
    return runs


async def held(engine, batcher):
    """The engine in a call that does not end until its gate opens."""
    engine.gate.clear()
    first = batcher.submit(rows_of([1]))
    await until(lambda: len(engine.batches) == 1)
    return first


@run
async def test_rows_that_came_meanwhile_go_together_and_each_gets_its_own():
    engine = StubEngine()
    async with batching(engine) as batcher:
        first = await held(engine, batcher)
        sent = [([i, i + 1], [3 * i]) for i in range(1, 20)]
        pending = [batcher.submit(rows_of(*rows)) for rows in sent]
        assert (batcher.n_waiting, batcher.n_unanswered) == (38, 20)
        engine.gate.set()
        answers = await asyncio.gather(*(p.future for p in pending))
        assert [len(b) for b in engine.batches] == [1, 38]
        for rows, answer in zip(sent, answers, strict=True):
            expected = [reward_of(np.asarray(row)) for row in rows]
            assert [v.tolist() for v in answer.values] == [float(e) for e in expected]
        await first.future
        await batcher.idle()


@run
async def test_limits_of_rows_and_tokens_cut_batches_and_a_long_row_goes_alone():
    engine = StubEngine()
    async with batching(engine, max_batch_rows=3, max_batch_tokens=10) as batcher:
        await held(engine, batcher)
        pending = batcher.submit(rows_of(*[[5]] * 4, [5] * 9, [5] * 2, [5] * 30, [5]))
        engine.gate.set()
        answer = await pending.future
        lengths = [[len(row) for row in b.token_ids] for b in engine.batches[1:]]
        assert lengths == [[1, 1, 1], [1, 9], [2], [30], [1]]
        assert len(answer.values) == 8
        # Five batches of 0.5 s and 8 J, all of them this request's.
        assert answer.effort.time_s == pytest.approx(2.5)
        assert answer.effort.energy_j == pytest.approx(40.0)
        assert answer.effort.provenance is Provenance.MODELLED


@run
async def test_other_temperatures_go_in_other_batches_in_order():
    engine = StubEngine(Stage.REFERENCE)
    async with batching(engine) as batcher:
        await held(engine, batcher)
        sent = [([i, 7], t) for i, t in enumerate((1.0, 0.5, 1.0, 2.0, 0.5))]
        pending = [batcher.submit(rows_of(row, n_completion=1, temperature=t)) for row, t in sent]
        engine.gate.set()
        answers = await asyncio.gather(*(p.future for p in pending))
        assert [(len(b), b.temperature) for b in engine.batches[1:]] == [(2, 1), (2, 0.5), (1, 2)]
        for (row, t), answer in zip(sent, answers, strict=True):
            assert answer.values[0].tobytes() == logprobs_of(row, 1, t).tobytes()


@run
async def test_an_idle_service_waits_for_batch_mates_no_longer_than_the_delay():
    engine = StubEngine()
    async with batching(engine, batch_delay_s=0.05) as batcher:
        one, other = batcher.submit(rows_of([1])), batcher.submit(rows_of([2]))
        await asyncio.gather(one.future, other.future)
        assert [len(b) for b in engine.batches] == [2]
    engine = StubEngine()
    async with batching(engine, batch_delay_s=3600.0, max_batch_rows=2) as batcher:
        pending = [batcher.submit(rows_of([i])) for i in (1, 2, 3)]
        await pending[1].future
        assert not pending[2].future.done()
        batcher.drain()  # no further row will come
        await pending[2].future
        assert [len(b) for b in engine.batches] == [2, 1]


@run
async def test_a_full_queue_refuses_whole_requests_and_says_when_to_come_again():
    engine = StubEngine()
    async with batching(engine, queue_rows=4, max_batch_rows=2) as batcher:
        first = await held(engine, batcher)
        waiting = [batcher.submit(rows_of([1], [2])), batcher.submit(rows_of([3], [4]))]
        for rows in (rows_of([5]), rows_of([5], [6])):
            with pytest.raises(HttpError, match=r"\b4 rows") as caught:
                batcher.submit(rows)
            assert caught.value.status == 429
            assert int(caught.value.headers["retry-after"]) >= 1
        engine.gate.set()
        answers = await asyncio.gather(first.future, *(p.future for p in waiting))
        assert [len(a.values) for a in answers] == [1, 2, 2]
        last = await batcher.submit(rows_of([5], [6])).future
        assert len(last.values) == 2


@run
async def test_the_largest_request_gets_the_place_that_a_small_one_would_get():
    """Clients of one row take each place that falls free, but one: a full request takes it."""
    engine = StubEngine()
    limits = ServeSettings(queue_rows=16, max_batch_rows=4)
    assert limits.request_rows == 4
    async with batching(engine, queue_rows=16, max_batch_rows=4) as batcher:
        await held(engine, batcher)
        small = [batcher.submit(rows_of([n])) for n in range(1, 16)]
        large = batcher.submit(rows_of(*([n] for n in range(limits.request_rows))))
        assert batcher.n_waiting == limits.queue_rows + limits.request_rows - 1
        with pytest.raises(HttpError, match=r"\b19 rows"):
            batcher.submit(rows_of([1]))
        engine.gate.set()
        await asyncio.gather(large.future, *(p.future for p in small))


@pytest.mark.parametrize(
    ("queue", "batch", "request_rows"),
    [(1024, 64, 256), (1024, 512, 512), (64, 64, 64), (8, 64, 8), (1, 1, 1), (7, 1, 1)],
)
def test_the_largest_request_is_a_part_of_the_queue(queue, batch, request_rows):
    assert ServeSettings(queue_rows=queue, max_batch_rows=batch).request_rows == request_rows


@run
async def test_a_fault_costs_the_requests_of_its_batch_alone():
    engine = StubEngine()
    async with batching(engine, max_batch_rows=2) as batcher:
        await held(engine, batcher)
        good = batcher.submit(rows_of([1], [2]))
        bad = batcher.submit(rows_of([REFUSE], [4], [5]))
        later = batcher.submit(rows_of([6]))
        engine.gate.set()
        await asyncio.wait({good.future, bad.future, later.future})
        assert len(good.future.result().values) == 2
        refused = bad.future.exception()
        assert (refused.status, refused.kind) == (503, "engine_fault")
        assert "EngineError: the stub says no" in str(refused)
        assert later.future.result().values[0] == reward_of([6])
        # The rest of the failed request is not worked on.
        assert [len(b) for b in engine.batches] == [1, 2, 2, 1]
        assert (batcher.n_faults, batcher.n_faults_in_a_row) == (1, 0)
        crash = batcher.submit(rows_of([RAISE]))
        await asyncio.wait({crash.future})
        assert "IndexError: a fault of two lines" in str(crash.future.exception())
        assert batcher.n_faults_in_a_row == 1
        assert (batcher.n_accepted, batcher.n_failed) == (5, 2)


@run
async def test_a_row_without_a_number_is_none_and_bears_no_effort():
    engine = StubEngine()
    async with batching(engine) as batcher:
        await held(engine, batcher)
        mixed = batcher.submit(rows_of([NO_NUMBER, 1], [2, 3]))
        other = batcher.submit(rows_of([4, 5, 6, 7, 8, 9]))
        empty = batcher.submit(rows_of([NO_NUMBER]))
        engine.gate.set()
        answers = await asyncio.gather(mixed.future, other.future, empty.future)
        assert [v is None for v in answers[0].values] == [True, False]
        assert answers[0].effort.energy_j == pytest.approx(8.0 * 2 / 8)
        assert answers[1].effort.energy_j == pytest.approx(8.0 * 6 / 8)
        assert (answers[2].values, answers[2].effort) == ([None], UNKNOWN)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (EngineReport(None, None, Provenance.MODELLED, 0.1), (None, None, None)),
        (EngineReport(2.0, None, Provenance.MEASURED, 0.1), (2.0, None, Provenance.MEASURED)),
        (EngineReport(2.0, float("nan"), Provenance.MODELLED, 0.1), (2.0, None, "modelled")),
        (EngineReport(float("inf"), -1.0, Provenance.MODELLED, 0.1), (None, None, None)),
    ],
)
def test_effort_that_the_device_does_not_tell_is_missing(report, expected):
    async def test():
        engine = StubEngine()
        engine.report = report
        async with batching(engine) as batcher:
            effort = (await batcher.submit(rows_of([1])).future).effort
            assert (effort.time_s, effort.energy_j, effort.provenance) == expected

    asyncio.run(test())


@run
async def test_an_answer_that_does_not_fit_is_a_fault():
    engine = StubEngine()
    wrong = {
        "ids": lambda b: ScoreResult(("x",) * len(b), np.zeros(len(b), np.float32), engine.report),
        "short": lambda b: ScoreResult(b.sample_ids, np.zeros(0, np.float32), engine.report),
        "dtype": lambda b: ScoreResult(b.sample_ids, np.zeros(len(b)), engine.report),
        "report": lambda b: ScoreResult(b.sample_ids, np.zeros(len(b), np.float32), None),
    }
    async with batching(engine) as batcher:
        for n, answer in enumerate(wrong.values(), start=1):
            engine.score = answer
            pending = batcher.submit(rows_of([1]))
            await asyncio.wait({pending.future})
            assert "InvalidResult" in str(pending.future.exception())
            assert batcher.n_faults == n


@run
async def test_a_stuck_engine_is_given_up_and_comes_back():
    engine = StubEngine()
    async with batching(engine, engine_timeout_s=0.05) as batcher:
        stuck = await held(engine, batcher)
        await asyncio.wait({stuck.future})
        assert "EngineTimeout" in str(stuck.future.exception())
        meanwhile = batcher.submit(rows_of([2]))
        await asyncio.wait({meanwhile.future})
        assert "stuck" in str(meanwhile.future.exception())
        batcher._settings = replace(batcher._settings, engine_timeout_s=240.0)
        engine.gate.set()
        await until(lambda: batcher._lane.available)
        assert (await batcher.submit(rows_of([3])).future).values[0] == reward_of([3])


@run
async def test_rows_of_a_client_that_went_away_make_room_and_harm_nobody():
    engine = StubEngine()
    async with batching(engine, queue_rows=3) as batcher:
        first = await held(engine, batcher)
        gone, stays = batcher.submit(rows_of([1], [2])), batcher.submit(rows_of([3]))
        batcher.withdraw(gone)
        batcher.withdraw(gone)
        batcher.withdraw(first)  # its row is in the engine
        assert (batcher.n_waiting, batcher.n_unanswered, batcher.n_withdrawn) == (1, 1, 2)
        engine.gate.set()
        assert (await stays.future).values[0] == reward_of([3])
        assert [len(b) for b in engine.batches] == [1, 1]


@run
async def test_the_end_refuses_what_is_unanswered():
    engine = StubEngine()
    async with batching(engine) as batcher:
        first = await held(engine, batcher)
        waiting = batcher.submit(rows_of([2]))
    for pending in (first, waiting):
        assert pending.future.exception().status == 503
    with pytest.raises(HttpError, match="stopping"):
        batcher.submit(rows_of([3]))


@run
async def test_patient_requests_wait_beyond_the_queue_in_order_and_within_bounds():
    engine = StubEngine()
    limits = {"queue_rows": 2, "max_batch_rows": 1, "waiting_rows": 3}
    async with batching(engine, **limits) as batcher:
        await held(engine, batcher)
        waiting = [batcher.submit(rows_of([n]), patient=True) for n in range(2, 7)]
        with pytest.raises(HttpError, match=r"\b5 rows") as caught:
            batcher.submit(rows_of([7]), patient=True)
        assert (caught.value.status, caught.value.kind) == (503, "waiting_full")
        assert int(caught.value.headers["retry-after"]) >= 1
        with pytest.raises(HttpError) as caught:
            batcher.submit(rows_of([7]))
        assert caught.value.status == 429
        batcher.withdraw(waiting.pop(2))  # a client that goes away makes room
        waiting.append(batcher.submit(rows_of([8]), patient=True))
        batcher.drain()  # what waits is answered
        engine.gate.set()
        await asyncio.gather(*(p.future for p in waiting))
        assert [int(b.token_ids[0][0]) for b in engine.batches] == [1, 2, 3, 5, 6, 8]


@run
async def test_the_tokens_of_waiting_requests_are_bounded():
    engine = StubEngine()
    async with batching(engine, waiting_tokens=10) as batcher:
        await held(engine, batcher)
        batcher.submit(rows_of([1] * 9), patient=True)
        batcher.submit(rows_of([1] * 9), patient=True)
        with pytest.raises(HttpError) as caught:
            batcher.submit(rows_of([1]), patient=True)
        assert caught.value.status == 503


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "_PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(module, "_UNAVAILABLE_S", 0.01)


def test_a_patient_request_survives_a_fault_and_its_batch_mates_do_too(short_pauses):
    async def test():
        engine = StubEngine()
        async with batching(engine) as batcher:
            await held(engine, batcher)
            good = [batcher.submit(rows_of([n], [n + 1]), patient=True) for n in (2, 5)]
            bad = batcher.submit(rows_of([REFUSE]), patient=True)
            impatient = batcher.submit(rows_of([9]))
            engine.gate.set()
            await asyncio.wait({bad.future, impatient.future})
            assert (impatient.future.exception().status, bad.future.exception().status) == (
                503,
            ) * 2
            answers = await asyncio.gather(*(p.future for p in good))
            assert [a.values[0] for a in answers] == [reward_of([2]), reward_of([5])]
            assert answers[0].effort.energy_j == pytest.approx(8.0)
            # Once all together, then each request alone; the bad one gets all its tries.
            assert sorted(len(b) for b in engine.batches) == [1, 1, 1, 2, 2, 6]
            assert (batcher.n_waiting, batcher.n_failed, batcher.n_faults) == (0, 2, 3)

    asyncio.run(test())


def test_patient_requests_wait_until_a_stuck_engine_is_back(short_pauses):
    async def test():
        engine = StubEngine()
        async with batching(engine, engine_timeout_s=0.05) as batcher:
            engine.gate.clear()
            first = batcher.submit(rows_of([1]), patient=True)
            await until(lambda: batcher.n_faults == 1)
            second = batcher.submit(rows_of([2]), patient=True)
            gone = batcher.submit(rows_of([3]), patient=True)
            late = batcher.submit(rows_of([4]), patient=True)
            await asyncio.sleep(0.1)  # several pauses
            assert not any(p.future.done() for p in (first, second))
            assert (batcher.n_waiting, batcher.n_faults) == (4, 1)
            batcher.withdraw(gone)
            batcher.give_up(late, HttpError(503, "too late", "late"))
            batcher.give_up(late, HttpError(503, "too late", "late"))
            assert (batcher.n_waiting, batcher.n_failed) == (2, 1)
            batcher._settings = replace(batcher._settings, engine_timeout_s=240.0)
            engine.gate.set()
            answers = await asyncio.gather(first.future, second.future)
            assert [a.values[0] for a in answers] == [reward_of([1]), reward_of([2])]
            await batcher.idle()

    asyncio.run(test())
