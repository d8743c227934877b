"""Making a plan: which kernel starts on what, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from ecorl.engines.fpga.card.image import (
    BLOCK_ROWS,
    WORD,
    Bytes,
    PlacedLinear,
    PlacedModel,
    PlacedNorm,
    Words,
    code_words,
    words,
)
from ecorl.engines.fpga.card.plan import UNWRITTEN, At, CardModel, KernelPlan, KernelStart
from ecorl.engines.fpga.card.tokens import ROW_FIELDS, TokenLayout
from ecorl.engines.fpga.numerics.formats import Scale
from ecorl.engines.protocol import Int64

EMBED, NORM, RESIDUAL, HEAD, GATE, CONTEXT, FIXED = range(7)
"""Operations of vector_ops."""
LOGITS, FINISH = range(2)
"""Operations of score_aggregator."""

REWARD_BITS = 16
OUTPUTS_A_WORD, PARTIAL_WORDS = 4, 4
PRODUCT_BYTES = 128 << 20
"""Bytes of the products of one start at most: a quarter of a memory channel. For a 7 B model these
are 1,520 rows of gate and up."""
ROWS_AT_ONCE = 1 << 14
"""Rows of a product at most, whatever their size."""


def plan_rewards(model: CardModel, layout: TokenLayout) -> KernelPlan:
    """Rewards after the layout's wanted tokens."""
    making = _Making(model, layout)
    making.layers()
    making.rewards()
    return making.plan("values", layout.output_rows - layout.first_wanted)


def plan_logprobs(model: CardModel, layout: TokenLayout, targets: Words, by: Scale) -> KernelPlan:
    """Log-probs of `targets`, one for each of the layout's outputs; `by`: log2(e) / temperature."""
    making = _Making(model, layout)
    making.layers()
    at = making.logprobs(targets, by)
    return making.plan("outputs", at)


