"""Runs the system compiler on a kernel source for its errors, its pragmas and header folders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ecorl.engines.fpga.csim.build import ap_headers
from ecorl.engines.fpga.csim.compiler import Compiler, find_compiler, first_error, run
from ecorl.errors import BuildError
from hls_kernels.lint.kernels import ROOT, Finding

_OPTION = re.compile(r"([\w.]+)(?:\s*=\s*([\w.:\-]+))?")
_MAX_ERRORS = 5  # of one source; later ones mostly follow from the first few


class SourceLine(NamedTuple):
    """A place in a source."""

    path: Path
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Pragma:
    """A pragma: its name, and its options by their lower-case names, empty where without value."""

    name: str
    at: SourceLine
    options: dict[str, str]

    @property
    def variable(self) -> str:
        """The variable or port that it is about, as ``state.query``."""
        return self.options.get("variable") or self.options.get("port") or ""

    @property
    def is_m_axi(self) -> bool:
        """Whether it makes a port one of m_axi: ``INTERFACE m_axi`` or ``INTERFACE mode=m_axi``."""
        return self.name == "INTERFACE" and self.says("m_axi")

    def says(self, word: str) -> bool:
        """Whether a word stands in it, alone or behind a key: ``cyclic``, ``type = cyclic``."""
        keyed = (self.options.get(key, "") for key in ("type", "mode", "direction", "dependent"))
        return word in self.options or word in [value.lower() for value in keyed]

    def number(self, name: str) -> int | None:
        """An option's number, or None where it is absent or is not written in digits."""
        text = self.options.get(name, "")
        return int(text) if text.isdecimal() else None


Pragmas = dict[Path, list[Pragma]]
"""The ``#pragma HLS`` lines that the preprocessor leaves, by file."""


def read_pragma(text: str, path: Path, line: int) -> Pragma:
    """Take apart what stands behind ``#pragma HLS`` in a line of a file."""
    name, _, rest = text.strip().partition(" ")
    options = {key.lower(): value for key, value in _OPTION.findall(rest)}
    return Pragma(name.upper(), SourceLine(path, line), options)


def pragma_of(pragmas: Iterable[Pragma], name: str) -> Pragma | None:
    """The first pragma of a name that is not switched off, or None."""
    return next((p for p in pragmas if p.name == name and "off" not in p.options), None)


def interval_of(pragmas: Iterable[Pragma]) -> int | None:
    """The initiation interval that a PIPELINE asks for, 1 where it states no number, or None."""
    found = pragma_of(pragmas, "PIPELINE")
    return None if found is None else found.number("ii") or 1


def is_unrolled(pragmas: Iterable[Pragma]) -> bool:
    """Whether an UNROLL asks for all copies of a loop."""
    found = pragma_of(pragmas, "UNROLL")
    return found is not None and "factor" not in found.options


class Tools(NamedTuple):
    """The compiler, the flags of the synthesis configuration, and the system's header folders."""

    compiler: Compiler
    flags: tuple[str, ...]
    system_folders: tuple[str, ...]


def find_tools() -> Tools:
    """Compiler and headers of this machine.

    Raises:
        MissingToolError: no compiler or no ap_int headers.
        BuildError: the compiler does not tell its header folders.
    """
    compiler = find_compiler()
    folders = [f"-I{ROOT / folder}" for folder in ("lint/synthesis", "include", "sim")]
    flags = ("-std=c++17", "-D__SYNTHESIS__", *folders, "-isystem", str(ap_headers()))
    command = [*compiler.command, "-E", "-v", "-x", "c++", "/dev/null"]
    said = run(command).stderr
    listed = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search", said, re.S)
    if listed is None:
        raise BuildError(f"{compiler.version} does not tell its header folders")
    system = [line.strip() for line in listed[1].splitlines() if line.startswith(" ")]
    return Tools(compiler, flags, tuple(system))


def compile_findings(tools: Tools, source: Path) -> list[Finding]:
    """Compile one source in the synthesis configuration.

    Args:
        tools: of this machine.
        source: to compile.

    Returns:
        A finding for each of its first errors.
    """
    check = ("-fsyntax-only", "-Werror=vla", *tools.flags, str(source))
    finished = run([*tools.compiler.command, *check])
    if finished.returncode == 0:
        return []
    errors = re.findall(r"^(.+?):(\d+):\d+: (?:fatal )?error: (.*)$", finished.stderr, re.M)
    findings = [
        Finding(Path(path).resolve(), int(line), _rule_of(message), message)
        for path, line, message in errors[:_MAX_ERRORS]
    ]
    return findings or [Finding(source, 1, "compile", first_error(finished.stderr))]


def _rule_of(message: str) -> str:
    return "label-twice" if re.search("(duplicate|redefinition of) label", message) else "compile"


def read_pragmas(tools: Tools, source: Path) -> Pragmas:
    """Read the HLS pragmas of a source and all its headers, as the preprocessor leaves them.

    Args:
        tools: of this machine.
        source: to read.

    Raises:
        BuildError: the preprocessor fails.
    """
    finished = run([*tools.compiler.command, "-E", "-w", *tools.flags, str(source)])
    if finished.returncode != 0:
        raise BuildError(f"{source}: {first_error(finished.stderr)}")
    found: Pragmas = defaultdict(list)
    path, line = source, 0
    for text in finished.stdout.splitlines():
        marker = re.match(r'#(?:line)? (\d+) "(.*?)"', text)
        if marker is not None:
            path, line = Path(marker[2]), int(marker[1])
            continue
        pragma = re.match(r"\s*#\s*pragma\s+HLS\s+(.*)", text, re.I)
        if pragma is not None:
            file = path.resolve()
            found[file].append(read_pragma(pragma[1], file, line))
        line += 1
    return dict(found)
