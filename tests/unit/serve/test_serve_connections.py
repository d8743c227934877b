"""Connections: heads that do not end, what is no HTTP, and answers that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from unittest.mock import Mock, patch

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

from ecorl.serve.server import ClientConnection


@in_loop
async def test_connections_without_a_whole_head_are_closed():
    async with running(StubEngine(), read_timeout_s=2.0) as (_, _, port):

        async def is_closed(sent):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            is_closed = await closed(reader)
            writer.close()
            return is_closed

        heads = (b"", b"POST /v1/rew", b"POST /v1/rewards HTTP/1.1\r\nHost:")
        assert all(await asyncio.gather(*map(is_closed, heads)))
        assert rewards(await ask(port, [7])) == [float(reward_of([7]))]


@in_loop
async def test_an_early_refusal_leaves_an_idle_connection_as_it_was():
    async with running(StubEngine(), read_timeout_s=1.0) as (runner, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(head_of(5, type="text/plain"))
            assert (await answer_from(reader))[0] == 415  # before the body came
            writer.write(b"abcde")
            await asyncio.sleep(1.5)  # longer than a request may take; the connection is idle
        (connection,) = runner._server.server_state.connections
        assert connection.timeout_keep_alive_task is not None
        body = body_of([3])
        writer.write(head_of(len(body)) + body)
        assert rewards(await answer_from(reader)) == [float(reward_of([3]))]
        writer.write(head_of(5, type="text/plain"))
        assert (await answer_from(reader))[0] == 415
        assert await closed(reader)  # the rest of this body never comes
        writer.close()


@in_loop
async def test_the_head_of_a_further_request_has_its_time_too():
    async with running(StubEngine(), read_timeout_s=1.0) as (_, _, port):
        body = body_of([3])
        for late in (False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            parts = [head_of(len(body)) + body, b"POST /v1/rew"]
            for part in parts if late else [b"".join(parts)]:
                writer.write(part)
                await asyncio.sleep(0)
            assert rewards(await answer_from(reader)) == [float(reward_of([3]))]
            assert await closed(reader)
            writer.close()


@in_loop
async def test_what_is_no_http_gets_one_line_and_is_counted():
    async with running(StubEngine()) as (runner, _, port):
        for raw in (b"hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"):
            status, data = await exchange(port, raw)
            assert status == 400
            assert data["error"].startswith("request = ")
        huge = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 200_000
        assert (await exchange(port, huge))[0] in (400, 431)
        assert rewards(await ask(port, [7])) == [float(reward_of([7]))]
        told = runner._service.metrics.text().decode()
        assert 'ecorl_serve_requests_total{path="other",status="400"} 4.0' in told
        assert 'ecorl_serve_refused_total{reason="not_http"} 4.0' in told


@contextlib.asynccontextmanager
async def mute_client(runner, port):
    """A client that asks for far more than the system's buffers take, and reads nothing."""
    rows = [{"id": f"{n:0200}", "token_ids": [n % 900]} for n in range(4000)]
    # Connections take it over from the socket that listens: else an answer had to be of megabytes,
    # and so had its request, which a busy machine may not take in within its time.
    runner._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mute.connect(("127.0.0.1", port))
        mute.setblocking(False)
        body = json.dumps({"rows": rows}).encode()
        await asyncio.get_running_loop().sock_sendall(mute, head_of(len(body)) + body)
        connections = runner._server.server_state.connections
        await until(lambda: any(c.transport.get_write_buffer_size() for c in connections))
        yield mute


LARGE = {"queue_rows": 50_000, "max_batch_rows": 50_000, "max_batch_tokens": 50_000}


@in_loop
async def test_a_client_that_does_not_read_its_answer_does_not_use_up_the_drain():
    # A second of ten minutes; without it the client would have an hour.
    settings = {"read_timeout_s": 3600.0, "drain_s": 600.0, **LARGE}
    with patch("ecorl.serve.server._SHARE_OF_DRAIN", 1 / 600):
        await drains_beside_a_mute_client(settings)


async def drains_beside_a_mute_client(settings):
    async with (
        running(StubEngine(), **settings) as (runner, task, port),
        mute_client(runner, port),
    ):
        assert rewards(await ask(port, [7])) == [float(reward_of([7]))]
        runner.stop()
        ended = await asyncio.wait_for(task, 240)
        assert (ended.n_accepted, ended.n_unread, ended.forced) == (2, 1, False)


@in_loop
async def test_a_second_signal_counts_answers_that_were_not_read_as_abandoned():
    async with (
        running(StubEngine(), drain_s=3600.0, **LARGE) as (runner, task, port),
        mute_client(runner, port),
    ):
        runner.stop()
        runner.stop()
        ended = await asyncio.wait_for(task, 240)
        assert (ended.n_abandoned, ended.n_unread, ended.forced) == (1, 0, True)


@in_loop
async def test_an_answer_that_nobody_reads_is_given_up_and_spoils_no_end():
    settings = {"read_timeout_s": 2.0, "drain_s": 3600.0, **LARGE}
    async with (
        running(StubEngine(), **settings) as (runner, task, port),
        mute_client(runner, port),
    ):
        connections = runner._server.server_state.connections
        await until(lambda: not connections)
        assert runner._service.n_unread == 1
        assert b"ecorl_serve_unread_total 1.0" in runner._service.metrics.text()
        async with mute_client(runner, port):
            runner.stop()
            ended = await asyncio.wait_for(task, 240)
        assert (ended.n_accepted, ended.n_unread, ended.forced) == (2, 2, False)


def test_a_client_that_reads_slowly_is_waited_for():
    connection = object.__new__(ClientConnection)
    connection._service, connection.transport, connection.loop = Mock(), Mock(), Mock()
    connection._service.batcher.draining = False
    size = connection.transport.get_write_buffer_size
    size.return_value = 100
    connection._watch_reading()
    for left in (99, 98, 1):
        size.return_value = left
        connection._check_reading()
    connection.transport.abort.assert_not_called()
    assert connection.loop.call_later.call_count == 4
    connection._check_reading()  # nothing was taken since
    connection.transport.abort.assert_called_once()
    connection._service.count_unread.assert_called_once()
