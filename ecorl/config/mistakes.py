"""Validation errors in plain words: which key, its value, and what is allowed there.

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

import tomlkit
from pydantic import AwareDatetime, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, AoT, InlineTable


def plain_type(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """Split a type into what is left without ``Annotated`` and None, and its constraints.

    Args:
        annotation: of a field, or a part of one.
    """
    if get_origin(annotation) is Annotated:
        annotation, *told = get_args(annotation)
        inner, constraints = plain_type(annotation)
        for one in told:
            constraints += tuple(one.metadata) if isinstance(one, FieldInfo) else (one,)
        return inner, constraints
    if get_origin(annotation) in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        if len(members) == 1:
            return plain_type(members[0])
    return annotation, ()


def back_ends(annotation: Any) -> dict[str, type[BaseModel]]:
    """Return the models of a union by their ``type``; nothing for any other annotation.

    Args:
        annotation: as `plain_type` leaves it.
    """
    if get_origin(annotation) not in (Union, types.UnionType):
        return {}
    members = [m for m in get_args(annotation) if isinstance(m, type) and issubclass(m, BaseModel)]
    return {get_args(m.model_fields["type"].annotation)[0]: m for m in members}


def limit(constraints: Sequence[object], name: str) -> Any:
    """Find a constraint by the name that it has in the libraries, e.g. ``ge``.

    Args:
        constraints: of a field.
        name: of the constraint.

    Returns:
        Its value; None where there is none.
    """
    return next((v for c in constraints if (v := getattr(c, name, None)) is not None), None)


Part = str | int

_NOUNS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Path: "a path in quotes that is not empty and holds no NUL",
    AwareDatetime: "a date and time with its offset, such as 2026-01-31T06:00:00Z",
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
        instead: the same mistake seen from the other key of a relation, if it is one.
    """

    parts: tuple[Part, ...]
    value: object
    allowed: str
    instead: Mistake | None = None

    @property
    def key(self) -> str:
        """The dotted key; a part that would not read well on a line is quoted."""
        texts = [str(part) for part in self.parts]
        return ".".join(text if text and text.isprintable() else repr(text) for text in texts)


class RefusedValue(ValueError):
    """A validator's refusal of a value, with the key to blame and what is allowed there.

    Args:
        key: dotted key, or its parts, from the model whose validator raises this.
        value: its value.
        allowed: what would be accepted, in words.
        instead: for a relation of two keys, the refusal of the other one.
    """

    def __init__(
        self,
        key: str | tuple[Part, ...],
        value: object,
        allowed: str,
        instead: RefusedValue | None = None,
    ) -> None:
        self.parts = tuple(key.split(".")) if isinstance(key, str) else key
        self.value, self.allowed, self.instead = value, allowed, instead
        super().__init__(f"{key} = {value!r}: allowed is {allowed}")


def explain(error: ValidationError, model: type[BaseModel]) -> Mistake:
    """Find the first mistake of a validation error and say it in plain words.

    Args:
        error: as raised for `model`.
        model: the model of the whole config.
    """
    first = error.errors()[0]
    kind, context, value = first["type"], first.get("ctx", {}), first.get("input")
    refused = context.get("error")
    if isinstance(refused, RefusedValue):
        return _refusal(_walk(first["loc"], model).parts, refused)
    if kind == "extra_forbidden":
        place = _walk(first["loc"][:-1], model)
        last = first["loc"][-1]
        return Mistake((*place.parts, last), value, _known_keys(str(last), place))
    place = _walk(first["loc"], model)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        value = context.get("tag", NOT_GIVEN)
        return Mistake((*place.parts, "type"), value, _one_of(sorted(back_ends(place.annotation))))
    if kind == "missing":
        value = NOT_GIVEN
    return Mistake(place.parts, value, place.words())


