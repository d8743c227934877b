"""Limits of the shapes that the kernels can compute, parsed from their headers.

A bitstream is built once and runs every model within these limits; its manifest holds them, so that
a host can refuse a model without the sources that the file was built from.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_K
from ecorl.engines.models.decoder_config import DecoderConfig, unsupported
from ecorl.errors import BuildError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
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
    rows = ("include/ecorl_lanes.hpp", "include/ecorl_rows.hpp", "include/ecorl_words.hpp")
    common = (*rows, "include/kv_pages.hpp")
    shared = _Constants(root, *common)
    # Every kernel's own header comes last: a name in it hides the shared one, as in C++.
    gemm = _Constants(root, *common, "gemm_int8/gemm_int8.hpp")
    vector = _Constants(root, *rows, "vector_ops/vector_ops.hpp")
    score = _Constants(root, *rows, "score_aggregator/score_aggregator.hpp")
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
