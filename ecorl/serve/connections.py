"""Connections with time limits for sending a request and for reading its response."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import h11
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
