"""Types of kernel sources as hardware sees them: how many bits a value has, what a struct holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from clang.cindex import CursorKind, TypeKind
from clang.cindex import Type as ClangType

_ARRAYS = frozenset((TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY, TypeKind.VARIABLEARRAY))
_REFERENCES = frozenset((TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE))
_QUALIFIERS = re.compile(r"\b(?:const|volatile)\s+")
_AP_INTEGER = re.compile(r"ap_u?int(?:_base)?<(\d+)(?:, \w+)?>")
_STREAM = re.compile(r"hls::stream<.*?(?:, (\d+))?>")
_POINTER_BITS = 64


class Kind(Enum):
    """What a type is, as far as the rules tell types apart."""

    INTEGER = auto()  # bool, enums and ap_int too
    RECORD = auto()
    ARRAY = auto()
    POINTER = auto()
    REFERENCE = auto()
    STREAM = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A type: `inner` is what an array, pointer, reference or stream holds."""

    kind: Kind
    name: str
    bits: int = 0
    inner: Type | None = None
    count: int = 0  # elements of an array; depth of a stream, 0 where its type tells none
    fields: tuple[tuple[str, Type], ...] = ()
    is_const: bool = False
    is_ap: bool = False  # an integer of exact width

    def member(self, name: str) -> Type | None:
        """The type of a member, or None."""
        return next((type_ for field_, type_ in self.fields if field_ == name), None)

    @property
    def referred(self) -> Type:
        """What a reference refers to; any other type itself."""
        return self.inner if self.kind is Kind.REFERENCE and self.inner is not None else self

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The elements of each dimension of an array."""
        if self.kind is not Kind.ARRAY or self.inner is None:
            return ()
        return (self.count, *self.inner.dimensions)

    @property
    def element(self) -> Type:
        """What an array of any number of dimensions holds; any other type itself."""
        return self.inner.element if self.kind is Kind.ARRAY and self.inner is not None else self


OTHER = Type(Kind.OTHER, "")


@dataclass(slots=True)
class Types:
    """Reads clang's types, each once."""

    _known: dict[tuple[str, bool], Type] = field(default_factory=dict)

    def read(self, clang: ClangType) -> Type:
        """Read a type and all that it is made of.

        Args:
            clang: the type; one that depends on template parameters is `OTHER`.
        """
        canonical = clang.get_canonical()
        is_const = canonical.is_const_qualified()
        key = canonical.spelling, is_const
        known = self._known.get(key)
        if known is None:
            self._known[key] = OTHER  # a list's element points to another one
            known = self._known[key] = self._made(canonical, is_const)
        return known

    def _made(self, clang: ClangType, is_const: bool) -> Type:
        name = _QUALIFIERS.sub("", clang.spelling)
        if clang.kind in _ARRAYS:
            inner = self.read(clang.get_array_element_type())
            count = max(clang.get_array_size(), 0)
            return Type(Kind.ARRAY, name, inner.bits * count, inner, count)
        if clang.kind == TypeKind.POINTER:
            inner = self.read(clang.get_pointee())
            return Type(Kind.POINTER, name, _POINTER_BITS, inner, is_const=is_const)
        if clang.kind in _REFERENCES:
            return Type(Kind.REFERENCE, name, _POINTER_BITS, self.read(clang.get_pointee()))
        if clang.kind == TypeKind.RECORD:
            return self._record(clang, name, is_const)
        bits = 1 if clang.kind == TypeKind.BOOL else 8 * max(clang.get_size(), 0)
        kind = Kind.INTEGER if bits else Kind.OTHER
        return Type(kind, name, bits, is_const=is_const)

    def _record(self, clang: ClangType, name: str, is_const: bool) -> Type:
        integer = _AP_INTEGER.fullmatch(name)
        if integer is not None:
            bits = int(integer[1])
            return Type(Kind.INTEGER, name, bits, is_const=is_const, is_ap=True)
        stream = _STREAM.fullmatch(name)
        if stream is not None:
            inner = self.read(clang.get_template_argument_type(0))
            return Type(Kind.STREAM, name, 0, inner, int(stream[1] or 0))
        fields = tuple(self._fields(clang))
        bits = sum(type_.bits for _, type_ in fields)
        return Type(Kind.RECORD, name, bits, fields=fields, is_const=is_const)

    def _fields(self, clang: ClangType) -> Iterator[tuple[str, Type]]:
        declaration = clang.get_declaration()
        for base in (declaration.get_definition() or declaration).get_children():
            if base.kind == CursorKind.CXX_BASE_SPECIFIER:
                yield from self._fields(base.type.get_canonical())
        for member in clang.get_fields():
            yield member.spelling, self.read(member.type)


def pointer_member(type_: Type) -> str | None:
    """The first pointer or reference that a struct holds, at any depth, or None.

    Args:
        type_: of a value; integers of exact width and streams are the tool's own and hold none.
    """
    element = type_.element
    if element.kind is not Kind.RECORD:
        return None
    for name, member in element.fields:
        if member.element.kind in (Kind.POINTER, Kind.REFERENCE):
            return name
        deeper = pointer_member(member)
        if deeper is not None:
            return f"{name}.{deeper}"
    return None