def _refusal(above: tuple[Part, ...], refused: RefusedValue) -> Mistake:
    instead = _refusal(above, refused.instead) if refused.instead else None
    return Mistake((*above, *refused.parts), refused.value, refused.allowed, instead)


# ---------------------------------------------------------------- where it stands


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the model: its key, its type, the constraints, the field, the chosen back-end."""

    parts: tuple[Part, ...]
    annotation: Any
    constraints: tuple[object, ...] = ()
    field: FieldInfo | None = None
    tag: str | None = None

    def words(self) -> str:
        """Describe the allowed values in words."""
        text = _type_words(self.annotation, self.constraints)
        # A type and its bounds do not say what a required path or name is for.
        if self.field is None or not self.field.is_required():
            return text
        return f"{text} ({self.field.description})"


def _walk(loc: Sequence[Part], model: type[BaseModel]) -> _Place:
    """Follow a pydantic location; the tags of back-ends that it names are no part of the key."""
    place = _Place((), model)
    for part in loc:
        annotation = place.annotation
        tags = back_ends(annotation)
        if tags:
            chosen = tags.get(str(part), Any)
            place = _Place(place.parts, chosen, field=place.field, tag=str(part))
            continue
        parts = (*place.parts, part)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            place = _place_of(parts, field) if field else _Place(parts, Any)
        elif get_origin(annotation) is tuple:
            place = _Place(parts, *plain_type(get_args(annotation)[0]))
        elif get_origin(annotation) is dict:
            place = _Place(parts, *plain_type(get_args(annotation)[1]))
        else:
            place = _Place(parts, Any)
    return place


def _place_of(parts: tuple[Part, ...], field: FieldInfo) -> _Place:
    annotation, constraints = plain_type(field.annotation)
    return _Place(parts, annotation, (*constraints, *field.metadata), field)


# ---------------------------------------------------------------- what is allowed


def _known_keys(key: str, place: _Place) -> str:
    model = place.annotation
    known: list[str] = []
    if isinstance(model, type) and issubclass(model, BaseModel):
        known = sorted(model.model_fields)
    close = difflib.get_close_matches(key, known, n=1)
    of_type = f" (the keys of type {place.tag!r})" if place.tag else ""
    return f"one of {known}{of_type}" + (f"; is {close[0]!r} meant?" if close else "")


def _type_words(annotation: Any, constraints: Sequence[object] = ()) -> str:
    bounds = _bounds(constraints)
    if annotation in _NOUNS:
        return f"{_NOUNS[annotation]}{bounds}"
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    if get_origin(annotation) is tuple:
        inner, own = plain_type(get_args(annotation)[0])
        items = {int: "whole numbers", float: "numbers", str: "texts in quotes"}.get(
            inner, "tables"
        )
        # Of texts the bound would read as that of the list.
        return f"a list of {items}{'' if inner is str else _bounds(own)}{bounds}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([member.value for member in annotation])
    return "a table"


def _one_of(values: Sequence[object]) -> str:
    *head, last = [repr(value) for value in values]
    return f"{', '.join(head)} or {last}" if head else last


def _bounds(constraints: Sequence[object]) -> str:
    words = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    told = [
        f"{text} {bound}"
        for name, text in words.items()
        if (bound := limit(constraints, name)) is not None
    ]
    pattern = limit(constraints, "pattern")
    return (
        (f" that matches {pattern}" if pattern else "")
        + (" " + " and ".join(told) if told else "")
        + (" that is not empty" if limit(constraints, "min_length") else "")
    )


# ---------------------------------------------------------------- the line in the file


def line_of(text: str, parts: Sequence[Part]) -> int | None:
    """Find the 1-based line of a key in TOML text, or of the innermost table around it.

    The text is parsed without loss of layout, the item is changed, and the first line that comes
    out otherwise is the one.

    Args:
        text: TOML.
        parts: the key, part by part; whole numbers are places in a list.

    Returns:
        The line; None when neither stands in the text.
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
