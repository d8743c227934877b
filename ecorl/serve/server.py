"""Runs the service: handles signals, and answers all accepted requests before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass

import uvicorn

from ecorl.serve.app import ScoringService
from ecorl.serve.connections import ClientConnection

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
