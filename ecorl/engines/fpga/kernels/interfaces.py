"""The kernels' arguments, parsed from their sources.

A kernel is a folder of hls_kernels whose qor.json names a ``top`` function. In its C++ source the
``extern "C"`` signature gives order and types, the INTERFACE pragmas say which arguments are ports
to the card's memory and which are registers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.errors import BuildError

POINTER_BYTES = 8
FIRST_OFFSET = 0x10
"""Register of the first argument: the control registers of s_axilite come before it."""

_SCALAR_BYTES = {"int": 4, "unsigned": 4, "float": 4, "double": 8, "bool": 1} | {
    f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+HLS[ \t]+INTERFACE[ \t]+(\w+)[ \t]+(.*)$", re.M)
_SETTING = re.compile(r"(\w+)\s*=\s*(\w+)")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel.

    Attributes:
        index: its place in the signature, from 0, for XRT's ``group_id`` and ``set_arg``.
        name: in the signature.
        type: as written, without ``const`` and spaces; ends with ``*`` for a buffer.
        bundle: m_axi port of a buffer; None for a scalar.
        is_written: a buffer that the kernel may write.
        n_bytes: of the register that holds it; 8 for a buffer's address.
        offset: of that register, in bytes; in the layout of Vitis HLS a reserved word follows each
            s_axilite argument.
    """

    index: int
    name: str
    type: str
    bundle: str | None
    is_written: bool
    n_bytes: int
    offset: int

    @property
    def is_buffer(self) -> bool:
        """Whether it is an address in the card's memory."""
        return self.bundle is not None


@dataclass(frozen=True, slots=True)
class KernelInterface:
    """The interface of a kernel to the host.

    Attributes:
        kernel: folder and short name, ``gemm_int8``.
        top: top function, which is the kernel's name for XRT and Vitis: ``gemm_int8_krnl``.
        arguments: in order.
    """

    kernel: str
    top: str
    arguments: tuple[Argument, ...]

    @property
    def instance(self) -> str:
        """Name of its one compute unit."""
        return f"{self.top}_1"

    @property
    def buffers(self) -> tuple[Argument, ...]:
        """Arguments that are addresses in the card's memory."""
        return tuple(a for a in self.arguments if a.is_buffer)

    @property
    def bundles(self) -> tuple[str, ...]:
        """Its memory ports without repetition, in the order of the arguments."""
        return tuple(dict.fromkeys(a.bundle for a in self.arguments if a.bundle is not None))


def read_qor(folder: Path) -> Mapping[str, Any]:
    """Read a kernel's qor.json.

    Raises:
        BuildError: when it cannot be read or is no JSON object.
    """
    path = folder / "qor.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BuildError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BuildError(f"{path} holds no JSON object")
    return found


def kernel_interfaces(root: Path | None = None) -> tuple[KernelInterface, ...]:
    """Read the interfaces of all kernels under a folder, sorted by name.

    Args:
        root: folder of the kernels; by default the installed one.

    Raises:
        BuildError: a kernel's source or qor.json cannot be read or lacks a part.
        MissingToolError: the kernel sources are not installed.
    """
    root = root or kernel_root()
    found = []
    for path in sorted(root.glob("*/qor.json")):
        top = read_qor(path.parent).get("top")
        if isinstance(top, str):
            found.append(read_interface(path.parent, top))
    if not found:
        raise BuildError(f"no kernel under {root}: no qor.json names a top function")
    return tuple(found)


def read_interface(folder: Path, top: str) -> KernelInterface:
    """Read one kernel's interface from ``<folder>/<folder's name>.cpp``.

    Args:
        folder: of the kernel.
        top: name of its top function.

    Raises:
        BuildError: the source cannot be read, lacks the function, or an argument has no INTERFACE
            pragma or one that does not match its type.
    """
    path = folder / f"{folder.name}.cpp"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error
    text = _COMMENT.sub(" ", text.replace("\\\n", " "))
    found = re.search(
        rf'extern\s+"C"\s+void\s+{re.escape(top)}\s*\(([^)]*)\)\s*\{{(.*?)^\}}', text, re.S | re.M
    )
    if found is None:
        raise BuildError(f'{path}: no extern "C" void {top}(...) with a body')
    modes = dict(_modes(found[2]))
    arguments: list[Argument] = []
    offset = FIRST_OFFSET
    for index, words in enumerate(filter(None, (w.strip() for w in found[1].split(",")))):
        argument = _argument(path, index, words, modes, offset)
        offset += max(4, argument.n_bytes) + 4
        arguments.append(argument)
    return KernelInterface(folder.name, top, tuple(arguments))


def _modes(body: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each argument with the mode and bundle of its pragma."""
    for mode, rest in _PRAGMA.findall(body):
        settings = dict(_SETTING.findall(rest))
        name = settings.get("port", "")
        # An address may have two pragmas, m_axi and s_axilite: that of the memory port counts.
        if mode == "m_axi":
            yield name, (mode, settings.get("bundle", "gmem"))
        elif f"{mode} {name}" != "s_axilite return":
            yield name, (mode, "")


def _argument(
    path: Path, index: int, words: str, modes: dict[str, tuple[str, str]], offset: int
) -> Argument:
    found = re.fullmatch(r"(const\s+)?([\w:\s]+?)\s*(\*?)\s*(\w+)", words)
    if found is None:
        raise BuildError(f"{path}: argument {words!r} is neither a scalar nor a plain pointer")
    constant, kind, star, name = found.groups()
    mode, bundle = modes.get(name, ("", ""))
    wanted = "m_axi" if star else "s_axilite"
    if mode != wanted:
        raise BuildError(f"{path}: argument {name} needs #pragma HLS INTERFACE {wanted}")
    if star:
        return Argument(index, name, f"{kind}*", bundle, not constant, POINTER_BYTES, offset)
    n_bytes = _SCALAR_BYTES.get(kind.removeprefix("std::"))
    if n_bytes is None:
        raise BuildError(f"{path}: argument {name}: the size of {kind!r} is not known")
    return Argument(index, name, kind, None, False, n_bytes, offset)
