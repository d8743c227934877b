"""Instruments that tell a GPU's power, and the records and errors of NVIDIA's driver.

Three instruments can tell the power of a board: field 186 (instantaneous), field 185 (average)
and ``nvmlDeviceGetPowerUsage`` (a 1 s average on Ampere and later, except GA100). The two fields
exist in a GPU scope, on boards such as Grace Hopper in a module scope that includes the CPU, and on
some boards in a scope of the memory alone, which is a part of the GPU's and stands for no board.
Each reading names the instrument behind it, because these figures are not interchangeable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ecorl import errors

# UNINITIALIZED, INVALID_ARGUMENT, ALREADY_INITIALIZED, NOT_FOUND, INSUFFICIENT_SIZE,
# INSUFFICIENT_POWER, IRQ_ISSUE, CORRUPTED_INFOROM, OPERATING_SYSTEM, LIB_RM_VERSION_MISMATCH,
# IN_USE, MEMORY, NO_DATA, INSUFFICIENT_RESOURCES, ARGUMENT_VERSION_MISMATCH, NOT_READY,
# INVALID_STATE, UNKNOWN
_OF_NO_KIND = (1, 2, 5, 6, 7, 8, 11, 14, 17, 18, 19, 20, 21, 23, 25, 27, 29, 999)

ERROR_CLASSES: Mapping[int, type[errors.DriverError]] = {
    **dict.fromkeys(_OF_NO_KIND, errors.DriverError),
    3: errors.NotSupported,  # NOT_SUPPORTED
    4: errors.NoPermission,  # NO_PERMISSION
    9: errors.DriverNotLoaded,  # DRIVER_NOT_LOADED
    10: errors.DriverTimeout,  # TIMEOUT
    12: errors.LibraryNotFound,  # LIBRARY_NOT_FOUND
    13: errors.FunctionNotFound,  # FUNCTION_NOT_FOUND
    15: errors.DeviceLost,  # GPU_IS_LOST
    16: errors.DeviceLost,  # RESET_REQUIRED: nothing can be read before a reset
    22: errors.NotSupported,  # VGPU_ECC_NOT_SUPPORTED
    24: errors.NotSupported,  # FREQ_NOT_SUPPORTED
    26: errors.NotSupported,  # DEPRECATED
    28: errors.DeviceLost,  # GPU_NOT_FOUND
    30: errors.NotSupported,  # RESET_TYPE_NOT_SUPPORTED
}
"""Every NVML return code and the class it becomes; a code not listed is a plain `DriverError`."""


def error_from_code(code: int, message: str = "") -> errors.DriverError:
    """Make the error that stands for an NVML return code; see `ERROR_CLASSES`.

    Args:
        code: NVML's return code.
        message: the error's message.
    """
    return ERROR_CLASSES.get(code, errors.DriverError)(message or f"NVML error {code}")


@contextlib.contextmanager
def translated(nvml: ModuleType, function: str) -> Iterator[None]:
    """Turn what ``pynvml`` raises inside into a `DriverError` that names the function."""
    try:
        yield
    except nvml.NVMLError as error:
        raise error_from_code(error.value, f"{function}: {error}") from error
    except nvml.NVMLLibraryMismatchError as error:
        raise errors.FunctionNotFound(f"{function}: {error}") from error


FIELD_POWER_AVERAGE = 185
FIELD_POWER_INSTANT = 186
SCOPE_GPU = 0
SCOPE_MODULE = 1
SCOPE_MEMORY = 2

_SCOPE_NAMES = {SCOPE_GPU: "gpu", SCOPE_MODULE: "module", SCOPE_MEMORY: "memory"}


@dataclass(frozen=True, slots=True)
class Instrument:
    """How a power figure is read: a field in a scope, or ``nvmlDeviceGetPowerUsage``.

    Attributes:
        field: 185 or 186, or None for the power-usage call.
        scope: 0 (GPU), 1 (module) or 2 (memory), or None for the power-usage call.
    """

    field: int | None
    scope: int | None

    def __str__(self) -> str:
        if self.field is None or self.scope is None:
            return "nvml:power_usage"
        return f"nvml:field{self.field}:{_SCOPE_NAMES.get(self.scope, self.scope)}"

    @property
    def average(self) -> Instrument:
        """The field that averages in the scope of this instrument.

        The old call has none: what it gives is an average on some boards only.
        """
        return self if self.field is None else Instrument(FIELD_POWER_AVERAGE, self.scope)


POWER_USAGE = Instrument(None, None)
INSTRUMENTS = (
    *(
        Instrument(field, scope)
        for scope in (SCOPE_GPU, SCOPE_MODULE)
        for field in (FIELD_POWER_INSTANT, FIELD_POWER_AVERAGE)
    ),
    POWER_USAGE,
)
"""The order in which instruments are tried. The instantaneous figure comes before the average,
which smears one stage into the next; a module's power comes after the GPU's own."""


@dataclass(frozen=True, slots=True)
class PowerReading:
    """Power of a board in W, and the instrument that said so.

    Attributes:
        average_w: the average of the last second or so by the same scope, W, or None.
    """

    power_w: float
    instrument: Instrument
    average_w: float | None = None


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Power limits of a board in W, each None where the device does not tell."""

    enforced_w: float | None
    min_w: float | None
    max_w: float | None


@dataclass(frozen=True, slots=True)
class BoardState:
    """The state in which a board's power is read; each figure None where the board does not tell.

    Attributes:
        sm_clock_hz: clock of the processors, Hz.
        temperature_c: of the GPU, degrees Celsius.
        clock_event_reasons: bits of why the clock is not higher, as NVML numbers them: 0x1 idle,
            0x4 power cap, 0x8 and 0x40 hardware slowdown, 0x20 temperature.
    """

    sm_clock_hz: float | None
    temperature_c: float | None
    clock_event_reasons: int | None


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A physical GPU.

    Attributes:
        index: NVML's index.
        uuid: of the physical GPU; for MIG that of the parent. Of one that does not answer: the name
            by which it was asked for, else its index.
        mig_uuids: instances on it; NVML reports the parent's power for each of them.
        handle: NVML's opaque handle, valid until `NvmlDriver.close`.
        max_limit_w: highest power limit that it can be set to, W, or None where it does not tell.
        fault: why it does not answer; None where it does.
    """

    index: int
    uuid: str
    name: str
    mig_uuids: tuple[str, ...]
    handle: Any
    max_limit_w: float | None = None
    fault: errors.DriverError | None = None

    @property
    def answers(self) -> bool:
        """Whether it has told its UUID."""
        return self.fault is None

    @property
    def label(self) -> str:
        """Its name, with a remark where the power is that of several MIG instances together."""
        if not self.mig_uuids:
            return self.name
        return f"{self.name} (whole GPU of {len(self.mig_uuids)} MIG instances)"
