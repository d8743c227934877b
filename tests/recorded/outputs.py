"""What the product makes of a record: its files, and the figures of its page.

`made` is the one place where a set becomes outputs, so that recording anew and comparing cannot
differ. All in which two machines differ is set here: the time zone, and the machine's name, by
which a report tells whether a run that has no end may still be running.
"""

from __future__ import annotations

import io
import json
import math
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ecorl.report import write_report
from tests.recorded.dump import rebuild
from tests.recorded.make import HOST, SETS, TABLES_PATH

OUTPUTS = ("report.json", "page.json", "footprint.json", "emissions.csv")
"""Of a set; `page.json` holds the figures of ``report.html``."""
CLOSE = 1e-12
"""Relative difference of floats that count as the same: sums of NumPy (means, deviations, shares)
add in an order that depends on the vector units of the machine. All else, the text of rounded
figures included, has to be the same."""
SOLVED = 1e-9
"""The same where a linear programme is solved: HiGHS ends within a tolerance of its own."""
LEFT_OVER = 1e-15
"""What a difference of equal figures of about 1 may leave."""

# A date is one figure, and digits within a name (gpu0, u55c, demo-42) are none.
_NUMBER = re.compile(r"\d{4}-\d\d-\d\d|(?<![\w.-])[-+\u2212]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_SILENT = ("script", "style")
_HEADINGS = ("h1", "h2", "h3")


@contextmanager
def neutral_machine() -> Iterator[None]:
    """Be the machine on which the runs were made, in UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: HOST)
        patch.setenv("TZ", "UTC")
        time.tzset()
        try:
            yield
        finally:
            patch.undo()
            time.tzset()


def rebuild_set(name: str, folder: Path) -> None:
    """Make a run's folder as it was when its report was made.

    Args:
        name: of the set.
        folder: where the run's is made; its tables are named by their paths in there.
    """
    for path in sorted(p for p in (SETS / name).rglob("*") if p.suffix in (".sql", ".toml")):
        inside = folder / path.relative_to(SETS / name)
        text = path.read_text("utf-8").replace(f"{TABLES_PATH}/", f"{folder / 'tables'}/")
        inside.parent.mkdir(exist_ok=True)
        if path.suffix == ".sql":
            rebuild(text, inside.with_suffix(".sqlite"))
        else:
            inside.write_text(text, "utf-8")


def made(name: str, folder: Path) -> dict[str, str]:
    """The outputs of a set by their names.

    Args:
        name: of the set.
        folder: an empty one.
    """
    rebuild_set(name, folder)
    with neutral_machine():
        write_report(folder, console=Console(file=io.StringIO(), width=100))
    texts = {
        file: (folder / file).read_text("utf-8").replace(f"{folder / 'tables'}/", f"{TABLES_PATH}/")
        for file in ("report.json", "report.html", "footprint.json", "emissions.csv")
    }
    figures = page_figures(texts.pop("report.html"))
    return texts | {"page.json": json.dumps(figures, indent=1, ensure_ascii=False) + "\n"}


class _Figures(HTMLParser):
    """Collects the numbers of a page by the headings above them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self._within: list[str] = []
        self._heading = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in (*_SILENT, *_HEADINGS):
            self._within.append(tag)
            if tag in _HEADINGS:
                self._heading = ""

    def handle_endtag(self, tag: str) -> None:
        if self._within and self._within[-1] == tag:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        within = self._within[-1] if self._within else ""
        if within in _HEADINGS:
            self._heading += " ".join(data.split())
        if within not in _SILENT:
            self.found.setdefault(self._heading, []).extend(_NUMBER.findall(data))


def page_figures(html: str) -> dict[str, str]:
    """The numbers that a page shows, in its order, by the heading above them.

    Those in plots are among them: their labels are text. Words are left out, and so a sentence may
    be put otherwise.
    """
    reader = _Figures()
    reader.feed(html)
    return {heading: " ".join(numbers) for heading, numbers in reader.found.items() if numbers}


def differences(now: str, recorded: str, name: str, close: float = CLOSE) -> list[str]:
    """A line for each figure that differs between two outputs; none where they are the same.

    Args:
        now: what the product makes.
        recorded: what it made when it was recorded.
        name: of the file, whose ending tells what it holds.
        close: relative difference of floats that count as the same.
    """
    if name.endswith(".json"):
        return list(_differences(json.loads(now), json.loads(recorded), name, close))
    lines, before = now.splitlines(), recorded.splitlines()
    if len(lines) != len(before):
        return [f"{name}: {len(lines)} lines, were {len(before)}"]
    return [
        f"{name}:{i}: {new!r}, was {old!r}"
        for i, (new, old) in enumerate(zip(lines, before, strict=True), 1)
        if new != old
    ]


def _differences(now: Any, before: Any, where: str, close: float) -> Iterator[str]:
    if isinstance(now, dict) and isinstance(before, dict):
        for key in sorted(now.keys() | before.keys()):
            if key not in now or key not in before:
                yield f"{where} {key}: {'new' if key in now else 'gone'}"
            else:
                yield from _differences(now[key], before[key], f"{where} {key}", close)
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        for i, (new, old) in enumerate(zip(now, before, strict=True)):
            yield from _differences(new, old, f"{where} {i}", close)
    elif isinstance(now, float) and isinstance(before, float):
        if not math.isclose(now, before, rel_tol=close, abs_tol=LEFT_OVER):
            yield f"{where}: {now!r}, was {before!r}"
    elif type(now) is not type(before) or now != before:
        yield f"{where}: {now!r}, was {before!r}"


def renew(path: Path, now: str, close: float) -> list[str]:
    """Write an output anew where it differs; returns what differs."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now, "utf-8")
        return [f"{path.name}: new"]
    told = differences(now, path.read_text("utf-8"), path.name, close)
    if told:
        path.write_text(now, "utf-8")
    return told
