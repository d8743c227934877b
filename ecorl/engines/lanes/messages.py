"""Messages between the engine process and its parent.

parent                 engine process
StartEngine      ->
                 <-    EngineFacts | Fault
ScoreBatch       ->
                 <-    ScoreResult | LogprobResult | Fault
Refresh          ->
                 <-    Refreshed | Fault
(connection closed)    closes the engine and ends
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ecorl import errors
from ecorl.config import FaultInjection
from ecorl.engines.fpga.card.backend import is_emulated
from ecorl.records import FaultKind, Stage


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Describes an engine so that any process can load it.

    Attributes:
        kind: built-in ``torch`` or ``fpga``, or ``plugin``.
        name: the entry point's name for a plugin, else equal to `kind`.
        checkpoint: Hugging Face checkpoint folder.
        device: name of the device profile that the engine stands for.
        options: keyword arguments of the engine's factory.
        threads: threads of numeric libraries in the engine's process.
        faults: faults to inject.
    """

    kind: Literal["torch", "fpga", "plugin"]
    name: str
    checkpoint: Path
    stage: Stage
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    faults: tuple[FaultInjection, ...] = ()

    @property
    def simulates_card(self) -> bool:
        """Whether its process only stands for a card, whose time and energy are modelled."""
        backend = self.options.get("backend")
        return self.kind == "fpga" and is_emulated(None if backend is None else backend.bitstream)


@dataclass(frozen=True, slots=True)
class StartEngine:
    """First message to the engine process.

    Attributes:
        calls_done: calls made to earlier processes of this engine.
        import_path: the parent's ``sys.path``, so that plug-ins are found as in the parent.
    """

    spec: EngineSpec
    calls_done: int
    import_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as it is sent to the parent: the name of its class, its text and its attributes."""

    kind: str
    message: str
    attributes: Mapping[str, Any]


def fault_of(error: BaseException) -> Fault:
    """Describe an error so that it can be sent, whatever arguments its constructor has.

    An error from outside ecorl's tree arrives as `EngineCrashed`, with its class in the text.
    """
    if isinstance(error, errors.EcorlError):
        attributes = {
            key: value if isinstance(value, str | int | float | Path | None) else repr(value)
            for key, value in vars(error).items()
        }
        # A subclass that another module defines (a missing figure) arrives as its public base.
        public = next(c for c in type(error).__mro__ if vars(errors).get(c.__name__) is c)
        return Fault(public.__name__, str(error), attributes)
    return Fault(FaultKind.ENGINE_CRASHED, f"{type(error).__name__}: {error}", {})


def error_of(fault: Fault) -> errors.EcorlError:
    """The error that a `Fault` describes; an unknown class becomes `EngineCrashed`."""
    kind = getattr(errors, fault.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.EcorlError)):
        return errors.EngineCrashed(f"{fault.kind}: {fault.message}")
    # Not by the constructor: ConfigError, for one, takes other arguments than its message.
    error = kind.__new__(kind, fault.message)
    error.__dict__.update(fault.attributes)
    return error
