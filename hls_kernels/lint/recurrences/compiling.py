"""Compiles a kernel with clang into text of LLVM's representation, its loops as the pragmas say."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ecorl.engines.fpga.csim.compiler import first_error, run
from ecorl.errors import BuildError, MissingToolError
from hls_kernels.lint.compiling import Pragma, Pragmas, SourceLine, Tools, interval_of, is_unrolled
from hls_kernels.lint.kernels import ROOT
from hls_kernels.lint.recurrences.ir import Metadata, name_of

CLANG = "clang++-19"
_HEADERS = Path(__file__).with_name("include")

# A target that hands structures over in memory: others pack two members into one register, and a
# recurrence of one would look like one of both. No code is made for it.
_TARGET = "--target=spir64-unknown-unknown"
_FRONT = (
    *(_TARGET, "-std=c++17", "-D__SYNTHESIS__", "-D__x86_64__", "-w", "-fno-exceptions"),
    *("-fno-rtti", "-fno-strict-aliasing", "-fwrapv", "-fno-jump-tables", "-gline-tables-only"),
    *("-fno-discard-value-names", "-O2", "-Xclang", "-disable-llvm-passes", "-S", "-emit-llvm"),
)
# Loops keep their condition at the head, as schedulers of hardware see them.
_OPTIMISER = ("-rotation-max-header-size=0", "-disable-loop-idiom-all",
              "-pragma-unroll-threshold=100000000")  # fmt: skip

REGISTERS = "registers"
"""What follows the name of an array that is partitioned completely, after a dot."""


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A function of the sources that is compiled: where it is, and the text of its body."""

    path: Path
    line: int
    end: int
    body: str

    def own(self, pragmas: Pragmas) -> list[Pragma]:
        """The pragmas that stand in it."""
        return [p for p in pragmas.get(self.path, []) if self.line <= p.at.line <= self.end]


@dataclass(frozen=True, slots=True, order=True)
class SourceLoop:
    """A loop of the sources: where it begins and ends, and the HLS pragmas that are its own."""

    path: Path
    line: int
    column: int
    end: int
    pragmas: tuple[Pragma, ...] = field(default=(), compare=False)

    def holds(self, path: Path, line: int) -> bool:
        """Whether a line is a part of it."""
        return self.path == path and self.line <= line <= self.end

    @property
    def is_pipelined(self) -> bool:
        """Whether a PIPELINE pragma stands in it."""
        return interval_of(self.pragmas) is not None

    @property
    def ii(self) -> int:
        """The initiation interval that its PIPELINE pragma asks for."""
        return interval_of(self.pragmas) or 1


def find_clang() -> str:
    """The compiler whose representation is read.

    Raises:
        MissingToolError: it is not on this machine.
    """
    found = shutil.which(CLANG)
    if found is None:
        need = "recurrences need clang 19 (Debian: apt install clang-19)"
        raise MissingToolError(f"{CLANG} is not on this machine; {need}")
    return found


def compile_kernel(
    clang: str, tools: Tools, source: Path, top: str, pragmas: Pragmas
) -> tuple[str, str]:
    """Compile a kernel: all functions in its top, loops unrolled as their pragmas say.

    Args:
        clang: the compiler.
        tools: whose folders of system headers are read.
        source: of the kernel.
        top: its top function.
        pragmas: of its files.

    Returns:
        The text of the module before the optimiser and behind it.

    Raises:
        BuildError: it does not compile.
    """
    # The compiler's own headers stand in for those of the other one.
    system = [word for name in tools.system_folders if "/lib/gcc/" not in name
              for word in ("-isystem", name)]  # fmt: skip
    own = [f"-I{_HEADERS}", f"-I{ROOT / 'include'}"]
    with tempfile.TemporaryDirectory() as folder:
        first, marked, last = (Path(folder) / name for name in ("a.ll", "b.ll", "c.ll"))
        _run([clang, *_FRONT, *own, *system, str(source), "-o", str(first)])
        text = first.read_text(encoding="utf-8")
        marked.write_text(mark(text, top, pragmas), encoding="utf-8")
        flags = [word for flag in _OPTIMISER for word in ("-mllvm", flag)]
        _run([clang, _TARGET, "-O1", "-w", "-x", "ir", "-S", "-emit-llvm", "-fno-vectorize",
              "-fno-slp-vectorize", *flags, str(marked), "-o", str(last)])  # fmt: skip
        return text, last.read_text(encoding="utf-8")


def source_loops(metadata: Metadata, pragmas: Pragmas) -> dict[str, SourceLoop]:
    """The loops of the sources by their metadata; a pragma is that of the innermost around it."""
    bare = {}
    for name, start, end in metadata.loops:
        first, last = metadata.place(start), metadata.place(end)
        if first is not None and last is not None:
            bare[name] = SourceLoop(first.path, first.line, first.column, last.line)
    own: dict[SourceLoop, list[Pragma]] = {loop: [] for loop in bare.values()}
    for path in {loop.path for loop in own}:
        for pragma in pragmas.get(path, []):
            loop = _innermost(own, pragma.at)
            if loop is not None:
                own[loop].append(pragma)
    return {name: replace(loop, pragmas=tuple(own[loop])) for name, loop in bare.items()}


