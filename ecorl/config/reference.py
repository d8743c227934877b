"""Every key of a config with its type, default, unit and meaning, read off the models.

Nothing is written down twice: types and limits are those that validate a config, and meanings are
the descriptions of the fields and the docstrings of the tables.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomlkit
from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

from ecorl.config.mistakes import back_ends, limit, plain_type
from ecorl.config.run import Config
from ecorl.errors import UserError

REQUIRED = "required"
"""In place of a default, where there is none."""
NOT_SET = "not set"
"""In place of a default, where the key is left out unless it is given."""

_ROLE = "<role>"
_NOUNS: Mapping[Any, tuple[str, str]] = {
    bool: ("true or false", "of true or false"),
    int: ("whole number", "of whole numbers"),
    float: ("number", "of numbers"),
    str: ("text", "of texts"),
    Path: ("path", "of paths"),
    AwareDatetime: ("date and time with offset", "of dates and times with offset"),
}
_UNITS: Mapping[str, str] = {
    "_g_per_kwh": "gCO2e/kWh",
    "_g_per_h": "gCO2e/h",
    "_kg": "kgCO2e",
    "_g": "gCO2e",
    "_mhz": "MHz",
    "_w": "W",
    "_j": "J",
    "_h": "h",
    "_s": "s",
}
"""Units by the end of a key's name; the first that fits holds."""


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """A key of the config.

    Attributes:
        name: dotted, from the top of the file.
        type: in plain words, with the limits.
        default: as TOML; or `REQUIRED` or `NOT_SET`.
        unit: that the name ends with; empty where it has none, or where the meaning says it.
        meaning: what the key does.
    """

    name: str
    type: str
    default: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """A table of the config, or one of the kinds that a table with a ``type`` may be of.

    Attributes:
        name: dotted; empty for the top of the file.
        header: the line that opens it in a file; empty for the top of the file.
        kind: the ``type`` whose keys these are; None for a table that has no kinds, and for what
            all kinds share.
        meaning: what the table is for, in one or several paragraphs.
        keys: of the table itself, without those of tables below it.
    """

    name: str
    header: str
    kind: str | None
    meaning: str
    keys: tuple[ReferenceKey, ...]


def config_reference() -> tuple[ReferenceTable, ...]:
    """List the tables of a config, each before the tables below it."""
    return tuple(_model_tables(Config, "", ""))


def matching(tables: Sequence[ReferenceTable], asked: str) -> tuple[ReferenceTable, ...]:
    """Pick the part of the reference that a user asked for.

    Args:
        tables: of `config_reference`.
        asked: a dotted table, which brings those below it, or a dotted key; brackets around it do
            no harm, and a role below ``places`` stands for any.

    Returns:
        The tables, with one key each where a key was asked for.

    Raises:
        UserError: when there is no such table or key; it names what is near.
    """
    name = _without_role(asked.strip().strip("[]").replace('"', ""), tables)
    found = [t for t in tables if t.name == name or t.name.startswith(f"{name}.")]
    for table in tables:
        keys = tuple(key for key in table.keys if key.name == name)
        if keys and table not in found:
            found.append(replace(table, keys=keys))
    if not found:
        near = _near(name, tables)
        hint = f"near it: {', '.join(near)}" if near else "`ecorl config reference` lists them all"
        raise UserError(f"the config has no table or key {asked!r}; {hint}")
    return tuple(found)


def _without_role(name: str, tables: Sequence[ReferenceTable]) -> str:
    """Put the placeholder for any role in the place of a certain one."""
    top, dot, rest = name.partition(".")
    if top != "places" or not dot or rest.startswith(_ROLE):
        return name
    _, dot, last = rest.rpartition(".")
    key = f"places.{_ROLE}.{last}"
    known = any(one.name == key for table in tables for one in table.keys)
    return key if dot and known else f"places.{_ROLE}"


def _near(name: str, tables: Sequence[ReferenceTable]) -> list[str]:
    """Name up to three tables and keys that may have been meant."""
    known = dict.fromkeys(
        [t.name for t in tables if t.name] + [key.name for t in tables for key in t.keys]
    )
    last = name.rpartition(".")[2]
    named_alike = [one for one in known if one.rpartition(".")[2] == last]
    spelt_alike = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    ends = {one.rpartition(".")[2]: one for one in reversed(known)}
    ending_alike = [ends[end] for end in difflib.get_close_matches(last, ends, n=3, cutoff=0.7)]
    return list(dict.fromkeys([*named_alike, *spelt_alike, *ending_alike]))[:3]


# ---------------------------------------------------------------- tables


