"""DataProto: rows of tensors and of objects, and what belongs to all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch


@dataclass
class ObjectRefWrap:
    """An answer that is on its way; only those that are collected belong to the result."""

    obj_ref: ray.ObjectRef
    collected: bool = True


class TensorBatch:
    """Tensors by name with the same number of rows."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        n_rows = {len(tensor) for tensor in tensors.values()}
        assert len(n_rows) == 1, f"tensors of {sorted(n_rows)} rows"
        self.batch_size = torch.Size(n_rows)
        self._tensors = dict(tensors)

    @property
    def shape(self) -> torch.Size:
        return self.batch_size

    @property
    def device(self) -> torch.device:
        return next(iter(self._tensors.values())).device

    def keys(self) -> Iterable[str]:
        return self._tensors.keys()

    def values(self) -> Iterable[torch.Tensor]:
        return self._tensors.values()

    def items(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._tensors.items()

    def get(self, key: str, default: Any = None) -> Any:
        return self._tensors.get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        return self._tensors.pop(key, *default)

    def clone(self) -> TensorBatch:
        return self._each(torch.clone)

    def to(self, device: Any) -> TensorBatch:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Any) -> TensorBatch:
        return TensorBatch({key: change(tensor) for key, tensor in self.items()})

    def __len__(self) -> int:
        return self.batch_size[0]

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def __getitem__(self, key: Any) -> Any:
        return self._tensors[key] if isinstance(key, str) else self._each(lambda t: t[key])

    def __setitem__(self, key: str, tensor: torch.Tensor) -> None:
        assert len(tensor) == len(self), f"{key} has {len(tensor)} rows, not {len(self)}"
        self._tensors[key] = tensor