def _innermost(loops: Iterable[SourceLoop], at: SourceLine) -> SourceLoop | None:
    """The innermost loop around a line."""
    around = (loop for loop in loops if loop.holds(at.path, at.line))
    return max(around, key=lambda loop: (loop.line, loop.column), default=None)


def source_functions(text: str) -> list[SourceFunction]:
    """The functions of a module that is not yet optimised."""
    metadata = Metadata(text)
    functions = []
    for name, body in re.findall(r"^define [^\n]*!dbg (!\d+) \{\n(.*?)^\}$", text, re.M | re.S):
        start = metadata.place(name)
        if start is not None:
            places = (metadata.place(place) for place in set(re.findall(r"!dbg (!\d+)", body)))
            lines = [p.line for p in places if p is not None and p.path == start.path]
            end = max([start.line, *lines])
            functions.append(SourceFunction(start.path, start.line, end, body))
    return functions


def check_pipelines(text: str, pragmas: Pragmas, found: Iterable[SourceLoop]) -> None:
    """Hold the PIPELINE pragmas of all compiled functions against the loops that were timed.

    Args:
        text: of the module, not yet optimised: all loops are still there.
        pragmas: of the sources.
        found: the loops that were timed.

    Raises:
        BuildError: a pragma is of none of them.
    """
    timed = set(found)
    loops = source_loops(Metadata(text), pragmas).values()
    for function in source_functions(text):
        for pragma in function.own(pragmas):
            is_timed = _innermost(loops, pragma.at) in timed
            if interval_of([pragma]) is not None and not is_timed:
                raise BuildError(
                    f"{pragma.at.path}:{pragma.at.line}: the PIPELINE pragma is of no loop that "
                    "can be timed: of a function, or of a loop that the compiler removes"
                )


def mark(text: str, top: str, pragmas: Pragmas) -> str:
    """Tell the optimiser what to inline and unroll, and name the arrays in registers.

    Args:
        text: of the module, not yet optimised.
        top: the function that stays; all others become parts of it.
        pragmas: of the sources.

    Returns:
        The text with the marks.
    """
    loops = source_loops(Metadata(text), pragmas)
    pipelined = [loop for loop in loops.values() if loop.is_pipelined]

    def unrolled(match: re.Match[str]) -> str:
        loop = loops.get(match[1])
        if loop is None:
            return match[0]
        before = (other for other in pipelined if other.line < loop.line)
        is_inside = any(other.holds(loop.path, loop.line) for other in before)
        is_whole = is_unrolled(loop.pragmas) or (is_inside and not loop.is_pipelined)
        how = "full" if is_whole else "disable"
        return f'{match[1]} = distinct !{{{match[2]}, !{{!"llvm.loop.unroll.{how}"}}}}'

    changes = (
        (r"^(!\d+) = distinct !\{(!\d+, !\d+, !\d+[^}]*)\}$", unrolled),
        (r"^attributes #\d+ = \{", r"\g<0> alwaysinline"),
        (r"^\$.* = comdat any\n", ""),
        (r"^((?:define|@).*?),? comdat(?=[ ,\n])", r"\1"),
        (rf"^define (?:linkonce_odr )?dso_local (?!.*@{re.escape(top)}\()", "define internal "),
        # What a FIFO does touches no memory but its item.
        (r"^declare (?:!dbg !\d+ )?(\w.*?@ecorl_fifo_\w+\(.*?\)).*$",
         r"declare \1 nounwind willreturn memory(argmem: readwrite, inaccessiblemem: readwrite)"),
    )  # fmt: skip
    for pattern, to in changes:
        text = re.sub(pattern, to, text, flags=re.M)
    return _name_registers(text, pragmas)


def _name_registers(text: str, pragmas: Pragmas) -> str:
    """Names for arrays in registers that inlining keeps: a pragma is that of its function alone."""
    functions = source_functions(text)
    shared = set()
    for function in functions:
        partitioned = {
            p.variable
            for p in function.own(pragmas)
            if p.name == "ARRAY_PARTITION" and p.says("complete") and not p.number("dim")
            if function.line == max(f.line for f in functions if p in f.own(pragmas))
        }
        body = function.body
        for array in set(re.findall(r"%[-\w$.]+(?= = alloca \[)", body)):
            if name_of(array) in partitioned:
                body = _renamed(body, array)
        text = text.replace(function.body, body)
        shared |= {a for a in re.findall(r"@[\w$.]+", body) if name_of(a) in partitioned}
    for array in sorted(shared):
        text = _renamed(text, array)
    return text


def _renamed(text: str, array: str) -> str:
    return re.sub(rf"{re.escape(array)}(?![-\w$.])", rf"\g<0>.{REGISTERS}", text)


def _run(command: Sequence[str]) -> None:
    finished = run(command)
    if finished.returncode != 0:
        raise BuildError(f"{Path(command[0]).name}: {first_error(finished.stderr)}")
