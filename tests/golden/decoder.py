"""The whole forward of hls_kernels/NUMERICS.md over rows of token ids, in integers.

Rows are one-dimensional arrays of token ids without padding, positions from 0. Every row is
computed by itself, one token after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.golden import gating
from tests.golden import operations as op


class Forward(NamedTuple):
    """One row after all layers.

    Attributes:
        stream: ``[n_layers + 1, n, hidden]``: the residual stream, embedded and after each layer.
        marks: ``[n] bool``: the token or an earlier one overflowed.
    """

    stream: np.ndarray
    marks: np.ndarray

    @property
    def hidden(self):
        """The residual stream before the final norm: ``[n, hidden]``."""
        return self.stream[-1]


class Results(NamedTuple):
    """Results of one row: INT32 values in int64, and a mark each."""

    values: np.ndarray
    marks: np.ndarray


class GoldenDecoder:
    """An `IntegerDecoder` with its tables of cosines and sines (`formats.rope_tables`)."""

    def __init__(self, model, tables):
        self.model = model
        self.shape = model.config.shape
        self.bits = model.fraction_bits
        self.cosine, self.sine = (op.whole(table) for table in tables)

    def forward(self, rows):
        """The residual stream of every row: a list of `Forward`."""
        return [self._forward(op.whole(row)) for row in rows]

    def rewards(self, rows):
        """The reward at the last token of every row: values and marks ``[n_rows]``."""
        parts = [self.rewards_at([row], [[len(row) - 1]])[0] for row in rows]
        values = [part.values for part in parts]
        return Results(np.concatenate(values), np.concatenate([part.marks for part in parts]))

    def rewards_at(self, rows, positions):
        """Rewards at chosen positions of every row: a list of `Results` ``[n_positions]``."""
        return [
            self._rewards(self._forward(op.whole(row), [int(t) for t in chosen]), chosen)
            for row, chosen in zip(rows, positions, strict=True)
        ]

    def gated_rewards_at(self, rows, positions, gates):
        """Rewards at chosen positions of every row, their gates read at others: `Results` each."""
        return [
            self._gated_rewards(op.whole(row), [int(t) for t in chosen], [int(t) for t in read])
            for row, chosen, read in zip(rows, positions, gates, strict=True)
        ]

    def logprobs(self, rows, n_completion, inverse_temperature):
        """Log-probs of the last ``n_completion[i]`` tokens of every row: a list of `Results`.

        `inverse_temperature` is the scale of ``log2(e) / temperature``. The value of token t rests
        on the residual stream of token t - 1.
        """
        return [
            self._logprobs(op.whole(row), count, inverse_temperature)
            for row, count in zip(rows, n_completion, strict=True)
        ]

    # ------------------------------------------------------------ layers

    def _forward(self, ids, wanted=None):
        """The row after all layers; `wanted`: the tokens with which the last layer goes on."""
        x, marks = [], np.zeros(len(ids), bool)
        for t, token in enumerate(ids):
            code = self.model.embedding[token]
            embedded, marks[t] = op.embed(code, self.model.embedding_exponent[token], self.bits)
            x.append(embedded)
        stream = [np.stack(x)]
        for layer in self.model.layers:
            projected = self._projected(layer, x)
            marks |= projected[-1]
            if layer is self.model.layers[-1]:  # from here on no token reads another
                marks = np.logical_or.accumulate(marks)
            last = layer is self.model.layers[-1]
            tokens = range(len(x)) if wanted is None or not last else sorted(set(wanted))
            x, attention_marks = self._attention(layer, x, *projected[:-1], tokens)
            x, mlp_marks = self._mlp(layer, x, tokens)
            marks |= attention_marks | mlp_marks
            stream.append(np.stack(x))
        return Forward(op.int32(np.stack(stream)), marks)

    def _attention(self, layer, x, queries, keys, values, tokens):
        """The residual stream after attention, and the marks."""
        marks = np.zeros(len(x), bool)
        keys = [op.Cache.of(head) for head in zip(*keys, strict=True)]
        values = [op.Cache.of(head) for head in zip(*values, strict=True)]
        share = self.shape.n_heads // self.shape.n_kv_heads
        result = list(x)
        for t in tokens:
            contexts = []
            for h, query in enumerate(queries[t]):
                seen_k = keys[h // share].part(0, t + 1)
                seen_v = values[h // share].part(0, t + 1)
                context, marked = op.attention(query, seen_k, seen_v, self.model.score_scale)
                contexts.append(context)
                marks[t] |= marked
            row = op.context_row(contexts, self.shape.head_dim)
            result[t] = self._added(x[t], row, layer.output, marks, t)
        return result, marks

    def _projected(self, layer, x):
        """Queries, keys and values, ``[token][head]`` of `Row`, and the marks."""
        n_q, n_kv = self.shape.n_heads, self.shape.n_kv_heads
        queries, keys, values, marks = [], [], [], np.zeros(len(x), bool)
        for t in range(len(x)):
            row = op.rmsnorm(x[t], layer.attention_norm, self.model.eps, self.bits)
            acc = op.accumulate(row.codes, layer.qkv)
            heads, marks[t] = op.heads(acc, layer.qkv, row.scale, self.bits)
            turned = [
                op.turned_head(*head, self.cosine[t], self.sine[t]) for head in heads[: n_q + n_kv]
            ]
            queries.append(turned[:n_q])
            keys.append(turned[n_q:])
            values.append([op.value_head(*head) for head in heads[n_q + n_kv :]])
        return queries, keys, values, marks

    def _mlp(self, layer, x, tokens):
        """The residual stream after the MLP, and the marks."""
        result, marks = list(x), np.zeros(len(x), bool)
        for t in tokens:
            row = op.rmsnorm(x[t], layer.mlp_norm, self.model.eps, self.bits)
            acc = op.accumulate(row.codes, layer.gate_up)
            h, marks[t] = op.swiglu(acc, layer.gate_up, row.scale)
            result[t] = self._added(x[t], h, layer.down, marks, t)
        return result, marks

    def _added(self, x, row, linear, marks, t):
        """The residual stream of token t with a projection of `row` added."""
        acc = op.accumulate(row.codes, linear)
        x, marked = op.residual(x, acc, linear, row.scale, self.bits)
        marks[t] |= marked
        return x

    # ------------------------------------------------------------ results

    def _normed(self, x):
        return op.rmsnorm(x, self.model.final_norm, self.model.eps, self.bits)

    def _head(self, x):
        """The sums of the head for one token of the residual stream, and the row's scale."""
        row = self._normed(x)
        return op.accumulate(row.codes, self.model.head), row.scale

    def _reward(self, x):
        acc, scale = self._head(x)
        return op.reward(acc, self.model.head, scale)

    def _rewards(self, forward, positions):
        values, marks = [], []
        for t in positions:
            (value,), overflow = self._reward(forward.hidden[t])
            values.append(value)
            marks.append(overflow or bool(forward.marks[t]))
        return Results(np.array(values, np.int64), np.array(marks, bool))

    def _gated_rewards(self, ids, positions, gates):
        forward = self._forward(ids, positions + gates)
        values, marks = [], []
        for t, g in zip(positions, gates, strict=True):
            rewards, overflow = self._reward(forward.hidden[t])
            z, beyond = gating.gates(self._normed(forward.hidden[g]), self.model.gate)
            values.append(op.gated_reward(rewards, z))
            marks.append(overflow or beyond or bool(forward.marks[t] or forward.marks[g]))
        return Results(np.array(values, np.int64), np.array(marks, bool))

    def _logprobs(self, ids, count, inverse_temperature):
        assert count < len(ids) or count == 0, "the first token has no log-prob"
        forward = self._forward(ids) if count else None
        values, marks = [], []
        for t in range(len(ids) - count, len(ids)):
            acc, scale = self._head(forward.hidden[t - 1])
            z, overflow = op.logits(acc, self.model.head, scale, inverse_temperature)
            value, beyond = op.logprob(z, int(ids[t]))
            values.append(value)
            marks.append(overflow or beyond or bool(forward.marks[t - 1]))
        return Results(np.array(values, np.int64), np.array(marks, bool))