class DataProto:
    """A batch: tensors, arrays of objects, and facts of all rows."""

    def __init__(
        self,
        batch: TensorBatch | dict[str, torch.Tensor] | None = None,
        non_tensor_batch: dict[str, np.ndarray] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(batch, dict):
            batch = TensorBatch(batch) if batch else None
        self.batch = batch
        self.non_tensor_batch = {} if non_tensor_batch is None else non_tensor_batch
        self.meta_info = {} if meta_info is None else meta_info
        for key, array in self.non_tensor_batch.items():
            assert isinstance(array, np.ndarray), f"{key} is no array"
            assert array.dtype.hasobject, f"{key} is no array of objects"
            assert len(array) == len(self), f"{key} has {len(array)} rows, not {len(self)}"

    # ------------------------------------------------------------ made from other things

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, torch.Tensor] | None,
        non_tensors: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> DataProto:
        arrays = {key: _objects(values) for key, values in (non_tensors or {}).items()}
        return cls(dict(tensors or {}), arrays, meta_info)

    @classmethod
    def from_single_dict(
        cls, data: dict[str, Any], meta_info: dict[str, Any] | None = None
    ) -> DataProto:
        tensors = {key: value for key, value in data.items() if isinstance(value, torch.Tensor)}
        arrays = {key: value for key, value in data.items() if isinstance(value, np.ndarray)}
        assert len(tensors) + len(arrays) == len(data), "neither tensors nor arrays"
        return cls.from_dict(tensors, arrays, meta_info)

    @classmethod
    def concat(cls, data: list[DataProto]) -> DataProto:
        """All rows; of the facts those of the first, but everyone's metrics, as lists."""
        first = data[0]
        tensors = None
        if first.batch is not None:
            names = list(first.batch.keys())
            tensors = {name: torch.cat([d.batch[name] for d in data]) for name in names}
        arrays = {
            key: np.concatenate([d.non_tensor_batch[key] for d in data])
            for key in first.non_tensor_batch
        }
        facts = dict(first.meta_info)
        metrics: dict[str, list[Any]] = {}
        for part in data:
            for key, value in part.meta_info.get("metrics", {}).items():
                many = isinstance(value, (list, np.ndarray))
                metrics.setdefault(key, []).extend(value if many else [value])
        if any("metrics" in part.meta_info for part in data):
            facts["metrics"] = metrics
        return cls(tensors, arrays, facts)

    @staticmethod
    def materialize_concat(
        data_refs: list[ray.ObjectRef | ObjectRefWrap] | ray.ObjectRef, **_: Any
    ) -> DataProto:
        """Wait for answers and join them."""
        if isinstance(data_refs, ray.ObjectRef):
            data_refs = [data_refs]
        refs = []
        for ref in data_refs:
            if isinstance(ref, ObjectRefWrap):
                refs += [ref.obj_ref] * ref.collected
            else:
                refs.append(ref)
        assert all(isinstance(ref, ray.ObjectRef) for ref in refs), "answers come as references"
        return DataProto.concat(ray.get(refs))

    @staticmethod
    def drop(data: Any) -> None:
        """Say that a batch is not needed any more; Ray finds out by itself here."""

    # ------------------------------------------------------------ rows

    def __len__(self) -> int:
        if self.batch is not None:
            return len(self.batch)
        return next((len(array) for array in self.non_tensor_batch.values()), 0)

    def __getitem__(self, rows: Any) -> DataProto:
        if isinstance(rows, (int, np.integer)):
            rows = [int(rows)]
        return self._rows(rows)

    def select_idxs(self, idxs: Any) -> DataProto:
        """A copy of some rows, by number or by a mask."""
        chosen = torch.as_tensor(np.asarray(idxs))
        if chosen.dtype == torch.bool:
            chosen = torch.nonzero(chosen)[:, 0]
        return self._rows(chosen)

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None):
        return self._rows(slice(start, end, step))

    def _rows(self, rows: Any) -> DataProto:
        numbers = rows if isinstance(rows, slice) else np.asarray(rows)
        tensors = None
        if self.batch is not None:
            index = rows if isinstance(rows, slice) else torch.as_tensor(numbers)
            tensors = {key: tensor[index] for key, tensor in self.batch.items()}
        arrays = {key: array[numbers] for key, array in self.non_tensor_batch.items()}
        return DataProto(tensors, arrays, dict(self.meta_info))

    def reorder(self, indices: torch.Tensor) -> None:
        """Give the rows another order, in place."""
        ordered = self._rows(indices)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch

    def group_by(self, key: str) -> dict[str, DataProto]:
        in_batch = self.batch is not None and key in self.batch
        column = self.batch[key].tolist() if in_batch else self.non_tensor_batch[key]
        rows: dict[str, list[int]] = {}
        for i, value in enumerate(column):
            rows.setdefault(value, []).append(i)
        return {value: self.select_idxs(numbers) for value, numbers in rows.items()}

    def chunk(self, chunks: int) -> list[DataProto]:
        assert len(self) % chunks == 0, f"{len(self)} rows are not for {chunks} workers"
        size = len(self) // chunks
        return [self.slice(i * size, (i + 1) * size) for i in range(chunks)]

    def split(self, split_size: int) -> list[DataProto]:
        return [self.slice(i, i + split_size) for i in range(0, len(self), split_size)]

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        rows = np.arange(len(self))
        again = np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times)
        return self._rows(again)

    def to(self, device: Any) -> DataProto:
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    # ------------------------------------------------------------ columns

    def union(self, other: DataProto) -> DataProto:
        """Take another batch's columns as well, in place; the same ones must be equal."""
        if other.batch is not None:
            if self.batch is None:
                self.batch = TensorBatch(dict(other.batch.items()))
            for key, tensor in other.batch.items():
                if key in self.batch:
                    assert torch.equal(self.batch[key], tensor), f"two different {key}"
                self.batch[key] = tensor
        for key, array in other.non_tensor_batch.items():
            if key in self.non_tensor_batch:
                assert list(self.non_tensor_batch[key]) == list(array), f"two different {key}"
            self.non_tensor_batch[key] = array
        self.meta_info.update(other.meta_info)
        return self

    def rename(self, old_keys: str | list[str], new_keys: str | list[str]) -> DataProto:
        """Rename tensors, in place."""
        for old, new in zip(_names(old_keys), _names(new_keys), strict=True):
            self.batch[new] = self.batch.pop(old)
        return self

    def pop(
        self,
        batch_keys: str | list[str] | None = None,
        non_tensor_batch_keys: str | list[str] | None = None,
        meta_info_keys: str | list[str] | None = None,
    ) -> DataProto:
        """Take columns out, in place; they are the result."""
        return DataProto(
            {key: self.batch.pop(key) for key in _names(batch_keys)},
            {key: self.non_tensor_batch.pop(key) for key in _names(non_tensor_batch_keys)},
            {key: self.meta_info.pop(key) for key in _names(meta_info_keys)},
        )

    def __iter__(self) -> Iterator[DataProto]:
        return (self[i] for i in range(len(self)))


def _names(keys: str | list[str] | None) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys or ())


def _objects(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray) and values.dtype == object:
        return values
    # Not of the list itself: rows that are lists would become a second dimension.
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array
