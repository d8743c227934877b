"""Finds and runs the C++ compiler; names the vector instructions of the CPU."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import BuildError, MissingToolError

_TIMEOUT_S = 900.0  # a source takes seconds; this ends a compiler that hangs

_CPUINFO = Path("/proc/cpuinfo")
_VECTOR_FEATURES = frozenset(
    (
        *("sse4_1", "sse4_2", "ssse3", "avx", "avx2", "avx_vnni", "f16c", "fma"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_int8", "amx_tile"),
        *("asimd", "asimddp", "i8mm", "sve", "sve2"),
    )
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler: the words that call it, and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str

    @property
    def family(self) -> str:
        """``gcc`` or ``clang``; anything else is taken for a gcc."""
        return "clang" if "clang" in self.version else "gcc"

    @property
    def own_flags(self) -> list[str]:
        """Flags that the user put into ``$CXX``."""
        return [word for word in self.command[1:] if word.startswith("-")]


def find_compiler() -> Compiler:
    """The compiler that ``$CXX`` names (``ccache g++`` too), else g++.

    Raises:
        MissingToolError: when it is not on this machine.
        BuildError: when it cannot say its version.
    """
    name = os.environ.get("CXX", "").strip() or "g++"
    try:
        words = shlex.split(name)
    except ValueError as error:
        raise MissingToolError(f"$CXX = {name!r} is no command ({error})") from error
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise MissingToolError(
            f"{name} is not on this machine; the C-simulation needs a C++17 compiler, g++ or clang "
            "(Debian: apt install g++)"
        )
    command = (program, *words[1:])
    finished = run([*command, "--version"])
    if finished.returncode != 0:
        raise BuildError(f"{' '.join(command)} --version failed: {first_error(finished.stderr)}")
    return Compiler(command, finished.stdout.splitlines()[0] if finished.stdout else "unknown")


def cpu_features() -> list[str]:
    """Names of the CPU's vector instruction sets, sorted; empty where the system does not tell."""
    try:
        text = _CPUINFO.read_text(errors="replace")
    except OSError:
        return []
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, flags=re.MULTILINE)
    return sorted(_VECTOR_FEATURES & set(found[1].split())) if found else []


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler and capture its output.

    Raises:
        BuildError: when it cannot be run or does not end.
    """
    # The C locale keeps the word "error" in the compiler's messages.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} did not finish in {_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error


def first_error(stderr: str) -> str:
    """The first line that names an error, else the first line at all."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\berror\b|undefined reference", line)]
    return (named or lines or ["the compiler gave no message"])[0]
