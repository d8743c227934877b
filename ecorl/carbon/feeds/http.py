"""A client for JSON over HTTP that trusts nothing that comes back, and tells no key.

Messages hold the name of the source, the path of the request and a few words of ours, each in one
line. What a server or a library says is not quoted, since both may repeat a key.

Keys are read from a file or the environment, and kept out of every text.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

import ecorl
from ecorl.errors import ConfigError, FeedMalformed, FeedRefused, FeedUnreachable, MissingToolError


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How long and how large an answer may be.

    The defaults are ours: a feed is asked every few minutes and answers in well under a second,
    and the largest answer, a month of 5-minute values, takes less than a megabyte.

    Attributes:
        connect_s: until a connection stands, s.
        read_s: between two pieces of an answer, s.
        total_s: for the whole request with its redirects, s. Only the look-up of a host's name
            can take longer, which nothing can interrupt.
        body_bytes: size of an answer's body, without compression.
        redirects: how many are followed.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 20.0
    body_bytes: int = 4 * 2**20
    redirects: int = 3


DEFAULT_LIMITS = HttpLimits()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server has answered.

    Attributes:
        status: the status code.
        headers: the headers, by names in lower case.
        body: the body of an answer with status 200; empty for all others, which nobody reads.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


_MAX_BYTES = 4096  # longer than any provider's key, and short enough to read of any file


class Secret:
    """A text that shows as ``***`` wherever it is printed, logged or formatted.

    Args:
        value: the text itself, which only `reveal` gives back.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


def read_key(variable: str, file: Path | None) -> Secret:
    """Read a key from the first line of a file, or from the environment where no file is given.

    Args:
        variable: the environment's variable that holds the key.
        file: the file whose first line is the key; it goes before the environment.

    Raises:
        ConfigError: when there is no key, or the file cannot be read. The message names the
            variable and the file, never what is in them.
    """
    if file is None:
        given = os.environ.get(variable, "").strip()
        shown: tuple[str, str | None] = (variable, "..." if given else None)
    else:
        given = _first_line(file.expanduser())
        shown = ("key_file", str(file))
    if not given or not given.isprintable():
        allowed = f"a key in one printable line, in {variable} or in the first line of key_file"
        raise ConfigError(*shown, allowed)
    return Secret(given)


def _first_line(file: Path) -> str:
    """First line of a file without its ends; empty where it is no text.

    Errors are raised outside of the handlers, so that what was read does not hang on them.
    """
    problem = None
    raw = b""
    try:
        with file.open("rb") as stream:
            raw = stream.readline(_MAX_BYTES)
    except OSError as error:
        problem = error.strerror
    if problem is not None:
        raise ConfigError("key_file", str(file), f"a readable file with the key ({problem})")
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return ""


_log = logging.getLogger(__name__)

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({429, 503})  # the statuses that Retry-After belongs to


