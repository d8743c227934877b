"""What libclang knows of expressions and its Python side does not pass on."""

from __future__ import annotations

from ctypes import c_int, c_longlong, c_void_p
from functools import cache
from typing import Any

from clang.cindex import Cursor, conf

_INTEGER = 1  # CXEval_Int

# in the order of CXBinaryOperatorKind and CXUnaryOperatorKind
_BINARIES = """
    * / % + - << >> <=> < > <= >= == != & ^ | && || = *= /= %= += -= <<= >>= &= ^= |= ,
"""
_BINARY = dict(enumerate(_BINARIES.split(), start=3))
_UNARIES = "p++ p-- ++ -- addr deref + - ~ !"
_UNARY = dict(enumerate(_UNARIES.split(), start=1))


@cache
def _library() -> Any:
    library = conf.lib
    for name, arguments, result in (
        ("clang_getCursorBinaryOperatorKind", Cursor, c_int),
        ("clang_getCursorUnaryOperatorKind", Cursor, c_int),
        ("clang_Cursor_getVarDeclInitializer", Cursor, Cursor),
        ("clang_Cursor_Evaluate", Cursor, c_void_p),
        ("clang_EvalResult_getKind", c_void_p, c_int),
        ("clang_EvalResult_getAsLongLong", c_void_p, c_longlong),
        ("clang_EvalResult_dispose", c_void_p, None),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = [arguments], result
    return library


def binary_operator(cursor: Cursor) -> str:
    """The spelling of a binary or assigning operator; empty for others."""
    return _BINARY.get(_library().clang_getCursorBinaryOperatorKind(cursor), "")


def unary_operator(cursor: Cursor) -> str:
    """The spelling of a unary operator: ``p++`` behind its operand, ``addr``, ``deref``."""
    return _UNARY.get(_library().clang_getCursorUnaryOperatorKind(cursor), "")


def initializer(variable: Cursor) -> Cursor | None:
    """The initial value of a variable, or None."""
    found = _library().clang_Cursor_getVarDeclInitializer(variable)
    if _library().clang_Cursor_isNull(found):
        return None
    found._tu = variable._tu  # as Cursor.from_cursor_result does
    return found


def value_of(cursor: Cursor) -> int | None:
    """The integer that an expression or a variable has at compile time, or None."""
    library = _library()
    result = library.clang_Cursor_Evaluate(cursor)
    if not result:
        return None
    try:
        if library.clang_EvalResult_getKind(result) != _INTEGER:
            return None
        return int(library.clang_EvalResult_getAsLongLong(result))
    finally:
        library.clang_EvalResult_dispose(result)
