"""The server on a real socket: clients that are slow or gone, and the end."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc

import pytest
from stub_service import (
    StubEngine,
    answer_from,
    ask,
    body_of,
    closed,
    exchange,
    head_of,
    in_loop,
    reward_of,
    rewards,
    running,
    until,
)


@in_loop
async def test_a_half_sent_body_holds_up_nobody_and_ends_at_its_time():
    async with running(StubEngine(), read_timeout_s=2.0) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = body_of([1])
        writer.write(head_of(len(body)) + body[:5])
        await writer.drain()
        assert rewards(await ask(port, [7])) == [float(reward_of([7]))]
        status, data = await answer_from(reader)
        assert status == 408
        assert "2 s" in data["error"]
        assert await closed(reader)
        writer.close()


@in_loop
async def test_a_body_in_many_pieces_is_read():
    async with running(StubEngine()) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = body_of([1, 2])
        for byte in head_of(len(body)) + body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert rewards(await answer_from(reader)) == [float(reward_of([1, 2]))]
        writer.write(head_of(len(body)) + body)  # the connection goes on
        assert rewards(await answer_from(reader)) == [float(reward_of([1, 2]))]
        writer.close()


@in_loop
async def test_too_large_a_body_is_answered_while_it_is_being_sent():
    async with running(StubEngine(), max_body_bytes=1000) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head_of(5_000_000) + b" " * 5_000_000)
        status, data = await answer_from(reader)
        assert status == 413
        assert "1000 bytes" in data["error"]
        await writer.drain()
        body = body_of([3])
        writer.write(head_of(len(body)) + body)  # what was too much has been thrown away
        assert rewards(await answer_from(reader)) == [float(reward_of([3]))]
        writer.close()


@in_loop
async def test_nothing_holds_a_body_while_its_rows_wait():
    engine, n, size = StubEngine(), 24, 1 << 20
    async with running(engine, max_reading_bytes=2 * size, max_batch_rows=1) as (runner, _, port):
        service = runner._service
        padded = body_of([1]).ljust(size)
        raw = head_of(size) + padded
        engine.gate.clear()
        tracemalloc.start()
        try:
            asked = []
            for k in range(n):  # more than the budget, one after the other
                asked.append(asyncio.create_task(exchange(port, raw)))
                await until(lambda k=k: service.batcher.n_accepted == k + 1)
            assert service._reader._n_bytes == 0
            await asyncio.sleep(0)
            current, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        engine.gate.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * n
        assert current < 4 * size  # and not 24


@in_loop
async def test_a_body_counts_until_it_is_parsed_and_parsing_holds_up_nobody():
    size = 1 << 20
    async with running(StubEngine(), max_reading_bytes=size + 1000) as (runner, _, port):
        service, gate = runner._service, threading.Event()
        parse = service._parser.parse
        begun = []

        def slow(body):
            if len(body) == size:
                begun.append(threading.current_thread())
                assert gate.wait(240)
            return parse(body)

        service._parser.parse = slow
        raw = head_of(size) + body_of([1]).ljust(size)
        first = asyncio.create_task(exchange(port, raw))
        await until(lambda: begun)
        assert rewards(await ask(port, [7])) == [float(reward_of([7]))]
        assert (await exchange(port, raw))[0] == 429
        gate.set()
        assert rewards(await first) == [float(reward_of([1]))]
        assert rewards(await exchange(port, raw)) == [float(reward_of([1]))]


@in_loop
async def test_a_client_that_goes_away_takes_its_rows_along_and_no_others():
    engine = StubEngine()
    async with running(engine) as (runner, _, port):
        batcher = runner._service.batcher
        engine.gate.clear()
        first = asyncio.create_task(ask(port, [1]))
        await until(lambda: len(engine.batches) == 1)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = body_of([2], [3])
        writer.write(head_of(len(body)) + body)
        await until(lambda: batcher.n_waiting == 2)
        other = asyncio.create_task(ask(port, [4]))
        await until(lambda: batcher.n_waiting == 3)
        writer.close()
        await until(lambda: batcher.n_waiting == 1)
        engine.gate.set()
        assert rewards(await first) == [float(reward_of([1]))]
        assert rewards(await other) == [float(reward_of([4]))]
        assert batcher.n_withdrawn == 1


@in_loop
async def test_a_full_queue_answers_at_once():
    engine = StubEngine()
    async with running(engine, queue_rows=2) as (runner, _, port):
        engine.gate.clear()
        tasks = [asyncio.create_task(ask(port, [1]))]
        await until(lambda: len(engine.batches) == 1)
        tasks.append(asyncio.create_task(ask(port, [2], [3])))
        await until(lambda: runner._service.batcher.n_waiting == 2)
        status, data = await ask(port, [4])
        assert status == 429
        assert "2 rows" in data["error"]
        engine.gate.set()
        assert [len(rewards(a)) for a in await asyncio.gather(*tasks)] == [1, 2]


@in_loop
async def test_the_end_answers_what_was_accepted_and_takes_nothing_more():
    engine = StubEngine()
    async with running(engine, max_batch_rows=2) as (runner, task, port):
        engine.gate.clear()
        accepted = [asyncio.create_task(ask(port, [n], [n + 1])) for n in range(5)]
        await until(lambda: runner._service.batcher.n_accepted == 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = body_of([1])
        writer.write(head_of(len(body)) + body[:5])
        await until(lambda: runner._service._reader._deadlines)
        runner.stop()
        # Half a body was not accepted, and is not waited for.
        assert (await answer_from(reader))[0] == 503
        status, data = await ask(port, [9])
        assert status == 503
        assert "stopping" in data["error"]
        health = await exchange(port, b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (health[0], health[1]["status"]) == (503, "draining")
        assert not task.done()
        engine.gate.set()
        for n, answer in enumerate(await asyncio.gather(*accepted)):
            assert rewards(answer) == [float(reward_of([n])), float(reward_of([n + 1]))]
        ended = await task
        assert (ended.n_accepted, ended.n_abandoned, ended.forced) == (5, 0, False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()


@in_loop
async def test_idle_connections_do_not_hold_up_the_end():
    async with running(StubEngine()) as (runner, task, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        body = body_of([1])
        opened[0][1].write(head_of(len(body)) + body)
        await answer_from(opened[0][0])
        opened[1][1].write(b"POST /v1/re")
        await opened[1][1].drain()
        runner.stop()
        ended = await asyncio.wait_for(task, 240)
        assert (ended.n_abandoned, ended.forced) == (0, False)
        for reader, writer in opened:
            assert await closed(reader)
            writer.close()


@pytest.mark.parametrize("by", ["deadline", "second signal"])
def test_a_forced_end_says_how_many_were_abandoned(by):
    async def test():
        engine = StubEngine()
        drain_s = 0.2 if by == "deadline" else 3600.0
        async with running(engine, drain_s=drain_s) as (runner, task, port):
            engine.gate.clear()
            asked = [asyncio.create_task(ask(port, [n])) for n in range(3)]
            await until(lambda: runner._service.batcher.n_accepted == 3)
            runner.stop()
            if by == "second signal":
                await asyncio.sleep(0.05)
                assert not task.done()
                runner.stop()
            ended = await asyncio.wait_for(task, 240)
            assert (ended.n_abandoned, ended.forced) == (3, True)
            ends = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(end, (OSError, EOFError)) for end in ends)

    asyncio.run(test())


@in_loop
async def test_a_defect_ends_the_service_and_every_client_hears_of_it():
    engine = StubEngine()
    async with running(engine, max_batch_rows=1) as (runner, task, port):
        batcher = runner._service.batcher
        engine.gate.clear()
        asked = [asyncio.create_task(ask(port, [n])) for n in range(3)]
        await until(lambda: batcher.n_accepted == 3)
        batcher._deliver = lambda *_: {}["a defect"]
        engine.gate.set()
        answers = await asyncio.gather(*asked)
        assert [status for status, _ in answers] == [503] * 3
        assert all("has stopped" in data["error"] for _, data in answers)
        ended = await asyncio.wait_for(task, 240)
        assert ended.failure.startswith("KeyError: 'a defect' (test_serve_server.py:")
        assert (ended.n_failed, ended.n_abandoned, ended.forced) == (3, 0, False)
