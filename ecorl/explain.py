"""A validation error in plain words: which key, its value, and what is allowed there.

pydantic says *that* something is wrong in the terms of its validators; a user wants to know what
to write instead. That is read off the model: the type of the field and its bounds.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import tomlkit
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, AoT, InlineTable

Part = str | int

_NOUNS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "a path in quotes",
}


class _NotGiven:
    """Stands for the value of a key that is required and not there."""

    def __repr__(self) -> str:
        return "(not given)"


NOT_GIVEN = _NotGiven()
"""The value of a missing key; TOML has none of its own."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """The first mistake in a config.

    Attributes:
        parts: the key, part by part; whole numbers are places in a list, from 0.
        value: what stands there, or `NOT_GIVEN`.
        allowed: what would be accepted, in words.
    """

    parts: tuple[Part, ...]
    value: object
    allowed: str

    @property
    def key(self) -> str:
        """The dotted key; a part that would not read well on a line is quoted."""
        texts = [str(part) for part in self.parts]
        return ".".join(text if text and text.isprintable() else repr(text) for text in texts)


def mistake(key: str, value: object, allowed: str) -> PydanticCustomError:
    """For a validator that compares fields: an error that names one of them.

    Args:
        key: dotted key to blame.
        value: its value.
        allowed: what would be accepted, in words.
    """
    context = {"key": key, "value": value, "allowed": allowed}
    return PydanticCustomError("mistake", "{key} = {value}: allowed is {allowed}", context)


def explain(error: ValidationError, model: type[BaseModel]) -> Mistake:
    """The first mistake of a validation error.

    Args:
        error: as raised for `model`.
        model: the model of the whole config.
    """
    first = error.errors()[0]
    kind, context, value = first["type"], first.get("ctx", {}), first.get("input")
    if kind == "mistake":
        return Mistake(tuple(context["key"].split(".")), context["value"], context["allowed"])
    if kind == "extra_forbidden":
        place = _walk(first["loc"][:-1], model)
        last = first["loc"][-1]
        return Mistake((*place.parts, last), value, _known_keys(str(last), place))
    if kind == "truth_value":
        place = _walk((*first["loc"], context["name"]), model)
        return Mistake(place.parts, context["value"], place.words())
    place = _walk(first["loc"], model)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        value = context.get("tag", NOT_GIVEN)
        return Mistake((*place.parts, "type"), value, _one_of(sorted(_tags(place.annotation))))
    if kind == "missing":
        value = NOT_GIVEN
    return Mistake(place.parts, value, place.words())


# ---------------------------------------------------------------- where it stands


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the model: its key, its type, the field's constraints, and the chosen back-end."""

    parts: tuple[Part, ...]
    annotation: Any
    field: FieldInfo | None = None
    tag: str | None = None

    def words(self) -> str:
        """What may stand here."""
        text = _type_words(self.annotation)
        if self.field is None:
            return text
        pattern = next((p for m in self.field.metadata if (p := getattr(m, "pattern", None))), None)
        bounds = _bounds(self.field.metadata)
        text += f" that matches {pattern}" if pattern else ""
        text += f" {bounds}" if bounds else ""
        # A type and its bounds do not say what a required path or name is for.
        return f"{text} ({self.field.description})" if self.field.is_required() else text


def _walk(loc: Sequence[Part], model: type[BaseModel]) -> _Place:
    """Follow a pydantic location; the tags of back-ends that it names are no part of the key."""
    place = _Place((), model)
    for part in loc:
        annotation = place.annotation
        tags = _tags(annotation)
        if tags:
            place = _Place(place.parts, tags.get(str(part), Any), place.field, str(part))
            continue
        parts = (*place.parts, part)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            place = _Place(parts, _plain(field.annotation) if field else Any, field)
        elif get_origin(annotation) is tuple:
            place = _Place(parts, _plain(get_args(annotation)[0]))
        else:
            place = _Place(parts, Any)
    return place


def _plain(annotation: Any) -> Any:
    """A type without ``Annotated`` and without None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        return members[0] if len(members) == 1 else annotation
    return annotation


def _tags(annotation: Any) -> dict[str, type[BaseModel]]:
    """The back-ends of a choice by their ``type``; empty when it is no choice."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return {}
    members = [m for m in get_args(annotation) if isinstance(m, type) and issubclass(m, BaseModel)]
    return {get_args(m.model_fields["type"].annotation)[0]: m for m in members}


# ---------------------------------------------------------------- what is allowed


def _known_keys(key: str, place: _Place) -> str:
    model = place.annotation
    known: list[str] = []
    if isinstance(model, type) and issubclass(model, BaseModel):
        known = sorted(model.model_fields)
    close = difflib.get_close_matches(key, known, n=1)
    of_type = f" (the keys of type {place.tag!r})" if place.tag else ""
    return f"one of {known}{of_type}" + (f"; is {close[0]!r} meant?" if close else "")


def _type_words(annotation: Any) -> str:
    if annotation in _NOUNS:
        return _NOUNS[annotation]
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    if get_origin(annotation) is tuple:
        inner = _plain(get_args(annotation)[0])
        return {int: "a list of whole numbers", float: "a list of numbers"}.get(
            inner, "a list of tables"
        )
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([member.value for member in annotation])
    return "a table"


def _one_of(values: Sequence[object]) -> str:
    *head, last = [repr(value) for value in values]
    return f"{', '.join(head)} or {last}" if head else last


def _bounds(metadata: Sequence[object]) -> str:
    low = high = ""
    for bound in metadata:
        if isinstance(bound, annotated_types.Ge):
            low = f"of at least {bound.ge}"
        elif isinstance(bound, annotated_types.Gt):
            low = f"above {bound.gt}"
        elif isinstance(bound, annotated_types.Le):
            high = f"at most {bound.le}"
        elif isinstance(bound, annotated_types.Lt):
            high = f"below {bound.lt}"
    return " and ".join(part for part in (low, high) if part)


# ---------------------------------------------------------------- the line in the file


def line_of(text: str, parts: Sequence[Part]) -> int | None:
    """The 1-based line of a key in TOML text, or of the innermost table around it; None if absent.

    The text is parsed without loss of layout, the item is changed, and the first line that comes
    out otherwise is the one.
    """
    for end in range(len(parts), 0, -1):
        try:
            document = tomlkit.parse(text)
            _mark(document, parts[:end])
            changed = tomlkit.dumps(document)
        except (TOMLKitError, LookupError, TypeError, ValueError, AttributeError):
            continue
        pairs = zip(text.split("\n"), changed.split("\n"), strict=False)
        for number, (old, new) in enumerate(pairs, start=1):
            if old != new:
                return number
    return None


def _mark(node: Any, parts: Sequence[Part]) -> None:
    """Change the item at `parts` so that its line, and no line before it, is written otherwise."""
    *parents, last = parts
    for part in parents:
        node = node[part]
    item = node[last]
    if isinstance(item, AoT):
        item = item[0]
    if isinstance(item, AbstractTable) and not isinstance(item, InlineTable):
        first = next(iter(item), None)
        # A table that dotted keys or the headers of inner tables imply has no line of its own.
        if first is not None and getattr(item, "is_super_table", lambda: False)():
            _mark(item, [first])
        else:
            item.comment("#")
        return
    node[last] = f"changed: {item!r}"
