"""Runs the system compiler on a kernel source for its errors, its pragmas and header folders."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ecorl.engines.fpga.csim.build import ap_headers
from ecorl.engines.fpga.csim.compiler import Compiler, find_compiler, first_error, run
from ecorl.errors import BuildError
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.kernels import ROOT

Pragmas = dict[Path, list[tuple[int, str]]]
"""The ``#pragma HLS`` lines that the preprocessor leaves: line and text behind HLS, by file."""

_MAX_ERRORS = 5  # of one source; later ones mostly follow from the first few


@dataclass(frozen=True, slots=True)
class Tools:
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
    flags = [
        "-std=c++17",
        "-D__SYNTHESIS__",
        f"-I{ROOT / 'lint' / 'synthesis'}",
        f"-I{ROOT / 'include'}",
        f"-I{ROOT / 'sim'}",
        *("-isystem", str(ap_headers())),
    ]
    command = [*compiler.command, "-E", "-v", "-x", "c++", "/dev/null"]
    said = run(command).stderr
    listed = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search", said, re.S)
    if listed is None:
        raise BuildError(f"{compiler.version} does not tell its header folders")
    folders = [line.strip() for line in listed[1].splitlines() if line.startswith(" ")]
    return Tools(compiler, tuple(flags), tuple(folders))


def compile_findings(tools: Tools, source: Path) -> list[Finding]:
    """Compile one source in the synthesis configuration.

    Args:
        tools: of this machine.
        source: to compile.

    Returns:
        A finding for each of its first errors.
    """
    options = ["-fsyntax-only", "-Werror=vla", *tools.flags]
    finished = run([*tools.compiler.command, *options, str(source)])
    if finished.returncode == 0:
        return []
    errors = re.findall(r"^(.+?):(\d+):\d+: (?:fatal )?error: (.*)$", finished.stderr, re.M)
    findings = [
        Finding(Path(path).resolve(), int(line), _rule_of(message), message)
        for path, line, message in errors[:_MAX_ERRORS]
    ]
    return findings or [Finding(source, 1, "compile", first_error(finished.stderr))]


def _rule_of(message: str) -> str:
    twice = "duplicate label" in message or "redefinition of label" in message
    return "label-twice" if twice else "compile"


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
            found[path.resolve()].append((line, pragma[1].strip()))
        line += 1
    return dict(found)
