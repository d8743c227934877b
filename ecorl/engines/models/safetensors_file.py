"""Reads the tensors of safetensors files as float32, without torch.

Tensors stay on disk until they are asked for, so that a checkpoint larger than the host's memory
can be read tensor by tensor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ecorl.engines.protocol import Float32
from ecorl.errors import CheckpointError

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: its name, dtype as the format calls it, and shape."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Float32:
        """The tensor as ``[*shape] float32``, in memory that the caller owns.

        Raises:
            CheckpointError: when the dtype is not a float or the file can no longer be read.
        """
        if self.dtype not in _FLOATS:
            raise CheckpointError(f"{self.path}: tensors of dtype {self.dtype} are not supported")
        try:
            with safe_open(self.path, framework="numpy") as file:
                if self.dtype == "BF16":
                    return self._widened()
                values = file.get_tensor(self.name)
            return np.asarray(values.astype(np.float32, copy=False))
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error})") from error
        except SafetensorError as error:
            raise _unreadable(self.path, error) from error
        except ValueError as error:  # no array has so many dimensions, or such long ones
            shape = self.shape
            raise CheckpointError(f"{self.path}: a shape of {shape} is no array's") from error

    def _widened(self) -> Float32:
        """A bfloat16 tensor, which the library hands to NumPy only with ml_dtypes installed.

        The library has checked the header, so that its entries are taken as they stand.
        """
        with self.path.open("rb") as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
            start, stop = json.loads(handle.read(header_bytes))[self.name]["data_offsets"]
            raw = np.fromfile(handle, "<u2", (stop - start) // 2, offset=start)
        # bfloat16 is the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name; no tensor data is read.

    Raises:
        CheckpointError: when the file is missing, truncated or not of this format.
    """
    try:
        path.open("rb").close()  # the library's own error has no text of the system's
        with safe_open(path, framework="numpy") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            stored = {
                name: StoredTensor(path, name, part.get_dtype(), tuple(part.get_shape()))
                for name, part in parts.items()
            }
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except SafetensorError as error:
        raise _unreadable(path, error) from error
    # A name with a line break would break the messages that tell of it.
    if not all(name.isprintable() for name in stored):
        raise CheckpointError(f"{path}: the safetensors header is damaged")
    return stored


def _unreadable(path: Path, error: SafetensorError) -> CheckpointError:
    """The line for a file that the library refuses, with the library's reason."""
    why = " ".join(str(error).split())
    return CheckpointError(f"{path}: not a safetensors file, damaged or truncated ({why})")
