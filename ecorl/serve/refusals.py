"""What the service answers when it does not answer: a status, one line, and when to come again."""

from __future__ import annotations

from collections.abc import Mapping

from ecorl.errors import EcorlError


class Refused(EcorlError):
    """A request that gets no scores.

    Args:
        status: HTTP status.
        message: one line that names the field, its value and what is allowed, or the reason.
        kind: label in the metrics.
        retry_after_s: when to come again, whole seconds; None: not worth it.
        headers: further headers of the answer.
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


def draining() -> Refused:
    """For requests that come after the signal to stop."""
    return Refused(
        503,
        "the service is stopping and takes no further requests",
        "draining",
        retry_after_s=5,  # assumed: about what a restart with a small model takes
        headers={"connection": "close"},
    )
