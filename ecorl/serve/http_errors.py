"""HTTP error responses, and the reading of bodies, which ends in some of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from starlette.requests import Request

from ecorl.errors import EcorlError
from ecorl.serve.settings import ServeSettings

DRAINING = "draining"
"""Label of the refusals after the signal to stop."""


class HttpError(EcorlError):
    """A request is refused or has failed; its client gets this error as JSON.

    Args:
        status: HTTP status.
        message: one line that names the field, its value and what is allowed, or the reason.
        kind: label of the error in the metrics.
        retry_after_s: seconds after which the client may retry; None when a retry cannot help.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)


def draining() -> HttpError:
    """The error for requests that arrive after the signal to stop."""
    return HttpError(
        503,
        "the service is stopping and takes no further requests",
        DRAINING,
        retry_after_s=5,  # assumed: about the time that a restart with a small model needs
        headers={"connection": "close"},
    )


class BodyReader:
    """Reads request bodies; bodies that are read at the same time share one budget of bytes.

    Args:
        settings: limits of the service.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._n_bytes = 0
        self._deadlines: set[asyncio.Timeout] = set()
        self._stopped = False

    @contextlib.asynccontextmanager
    async def reading(self, request: Request) -> AsyncIterator[bytearray]:
        """Read a request's body, which counts against the budget until the context ends.

        Raises:
            HttpError: for a body that is too large (413) or too slow (408), for too many bodies at
                once (429), or when the service stopped before the body was complete (503).
            starlette.requests.ClientDisconnect: when the client went away.
        """
        if self._stopped:
            raise draining()
        body = bytearray()
        try:
            await self._read(request, body)
            yield body
        finally:
            self._n_bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self._settings.read_timeout_s) as deadline:
                self._deadlines.add(deadline)
                try:
                    await self._collect(request, body)
                finally:
                    self._deadlines.discard(deadline)
        except TimeoutError:
            if self._stopped:
                raise draining() from None
            limit_s = self._settings.read_timeout_s
            raise HttpError(
                408, f"body = (unfinished): allowed is at most {limit_s:g} s to send it", "slow",
                headers={"connection": "close"},
            ) from None  # fmt: skip

    def stop(self) -> None:
        """Stop all reading: the service is stopping, and none of these requests was accepted."""
        self._stopped = True
        now_s = asyncio.get_running_loop().time()
        for deadline in self._deadlines:
            deadline.reschedule(now_s)

    async def _collect(self, request: Request, body: bytearray) -> None:
        limit = self._settings.max_body_bytes
        if int(request.headers.get("content-length", "0")) > limit:
            raise self._too_large()
        async for chunk in request.stream():
            if len(body) + len(chunk) > limit:
                raise self._too_large()
            if self._n_bytes + len(chunk) > self._settings.max_reading_bytes:
                raise HttpError(
                    429, "the bodies that are being read fill the service's memory", "reading",
                    retry_after_s=1,
                )  # fmt: skip
            self._n_bytes += len(chunk)
            body += chunk

    def _too_large(self) -> HttpError:
        limit = self._settings.max_body_bytes
        # The server reads on and throws away what is still sent, so that the answer gets through.
        return HttpError(413, f"body = (too large): allowed is at most {limit} bytes", "too_large")
