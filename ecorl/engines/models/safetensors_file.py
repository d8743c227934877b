"""Reads safetensors files without torch: a header of JSON, then raw little-endian data.

Tensors stay on disk (memory-mapped) until they are asked for, so a checkpoint larger than the
host's memory can be read tensor by tensor.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.engines.protocol import Float32
from ecorl.errors import CheckpointError

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: file, dtype as the format names it, shape, byte range in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def read(self) -> Float32:
        """The tensor as ``[*shape] float32``, a copy of its own.

        Raises:
            CheckpointError: when the dtype is not a float or the file can no longer be read.
        """
        size = _ITEM_BYTES.get(self.dtype)
        if size is None:
            raise CheckpointError(f"{self.path}: tensors of dtype {self.dtype} are not supported")
        count = (self.stop - self.start) // size
        raw_dtype = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[self.dtype]
        try:
            raw = np.fromfile(self.path, dtype=raw_dtype, count=count, offset=self.start)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error})") from error
        if raw.size != count:
            raise CheckpointError(f"{self.path}: the file is truncated")
        if self.dtype == "BF16":
            # bfloat16 is the upper half of a float32
            values = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.astype(np.float32, copy=False)
        try:
            return values.reshape(self.shape)
        except ValueError as error:  # no array has so many dimensions, or such long ones
            raise CheckpointError(f"{self.path}: a shape of {self.shape} is no array's") from error


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name; no tensor data is read.

    Raises:
        CheckpointError: when the file is missing, truncated or not of this format.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise CheckpointError(f"{path}: not a safetensors file, or truncated")
            header = json.loads(handle.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # broken JSON or UTF-8, deep nesting
        raise CheckpointError(f"{path}: the safetensors header is damaged") from error
    # A name with a line break would break the messages that tell of it.
    if not isinstance(header, dict) or not all(name.isprintable() for name in header):
        raise CheckpointError(f"{path}: the safetensors header is damaged")
    base = 8 + header_bytes
    return {
        name: _stored(path, name, entry, base, file_bytes)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _stored(path: Path, name: str, entry: Any, base: int, file_bytes: int) -> StoredTensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(_size(n) for n in entry["shape"])
        start, stop = (base + _size(at) for at in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the entry of {name} is damaged") from error
    if stop > file_bytes:
        raise CheckpointError(
            f"{path}: truncated: {name} ends at byte {stop}, the file has {file_bytes}"
        )
    # math.prod: a product of NumPy's integers may wrap around to the right number of bytes.
    expected = math.prod(shape) * _ITEM_BYTES.get(dtype, 0)
    if start > stop or (dtype in _ITEM_BYTES and stop - start != expected):
        raise CheckpointError(f"{path}: the entry of {name} contradicts itself")
    return StoredTensor(path, dtype, shape, start, stop)


def _size(value: object) -> int:
    """A whole number of 0 or more, so that no offset points before the data."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value
