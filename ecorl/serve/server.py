"""Running the service: connections, signals, and an end that loses no answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ecorl.serve.app import HEAD_TIMEOUT_S, Service

logger = logging.getLogger(__name__)

_KEEP_ALIVE_S = 75
"""Idle connections are kept for so long, as other servers do: a client that sends on one while it
is being closed would have to send again."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Ended:
    """How the service ended.

    Attributes:
        n_accepted: requests that were accepted.
        n_withdrawn: of these, whose clients went away before the answer.
        n_abandoned: of these, that got no answer.
        forced: whether a second signal or the deadline ended it.
    """

    n_accepted: int
    n_withdrawn: int
    n_abandoned: int
    forced: bool


class Runner:
    """Runs a service on a socket until it is told to stop.

    Args:
        service: what answers.
        listening: a socket that listens already.
    """

    def __init__(self, service: Service, listening: socket.socket) -> None:
        self._service, self._socket = service, listening
        self._server = _Server(
            uvicorn.Config(
                service.app,
                loop="asyncio",
                http=_Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",  # what clients send wrongly is counted, not logged
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        self._drain: asyncio.Task[None] | None = None
        self._forced: Ended | None = None

    async def serve(self, started: Callable[[], None]) -> Ended:
        """Serve until `stop` or a signal (where this is the main thread).

        Args:
            started: called once clients are answered.
        """
        loop = asyncio.get_running_loop()
        with _on_signals(loop, self.stop):
            telling = loop.create_task(self._tell(started))
            try:
                await self._server.serve(sockets=[self._socket])
            finally:
                telling.cancel()
                if self._drain is not None:
                    self._drain.cancel()
        return self._forced or self._ended(0, forced=False)

    def stop(self) -> None:
        """Drain: answer what was accepted, then end. Called again: end at once."""
        if self._drain is None:
            self._service.drain()
            self._drain = asyncio.get_running_loop().create_task(self._drained())
        else:
            self._force()

    async def _tell(self, started: Callable[[], None]) -> None:
        while not self._server.started:
            await asyncio.sleep(0.005)
        started()

    async def _drained(self) -> None:
        """Let the server end when all is answered; by force at the deadline."""
        try:
            async with asyncio.timeout(self._service.settings.drain_s):
                await self._service.batcher.idle()
                # The server closes idle connections and waits for answers on their way.
                self._server.should_exit = True
                await asyncio.Event().wait()  # until cancelled, when it has ended
        except TimeoutError:
            self._force()

    def _force(self) -> None:
        if self._forced is not None:
            return
        connections = list(self._server.server_state.connections)
        unsent = sum(1 for each in connections if each.transport.get_write_buffer_size())
        # Counted now: the clients of what is cut off below did not go away of themselves.
        self._forced = self._ended(self._service.batcher.n_unanswered + unsent, forced=True)
        self._server.should_exit = self._server.force_exit = True
        for each in connections:
            each.transport.abort()

    def _ended(self, n_abandoned: int, *, forced: bool) -> Ended:
        batcher = self._service.batcher
        return Ended(batcher.n_accepted, batcher.n_withdrawn, n_abandoned, forced)


class _Server(uvicorn.Server):
    """A server that leaves signals to its runner, and on a forced end waits for nobody."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # the parent leaves it out then, and it stops the work on batches
            await self.lifespan.shutdown()


class _Protocol(H11Protocol):
    """HTTP/1.1 that waits for the head of a request no longer than for its body."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets JSON as every other mistake does."""
        body = json.dumps({"error": f"request = (not HTTP/1.1): {msg}"}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events: list[Any] = [
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has begun already
            for event in events:
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()  # a request is being answered, and watched by who reads its body
        elif self._waiting is None:
            limit_s = self.app_state[HEAD_TIMEOUT_S]
            self._waiting = self.loop.call_later(limit_s, self.transport.close)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


@contextlib.contextmanager
def _on_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None]
) -> Generator[None, None, None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
