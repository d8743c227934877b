"""One exchange over HTTP within a time and a size, by the package requests.

`ecorl.carbon.feeds.http` imports this module when it is first needed, since not every
installation has requests.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import HTTPError, LocationParseError

from ecorl.carbon.feeds.http import HttpLimits, Reply
from ecorl.errors import FeedError, FeedMalformed, FeedUnreachable

_CHUNK_BYTES = 65536
_AGAIN_S = 0.05  # how often connections are shut that were opened after the time was up


class _Watch:
    """Shuts the connections of one exchange when its time is up.

    Time-outs of a socket count anew with each byte, so that a server that drips its answer would
    hold the caller for as long as it likes.
    """

    def __init__(self, limit_s: float) -> None:
        self.fired = False
        self._limit_s = limit_s
        self._over = threading.Event()
        self._opened: list[Any] = []
        self._sockets: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="ecorl-http-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def open(self, kind: type[Any], **arguments: Any) -> Any:
        """Make a connection, and remember it and its socket.

        While a connection is made, it alone knows its socket, and while the body of a last answer
        is read, it has forgotten it.
        """
        connection = kind(**arguments)
        self._opened.append(connection)
        connect = connection.connect

        def watched_connect() -> None:
            connect()
            self._sockets.append(connection.sock)

        connection.connect = watched_connect
        return connection

    def _run(self) -> None:
        if self._over.wait(self._limit_s):
            return
        self.fired = True
        while True:
            for used in [*self._sockets, *(connection.sock for connection in self._opened)]:
                if isinstance(used, socket.socket):
                    with suppress(OSError):
                        # The plain socket's own method: that of TLS drops what a read still uses.
                        socket.socket.shutdown(used, socket.SHUT_RDWR)
            if self._over.wait(_AGAIN_S):
                return


class _WatchedAdapter(HTTPAdapter):
    """Connections of requests that a watch can shut."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch
        super().__init__(max_retries=0)

    def get_connection_with_tls_context(
        self, request: Any, verify: Any, proxies: Any = None, cert: Any = None
    ) -> HTTPConnectionPool:
        pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
        watched = functools.partial(self._watch.open, type(pool).ConnectionCls)
        pool.ConnectionCls = cast(Any, watched)
        return pool


class _Session(requests.Session):
    """A session that leaves redirects alone; requests would read their bodies, of any size."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


def fetch(
    url: str, headers: Mapping[str, str], limits: HttpLimits, left_s: float, who: str
) -> Reply:
    """Ask a server once, follow nothing and retry nothing.

    Args:
        url: the whole address.
        headers: headers of the request.
        limits: what an answer may take.
        left_s: time that is left of `limits.total_s`, s.
        who: the server in words, with which messages begin. Neither headers nor the address come
            into a message, nor the errors of the libraries, which hold the address.

    Raises:
        FeedUnreachable: when no whole answer came, or not in time.
        FeedMalformed: when it is too large, or its compression is damaged.
    """
    problem: FeedError | None = None
    reply = None
    with _Watch(left_s) as watch, _Session() as session:
        adapter = _WatchedAdapter(watch)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        try:
            reply = _exchange(session, url, headers, limits, left_s)
        except (OSError, HTTPError, UnicodeError) as error:
            problem = _problem(error, limits, who)
    if watch.fired:
        raise FeedUnreachable(f"{who} gave no whole answer within {limits.total_s:g} s")
    if problem is not None:
        raise problem
    if reply is None:
        raise FeedMalformed(f"{who} answers with more than {limits.body_bytes} bytes")
    return reply


def _exchange(
    session: requests.Session,
    url: str,
    headers: Mapping[str, str],
    limits: HttpLimits,
    left_s: float,
) -> Reply | None:
    """The answer, or None where it is too large."""
    with session.get(
        url,
        headers=dict(headers),
        stream=True,
        allow_redirects=False,
        timeout=(min(limits.connect_s, left_s), min(limits.read_s, left_s)),
        auth=_as_it_is,
    ) as response:
        body = bytearray()
        if response.status_code == 200:
            for piece in response.iter_content(_CHUNK_BYTES):
                body += piece
                if len(body) > limits.body_bytes:
                    return None
        found = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status_code, found, bytes(body))


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep requests from putting a login of the user's .netrc in the place of the feed's key."""
    return request


def _problem(error: Exception, limits: HttpLimits, who: str) -> FeedError:
    if isinstance(error, requests.exceptions.ContentDecodingError):
        return FeedMalformed(f"{who} answers with a damaged compression")
    if isinstance(error, requests.exceptions.ConnectTimeout):
        return FeedUnreachable(f"{who} took no connection within {limits.connect_s:g} s")
    causes = list(_causes(error))
    if any(isinstance(cause, TimeoutError | requests.exceptions.ReadTimeout) for cause in causes):
        return FeedUnreachable(f"{who} was silent for {limits.read_s:g} s")
    if isinstance(error, requests.exceptions.InvalidURL | LocationParseError | UnicodeError):
        return FeedUnreachable(f"{who} has an address that cannot be used")
    reasons = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    why = f" ({' '.join(reasons[-1].split())})" if reasons else ""
    if isinstance(error, requests.exceptions.SSLError):
        return FeedUnreachable(f"{who} makes no secure connection{why}")
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return FeedUnreachable(f"{who} broke off in the middle of an answer")
    return FeedUnreachable(f"{who} cannot be reached{why}")


def _causes(error: BaseException | None) -> list[BaseException]:
    """An error and those behind it, the deepest last."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
