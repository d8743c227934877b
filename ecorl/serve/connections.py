"""One client's connection: how long it may take to ask, and to read its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ecorl.serve.app import SERVICE, ScoringService

_SHARE_OF_DRAIN = 0.25
"""Part of the drain that a client may read nothing, so that one of them does not use it up: its
time-out ends within two such waits. Assumed."""


class ClientConnection(H11Protocol):
    """HTTP/1.1 that waits for a client no longer than the service says.

    It waits for the head of a request as long as for a body, and so long for a client that reads
    none of an answer that is ready.
    """

    _service: ScoringService
    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _n_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of the first request."""
        super().connection_made(transport)
        self._service = self.app_state[SERVICE]
        # Told of the first byte that the system does not take, and when the last one is gone.
        transport.set_write_buffer_limits(high=0)
        self._watch_asking()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a request may begin or be whole with them."""
        super().data_received(data)
        self._watch_asking()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._watch_asking()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        self._stop_asking()
        self._stop_reading()

    def pause_writing(self) -> None:
        """Some of an answer is not taken yet."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """All of it is."""
        super().resume_writing()
        self._stop_reading()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets JSON as every other mistake does, and is counted as they are."""
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
            self._service.count_not_http()
        self.transport.close()

    def shutdown(self) -> None:
        """The service ends: no long wait for a client that does not read."""
        super().shutdown()
        if self._reading is not None:
            self._stop_reading()
            self._watch_reading()

    def _watch_asking(self) -> None:
        """Wait for the rest of a request; the time runs from its first byte or the connection."""
        is_first = self.cycle is None
        if self.transport.is_closing() or not (is_first or self.cycle.response_complete):
            # A request is being answered, and watched by who reads its body.
            self._stop_asking()
        elif not is_first and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._stop_asking()  # nothing is asked: idle connections are kept
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
        """End the connection of a client that took nothing of its answer meanwhile."""
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
