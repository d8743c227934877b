"""Findings: breaches of a rule, with their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One breach of one rule."""

    path: Path
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        here = Path.cwd()
        shown = self.path.relative_to(here) if self.path.is_relative_to(here) else self.path
        return f"{shown}:{self.line}: {self.rule}: {self.what}"


def first_of_each_line(findings: set[Finding]) -> list[Finding]:
    """Sort findings and keep one for each rule and line; a construct can breach a rule often."""
    chosen: dict[tuple[Path, int, str], Finding] = {}
    for finding in sorted(findings):
        chosen.setdefault((finding.path, finding.line, finding.rule), finding)
    return list(chosen.values())
