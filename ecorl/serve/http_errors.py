"""HTTP error responses: a status, a one-line message and, where it helps, a time to retry."""

from __future__ import annotations

from collections.abc import Mapping

from ecorl.errors import EcorlError

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
