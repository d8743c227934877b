"""The Python functions among a TRL trainer's reward functions: when each of them ran.

TRL calls them in its own process, one after another; asynchronous ones together, on the event loop
of another thread. What is wrapped here stands in their place for one call of TRL's method: it reads
the clock and does nothing else, so that a function's result or exception is its own.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import is_async_callable

from roll_adapters.trl.reward import role_names

IN_PROCESS = "a Python function runs in the trainer's process"
"""Why a function is computed by the framework itself, for the record."""

TOGETHER = "+"
"""Stands between the names of asynchronous functions: they run at the same time."""


class FunctionClock:
    """When one or several functions ran during one call of TRL's method, monotonic s.

    Of functions that run at the same time it has the time in which any of them ran.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[tuple[float, float]] = []
        self._begun: dict[int, float] = {}
        self._n = 0

    def begin(self) -> int:
        """Note that a function begins; returns a number for `end`."""
        with self._lock:
            self._n += 1
            self._begun[self._n] = time.monotonic()
            return self._n

    def end(self, number: int) -> None:
        """Note that it has ended.

        Args:
            number: from `begin`.
        """
        with self._lock:
            self._spans.append((self._begun.pop(number), time.monotonic()))

    def spans(self) -> list[tuple[float, float]]:
        """When any of them ran, in order and without overlaps; what still runs ends now."""
        with self._lock:
            now_s = time.monotonic()
            spans = sorted([*self._spans, *((begin_s, now_s) for begin_s in self._begun.values())])
        found: list[tuple[float, float]] = []
        for begin_s, end_s in spans:
            if found and begin_s <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], end_s))
            else:
                found.append((begin_s, end_s))
        return found


@dataclass(slots=True)
class FunctionReward:
    """One function of a trainer, or its asynchronous ones together.

    Attributes:
        role_name: what the record calls it.
        indices: places among the trainer's reward functions.
        clock: when it ran.
    """

    role_name: str
    indices: tuple[int, ...]
    clock: FunctionClock = field(default_factory=FunctionClock)

    @classmethod
    def find_all(cls, trainer: Any) -> list[FunctionReward]:
        """Find the functions of a trainer: synchronous ones each, asynchronous ones as one.

        Args:
            trainer: the TRL trainer.
        """
        own = trainer.reward_funcs
        names = role_names([str(name) for name in trainer.reward_func_names])
        functions = [i for i, f in enumerate(own) if not isinstance(f, torch.nn.Module)]
        together = tuple(i for i in functions if is_async_callable(own[i]))
        found = [cls(names[i], (i,)) for i in functions if i not in together]
        if together:
            found.append(cls(TOGETHER.join(names[i] for i in together), together))
        return sorted(found, key=lambda f: f.indices)

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap one of its functions so that its clock sees when it runs.

        Args:
            function: the trainer's own.
        """
        clock = self.clock
        if is_async_callable(function):

            async def timed_async(*args: Any, **kwargs: Any) -> Any:
                number = clock.begin()
                try:
                    return await function(*args, **kwargs)
                finally:
                    clock.end(number)

            return _named_as(function, timed_async)

        def timed(*args: Any, **kwargs: Any) -> Any:
            number = clock.begin()
            try:
                return function(*args, **kwargs)
            finally:
                clock.end(number)

        return _named_as(function, timed)


def _named_as(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    functools.update_wrapper(wrapper, function)
    return wrapper