@dataclass(slots=True)
class _Making:
    """A plan in the making."""

    model: CardModel
    layout: TokenLayout
    starts: list[KernelStart] = field(default_factory=list)
    n_before: int = 0
    n_attended: int = 0
    tasks: list[list[int]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    outputs: Words = field(default_factory=lambda: np.zeros((0, 4), np.int32))
    jobs: list[Words] = field(default_factory=list)
    blocks: list[Words] = field(default_factory=list)

    def plan(self, result: str, output_at: Int64) -> KernelPlan:
        inputs = {
            "rows": _bytes(self.layout.records),
            "jobs": _aligned(self.jobs),
            "blocks": _aligned(self.blocks),
            "tasks": _bytes(np.asarray(self.tasks, np.int32)),
            "outputs": _bytes(self.outputs),
        }
        sizes = self.sizes | {name: len(data) for name, data in inputs.items() if len(data)}
        return KernelPlan(
            self.model,
            self.layout,
            inputs,
            tuple(self.starts[: self.n_before]),
            tuple(self.starts[self.n_before : self.n_attended]),
            tuple(self.starts[self.n_attended :]),
            sizes,
            result,
            output_at,
            self.layout.n_rows,
        )

    def row_blocks(self, first: int, last: int) -> list[tuple[int, int]]:
        """First row and number of rows of each product; first rows are multiples of 16."""
        step = rows_at_once(self.model.placed)
        return [(t0, min(step, last - t0)) for t0 in range(first, last, step)]

    # ---- starts -------------------------------------------------------------------------------

    def start(self, kernel: str, **arguments: At | int) -> None:
        self.starts.append(KernelStart(kernel, arguments))

    def need(self, buffer: str, n_bytes: int) -> None:
        self.sizes[buffer] = max(self.sizes.get(buffer, 0), n_bytes)

    def task(self, *fields: int) -> At:
        self.tasks.append([*fields, *(0,) * (ROW_FIELDS - len(fields))])
        return At("tasks", (len(self.tasks) - 1) * WORD)

    def vector(
        self,
        op: int,
        t0: int,
        m: int,
        n: int,
        *,
        linear: PlacedLinear | None = None,
        norm: PlacedNorm | None = None,
        parts: int = 1,
        turned: int = 0,
        fraction_bits: int | None = None,
        **places: At,
    ) -> None:
        """One start of vector_ops on rows [t0, t0 + m)."""
        model, exponents = self.model, linear.exponents if linear is not None else (0, 0)
        task = self.task(
            op,
            0,
            2,
            m,
            n,
            parts,
            model.config.shape.head_dim,
            turned,
            int(linear is not None and op == HEAD and linear.has_bias),
            linear.input_shift if linear is not None else 0,
            model.fraction_bits if fraction_bits is None else fraction_bits,
            norm.exponent if norm is not None else exponents[0],
            exponents[1] if op == GATE else 0,
            model.eps.m,
            model.eps.e,
            self.layout.stride,
        )
        if norm is not None:
            places["side"] = At("sides", norm.side)
        elif linear is not None:
            places["side"] = At("sides", linear.side)
        records = At("rows", t0 * WORD)
        self.start("vector_ops", task=task, rows=records, rows_out=records, **places)

    def multiply(self, linear: PlacedLinear, m: int) -> int:
        """Products of all slices, into parts of acc; returns how many."""
        part_bytes, first = words(linear.n) * m * WORD, 0
        for part, piece in enumerate(linear.slices):
            self.start(
                "gemm_int8",
                a=At("codes", code_words(m, first) * WORD),
                w_low=At("low", piece.at),
                w_high=At("high", piece.at),
                c=At("acc", part * part_bytes),
                m=m,
                n=linear.n,
                k=piece.k,
            )
            first += piece.k
        self.need("codes", code_words(m, first) * WORD)
        self.need("acc", len(linear.slices) * part_bytes)
        return len(linear.slices)

    # ---- the forward --------------------------------------------------------------------------

    def layers(self) -> None:
        shape = self.model.config.shape
        self.need("x", self.layout.stride * words(shape.hidden_size) * WORD)
        self.vector(EMBED, 0, self.layout.n_rows, shape.hidden_size, table=At("tables"), y=At("x"))
        self._set_attention()
        for index in range(shape.n_layers):
            last = index + 1 == shape.n_layers
            for t0, m in self.row_blocks(0, self.layout.n_rows):
                self._heads(index, t0, m)
            if last:
                self.n_before = len(self.starts)
            self._attend(last)
            self.n_attended = len(self.starts)
            first = self.layout.first_wanted if last else 0
            for t0, m in self.row_blocks(first, self.layout.n_rows):
                self._rest(index, t0, m)

    def _set_attention(self) -> None:
        """Lists of pages and queries, which all layers share, and the size of their buffers."""
        shape, layout = self.model.config.shape, self.layout
        d, n_heads, n_kv = shape.head_dim, shape.n_heads, shape.n_kv_heads
        self.jobs = layout.levels(n_kv)
        self.blocks = [
            layout.blocks(n_heads, n_kv, wanted_only=False),
            layout.blocks(n_heads, n_kv, wanted_only=True),
        ]
        every = (n_heads + 2 * n_kv) * layout.stride
        self.need("heads", every * _token_bytes(d))
        self.need("scales", every * 16)
        self.need("context", n_heads * layout.stride * d * 4)
        self.need("results", n_heads * layout.stride * 8)
        self.need("pages", n_kv * layout.n_pages * (2 * d + 16) * WORD)
        self.need("table", n_kv * layout.n_entries * 4)

    def _x(self, t0: int) -> At:
        return At("x", t0 * words(self.model.config.shape.hidden_size) * WORD)

    def _norm(self, norm: PlacedNorm, t0: int, m: int) -> None:
        hidden = self.model.config.shape.hidden_size
        self.need("codes", code_words(m, hidden) * WORD)
        self.vector(NORM, t0, m, hidden, norm=norm, x=self._x(t0), codes=At("codes"))

    def _heads(self, index: int, t0: int, m: int) -> None:
        shape, layer = self.model.config.shape, self.model.placed.layers[index]
        self._norm(layer.attention_norm, t0, m)
        self.multiply(layer.qkv, m)
        self.vector(
            HEAD,
            t0,
            m,
            layer.qkv.n,
            linear=layer.qkv,
            turned=shape.n_heads + shape.n_kv_heads,
            acc=At("acc"),
            table=At("tables", self.model.placed.rope),
            codes=At("heads", t0 * _token_bytes(shape.head_dim)),
            scales=At("scales", t0 * 16),
        )

    def _attend(self, last: bool) -> None:
        shape, stride = self.model.config.shape, self.layout.stride
        d, offset = shape.head_dim, 0
        keys = shape.n_heads * stride
        values = keys + shape.n_kv_heads * stride
        for jobs in self.jobs:
            if len(jobs):
                self.start(
                    "kv_cache_router",
                    keys=At("heads", keys * _token_bytes(d)),
                    values=At("heads", values * _token_bytes(d)),
                    key_rows=At("scales", keys * 16),
                    value_rows=At("scales", values * 16),
                    jobs=At("jobs", offset),
                    sources=At("pages"),
                    pages=At("pages"),
                    table=At("table"),
                    n_jobs=len(jobs),
                    d=d,
                )
            offset += _aligned_bytes(jobs)
        blocks = self.blocks[1 if last else 0]
        self.start(
            "mha_int8",
            blocks=At("blocks", _aligned_bytes(self.blocks[0]) if last else 0),
            rows=At("scales"),
            queries=At("heads"),
            table=At("table"),
            pages=At("pages"),
            context=At("context"),
            results=At("results"),
            n_blocks=len(blocks),
            d=d,
            score_m=self.model.score_scale.m,
            score_e=self.model.score_scale.e,
        )

    def _rest(self, index: int, t0: int, m: int) -> None:
        """From the attention's contexts to the end of the layer."""
        shape, layer = self.model.config.shape, self.model.placed.layers[index]
        self.vector(
            CONTEXT,
            t0,
            m,
            shape.n_heads * shape.head_dim,
            acc=At("context", t0 * shape.head_dim * 4),
            side=At("results", t0 * 8),
            codes=At("codes"),
        )
        self._residual(layer.output, t0, m)
        self._norm(layer.mlp_norm, t0, m)
        self.multiply(layer.gate_up, m)
        inner = shape.intermediate_size
        self.vector(GATE, t0, m, inner, linear=layer.gate_up, acc=At("acc"), codes=At("codes"))
        self._residual(layer.down, t0, m)

    def _residual(self, linear: PlacedLinear, t0: int, m: int) -> None:
        parts = self.multiply(linear, m)
        x = self._x(t0)
        self.vector(RESIDUAL, t0, m, linear.n, linear=linear, parts=parts, acc=At("acc"), x=x, y=x)

    # ---- results ------------------------------------------------------------------------------

    def rewards(self) -> None:
        head = self.model.placed.head[0]
        first, n_words = self.layout.first_wanted, words(head.n)
        self.need("values", (self.layout.n_rows - first) * n_words * WORD)
        for t0, m in self.row_blocks(first, self.layout.n_rows):
            self._norm(self.model.placed.final_norm, t0, m)
            self.vector(
                FIXED,
                t0,
                m,
                head.n,
                linear=head,
                parts=self.multiply(head, m),
                fraction_bits=REWARD_BITS,
                acc=At("acc"),
                y=At("values", (t0 - first) * n_words * WORD),
            )

    def logprobs(self, targets: Words, by: Scale) -> Int64:
        """Where each result stands: those of a block of rows begin with a whole word."""
        rows, head = self.layout.output_rows, self.model.placed.head
        at = np.zeros(len(rows), np.int64)
        n_results = 0
        for t0, m in self.row_blocks(self.layout.first_wanted, self.layout.n_rows):
            own = slice(*np.searchsorted(rows, (t0, t0 + m)))
            n = own.stop - own.start
            at[own] = n_results + np.arange(n)
            self._norm(self.model.placed.final_norm, t0, m)
            self.need("partials", len(head) * -(-m // BLOCK_ROWS) * PARTIAL_WORDS * WORD)
            self._score_block(t0, m, int(n), At("outputs", n_results * 16), by)
            n_results += -(-n // OUTPUTS_A_WORD) * OUTPUTS_A_WORD
        self.outputs = np.zeros((n_results, 4), np.int32)
        self.outputs[:, 2] = UNWRITTEN
        self.outputs[at, 0] = targets
        return at

    def _score_block(self, t0: int, m: int, n: int, outputs: At, by: Scale) -> None:
        records = At("rows", t0 * WORD)
        first_token, head = 0, self.model.placed.head
        for block, linear in enumerate(head):
            parts = self.multiply(linear, m)
            shift, exponent = linear.input_shift, linear.exponents[0]
            task = (LOGITS, m, linear.n, parts, shift, exponent, by.m, by.e, n, first_token, block)
            self.start(
                "score_aggregator",
                task=self.task(*task),
                acc=At("acc"),
                side=At("sides", linear.side),
                rows=records,
                outputs=outputs,
                rows_out=records,
                outputs_out=outputs,
                partials_out=At("partials"),
            )
            first_token += linear.n
        finish = (FINISH, m, 0, 1, 0, 0, 0, 0, n, 0, 0, len(head))
        self.start(
            "score_aggregator",
            task=self.task(*finish),
            rows=records,
            outputs=outputs,
            partials=At("partials"),
            rows_out=records,
            outputs_out=outputs,
        )


def rows_at_once(placed: PlacedModel) -> int:
    """Rows of a product at most, a multiple of 16."""
    linears = [getattr(layer, f.name) for layer in placed.layers[:1] for f in fields(layer)]
    linears = [each for each in linears if isinstance(each, PlacedLinear)] + [*placed.head[:1]]
    row_bytes = max(len(each.slices) * words(each.n) * WORD for each in linears)
    return min(ROWS_AT_ONCE, max(1, PRODUCT_BYTES // row_bytes // BLOCK_ROWS) * BLOCK_ROWS)


def _token_bytes(head_dim: int) -> int:
    """Bytes of a head's codes of one token: one beat for every 64 channels."""
    return WORD * -(-head_dim // WORD)


def _aligned_bytes(values: Words) -> int:
    """Bytes of an array up to the next whole word."""
    return -(-values.nbytes // WORD) * WORD


def _aligned(parts: Sequence[Words]) -> Bytes:
    """Arrays one behind the other, each from a whole word on."""
    joined = np.zeros(sum(_aligned_bytes(part) for part in parts), np.uint8)
    at = 0
    for part in parts:
        joined[at : at + part.nbytes] = _bytes(part)
        at += _aligned_bytes(part)
    return joined


def _bytes(values: Words) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
