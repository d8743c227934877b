"""Ctrl-C that a library has swallowed.

A function written in C that meets a KeyboardInterrupt may raise an error of its own in its place,
as PyTorch does where it looks at the shape of a storage. Code that contains this error, as that of
an engine that cannot start, would go on with a run that the user has stopped.
"""

from __future__ import annotations

import signal
from types import FrameType

_has_come = False


def remember_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt as before, and be remembered.

    Nothing changes where the signal has another handler, or is ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def raise_swallowed_interrupt() -> None:
    """Raise the KeyboardInterrupt that came in this process, if one did.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if _has_come:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _has_come
    _has_come = True
    raise KeyboardInterrupt
