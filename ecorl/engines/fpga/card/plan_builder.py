"""Builds a plan: the kernel starts of a group of rows, in order, with their buffers and tasks.

The order of the operations is that of `ecorl.engines.fpga.kernels.sequence`. Rows pass the steps
between two attentions in blocks, so that their products fit the memory bank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ecorl.engines.fpga.card.image import (
    BLOCK_ROWS,
    WORD,
    Bytes,
    CardModel,
    PlacedLinear,
    PlacedModel,
    PlacedNorm,
    Words,
    code_words,
    words,
)
from ecorl.engines.fpga.card.plan import (
    ROW_FIELDS,
    UNWRITTEN,
    At,
    KernelPlan,
    KernelStart,
    TokenLayout,
)
from ecorl.engines.fpga.cycles.vector import token_beats
from ecorl.engines.fpga.kernels import sequence
from ecorl.engines.fpga.numerics.formats import Scale
from ecorl.engines.protocol import Int64

REWARD_BITS = 16
OUTPUTS_A_WORD, PARTIAL_WORDS = 4, 4
PRODUCT_BYTES = 512 << 20
"""Bytes of the products of one start at most: a quarter of their bank. For a 7 B model these are
6,096 rows of gate and up, more than a group of rows has unless one prompt's rows are longer."""
ROWS_AT_ONCE = 1 << 14
"""Rows of a product at most, whatever their size."""


def plan_rewards(model: CardModel, layout: TokenLayout) -> KernelPlan:
    """Plan the rewards after the layout's wanted tokens.

    Args:
        model: constants of the model, and their places on the card.
        layout: the rows of the group.
    """
    builder = _PlanBuilder(model, layout)
    builder.layers()
    builder.rewards()
    return builder.plan("values", layout.output_rows - layout.first_wanted)


def plan_logprobs(model: CardModel, layout: TokenLayout, targets: Words, by: Scale) -> KernelPlan:
    """Plan log-probs of tokens.

    Args:
        model: constants of the model, and their places on the card.
        layout: the rows of the group.
        targets: ``[n_outputs] int32``, the token of each of the layout's outputs.
        by: log2(e) / temperature.
    """
    builder = _PlanBuilder(model, layout)
    builder.layers()
    at = builder.logprobs(targets, by)
    return builder.plan("outputs", at)


@dataclass(frozen=True, slots=True)
class _Constants:
    """What the steps of a layer, or of the head, multiply by: norms and linear maps by name."""

    norms: Mapping[str, PlacedNorm] = field(default_factory=dict)
    linears: Mapping[str, PlacedLinear] = field(default_factory=dict)