class JsonClient:
    """Asks one source for JSON.

    Args:
        source: name of the source and its place, with which messages begin.
        base_url: address before the paths, without a query; https, or http without keys. On this
            machine itself http is allowed with keys too.
        keys: headers that hold keys, sent to the host of `base_url` alone.
        limits: how long and how large an answer may be.

    Raises:
        ConfigError: when the address cannot be used, or a key cannot stand in a header.
        MissingToolError: without the package requests.
    """

    def __init__(
        self,
        source: str,
        base_url: str,
        keys: Mapping[str, Secret] | None = None,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        self._source, self._limits = source, limits
        self._keys = {} if keys is None else dict(keys)
        self._base_url = _checked_address(base_url, is_keyed=bool(self._keys))
        for name, key in self._keys.items():
            if not (key.reveal().isascii() and key.reveal().isprintable()):
                raise ConfigError(name, "...", "a key of visible ASCII characters")
        self._transport = _transport()

    def get(
        self,
        path: str,
        parameters: Mapping[str, str] | None = None,
        absent: Collection[int] = (),
    ) -> object | None:
        """Ask for the JSON value behind a path.

        Args:
            path: path behind the base address, beginning with a slash; messages show it.
            parameters: the query.
            absent: statuses that say that the source has no such thing.

        Returns:
            The value, which is never None, or None for a status in `absent`.

        Raises:
            FeedUnreachable: when no whole answer came in time.
            FeedRefused: for all other statuses of 400 and above.
            FeedMalformed: for what is no JSON value, and for redirects that lead astray.
        """
        who = f"{self._source} ({path})"
        query = f"?{urlencode(parameters)}" if parameters else ""
        reply = self._follow(self._base_url + path + query, who)
        if reply.status in absent:
            return None
        if reply.status >= 400:
            _refuse(reply, who)
        if reply.status != HTTPStatus.OK:
            raise FeedMalformed(f"{who} answers with status {reply.status} and no value")
        return _parsed(reply.body, who)

    def _follow(self, url: str, who: str) -> Reply:
        """The first answer that is no redirect."""
        headers = {"Accept": "application/json", "User-Agent": f"ecorl/{ecorl.__version__}"}
        origin = _origin(urlsplit(self._base_url))
        until_s = time.monotonic() + self._limits.total_s
        for _ in range(self._limits.redirects + 1):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise FeedUnreachable(
                    f"{who} gave no whole answer within {self._limits.total_s:g} s"
                )
            sent = dict(headers)
            if _origin(urlsplit(url)) == origin:
                sent |= {name: key.reveal() for name, key in self._keys.items()}
            _log.debug("asking %s", who)
            reply: Reply = self._transport.fetch(url, sent, self._limits, left_s, who)
            if reply.status not in _REDIRECTS:
                return reply
            url = _redirected(url, reply.headers.get("location", ""), who)
        raise FeedMalformed(f"{who} redirects more than {self._limits.redirects} times")


def _transport() -> ModuleType:
    try:
        from ecorl.carbon.feeds import transport
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("ecorl"):
            raise
        message = f"this feed needs the package {error.name}: pip install 'ecorl[carbon]'"
        raise MissingToolError(message) from error
    return transport


def _checked_address(base_url: str, is_keyed: bool) -> str:
    """The address without a slash at its end. Its text is not shown where it may hold a key."""
    try:
        parts = urlsplit(base_url)
        is_usable = parts.hostname is not None and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not base_url.isprintable() or parts.scheme not in ("http", "https"):
        raise ConfigError("base_url", "...", "an address like https://host/path")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("base_url", "...", "an address without a user, a query or a fragment")
    if is_keyed and parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
        raise ConfigError("base_url", base_url, "an https address, since a key is sent to it")
    return base_url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or default


def _redirected(url: str, location: str, who: str) -> str:
    """The address that a redirect leads to."""
    try:
        target = urljoin(url, location)
        there, here = urlsplit(target), urlsplit(url)
        stays_here = here.scheme == "http" and there.hostname == here.hostname
        may_follow = bool(
            location
            and there.hostname
            and there.port != 0
            and there.username is None
            and (there.scheme == "https" or (there.scheme == "http" and stays_here))
        )
    except ValueError:
        may_follow = False
    if not may_follow:
        raise FeedMalformed(f"{who} redirects to an address that is not followed")
    return target


def _refuse(reply: Reply, who: str) -> NoReturn:
    try:
        status = f"{reply.status} {HTTPStatus(reply.status).phrase}"
    except ValueError:
        status = str(reply.status)
    wait_s = _wait_s(reply.headers) if reply.status in _BUSY else None
    raise FeedRefused(f"{who} refuses with status {status}", retry_after_s=wait_s)


def _wait_s(headers: Mapping[str, str]) -> float | None:
    """How long the source asks to be left alone, s; None where it does not say."""
    given = headers.get("retry-after", "").strip()
    if given.isascii() and given.isdecimal() and len(given) < 10:
        return float(given)
    until = _date(given)
    if until is None:
        return None
    now = _date(headers.get("date", "")) or datetime.now(UTC)  # the source's own clock, if it tells
    return max(0.0, (until - now).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _parsed(body: bytes, who: str) -> object:
    problem = "no JSON"
    try:
        value: object = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        problem = "no UTF-8"
    except json.JSONDecodeError:
        problem = "JSON that is broken or cut off"
    except _NoNumber:
        problem = "JSON with NaN or Infinity"
    except (ValueError, RecursionError):
        problem = "JSON that is too deep or has too long a number"
    else:
        if value is not None:
            return value
        problem = "null"
    raise FeedMalformed(f"{who} answers with {problem}")


class _NoNumber(ValueError):
    """A literal that Python reads as a number, and JSON does not have."""


def _no_number(literal: str) -> NoReturn:
    raise _NoNumber(literal)
