"""``#pragma HLS`` lines, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_OPTION = re.compile(r"([\w.]+)(?:\s*=\s*([\w.:\-]+))?")


@dataclass(frozen=True, slots=True, eq=False)
class Pragma:
    """A pragma: its name, and its options in lower case; an option without a value is empty."""

    name: str
    path: Path
    line: int
    options: dict[str, str] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        """The variable or port that it is about, as ``state.query``."""
        return self.options.get("variable") or self.options.get("port") or ""

    @property
    def is_m_axi(self) -> bool:
        """Whether it makes a port one of m_axi: ``INTERFACE m_axi`` or ``INTERFACE mode=m_axi``."""
        is_mode = "m_axi" in self.options or self.options.get("mode", "").lower() == "m_axi"
        return self.name == "INTERFACE" and is_mode

    def number(self, name: str) -> int | None:
        """An option's number, or None where it is absent or is not written in digits."""
        text = self.options.get(name, "")
        return int(text) if text.isdecimal() else None


def read_pragma(text: str, path: Path, line: int) -> Pragma:
    """Take a pragma apart.

    Args:
        text: what stands behind ``#pragma HLS``.
        path: of its file.
        line: in the file.
    """
    name, _, rest = text.strip().partition(" ")
    options = {key.lower(): value for key, value in _OPTION.findall(rest)}
    return Pragma(name.upper(), path, line, options)
