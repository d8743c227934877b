"""Measurements that may fail without taking the others along."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call, and return the result or the error.

    Whatever is raised counts: beside the errors of PyTorch and NVML, a compiler that is missing, a
    disk that is full or an interface that has changed come in classes of their libraries' own. A
    figure that is missing for it says why.

    Args:
        call: measures.
    """
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error


def reason(error: Exception) -> str:
    """Say in one line what went wrong.

    Args:
        error: that was raised.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
