"""What a check has found to be good, for those who look on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        what: the config's key of it, or a word.
        where: its path as the config has it; empty where it has none.
        text: what was found, a few words.
    """

    what: str
    where: str
    text: str
