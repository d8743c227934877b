"""Ctrl-C that a library has swallowed.

A function written in C that meets a KeyboardInterrupt may raise an error of its own in its place,
as PyTorch does where it looks at the shape of a storage. Code that contains this error, as that of
an engine that cannot start, would go on with a run that the user has stopped.
"""

from __future__ import annotations

import signal
from types import FrameType

_n_come = 0


def remember_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt as before, and be remembered.

    Nothing changes where the signal has another handler, or is ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def n_interrupts() -> int:
    """How often Ctrl-C has come to this process so far."""
    return _n_come


def raise_swallowed_interrupt(n_before: int) -> None:
    """Raise the KeyboardInterrupt that has come since, if one has.

    Args:
        n_before: `n_interrupts` of where the code began that may have swallowed it. One that came
            before it has had its effect.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if _n_come > n_before:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _n_come
    _n_come += 1
    raise KeyboardInterrupt
