"""Runs the service: connections, signals, and answers to all accepted requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ecorl.serve.app import SERVICE, ScoringService

_SHARE_OF_DRAIN = 0.25
"""Share of the drain time for which a client may read nothing, so that no single client uses it
all: its time-out ends within two such waits. Assumed."""


class ClientConnection(H11Protocol):
    """An HTTP/1.1 connection that limits how long a client may be silent.

    The limit of the service for reading a body also holds for the head of a request, and for a
    client that reads nothing of a response that is ready.
    """

    _service: ScoringService
    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _n_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of the first request."""
        super().connection_made(transport)
        self._service = self.app_state[SERVICE]
        # With 0, pause_writing is called at the first byte that the system's buffer does not hold,
        # and resume_writing when the last one has been sent.
        transport.set_write_buffer_limits(high=0)
        self._watch_asking()

    def data_received(self, data: bytes) -> None:
        """Receive bytes; a request may begin or become complete with them."""
        super().data_received(data)
        self._watch_asking()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch_asking()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all time limits."""
        super().connection_lost(exc)
        self._stop_asking()
        self._stop_reading()

    def pause_writing(self) -> None:
        """Begin to watch a client that has not read all of a response."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Stop watching: the response has been sent."""
        super().resume_writing()
        self._stop_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with JSON, as any other error, and count them."""
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
        with contextlib.suppress(h11.LocalProtocolError):  # a response has begun already
            for event in events:
                self.transport.write(self.conn.send(event))
            self._service.count_not_http()
        self.transport.close()

    def shutdown(self) -> None:
        """Shorten the wait for a client that does not read, because the service ends."""
        super().shutdown()
        if self._reading is not None:
            self._stop_reading()
            self._watch_reading()

    def _watch_asking(self) -> None:
        """Limit the time until a request is complete, from its first byte or the connection on."""
        is_first = self.cycle is None
        if self.transport.is_closing() or not (is_first or self.cycle.response_complete):
            # A request is being answered; the body reader has limits of its own for it.
            self._stop_asking()
        elif not is_first and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._stop_asking()  # no request has begun: idle connections are kept
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._asking is None:
            self._asking = self.loop.call_later(
                self._service.settings.read_timeout_s, self.transport.close
            )

    def _watch_reading(self) -> None:
        self._n_unsent = self.transport.get_write_buffer_size()
        settings = self._service.settings
        limit_s = settings.read_timeout_s
        if self._service.batcher.draining:
            limit_s = min(limit_s, _SHARE_OF_DRAIN * settings.drain_s)
        self._reading = self.loop.call_later(limit_s, self._check_reading)

    def _check_reading(self) -> None:
        """Cut the connection of a client that has read nothing since the last check."""
        if self.transport.get_write_buffer_size() < self._n_unsent:
            self._watch_reading()
            return
        self._service.count_unread()
        self.transport.abort()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


_KEEP_ALIVE_S = 75
"""Idle connections are kept for so long, as other servers do: a client that sends on one while it
is being closed would have to send again."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ServiceEnd:
    """How the service ended.

    Attributes:
        n_accepted: accepted requests.
        n_withdrawn: accepted requests whose clients went away before the response.
        n_failed: accepted requests that got an error because the engine failed.
        n_unread: responses of any kind that were cut off because their clients did not read them.
        n_abandoned: accepted requests that got no response.
        forced: whether a second signal or the deadline ended it.
        failure: the defect that ended it, on one line; None when a signal ended it.
    """

    n_accepted: int
    n_withdrawn: int
    n_failed: int
    n_unread: int
    n_abandoned: int
    forced: bool
    failure: str | None


class Runner:
    """Runs a service on a socket until it is told to stop.

    Args:
        service: the endpoints and their work on batches.
        listening: a socket that listens already.
    """

    def __init__(self, service: ScoringService, listening: socket.socket) -> None:
        self._service, self._socket = service, listening
        service.on_failure = self._failed
        self._server = _Server(
            uvicorn.Config(
                service.app,
                loop="asyncio",
                http=ClientConnection,
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
        self._forced: ServiceEnd | None = None

    async def serve(self, started: Callable[[], None]) -> ServiceEnd:
        """Serve until `stop` is called or, on the main thread, a signal comes.

        Args:
            started: called once the server accepts connections.
        """
        loop = asyncio.get_running_loop()
        with _on_signals(loop, self.stop):
            telling = loop.create_task(self._announce(started))
            try:
                await self._server.serve(sockets=[self._socket])
            finally:
                telling.cancel()
                if self._drain is not None:
                    self._drain.cancel()
        return self._forced or self._ended(0, forced=False)

    def stop(self) -> None:
        """Answer the accepted requests, then end. A second call ends at once."""
        if self._drain is None:
            self._service.drain()
            self._drain = asyncio.get_running_loop().create_task(self._drained())
        else:
            self._force()

    def _failed(self) -> None:
        """End as after a signal, because the service cannot work on batches any more."""
        if self._drain is None:
            self.stop()

    async def _announce(self, started: Callable[[], None]) -> None:
        while not self._server.started:
            await asyncio.sleep(0.005)
        started()

    async def _drained(self) -> None:
        """End the server when all requests are answered, or by force at the deadline."""
        try:
            async with asyncio.timeout(self._service.settings.drain_s):
                await self._service.batcher.idle()
                # The server closes idle connections and waits for responses that are being sent.
                self._server.should_exit = True
                await asyncio.Event().wait()  # until cancelled, when it has ended
        except TimeoutError:
            self._force()

    def _force(self) -> None:
        if self._forced is not None:
            return
        connections = list(self._server.server_state.connections)
        unsent = sum(1 for each in connections if each.transport.get_write_buffer_size())
        # Counted before the connections are cut: these clients did not go away by themselves.
        self._forced = self._ended(self._service.batcher.n_unanswered + unsent, forced=True)
        self._server.should_exit = self._server.force_exit = True
        for each in connections:
            each.transport.abort()

    def _ended(self, n_abandoned: int, *, forced: bool) -> ServiceEnd:
        service, batcher = self._service, self._service.batcher
        return ServiceEnd(
            n_accepted=batcher.n_accepted,
            n_withdrawn=batcher.n_withdrawn,
            n_failed=batcher.n_failed,
            n_unread=service.n_unread,
            n_abandoned=n_abandoned,
            forced=forced,
            failure=service.failure,
        )


class _Server(uvicorn.Server):
    """A server that leaves signals to its runner, and does not wait for clients on a forced end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn then skips the lifespan, which stops the work on batches
            await self.lifespan.shutdown()


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
