"""What one exchange over HTTP may take, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
