"""The solver HiGHS, as SciPy brings it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ecorl.errors import MissingToolError


class Highs(NamedTuple):
    """What is used of SciPy.

    Attributes:
        optimize: its module of solvers.
        sparse: its module of sparse matrices.
    """

    optimize: Any
    sparse: Any


def highs() -> Highs:
    """SciPy, imported when a bound is asked for.

    Raises:
        MissingToolError: without SciPy.
    """
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        message = f"a clairvoyant bound needs SciPy: pip install 'ecorl[carbon]' ({error})"
        raise MissingToolError(message) from error
    return Highs(optimize, sparse)
