"""The head of a reward model with several objectives and a gate between them.

    rewards = regression_layer(h at the last token) @ reward_transform_matrix      [n_objectives]
    gates   = softmax(MLP(h at the gate's token) / temperature) * logit_scale      [n_objectives]
    reward  = sum(gates * rewards)

h is the hidden state after the final norm. The MLP has `n_hidden` linear layers, each followed by
a ReLU, and one more layer to the objectives. The gate is read at the first token of the last
pattern that begins an assistant's turn, so that it depends on the prompt and not on the completion.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

import numpy as np

from ecorl.engines.protocol import Int64

GATED_ARCHITECTURE = "LlamaForRewardModelWithGating"

MAX_OBJECTIVES = 64
"""Most objectives of a gated reward; `MAX_OBJECTIVES` of hls_kernels/include/ecorl_rows.hpp."""

LLAMA3_PATTERN = (128009, 128006, 78191, 128007, 271)
"""End of a turn, then the header of an assistant's turn, in the vocabulary of Llama 3."""

REGRESSION, TRANSFORM = "regression_layer.weight", "reward_transform_matrix"
LOGIT_SCALE = "gating.logit_scale"
FOLDED = (TRANSFORM, LOGIT_SCALE)
"""Tensors that are multiplied into the regression's weights before they reach a card."""


@dataclass(frozen=True, slots=True)
class Gating:
    """The gate of a reward model, from config.json and, for its biases, from the stored tensors.

    Attributes:
        n_objectives: number of outputs of the regression and of the gate.
        temperature: the gate's logits are divided by it.
        hidden_dim: number of outputs of a hidden layer.
        n_hidden: number of hidden layers.
        token_pattern: token ids that begin an assistant's turn; empty where none is known.
        biased: for each layer whether it has a bias; hidden layers first.
    """

    n_objectives: int
    temperature: float
    hidden_dim: int
    n_hidden: int
    token_pattern: tuple[int, ...]
    biased: tuple[bool, ...]

    def tensors(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors after the final norm."""
        n = self.n_objectives
        found: dict[str, tuple[int, ...]] = {
            REGRESSION: (n, hidden_size),
            TRANSFORM: (n, n),
            LOGIT_SCALE: (1,),
        }
        inputs = hidden_size
        for i, biased in enumerate(self.biased):
            outputs = self.hidden_dim if i < self.n_hidden else n
            found[layer_name(i)] = (outputs, inputs)
            if biased:
                found[bias_name(i)] = (outputs,)
            inputs = outputs
        return found

    def n_params(self, hidden_size: int) -> int:
        """Number of values in these tensors."""
        shapes = self.tensors(hidden_size).values()
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)

    def stored_as(self, names: Container[str]) -> Gating:
        """Return a copy with the biases that a checkpoint holds."""
        return replace(self, biased=tuple(bias_name(i) in names for i in range(self.n_hidden + 1)))

    def positions(self, row: Int64, scored: Int64, n_completion: int) -> Int64:
        """Find the positions at which the gate is read, one for each result of a row.

        A result is that of the row up to its position: the gate is read at the first token of the
        last `token_pattern` in that part. Where there is none, it is read at the last prompt token
        if the row is known to end with a completion.

        Args:
            row: token ids ``[length]`` without padding.
            scored: positions of the results, ``[n]``.
            n_completion: completion tokens at the end of the row; 0 where unknown.

        Returns:
            ``[n] int64``; -1 where the gate has no position.
        """
        last_prompt = len(row) - n_completion - 1
        known = n_completion > 0 and last_prompt >= 0
        fallback = np.where((scored >= last_prompt) & known, last_prompt, -1)
        starts = self._occurrences(row)
        if not len(starts):
            return fallback.astype(np.int64)
        # A pattern counts only where it ends at or before the result's position.
        ends = starts + len(self.token_pattern) - 1
        index = np.searchsorted(ends, scored, side="right") - 1
        return np.where(index >= 0, starts[index], fallback).astype(np.int64)

    def _occurrences(self, row: Int64) -> Int64:
        """First positions of all occurrences of `token_pattern` in a row, ascending."""
        n = len(self.token_pattern)
        if n == 0 or len(row) < n:
            return np.empty(0, np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(row, n)
        return np.flatnonzero((windows == np.asarray(self.token_pattern)).all(axis=1))


def layer_name(index: int) -> str:
    """Name of a gate layer's weights."""
    return f"gating.layers.{index}.weight"


def bias_name(index: int) -> str:
    """Name of a gate layer's bias."""
    return f"gating.layers.{index}.bias"
