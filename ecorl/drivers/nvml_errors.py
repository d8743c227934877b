"""NVML's return codes and exceptions as ecorl's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType

from ecorl.errors import (
    DeviceLost,
    DriverError,
    DriverNotLoaded,
    DriverTimeout,
    FunctionNotFound,
    LibraryNotFound,
    NoPermission,
    NotSupported,
)

ERROR_CLASSES: Mapping[int, type[DriverError]] = {
    1: DriverError,  # UNINITIALIZED
    2: DriverError,  # INVALID_ARGUMENT
    3: NotSupported,  # NOT_SUPPORTED
    4: NoPermission,  # NO_PERMISSION
    5: DriverError,  # ALREADY_INITIALIZED
    6: DriverError,  # NOT_FOUND
    7: DriverError,  # INSUFFICIENT_SIZE
    8: DriverError,  # INSUFFICIENT_POWER
    9: DriverNotLoaded,  # DRIVER_NOT_LOADED
    10: DriverTimeout,  # TIMEOUT
    11: DriverError,  # IRQ_ISSUE
    12: LibraryNotFound,  # LIBRARY_NOT_FOUND
    13: FunctionNotFound,  # FUNCTION_NOT_FOUND
    14: DriverError,  # CORRUPTED_INFOROM
    15: DeviceLost,  # GPU_IS_LOST
    16: DeviceLost,  # RESET_REQUIRED: nothing can be read before a reset
    17: DriverError,  # OPERATING_SYSTEM
    18: DriverError,  # LIB_RM_VERSION_MISMATCH
    19: DriverError,  # IN_USE
    20: DriverError,  # MEMORY
    21: DriverError,  # NO_DATA
    22: NotSupported,  # VGPU_ECC_NOT_SUPPORTED
    23: DriverError,  # INSUFFICIENT_RESOURCES
    24: NotSupported,  # FREQ_NOT_SUPPORTED
    25: DriverError,  # ARGUMENT_VERSION_MISMATCH
    26: NotSupported,  # DEPRECATED
    27: DriverError,  # NOT_READY
    28: DeviceLost,  # GPU_NOT_FOUND
    29: DriverError,  # INVALID_STATE
    30: NotSupported,  # RESET_TYPE_NOT_SUPPORTED
    999: DriverError,  # UNKNOWN
}
"""Every NVML return code and the class it becomes; a code not listed is a plain `DriverError`."""


def error_from_code(code: int, message: str = "") -> DriverError:
    """Make the error that stands for an NVML return code; see `ERROR_CLASSES`.

    Args:
        code: NVML's return code.
        message: the error's message.
    """
    return ERROR_CLASSES.get(code, DriverError)(message or f"NVML error {code}")


@contextlib.contextmanager
def translated(nvml: ModuleType, function: str) -> Iterator[None]:
    """Turn what ``pynvml`` raises inside into a `DriverError` that names the function."""
    try:
        yield
    except nvml.NVMLError as error:
        raise error_from_code(error.value, f"{function}: {error}") from error
    except nvml.NVMLLibraryMismatchError as error:
        raise FunctionNotFound(f"{function}: {error}") from error
