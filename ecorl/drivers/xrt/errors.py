"""From XRT's exceptions to ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ecorl.errors import DeviceLost, DriverError, DriverTimeout, NoPermission

_RAISED = (
    RuntimeError,
    OSError,
    ValueError,
    IndexError,
    SystemError,
    TypeError,
    MemoryError,
    OverflowError,
)
"""What pybind11 makes of the exceptions of XRT's C++; std::bad_alloc is a MemoryError."""


_LOST = ("no such device", "device not found", "invalid device", "could not open device")
"""Words of XRT for a card that is not there, any more or at all."""


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what XRT raises within the block into a `DriverError` that begins with `what`.

    XRT raises standard exceptions only; their text is all there is to tell them apart.
    """
    try:
        yield
    except AttributeError as error:
        raise DriverError(f"{what}: this pyxrt lacks it ({error})") from error
    except _RAISED as error:
        text = str(error).lower()
        kind: type[DriverError] = DriverError
        if "permission" in text or "not permitted" in text:
            kind = NoPermission
        elif any(words in text for words in _LOST):
            kind = DeviceLost
        elif "timed out" in text or "timeout" in text:
            kind = DriverTimeout
        raise kind(f"{what}: {str(error) or type(error).__name__}") from error
