"""Records to rows and back, by the types of their fields.

Numpy scalars are accepted and become plain ones. A field of a type that no column can hold is the
caller's to store.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import sqlite3
import time
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from ecorl.control import GearChoice
from ecorl.grid import AverageIntensity, Fuel, Intensity, MarginalIntensity
from ecorl.ledger.rows import GearChoiceRow, IntensityRow
from ecorl.records import ActionCost, FaultKind, StageEnergy, StageResult

Columns = dict[str, Any]
"""One row: values by column name."""

Convert = Callable[[Any], Any]

_Record = TypeVar("_Record")

_COLUMN_NAMES = {
    "decided_s": "decided_unix_s",
    "device_ids": "device_id",
    "fetched_s": "fetched_unix_s",
    "figures_json": "figures",
    "json": "matrix",
    "look_again_s": "look_again_unix_s",
    "start_s": "start_unix_s",
    "t_end_s": "end_t_s",
    "t_start_s": "start_t_s",
    "values": "item_values",
    "where": "place",
}
"""Columns by field, where the two go by different names."""

_ENERGY_NAMES = {
    "device_ids": "energy_device_id",
    "t_start_s": "energy_start_t_s",
    "t_end_s": "energy_end_t_s",
    "method": "energy_method",
    "provenance": "energy_provenance",
}
"""The same for an energy, which stands in the row of its execution."""


class _Column(NamedTuple):
    field: str
    name: str
    encode: Convert
    decode: Convert | None  # None: the value of the column as it is


def columns_of(kind: Hashable, record: object) -> Columns:
    """Values by column of a record, without the fields that no column can hold.

    Args:
        kind: class of the record.
        record: the record.

    Raises:
        TypeError, ValueError, AttributeError, OverflowError: when a value is of another type than
            its field.
    """
    return {c.name: c.encode(getattr(record, c.field)) for c in _columns(kind)}


def record_of(
    kind: Callable[..., _Record], row: sqlite3.Row | Mapping[str, Any], /, **given: object
) -> _Record:
    """A record from a row.

    Args:
        kind: class of the record.
        row: values by column.
        given: fields that are not read from the row.
    """
    read = {
        c.field: row[c.name] if c.decode is None else c.decode(row[c.name])
        for c in _columns(kind)
        if c.field not in given
    }
    return kind(**read, **given)


def result_columns(r: StageResult) -> Columns:
    """Columns of an execution, with those of its energy where it has one."""
    energy = {} if r.energy is None else columns_of(StageEnergy, r.energy)
    return {**columns_of(StageResult, r), **energy}


def result_of(row: sqlite3.Row) -> StageResult:
    """The execution in a row of table ``execution``."""
    has_energy = row["energy_method"] is not None
    energy = record_of(StageEnergy, row) if has_energy else None
    return record_of(StageResult, row, energy=energy)


@functools.cache
def _columns(kind: Any) -> tuple[_Column, ...]:
    types_of, names = get_type_hints(kind), _COLUMN_NAMES
    if kind is StageEnergy:
        names = _ENERGY_NAMES
    found = []
    for field in dataclasses.fields(kind):
        codec = (_text, _or_empty) if field.default == "" else _codec(types_of[field.name])
        if codec is not None:
            found.append(_Column(field.name, names.get(field.name, field.name), *codec))
    return tuple(found)


def _codec(annotation: Any) -> tuple[Convert, Convert | None] | None:
    """What encodes and decodes values of a type; None for a type that no column can hold."""
    if get_origin(annotation) is types.UnionType and type(None) in get_args(annotation):
        members = [one for one in get_args(annotation) if one is not type(None)]
        inner = _codec(functools.reduce(operator.or_, members))
        if inner is None:
            return None
        encode, decode = inner
        return _or_none(encode), None if decode is None else _or_none(decode)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return str, annotation
    return _CODECS.get(annotation)


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def number(value: float | None) -> float | None:
    """A plain float; None for None and for what is not a number."""
    if value is None:
        return None
    plain = float(value)
    return None if math.isnan(plain) else plain


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _text(value: str | None) -> str | None:
    """An optional name; none is stored as NULL."""
    return str(value) if value else None


def _or_empty(value: str | None) -> str:
    return value or ""


def _joined(device_ids: Iterable[str]) -> str:
    """Several devices in one column: their ids with ``+`` between."""
    return "+".join(map(str, device_ids))


def _split(column: str) -> tuple[str, ...]:
    return tuple(column.split("+"))


def _fault_kind(text: str) -> FaultKind | str:
    """One of ecorl's own kinds; anything else is the name of an error."""
    try:
        return FaultKind(text)
    except ValueError:
        return text


