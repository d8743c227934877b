"""How a provider or a file says that values are estimates, or made up and of no grid."""

from __future__ import annotations

import re

_WORD_PARTS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MADE_UP = re.compile(
    r"sandbox"
    r"|(?<![a-z])(?:mock(?:ed|s)?|faked?|dummy|fictitious|placeholder|scrambled|randomly"
    # A mix is made up of fuels.
    r"|made[ _-]?up(?! +(?:of|by)(?![a-z]))|sample[ _-]?(?:mode|data|keys?)"
    r"|(?:test|demo|random|randomi[sz]ed|simulated|synthetic)[ _-]?(?:mode|data|keys?|values?))"
    r"(?![a-z])"
    r"|not[ _-]real(?![ _-]?time)"
    # As the whole name of a method or a flag.
    r"|\A *(?:synthetic|simulated|is[ _-]?test) *\Z",
    re.IGNORECASE,
)

_NO_METHOD = frozenset({"", "-", "n/a", "na", "nan", "none", "null", "measured"})


def names_estimation(method: str) -> bool:
    """Whether the name of an estimation method is one, rather than a word for none.

    Args:
        method: as the provider has it, e.g. ``TIME_SLICER_AVERAGE``.
    """
    return method.strip().lower() not in _NO_METHOD


def says_made_up(text: str) -> bool:
    """Whether a text, e.g. a method's name or a disclaimer, marks values as made up.

    A provider's estimates are not made up: they are of the hour that they stand for.

    Args:
        text: in words, ``SNAKE_CASE`` or ``camelCase``.
    """
    return _MADE_UP.search(_WORD_PARTS.sub(" ", text)) is not None
