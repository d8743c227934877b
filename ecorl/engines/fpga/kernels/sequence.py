"""The sequence of operations in a decoder's forward: which kernel computes what, in which order.

The order of a layer's steps is that of ``hls_kernels/sim/decoder_steps.hpp``, after which the
C-simulation's forwards go too; here each gets its buffers and columns.
`ecorl.engines.fpga.cycles.kernel_calls` prices the steps and
`ecorl.engines.fpga.card.plan_builder` makes kernel starts of them. A forward is the embedding, then
for each layer `BEFORE_ATTENTION`, `ATTENTION` and `AFTER_ATTENTION`, then the head. The last layer
computes `AFTER_ATTENTION` for the wanted tokens only, and the head sees no others.

Names of buffers are those of `ecorl.engines.fpga.kernels.banks`, names of arguments those of the
kernels' C++ functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, TypeAlias, get_args

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_K
from ecorl.errors import BuildError
from ecorl.records import ModelShape

VectorOperation = Literal["embed", "norm", "residual", "head", "gate", "context", "fixed"]
"""Operations of vector_ops, in the order of their numbers in ``vector_ops.hpp``."""

ScoreOperation = Literal["logits", "finish"]
"""Operations of score_aggregator, in the order of their numbers in ``score_aggregator.hpp``."""

VECTOR_OPERATIONS: tuple[VectorOperation, ...] = get_args(VectorOperation)
SCORE_OPERATIONS: tuple[ScoreOperation, ...] = get_args(ScoreOperation)

HEAD_BLOCK = 2048
"""Outputs of the vocabulary that the kernels sum together."""

HEAD_UNIT = 16
"""The values of an attention head are padded to a multiple of this on the card."""

Buffers: TypeAlias = Mapping[str, str]
"""The buffer that each memory argument of a kernel is given, by the argument's name."""


@dataclass(frozen=True, slots=True)
class ProductStep:
    """Multiply token rows by a linear map; one start of the kernel for each slice of its inputs.

    Attributes:
        linear: name of the map, a key of `linear_shapes`.
    """

    kernel: ClassVar[str] = "gemm_int8"
    buffers: ClassVar[Buffers] = {"a": "codes", "w_low": "low", "w_high": "high", "c": "acc"}
    linear: str