def _costs_text(costs: Iterable[ActionCost]) -> str:
    return json_text([columns_of(ActionCost, cost) for cost in costs])


def _costs_of(text: str) -> tuple[ActionCost, ...]:
    return tuple(record_of(ActionCost, cost) for cost in json.loads(text))


def _shares_text(mix: Mapping[Fuel, float]) -> str:
    return json_text({str(fuel): number(share) for fuel, share in mix.items()})


def _shares_of(text: str) -> dict[Fuel, float]:
    return {Fuel(fuel): float(share) for fuel, share in json.loads(text).items()}


def json_text(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def values_text(values: Iterable[float | None]) -> str:
    """JSON list; null for None and for what is not finite."""
    plain = (number(v) for v in values)
    return json.dumps([v if v is not None and math.isfinite(v) else None for v in plain])


def values_of(text: str) -> tuple[float | None, ...]:
    """The values of an evaluation."""
    return tuple(None if v is None else float(v) for v in json.loads(text))


_CODECS: dict[Any, tuple[Convert, Convert | None]] = {
    bool: (int, bool),
    int: (int, None),
    float: (number, _or_nan),
    str: (str, None),
    FaultKind | str: (str, _fault_kind),
    tuple[str, ...]: (_joined, _split),
    tuple[float | None, ...]: (values_text, values_of),
    tuple[ActionCost, ...]: (_costs_text, _costs_of),
    Mapping[Fuel, float]: (_shares_text, _shares_of),
}


Insert = Callable[[str, Callable[[], Columns]], None]
"""Puts a row into a table; the columns are made on the writing thread."""


class ControlRecord:
    """Writes what the control path knew and decided; as all of a `Ledger` it never raises.

    Args:
        insert: of the ledger.
    """

    def __init__(self, insert: Insert) -> None:
        self._insert = insert

    def intensity(self, kind: type[Intensity], value: Intensity | None) -> None:
        """Record what counts as the grid's intensity from now on, on the head.

        Args:
            kind: `AverageIntensity` or `MarginalIntensity`.
            value: of that kind; None: nothing is known from now on.
        """
        t_s = time.monotonic()
        self._insert("intensity", lambda: {"t_s": t_s, **_intensity_row(kind, value)})

    def pue(self, start_s: float, value: float | None) -> None:
        """Record the power usage effectiveness from a time on, on the head.

        Args:
            start_s: from when it counts, s since 1970.
            value: the ratio, or None where none is known from then on.
        """
        self._insert("pue", lambda: {"start_unix_s": number(start_s), "pue": number(value)})

    def choice(self, choice: GearChoice, memory: Mapping[str, object] | None = None) -> None:
        """Record a decision about the training stage, on the head.

        Args:
            choice: the decision; it counts until the next one.
            memory: what its controller goes on from after a resume, in values that JSON can hold.
        """
        t_s = time.monotonic()
        told = json_text(memory) if memory else None
        row = {"t_s": t_s, **columns_of(GearChoice, choice), "memory": told}
        self._insert("gear_choice", lambda: row)


_KINDS: dict[str, type[Intensity]] = {"average": AverageIntensity, "marginal": MarginalIntensity}


def _intensity_row(kind: type[Intensity], value: Intensity | None) -> Columns:
    """Columns of table ``intensity``.

    Args:
        kind: `AverageIntensity` or `MarginalIntensity`.
        value: what counts from now on; None: nothing is known from now on.
    """
    (name,) = (name for name, one in _KINDS.items() if one is kind)
    if value is None:
        return {"kind": name}
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} among values of {kind.__name__}")
    return {"kind": name, **columns_of(Intensity, value)}


def intensity_of(row: sqlite3.Row) -> IntensityRow:
    """The row of table ``intensity``."""
    kind = _KINDS[row["kind"]]
    value = None if row["feed"] is None else record_of(kind, row)
    if value is not None and math.isnan(
        value.g_per_kwh + value.start_s + value.interval_s + value.fetched_s
    ):
        raise ValueError("an intensity without its value or its time")
    return IntensityRow(row["attempt"], row["t_s"], kind, value)


def choice_of(row: sqlite3.Row) -> GearChoiceRow:
    """The row of table ``gear_choice``."""
    memory = {} if row["memory"] is None else json.loads(row["memory"])
    return GearChoiceRow(row["attempt"], row["t_s"], record_of(GearChoice, row), memory)
