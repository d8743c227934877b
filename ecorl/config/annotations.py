"""Reads types and limits of config keys off the models, for whoever puts them into words."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


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
