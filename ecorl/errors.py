"""The error tree of ecorl.

    EcorlError
    ├── UserError                 the user's input is wrong: one line, exit code 2
    │   ├── ConfigError           a key, its value, what is allowed, where it stands
    │   ├── CheckpointError       a model folder is missing, broken or of an unsupported kind
    │   │   └── UnsupportedModel  the folder is whole, and an engine cannot run its model
    │   ├── DataError             a prompt, pair or replay file is missing or malformed
    │   ├── RunError              a run folder is missing, unreadable or cannot be resumed
    │   ├── MissingToolError      a compiler, header set or library that the request needs is absent
    │   ├── SynthesisReportError  a report of a synthesis tool is damaged, or not the one asked for
    │   └── BitstreamError        a bitstream or its manifest is missing, damaged or does not fit
    ├── PhysicalBoundError        a figure lies above what the device can do
    ├── LedgerError               the run's record cannot be written or read
    ├── TrainingError             a training process failed or was killed; the run can be resumed
    ├── BuildError                the C-simulation library did not compile
    ├── DriverError               a driver call failed
    │   ├── LibraryNotFound       the driver library is not on this machine
    │   ├── DriverNotLoaded       the library is there, the kernel driver is not
    │   ├── FunctionNotFound      the driver is too old for this call
    │   ├── NotSupported          the device cannot answer this call
    │   ├── NoPermission          the call needs rights that this process lacks
    │   ├── DeviceLost            the device fell off the bus
    │   ├── CardFull              a card's memory is too full for a buffer
    │   └── DriverTimeout         the driver did not answer in time
    ├── EngineError               an inference engine failed on a batch
    │   ├── EngineTimeout         no answer before the deadline
    │   ├── EngineCrashed         the engine raised, or its process died
    │   ├── DataflowError         a kernel's FIFOs came to a standstill in the C-simulation
    │   └── InvalidResult         wrong shape, NaN or infinity in the answer
    └── FeedError                 a feed of carbon intensities gave no value
        ├── FeedUnreachable       its source did not answer, or not in time
        ├── FeedRefused           its source answered that it will not: key, quota, fault of its own
        ├── FeedMalformed         what its source answered cannot be read
        ├── FeedMadeUp            its source says that its values are made up: a sandbox's
        └── FeedSilent            its source has no value for this time

A `UserError` raised anywhere reaches the command line as one clear line and exit code 2. Faults
of drivers and engines never reach the training run: telemetry turns them into missing readings,
the dispatcher answers the affected rows on the exact path.
"""

from __future__ import annotations

from pathlib import Path

from ecorl.plain_text import as_read


class EcorlError(Exception):
    """Base of every error that ecorl raises on purpose."""


class UserError(EcorlError):
    """The user's input is wrong; the message is one line that says how to mend it."""


class ConfigError(UserError):
    """A configuration value is not acceptable.

    Args:
        key: dotted key, e.g. ``placement.q_max``.
        value: the value that was given, or None when there was none.
        allowed: what would be accepted, in words.
        path: the file in which the value stands, when known.
        line: 1-based line in that file, when known.
    """

    def __init__(
        self,
        key: str,
        value: object,
        allowed: str,
        path: Path | str | None = None,
        line: int | None = None,
    ) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        self.path, self.line = path, line
        where = ""
        if path is not None:
            where = f"{path}:{line}: " if line is not None else f"{path}: "
        shown = as_read(value) if isinstance(value, str) else value
        given = "(not given)" if value is None else repr(shown)
        super().__init__(f"{where}{key} = {given}: allowed is {allowed}")


class CheckpointError(UserError):
    """A model folder is missing, broken or of a kind that is not supported."""


class UnsupportedModel(CheckpointError):
    """An engine cannot run a model whose folder is whole.

    Args:
        message: one line that names the file, the key and the value.
        reason: the same as a clause without a path, for whoever goes on without the engine.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class DataError(UserError):
    """A prompt, preference or replay file is missing or malformed."""


class RunError(UserError):
    """A run folder is missing, unreadable or cannot be resumed."""


class MissingToolError(UserError):
    """A compiler, header set or library that the request needs is absent."""


class SynthesisReportError(UserError):
    """A report of a synthesis tool is damaged, or not the one asked for."""


class BitstreamError(UserError):
    """A bitstream or its manifest is missing, damaged, or does not fit card, kernels or model."""


class PhysicalBoundError(EcorlError):
    """A figure lies above what the device can physically do."""


class LedgerError(EcorlError):
    """The run's record cannot be written or read."""


class TrainingError(EcorlError):
    """A training process failed or was killed; the run can be resumed."""


class BuildError(EcorlError):
    """The C-simulation library did not compile."""


class DriverError(EcorlError):
    """A driver call failed."""


class LibraryNotFound(DriverError):
    """The driver library is not on this machine."""


class DriverNotLoaded(DriverError):
    """The library is there, the kernel driver is not."""


class FunctionNotFound(DriverError):
    """The driver is too old for this call."""


class NotSupported(DriverError):
    """The device cannot answer this call."""


class NoPermission(DriverError):
    """The call needs rights that this process lacks."""


class DeviceLost(DriverError):
    """The device fell off the bus."""


class CardFull(DriverError):
    """A card's memory is too full for a buffer; the card itself is healthy."""


class DriverTimeout(DriverError):
    """The driver did not answer in time."""


class EngineError(EcorlError):
    """An inference engine failed on a batch."""


class EngineTimeout(EngineError):
    """No answer came before the deadline."""


class EngineCrashed(EngineError):
    """The engine raised, or its process died."""


class DataflowError(EngineError):
    """A kernel of the C-simulation came to a standstill, left items in a FIFO, or came closer to an
    earlier iteration than a DEPENDENCE pragma states.
    """


class InvalidResult(EngineError):
    """The answer has the wrong shape, or holds NaN or infinity."""


class FeedError(EcorlError):
    """A feed of carbon intensities gave no value."""


class FeedUnreachable(FeedError):
    """The source did not answer, or not in time."""


class FeedRefused(FeedError):
    """The source answered that it will not: a wrong key, a quota, or a fault of its own.

    Args:
        message: one line.
        retry_after_s: how long the source asks to be left alone, s; None where it does not say.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FeedMalformed(FeedError):
    """What the source answered cannot be read."""


class FeedMadeUp(FeedError):
    """The source marks its values as made up, as services do for sandbox and test keys."""


class FeedSilent(FeedError):
    """The source has no value for this time.

    Args:
        message: one line.
        doubted_g_per_kwh: what it has there and what is not believed; None: nothing.
    """

    def __init__(self, message: str, doubted_g_per_kwh: float | None = None) -> None:
        super().__init__(message)
        self.doubted_g_per_kwh = doubted_g_per_kwh