@dataclass(frozen=True, slots=True)
class VectorStep:
    """Apply one operation of vector_ops to token rows.

    Attributes:
        operation: what is computed.
        columns: values of a row, given the model's shape and the outputs of the map in `linear`
            (0 without one).
        buffers: of its memory arguments; task, records and constants are left out.
        linear: name of the map whose products it reads, or None.
        norm: name of the norm whose weights it reads, or None.
    """

    kernel: ClassVar[str] = "vector_ops"
    operation: VectorOperation
    columns: Callable[[ModelShape, int], int]
    buffers: Buffers
    linear: str | None = None
    norm: str | None = None

    def head(self, model: ModelShape) -> int:
        """Values of an attention head on the card; 0 for an operation that does not see heads."""
        return card_head(model.head_dim) if self.operation in ("head", "context") else 0

    def n_rotated_heads(self, model: ModelShape) -> int:
        """Heads that the rotary embedding turns: those of queries and keys."""
        return model.n_heads + model.n_kv_heads if self.operation == "head" else 0


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Write the pages of keys and values, or attend to them; one start for all rows and heads.

    Attributes:
        kernel: ``kv_cache_router`` or ``mha_int8``.
        buffers: of its memory arguments.
    """

    kernel: str
    buffers: Buffers


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """Apply one operation of score_aggregator to token rows.

    Attributes:
        operation: the logits of one block of the vocabulary, or the log-probs of all blocks.
        buffers: of its memory arguments; task, records and constants are left out.
    """

    kernel: ClassVar[str] = "score_aggregator"
    operation: ScoreOperation
    buffers: Buffers


def card_head(head_dim: int) -> int:
    """Values of an attention head on the card, padded with zeros to whole units."""
    return -(-head_dim // HEAD_UNIT) * HEAD_UNIT


@lru_cache(maxsize=64)
def linear_shapes(model: ModelShape, head_rows: int = 1) -> Mapping[str, tuple[int, int]]:
    """The linear maps of a layer and the head's: outputs and inputs of each, by name.

    Args:
        model: the decoder's shape.
        head_rows: outputs of the head, 1 for a reward, or a block of the vocabulary.
    """
    hidden, width = model.hidden_size, model.n_heads * model.head_dim
    return {
        "qkv": ((model.n_heads + 2 * model.n_kv_heads) * model.head_dim, hidden),
        "output": (hidden, width),
        "gate_up": (2 * model.intermediate_size, hidden),
        "down": (hidden, model.intermediate_size),
        "head": (head_rows, hidden),
    }


LAYER_LINEARS = ("qkv", "output", "gate_up", "down")
"""The linear maps of one layer."""


def input_slices(n_inputs: int) -> list[tuple[int, int]]:
    """First and last input (exclusive) of each slice that fits one start of gemm_int8."""
    return list(pairwise([*range(0, n_inputs, MAX_K), n_inputs]))


# ---- the sequence ------------------------------------------------------------------------------


def _hidden(model: ModelShape, _n_outputs: int) -> int:
    return model.hidden_size


def _outputs(_model: ModelShape, n_outputs: int) -> int:
    return n_outputs


def _query_key_value_heads(model: ModelShape, _n_outputs: int) -> int:
    return (model.n_heads + 2 * model.n_kv_heads) * card_head(model.head_dim)


def _query_heads(model: ModelShape, _n_outputs: int) -> int:
    return model.n_heads * card_head(model.head_dim)


def _gates(model: ModelShape, _n_outputs: int) -> int:
    return model.intermediate_size


def _norm(name: str) -> VectorStep:
    return VectorStep("norm", _hidden, {"x": "x", "codes": "codes"}, norm=name)


def _residual(linear: str) -> VectorStep:
    return VectorStep("residual", _outputs, {"acc": "acc", "x": "x", "y": "x"}, linear)


EMBEDDING = VectorStep("embed", _hidden, {"table": "tables", "y": "x"})
"""Residual stream of all rows from the table of tokens; the first step of a forward."""

ROUTER = AttentionStep(
    "kv_cache_router",
    {
        "keys": "heads",
        "values": "heads",
        "key_rows": "scales",
        "value_rows": "scales",
        "jobs": "jobs",
        "sources": "pages",
        "pages": "pages",
        "table": "table",
    },
)
"""Writes keys and values into pages; one more start where rows go on inside a page."""

MHA = AttentionStep(
    "mha_int8",
    {
        "blocks": "blocks",
        "rows": "scales",
        "queries": "heads",
        "table": "table",
        "pages": "pages",
        "context": "context",
        "results": "results",
    },
)
"""Attends to the pages; in the last layer only from the wanted tokens."""

_HEAD_BUFFERS = {"acc": "acc", "table": "tables", "codes": "heads", "scales": "scales"}
_CONTEXT_BUFFERS = {"acc": "context", "side": "results", "codes": "codes"}

_MAKERS: Mapping[str, Callable[[str], ProductStep | VectorStep | AttentionStep]] = {
    "NORM": _norm,
    "MULTIPLY": ProductStep,
    "MULTIPLY_PARTS": ProductStep,
    "HEAD": lambda linear: VectorStep("head", _query_key_value_heads, _HEAD_BUFFERS, linear),
    "ROUTE": lambda _: ROUTER,
    "ATTEND": lambda _: MHA,
    "CONTEXT": lambda _: VectorStep("context", _query_heads, _CONTEXT_BUFFERS),
    "GATE": lambda linear: VectorStep("gate", _gates, {"acc": "acc", "codes": "codes"}, linear),
    "RESIDUAL": _residual,
}
"""Makes a step of each operation, given the name of its norm or map (empty without one)."""

_STEP = re.compile(r"step\(operation::(\w+)(?:, &decoder_layer::(\w+))?\)")


def layer_steps(
    list_name: str, header: str | None = None
) -> tuple[ProductStep | VectorStep | AttentionStep, ...]:
    """Read one list of a layer's steps.

    Args:
        list_name: of ``decoder_steps.hpp``.
        header: its text; by default that of the installed file.

    Raises:
        BuildError: the header has no such list, or an operation that is not known here.
        MissingToolError: the kernel sources are not installed.
    """
    path = kernel_root() / "sim" / "decoder_steps.hpp"
    text = path.read_text(encoding="utf-8") if header is None else header
    found = re.search(rf"\b{list_name}\[\] = {{(.*?)}};", text, re.DOTALL)
    if found is None:
        raise BuildError(f"{path}: no list {list_name}")
    steps = _STEP.findall(found[1])
    for operation, _ in steps:
        if operation not in _MAKERS:
            raise BuildError(f"{path}: operation {operation}: allowed are {', '.join(_MAKERS)}")
    return tuple(_MAKERS[operation](name) for operation, name in steps)


def _rows_steps(list_name: str) -> tuple[ProductStep | VectorStep, ...]:
    """The steps of a list that rows pass in blocks: all but those of attention."""
    steps = layer_steps(list_name)
    return tuple(step for step in steps if not isinstance(step, AttentionStep))


BEFORE_ATTENTION = _rows_steps("BEFORE_ATTENTION")
"""A layer up to its queries, keys and values, for all rows."""

ATTENTION = layer_steps("ATTENTION")
"""The router and attention, for all rows at once."""

AFTER_ATTENTION = _rows_steps("AFTER_ATTENTION")
"""The rest of a layer, in the last one for the wanted rows only."""

LAYER_STARTS = len(BEFORE_ATTENTION) + len(ATTENTION) + len(AFTER_ATTENTION)
"""Kernel starts of a layer whose products take one slice each and whose router starts once: 13."""

FINAL_NORM = _norm("final_norm")
"""Comes before the head, for the wanted rows."""

HEAD_PRODUCT = ProductStep("head")
"""The head's products: of the rewards, or of one block of the vocabulary."""

REWARDS = VectorStep("fixed", _outputs, {"acc": "acc", "y": "values"}, "head")
"""Rewards in fixed point."""

LOGITS = ScoreStep(
    "logits",
    {
        "acc": "acc",
        "side": "sides",
        "outputs": "outputs",
        "outputs_out": "outputs",
        "partials_out": "partials",
    },
)
"""Sums of one block of the vocabulary, after each `HEAD_PRODUCT`."""

FINISH = ScoreStep(
    "finish", {"outputs": "outputs", "partials": "partials", "outputs_out": "outputs"}
)
"""Log-probs from the sums of all blocks; the last step of a forward."""