@dataclass(slots=True)
class _PlanBuilder:
    """Collects the starts of a plan, their tasks, and the sizes of the buffers.

    Attributes:
        model: of the plan.
        layout: of the plan.
        starts: so far.
        n_before: starts before the last layer's attention.
        n_attended: starts up to the end of that attention.
        tasks: fields of each task.
        sizes: bytes of each buffer.
        outputs: ``[n, 4] int32``, results of log-probs as they are sent.
        jobs: lists of pages, one for each start of the router in a layer.
        blocks: lists of queries, of all rows and of the wanted ones.
    """

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
            model=self.model,
            layout=self.layout,
            inputs=inputs,
            before=tuple(self.starts[: self.n_before]),
            attend=tuple(self.starts[self.n_before : self.n_attended]),
            after=tuple(self.starts[self.n_attended :]),
            sizes=sizes,
            result=result,
            output_at=output_at,
            n_tokens=self.layout.n_rows,
        )

    def layers(self) -> None:
        """Add the embedding and all layers."""
        shape = self.model.config.shape
        self._need("x", self.layout.stride * words(shape.hidden_size) * WORD)
        self._set_attention()
        self._vector(sequence.EMBEDDING, 0, self.layout.n_rows, _Constants())
        for index, layer in enumerate(self.model.placed.layers):
            last = index + 1 == shape.n_layers
            constants = _Constants(layer.norms, layer.linears)
            for t0, m in self._row_blocks(0):
                self._rows(sequence.BEFORE_ATTENTION, t0, m, constants)
            if last:
                self.n_before = len(self.starts)
            self._attend(last)
            self.n_attended = len(self.starts)
            for t0, m in self._row_blocks(self.layout.first_wanted if last else 0):
                self._rows(sequence.AFTER_ATTENTION, t0, m, constants)

    def rewards(self) -> None:
        """Add the head of a reward model."""
        head = self.model.placed.head[0]
        constants = _Constants({"final_norm": self.model.placed.final_norm}, {"head": head})
        first = self.layout.first_wanted
        self._need("values", (self.layout.n_rows - first) * words(head.n) * WORD)
        for t0, m in self._row_blocks(first):
            self._rows(
                (sequence.FINAL_NORM, sequence.HEAD_PRODUCT, sequence.REWARDS), t0, m, constants
            )

    def logprobs(self, targets: Words, by: Scale) -> Int64:
        """Add the head of a language model.

        Returns:
            Where each result stands in the outputs; those of a block of rows begin with a whole
            word.
        """
        rows, head = self.layout.output_rows, self.model.placed.head
        norm = _Constants({"final_norm": self.model.placed.final_norm})
        at = np.zeros(len(rows), np.int64)
        n_results = 0
        for t0, m in self._row_blocks(self.layout.first_wanted):
            own = slice(*np.searchsorted(rows, (t0, t0 + m)))
            n = int(own.stop - own.start)
            at[own] = n_results + np.arange(n)
            self._rows([sequence.FINAL_NORM], t0, m, norm)
            self._need("partials", len(head) * -(-m // BLOCK_ROWS) * PARTIAL_WORDS * WORD)
            self._score(t0, m, n, n_results, by)
            n_results += -(-n // OUTPUTS_A_WORD) * OUTPUTS_A_WORD
        self.outputs = np.zeros((n_results, 4), np.int32)
        self.outputs[:, 2] = UNWRITTEN
        self.outputs[at, 0] = targets
        return at

    # ---- steps --------------------------------------------------------------------------------

    def _rows(
        self,
        steps: Sequence[sequence.ProductStep | sequence.VectorStep],
        t0: int,
        m: int,
        constants: _Constants,
    ) -> None:
        """Add steps for rows [t0, t0 + m)."""
        for step in steps:
            if isinstance(step, sequence.ProductStep):
                self._multiply(constants.linears[step.linear], m)
            else:
                self._vector(step, t0, m, constants)

    def _multiply(self, linear: PlacedLinear, m: int) -> None:
        """Add the products of all slices; the sums of each go into a part of ``acc``.

        A part holds the words of its rows, 16 rows after the other (``product_at`` of
        ``ecorl_words.hpp``), and is read as it was written: a start's rows begin with a block.
        """
        part_bytes, first = words(linear.n) * m * WORD, 0
        for part, piece in enumerate(linear.slices):
            offsets = {
                "a": code_words(m, first) * WORD,
                "w_low": piece.at,
                "w_high": piece.at,
                "c": part * part_bytes,
            }
            self._start(sequence.ProductStep, offsets, m=m, n=linear.n, k=piece.k)
            first += piece.k
        self._need("codes", code_words(m, first) * WORD)
        self._need("acc", len(linear.slices) * part_bytes)

    def _vector(self, step: sequence.VectorStep, t0: int, m: int, constants: _Constants) -> None:
        """Add one start of vector_ops on rows [t0, t0 + m)."""
        model, shape = self.model, self.model.config.shape
        linear = None if step.linear is None else constants.linears[step.linear]
        norm = None if step.norm is None else constants.norms[step.norm]
        columns = step.columns(shape, 0 if linear is None else linear.n)
        exponents = (0, 0) if linear is None else linear.exponents
        task = self._task(
            sequence.VECTOR_OPERATIONS.index(step.operation),
            0,
            2,
            m,
            columns,
            1 if linear is None else len(linear.slices),
            shape.head_dim,
            step.n_rotated_heads(shape),
            int(linear is not None and step.operation == "head" and linear.has_bias),
            0 if linear is None else linear.input_shift,
            REWARD_BITS if step is sequence.REWARDS else model.fraction_bits,
            exponents[0] if norm is None else norm.exponent,
            exponents[1] if step.operation == "gate" else 0,
            model.eps.m,
            model.eps.e,
            self.layout.stride,
        )
        places = {"task": task, **self._records(t0)}
        if norm is not None:
            self._need("codes", code_words(m, columns) * WORD)
            places["side"] = At("sides", norm.side)
        elif linear is not None:
            places["side"] = At("sides", linear.side)
        for argument, buffer in step.buffers.items():
            places[argument] = At(buffer, self._row_offset(buffer, t0, step))
        self.starts.append(KernelStart(step.kernel, places))

    def _row_offset(self, buffer: str, t0: int, step: sequence.VectorStep) -> int:
        """Where row t0 begins in a buffer, bytes; one that holds a block of rows begins with it."""
        shape, placed = self.model.config.shape, self.model.placed
        if buffer == "tables":  # that of the tokens comes first, that of the positions behind it
            return 0 if step is sequence.EMBEDDING else placed.rope
        if buffer == "values":
            return (t0 - self.layout.first_wanted) * words(placed.head[0].n) * WORD
        row_bytes = {
            "x": words(shape.hidden_size) * WORD,
            "heads": WORD * token_beats(shape.head_dim),
            "scales": 16,
            "context": shape.head_dim * 4,
            "results": 8,
        }
        return t0 * row_bytes.get(buffer, 0)

    def _set_attention(self) -> None:
        """Make the lists of pages and queries, which all layers share, and size their buffers."""
        shape, layout = self.model.config.shape, self.layout
        d, n_heads, n_kv = shape.head_dim, shape.n_heads, shape.n_kv_heads
        self.jobs = layout.levels(n_kv)
        self.blocks = [
            layout.blocks(n_heads, n_kv, wanted_only=False),
            layout.blocks(n_heads, n_kv, wanted_only=True),
        ]
        every = (n_heads + 2 * n_kv) * layout.stride
        self._need("heads", every * WORD * token_beats(d))
        self._need("scales", every * 16)
        self._need("context", n_heads * layout.stride * d * 4)
        self._need("results", n_heads * layout.stride * 8)
        self._need("pages", n_kv * layout.n_pages * (2 * d + 16) * WORD)
        self._need("table", n_kv * layout.n_entries * 4)

    def _attend(self, last: bool) -> None:
        """Add the attention of one layer, in the last one from the wanted tokens only."""
        shape, stride = self.model.config.shape, self.layout.stride
        d, at_job = shape.head_dim, 0
        # One buffer holds the codes of queries, keys and values, head after head.
        keys = shape.n_heads * stride
        values = keys + shape.n_kv_heads * stride
        for jobs in self.jobs:
            if len(jobs):
                offsets = {
                    "keys": keys * WORD * token_beats(d),
                    "values": values * WORD * token_beats(d),
                    "key_rows": keys * 16,
                    "value_rows": values * 16,
                    "jobs": at_job,
                }
                self._start(sequence.ROUTER, offsets, n_jobs=len(jobs), d=d)
            at_job += _aligned_bytes(jobs)
        scale = self.model.score_scale
        self._start(
            sequence.MHA,
            {"blocks": _aligned_bytes(self.blocks[0]) if last else 0},
            n_blocks=len(self.blocks[1 if last else 0]),
            d=d,
            score_m=scale.m,
            score_e=scale.e,
        )

    def _score(self, t0: int, m: int, n: int, n_results: int, by: Scale) -> None:
        """Add the log-probs of rows [t0, t0 + m): block after block, then the sum of all.

        Args:
            t0: first row.
            m: rows.
            n: results of these rows.
            n_results: results of the rows before them.
            by: log2(e) / temperature.
        """
        first_token, head = 0, self.model.placed.head
        for block, linear in enumerate(head):
            self._multiply(linear, m)
            shift, exponent, parts = linear.input_shift, linear.exponents[0], len(linear.slices)
            fields = (m, linear.n, parts, shift, exponent, by.m, by.e, n, first_token, block)
            offsets = {"side": linear.side, "outputs": n_results * 16}
            self._start_score(sequence.LOGITS, t0, offsets, fields)
            first_token += linear.n
        last_fields = (m, 0, 1, 0, 0, 0, 0, n, 0, 0, len(head))
        self._start_score(sequence.FINISH, t0, {"outputs": n_results * 16}, last_fields)

    def _start_score(
        self, step: sequence.ScoreStep, t0: int, offsets: Mapping[str, int], fields: Sequence[int]
    ) -> None:
        task = self._task(sequence.SCORE_OPERATIONS.index(step.operation), *fields)
        places = {"task": task, **self._records(t0)}
        offsets = {**offsets, "outputs_out": offsets["outputs"]}
        self.starts.append(KernelStart(step.kernel, places | _places(step.buffers, offsets)))

    # ---- starts -------------------------------------------------------------------------------

    def _start(
        self,
        step: sequence.AttentionStep | type[sequence.ProductStep],
        offsets: Mapping[str, int],
        **scalars: int,
    ) -> None:
        places = _places(step.buffers, offsets)
        self.starts.append(KernelStart(step.kernel, {**places, **scalars}))

    def _need(self, buffer: str, n_bytes: int) -> None:
        self.sizes[buffer] = max(self.sizes.get(buffer, 0), n_bytes)

    def _task(self, *fields: int) -> At:
        self.tasks.append([*fields, *(0,) * (ROW_FIELDS - len(fields))])
        return At("tasks", (len(self.tasks) - 1) * WORD)

    def _records(self, t0: int) -> dict[str, At]:
        """The rows' records from row t0 on, which a kernel reads and writes."""
        records = At("rows", t0 * WORD)
        return {"rows": records, "rows_out": records}

    def _row_blocks(self, first: int) -> list[tuple[int, int]]:
        """First row and number of rows of each product, from row `first` on.

        First rows are multiples of 16.
        """
        step, end = rows_at_once(self.model.placed), self.layout.n_rows
        return [(t0, min(step, end - t0)) for t0 in range(first, end, step)]


def rows_at_once(placed: PlacedModel) -> int:
    """Rows of a product at most, a multiple of 16."""
    linears = [*placed.head[:1]]
    for layer in placed.layers[:1]:
        linears += layer.linears.values()
    row_bytes = max(len(each.slices) * words(each.n) * WORD for each in linears)
    return min(ROWS_AT_ONCE, max(1, PRODUCT_BYTES // row_bytes // BLOCK_ROWS) * BLOCK_ROWS)


def _places(buffers: Mapping[str, str], offsets: Mapping[str, int]) -> dict[str, At]:
    """The place of each memory argument: its buffer, at an offset in bytes or at the beginning."""
    return {argument: At(name, offsets.get(argument, 0)) for argument, name in buffers.items()}


def _aligned_bytes(values: Words) -> int:
    """Bytes of an array up to the next whole word."""
    return -(-values.nbytes // WORD) * WORD


def _aligned(parts: Sequence[Words]) -> Bytes:
    """Join arrays; each begins with a whole word."""
    joined = np.zeros(sum(_aligned_bytes(part) for part in parts), np.uint8)
    at = 0
    for part in parts:
        joined[at : at + part.nbytes] = _bytes(part)
        at += _aligned_bytes(part)
    return joined


def _bytes(values: Words) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
