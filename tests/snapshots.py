"""Snapshots of what commands and pages say.

A test hands a text to the fixture `snapshot`, which compares it with the one recorded in
``tests/snapshots/``: a file for each file of tests, a section for each test. The wording of a
command is then read and changed in one place:

    pytest tests/unit/cli --renew       # record the texts as they are now; git shows the change

Words and counts are compared exactly. Figures with decimals, numbers of four digits or more and
times of day may differ by one in the last digit: the order in which sums and solvers compute
depends on the machine. A snapshot does not show that a figure is right; tests of values do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent
FOLDER = TESTS / "snapshots"

_HEAD = re.compile(r"^=== (.+)\n", re.MULTILINE)
_FIGURE = re.compile(r"(?<![\w.])(\d\d:\d\d|\d[\d,]*\.\d+|\d[\d,]{3,})(?![\w.]*\d)")


def file_of(test_file: Path) -> Path:
    """Where the texts of a file of tests are recorded."""
    return (FOLDER / test_file.relative_to(TESTS)).with_suffix(".txt")


def read(path: Path) -> dict[str, str]:
    """The recorded texts of a file, by what they are called."""
    if not path.is_file():
        return {}
    _, *parts = _HEAD.split(path.read_text("utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def write(path: Path, texts: Mapping[str, str]) -> None:
    """Record the texts of a file, in the order of their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"=== {name}\n{texts[name]}" for name in sorted(texts)), "utf-8")


def neutral(text: str, hidden: Mapping[str, object]) -> str:
    """A text without what differs from one run of a test to the next, and spaces at ends of lines.

    Args:
        text: as it was printed.
        hidden: what is replaced, as ``str``, by its name in angle brackets; the longest first.
    """
    for name, value in sorted(hidden.items(), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(value), f"<{name}>")
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def difference(path: Path, name: str, now: str) -> str:
    """In what a text differs from the recorded one, as the lines of a patch; empty: in nothing."""
    before = read(path).get(name)
    if before is None:
        return f"no text is recorded for '{name}'"
    old, new = before.splitlines(), now.splitlines()
    if len(old) == len(new) and all(map(_is_same, new, old)):
        return ""
    return "\n".join(difflib.unified_diff(old, new, "recorded", "now", lineterm="", n=1))


def _is_same(now: str, before: str) -> bool:
    """Whether two lines are the same but for the last digit of figures and blanks around them."""
    if now == before:
        return True
    new, old = _FIGURE.split(now), _FIGURE.split(before)
    words = [[" ".join(part.split()) for part in line[::2]] for line in (new, old)]
    return words[0] == words[1] and all(map(_is_close, new[1::2], old[1::2]))


def _is_close(now: str, before: str) -> bool:
    if ":" in now or ":" in before:
        return now[:-2] == before[:-2] and abs(int(now[-2:]) - int(before[-2:])) <= 1
    n_decimals = min(len(text.partition(".")[2]) for text in (now, before))
    new, old = (float(text.replace(",", "")) for text in (now, before))
    return abs(new - old) < 1.5 * 10.0**-n_decimals
