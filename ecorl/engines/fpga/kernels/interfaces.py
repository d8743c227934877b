"""The kernels' arguments, and the limits of what they compute, parsed from their sources.

A kernel is a folder of hls_kernels whose qor.json names a ``top`` function. In its C++ source the
``extern "C"`` signature gives order and types, the INTERFACE pragmas say which arguments are ports
to the card's memory and which are registers.

The limits come from the kernels' headers. A bitstream is built once and runs every model within
them; its manifest holds them, so that a host can refuse a model without the sources that the file
was built from.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_K
from ecorl.engines.models.decoder_config import DecoderConfig, unsupported
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


_CONSTANT = re.compile(r"\bconstexpr\s+(?:int|dim_t|std::int32_t)\s+(\w+)\s*=\s*([^;{]+);")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
}


MAX_INTERMEDIATE = 32_768
"""Widest MLP: a row of gates and ups fills the vector kernel's buffer."""


def check_widths(config: DecoderConfig, file: Path) -> None:
    """Refuse a model whose rows are wider than the kernels' buffers.

    A product of more than `MAX_K` inputs is computed in slices, whose INT32 sums are added before
    they are requantised. Outputs need no check: they are far below the kernel's MAX_DIM.

    Args:
        config: the model.
        file: its config.json, for the message.

    Raises:
        CheckpointError: one line with the key and the largest value that fits.
    """
    s, gating = config.shape, config.gating
    for key, value, most in (
        ("gating_hidden_dim", 0 if gating is None else gating.hidden_dim, MAX_K),
        ("hidden_size", s.hidden_size, MAX_K),
        ("intermediate_size", s.intermediate_size, MAX_INTERMEDIATE),
        ("num_attention_heads", s.n_heads, MAX_K // s.head_dim),
    ):
        if value > most:
            raise unsupported(file, key, value, f"at most {most}")


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    """The largest shapes, and what sizes must be multiples of.

    Attributes:
        hidden: values of a row of the residual stream.
        intermediate: gates of the MLP.
        intermediate_unit: the number of gates is a multiple of it.
        heads: query heads.
        head_dim: values of a head.
        head_unit: the values of a head are a multiple of it.
        vocabulary: outputs of a language-model head.
        positions: tokens of a row.
        rows: token rows of one product.
    """

    hidden: int
    intermediate: int
    intermediate_unit: int
    heads: int
    head_dim: int
    head_unit: int
    vocabulary: int
    positions: int
    rows: int

    def refusal(self, config: DecoderConfig) -> str | None:
        """Why a model does not fit, with the figure and what is allowed; None when it fits.

        Positions and rows are not properties of a model: a host checks them for each batch.
        """
        s = config.shape
        sizes = [
            ("hidden_size", s.hidden_size, self.hidden, 1),
            ("intermediate_size", s.intermediate_size, self.intermediate, self.intermediate_unit),
            ("num_attention_heads", s.n_heads, self.heads, 1),
            ("head_dim", s.head_dim, self.head_dim, self.head_unit),
        ]
        if not config.is_reward:
            sizes.append(("vocab_size", s.vocab_size, self.vocabulary, 1))
        for name, size, most, unit in sizes:
            if size > most or size % unit:
                what = f"at most {most:,}" + (f" and a multiple of {unit}" if unit > 1 else "")
                return f"{name} = {size:,}: the kernels take {what}"
        return None


def shape_limits(root: Path | None = None) -> ShapeLimits:
    """Read the limits of the kernels in a source tree.

    Args:
        root: folder of the kernels; by default the installed one.

    Raises:
        BuildError: a header cannot be read or lacks a constant.
        MissingToolError: the kernel sources are not installed.
    """
    root = root or kernel_root()
    names = ("lanes", "rows", "words")
    common = [f"include/ecorl_{name}.hpp" for name in names]
    pages = "include/kv_pages.hpp"
    shared = _Constants(root, *common, pages)
    # Every kernel's own header comes last: a name in it hides the shared one, as in C++.
    gemm = _Constants(root, *common, pages, "gemm_int8/gemm_int8.hpp")
    vector = _Constants(root, *common, "vector_ops/vector_ops.hpp")
    score = _Constants(root, *common, "score_aggregator/score_aggregator.hpp")
    return ShapeLimits(
        hidden=vector.value("MAX_COLUMNS"),
        intermediate=vector.value("MAX_INNER"),
        intermediate_unit=vector.value("LANES"),
        heads=vector.value("MAX_ALL_HEADS"),
        head_dim=min(vector.value("MAX_HEAD"), shared.value("MAX_HEAD")),
        head_unit=shared.value("HEAD_UNIT"),
        vocabulary=score.value("MAX_COLUMNS") * score.value("MAX_BLOCKS"),
        positions=shared.value("PAGE") * shared.value("MAX_PAGES"),
        rows=gemm.value("MAX_DIM"),
    )


class _Constants:
    """Integer constants of headers, evaluated on demand.

    Args:
        root: folder of the kernels.
        names: headers below it; a constant of a later one hides that of an earlier one.
    """

    def __init__(self, root: Path, *names: str) -> None:
        self._where = f"{root}: {', '.join(names)}"
        self._texts: dict[str, str] = {}
        for name in names:
            try:
                text = (root / name).read_text(encoding="utf-8")
            except OSError as error:
                raise BuildError(f"{root / name} cannot be read: {error.strerror}") from error
            self._texts |= dict(_CONSTANT.findall(_COMMENT.sub(" ", text)))

    def value(self, name: str) -> int:
        """A constant's value."""
        text = self._texts.get(name)
        if text is None:
            raise BuildError(f"{self._where}: no constexpr {name}")
        try:
            return self._evaluated(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, RecursionError) as error:
            raise self._unclear(name, text) from error

    def _evaluated(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return self.value(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._evaluated(node.left), self._evaluated(node.right)
            return _OPERATORS[type(node.op)](left, right)
        raise self._unclear(ast.unparse(node), ast.unparse(node))

    def _unclear(self, name: str, text: str) -> BuildError:
        return BuildError(f"{self._where}: {name} = {text}: allowed are sums and products")