def _model_tables(
    model: type[BaseModel], name: str, header: str, kind: str | None = None
) -> Iterator[ReferenceTable]:
    """Describe a model: its own keys first, then the tables below it."""
    keys, below = [], []
    for key, field in model.model_fields.items():
        dotted = f"{name}.{key}" if name else key
        tables = list(_field_tables(dotted, field))
        below += tables
        if not tables and key != "type":
            keys.append(_key(dotted, field))
    yield ReferenceTable(name, header, kind, _paragraphs(model), tuple(keys))
    yield from below


def _field_tables(name: str, field: FieldInfo) -> Iterator[ReferenceTable]:
    """Describe the tables that a field holds; nothing for a field that holds a value."""
    annotation, _ = plain_type(field.annotation)
    header, default = f"[{name}]", None
    if not field.is_required():
        default = field.get_default(call_default_factory=True)
    if get_origin(annotation) is tuple:
        annotation, _ = plain_type(get_args(annotation)[0])
        header, default = f"[[{name}]]", None
    elif get_origin(annotation) is dict:
        annotation, _ = plain_type(get_args(annotation)[1])
        name = f"{name}.{_ROLE}"
        header = f"[{name}]"
    kinds = back_ends(annotation)
    if kinds:
        yield _choice(name, header, field, kinds, default)
        for kind, model in kinds.items():
            yield from _model_tables(model, name, header, kind)
    elif _is_model(annotation):
        yield from _model_tables(annotation, name, header)


def _choice(
    name: str, header: str, field: FieldInfo, kinds: Mapping[str, type[BaseModel]], default: Any
) -> ReferenceTable:
    """Describe what all kinds of a table share: the key that chooses one."""
    chosen = REQUIRED if default is None else _toml(default.type)
    meaning = "kind of the table, which decides on its other keys; given wherever the table is"
    key = ReferenceKey(f"{name}.type", _one_of(list(kinds)), chosen, "", meaning)
    return ReferenceTable(name, header, None, _sentence(field.description or ""), (key,))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _paragraphs(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "").replace("``", "`")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# ---------------------------------------------------------------- keys


def _key(name: str, field: FieldInfo) -> ReferenceKey:
    annotation, own = plain_type(field.annotation)
    words = _type_words(annotation, (*own, *field.metadata))
    value = field.get_default(call_default_factory=True)
    default = REQUIRED if field.is_required() else NOT_SET if value is None else _toml(value)
    unit = ""
    if annotation in (int, float):
        ends = (unit for end, unit in _UNITS.items() if f"_{name.rpartition('.')[2]}".endswith(end))
        unit = next(ends, "")
    return ReferenceKey(name, words, default, unit, field.description or "")


def _type_words(annotation: Any, constraints: Sequence[object]) -> str:
    if annotation in _NOUNS:
        return _NOUNS[annotation][0] + _limits(constraints)
    if get_origin(annotation) is tuple:
        inner, own = plain_type(get_args(annotation)[0])
        each = _limits(own) if inner in (int, float) else ""
        items = _NOUNS[inner][1] if inner in _NOUNS else f"of {_values(inner)}"
        return f"list {items}{f', each{each}' if each else ''}{_list_limits(constraints)}"
    values = _values(annotation)
    return values if values else "table with keys of any name"


def _values(annotation: Any) -> str:
    """Name the values of a choice; nothing for any other type."""
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([member.value for member in annotation])
    return ""


def _one_of(values: Sequence[object]) -> str:
    *head, last = [_toml(value) for value in values]
    return f"{', '.join(head)} or {last}" if head else last


def _limits(constraints: Sequence[object]) -> str:
    low, above = limit(constraints, "ge"), limit(constraints, "gt")
    high, below = limit(constraints, "le"), limit(constraints, "lt")
    pattern = limit(constraints, "pattern")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    told = {"of at least": low, "above": above, "at most": high, "below": below}
    words = [f"{word} {_number(value)}" for word, value in told.items() if value is not None]
    matched = f" that matches {pattern}" if pattern else ""
    return matched + (f" {' and '.join(words)}" if words else "")


def _list_limits(constraints: Sequence[object]) -> str:
    fewest, most = limit(constraints, "min_length"), limit(constraints, "max_length")
    return (", not empty" if fewest else "") + (
        f", at most {_number(most)} of them" if most else ""
    )


_EXACT_BELOW = 1e15
"""Whole numbers from here on are written by their power of ten."""


def _number(value: float) -> str:
    if value == int(value) and abs(value) < _EXACT_BELOW:
        return f"{int(value):,}"
    return re.sub(r"e\+?0*", "e", f"{value:g}")


def _toml(value: Any) -> str:
    """Write a value as it would stand in a file."""
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, Path):
        value = str(value)
    elif isinstance(value, tuple):
        value = list(value)
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update(value)
        return table.as_string()
    text: str = tomlkit.item(value).as_string()
    return text
