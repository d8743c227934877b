"""Finds kernels: their sources, and the loops that their qor.json declares."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ecorl.errors import DataError


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


_Node = TypeVar("_Node")


def reached(start: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> set[_Node]:
    """The nodes of a graph to which a way leads from some, these too."""
    found: set[_Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(following(node))
    return found


ROOT = Path(__file__).resolve().parents[1]
"""The folder of all kernels."""

_NOT_JUDGED = (ROOT / "sim", ROOT / "lint")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its folder and the sources that go to synthesis.

    Its `qor` are the ``"loops"`` of a qor.json by label, with the II that is declared and the line;
    None without qor.json.
    """

    folder: Path
    sources: tuple[Path, ...]
    qor: dict[str, tuple[int, int]] | None = None
    findings: tuple[Finding, ...] = ()

    def owns(self, path: Path) -> bool:
        """Whether a file is checked with this kernel: in its folder, or a header of the project."""
        is_host = path.name.endswith("_tb.cpp") or any(map(path.is_relative_to, _NOT_JUDGED))
        return not is_host and any(map(path.is_relative_to, (self.folder, ROOT)))


def all_kernels() -> list[Kernel]:
    """The kernels of the project.

    A folder with a qor.json of another kind (of RTL, say) names neither loops nor sources there and
    holds no source of its own name.
    """
    found = (_kernel_of(path.parent) for path in sorted(ROOT.glob("*/qor.json")))
    return [kernel for kernel in found if kernel is not None]


def kernels_of(files: Sequence[Path]) -> list[Kernel]:
    """The kernels that `files` belong to; a file in a folder without qor.json stands for itself.

    Raises:
        DataError: a file does not exist, or the qor.json beside it does not list it as a source.
    """
    kernels: dict[Path, Kernel] = {}
    for path in (path.resolve() for path in files):
        if not path.is_file():
            raise DataError(f"{path} is no file")
        if not (path.parent / "qor.json").is_file():
            kernels[path] = Kernel(path.parent, (path,))
            continue
        kernel = _kernel_of(path.parent)
        if kernel is None or path not in kernel.sources:
            names = ", ".join(source.name for source in kernel.sources) if kernel else ""
            raise DataError(f"{path} is no source of its kernel: qor.json says {names or 'none'}")
        kernels[path.parent] = kernel
    return list(kernels.values())


def _kernel_of(folder: Path) -> Kernel | None:
    path = folder / "qor.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    try:
        qor = json.loads(text)
    except json.JSONDecodeError as error:
        return _faulty(folder, error.lineno, f"not JSON: {error.msg}")
    own = folder / f"{folder.name}.cpp"
    if isinstance(qor, dict) and not {"loops", "sources"} & qor.keys() and not own.is_file():
        return None
    if not isinstance(qor, dict) or not isinstance(qor.get("loops"), list):
        return _faulty(folder, 1, '"loops" is missing: a list of {"label": ..., "ii": ...}')
    names = qor.get("sources", [own.name])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return _faulty(folder, _line_of(text, "sources"), '"sources" is a list of file names')
    sources = [(folder / name).resolve() for name in names]
    absent = [source for source in sources if not source.is_file()]
    faults = [("sources", f"source {source.name} is not there") for source in absent]
    loops = {}
    for entry in qor["loops"]:
        label, ii = (entry.get("label"), entry.get("ii")) if isinstance(entry, dict) else (0, 0)
        if isinstance(label, str) and type(ii) is int and ii >= 1:
            loops[label] = ii, _line_of(text, "label", label)
        else:
            what = f"{json.dumps(entry)}: a loop has a label and an ii of at least 1"
            faults.append(("loops", what))
    findings = [Finding(path, _line_of(text, key), "qor", what) for key, what in faults]
    there = tuple(source for source in sources if source not in absent)
    return Kernel(folder, there, loops, tuple(findings))


def _faulty(folder: Path, line: int, what: str) -> Kernel:
    source = folder / f"{folder.name}.cpp"
    sources = (source,) if source.is_file() else ()
    return Kernel(folder, sources, None, (Finding(folder / "qor.json", line, "qor", what),))


def _line_of(text: str, key: str, value: str | None = None) -> int:
    pattern = f'"{key}"\\s*:' + ("" if value is None else f'\\s*"{re.escape(value)}"')
    found = re.search(pattern, text)
    return 1 + text.count("\n", 0, found.start() if found else 0)
