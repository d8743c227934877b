"""Reads the fenced blocks of the pages, and the commands in them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NO_PAGES = ("benchmarks/results/", "CHANGELOG.md")
"""What is written by programs, and the history."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"<!-- printed: ([\w-]+) -->\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: path below the project's folder.
        line: of its first line of text.
        language: behind the fence.
        text: without the fences.
        printed: name of the output that it shows; empty for other blocks.
    """

    page: str
    line: int
    language: str
    text: str
    printed: str = ""


@dataclass(frozen=True)
class PageCommand:
    """A command of a page, as a reader would type it."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[str]:
    """Paths of all pages that git knows or would add."""
    asked = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "*.md"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(page for page in found if not page.startswith(NO_PAGES))


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        mark = _PRINTED.search(text, 0, found.start())
        printed = mark[1] if mark and mark.end() == found.start() else ""
        yield Block(page, line, found[1], found[2], printed)


def commands(page: str) -> Iterator[PageCommand]:
    """The commands of a page: the lines of its ``console`` blocks that begin with ``$``."""
    for block in blocks(page):
        if block.language != "console":
            continue
        for i, line in enumerate(block.text.splitlines()):
            if line.startswith("$ "):
                yield PageCommand(page, block.line + i, without_comment(line[2:]))


def without_comment(line: str) -> str:
    """Cut off what a shell takes for a comment."""
    reader = shlex.shlex(line, posix=False, punctuation_chars=False)
    reader.whitespace_split = True
    reader.commenters = ""
    kept = []
    for word in reader:
        if word.startswith("#"):
            break
        kept.append(word)
    return " ".join(kept)
