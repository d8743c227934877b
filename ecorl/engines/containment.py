"""The one place where errors of foreign engines are caught."""

from __future__ import annotations

from types import TracebackType

from ecorl.errors import EcorlError, EngineCrashed, EngineError

# Wide on purpose. An engine may come from another package by entry point, and a trainer's own
# model code runs here too: neither keeps to ecorl's error tree, and no error of theirs may end a
# training run that can answer the same rows on the exact path. Not `Exception`: an error outside
# these families (a signal turned into an exception, a generator's StopIteration) says nothing of
# the state that it left behind. It ends the engine's process, whose parent starts another.
_CONTAINED = (
    EcorlError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    MemoryError,
    ImportError,
    AssertionError,
)


class EngineBoundary:
    """Runs foreign code and keeps the error that it raises, for the caller to act on.

        with EngineBoundary() as boundary:
            return engine.score(batch)
        return boundary.engine_error()

    Attributes:
        error: what the block raised; None while and when it raised nothing.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> EngineBoundary:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, _CONTAINED):
            self.error = error
            return True
        return False

    def caught(self) -> Exception:
        """The error, where the caller knows that there is one.

        Raises:
            ValueError: when the block raised nothing.
        """
        if self.error is None:
            raise ValueError("the block raised nothing")
        return self.error

    def engine_error(self) -> EngineError:
        """The error as an `EngineError`; any other class becomes `EngineCrashed`, with its cause.

        Raises:
            ValueError: when the block raised nothing.
        """
        error = self.caught()
        if isinstance(error, EngineError):
            return error
        crashed = EngineCrashed(f"{type(error).__name__}: {error}")
        crashed.__cause__ = error
        return crashed
