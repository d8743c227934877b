"""A Llama of random weights in plain PyTorch: nothing to download, and no framework in the way.

Layers are separate linear layers, as in the published models, and attention is PyTorch's own
`scaled_dot_product_attention`. `Llama.forward` gives the score of each token at each position;
`prefill` and `step` work on a cache of keys and values of fixed size, so that a step can be
captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ecorl.records import ModelShape

ROPE_THETA = 500_000.0
"""Base of the rotary embedding, as in Llama 3."""

EPS = 1e-5

INIT_STD = 0.02
"""Standard deviation of the random weights, as Llama is initialised."""


Rope = tuple[Tensor, Tensor]
"""Cosines and sines of the rotary embedding, each ``[length, head_dim]``."""


def turned(x: Tensor, rope: Rope) -> Tensor:
    """Rotate ``[..., length, head_dim]`` by its positions.

    Args:
        x: queries or keys.
        rope: of their positions.
    """
    first, second = x.chunk(2, dim=-1)
    return x * rope[0].to(x.dtype) + torch.cat((-second, first), -1) * rope[1].to(x.dtype)


def added(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Add, and normalise the sum; returns both.

    Args:
        x: ``[..., hidden]``.
        y: likewise.
        weight: of the norm, ``[hidden]``.
    """
    total = x + y
    return total, F.rms_norm(total, (total.shape[-1],), weight, EPS)


def turned_pair(q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions.

    Args:
        q: queries.
        k: keys.
        rope: of their positions.
    """
    return turned(q, rope), turned(k, rope)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """The gate of the MLP: SiLU of the one times the other."""
    return F.silu(gate) * up


class Pieces(NamedTuple):
    """What lies between the matrix products of a step, each a few operations on small tensors."""

    turned_pair: Callable[[Tensor, Tensor, Rope], tuple[Tensor, Tensor]] = turned_pair
    added: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = added
    gated: Callable[[Tensor, Tensor], Tensor] = gated


EAGER = Pieces()
"""Each operation a kernel."""


@cache
def fused() -> Pieces:
    """Each piece compiled to a kernel or two, as serving engines have them by hand."""
    return Pieces(torch.compile(turned_pair), torch.compile(added), torch.compile(gated))


class DecoderBlock(nn.Module):
    """One layer of the decoder.

    Args:
        shape: of the model.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._dim = shape.n_heads, shape.n_kv_heads, shape.head_dim
        width, hidden = shape.n_heads * shape.head_dim, shape.hidden_size
        kv_width = shape.n_kv_heads * shape.head_dim
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(hidden, eps=EPS) for _ in range(2))
        self.q = nn.Linear(hidden, width, bias=False)
        self.k = nn.Linear(hidden, kv_width, bias=False)
        self.v = nn.Linear(hidden, kv_width, bias=False)
        self.o = nn.Linear(width, hidden, bias=False)
        self.gate = nn.Linear(hidden, shape.intermediate_size, bias=False)
        self.up = nn.Linear(hidden, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, hidden, bias=False)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """Compute all positions of ``[n_rows, length, hidden]``."""
        return self.full(x, rope)[0]

    def full(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Compute all positions; returns them with their keys and values."""
        q, k, v = self._qkv(self.attention_norm(x))
        q, k = turned_pair(q, k, rope)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self._kv_heads != self._heads
        )
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(gated(self.gate(y), self.up(y))), k, v

    def step(
        self, y: Tensor, rope: Rope, cached: Tensor, position: Tensor, mask: Tensor, pieces: Pieces
    ) -> Tensor:
        """Attend from one position; returns what is added to its state, ``[n_rows, 1, hidden]``.

        Args:
            y: its state, normalised, ``[n_rows, 1, hidden]``.
            rope: of this position.
            cached: keys and values of the layer, ``[2, n_rows, n_kv_heads, length, head_dim]``.
            position: in its row, ``[1] int64``.
            mask: ``[1, 1, 1, seen]`` with 0 up to this position and minus infinity after it; only
                so much of the cache is read.
            pieces: what lies between the products.
        """
        q, k, v = self._qkv(y)
        q, k = pieces.turned_pair(q, k, rope)
        keys, values = cached
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        # The heads that share keys are queries of one head: so the keys are read once for all.
        n_rows, group, seen = len(y), self._heads // self._kv_heads, mask.shape[-1]
        mixed = F.scaled_dot_product_attention(
            q.reshape(n_rows, self._kv_heads, group, self._dim),
            keys[:, :, :seen],
            values[:, :, :seen],
            attn_mask=mask.expand(n_rows, self._kv_heads, group, seen),
        )
        out: Tensor = self.o(mixed.reshape(n_rows, 1, -1))
        return out

    def mlp(self, y: Tensor, pieces: Pieces) -> Tensor:
        """Compute the MLP of a state, normalised.

        Args:
            y: ``[n_rows, 1, hidden]``.
            pieces: what lies between the products.
        """
        out: Tensor = self.down(pieces.gated(self.gate(y), self.up(y)))
        return out

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def heads(y: Tensor) -> Tensor:
            return y.view(*y.shape[:2], -1, self._dim).transpose(1, 2)

        return heads(self.q(x)), heads(self.k(x)), heads(self.v(x))


class Llama(nn.Module):
    """A decoder whose input and output embeddings are one.

    Args:
        shape: of the model.
        max_length: positions that rows may have.
        device: where it lies.
        dtype: of its weights.
        seed: of its weights.
    """

    def __init__(
        self,
        shape: ModelShape,
        max_length: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shape = shape
        with device:
            self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size, dtype=dtype)
            self.blocks = nn.ModuleList(
                DecoderBlock(shape).to(dtype) for _ in range(shape.n_layers)
            )
            self.norm = nn.RMSNorm(shape.hidden_size, eps=EPS, dtype=dtype)
            self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False, dtype=dtype)
            self.value = nn.Linear(shape.hidden_size, 1, bias=False, dtype=dtype)
            generator = torch.Generator(device).manual_seed(seed)
            for weight in self.parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight, std=INIT_STD, generator=generator)
            self.head.weight = self.embedding.weight
            half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
            turns = torch.outer(torch.arange(max_length).float(), ROPE_THETA**-half)
        angles = torch.cat((turns, turns), -1)
        self.register_buffer("_cos", angles.cos(), persistent=False)
        self.register_buffer("_sin", angles.sin(), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.embedding.weight.device

    def get_output_embeddings(self) -> nn.Module:
        """The layer that gives each token's score."""
        return self.head

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every token at every position: ``[n_rows, length, vocab]``."""
        out: Tensor = self.head(self.hidden(tokens))
        return out

    def hidden(self, tokens: Tensor) -> Tensor:
        """Compute the last layer's state, normalised: ``[n_rows, length, hidden]``.

        Args:
            tokens: ``[n_rows, length] int64``.
        """
        x, rope = self.embedding(tokens), self._rope(slice(0, tokens.shape[1]))
        for block in self.blocks:
            x = block(x, rope)
        out: Tensor = self.norm(x)
        return out

    def rewards(self, tokens: Tensor) -> Tensor:
        """Score each row by its last token, ``[n_rows]``.

        Args:
            tokens: ``[n_rows, length] int64``.
        """
        out: Tensor = self.value(self.hidden(tokens)[:, -1])[:, 0]
        return out

    def log_probs(self, tokens: Tensor, n_prompt: int, at_once: int = 8192) -> Tensor:
        """Log-probability of each completion token, ``[n_rows, length - n_prompt] float32``.

        Args:
            tokens: ``[n_rows, length] int64``.
            n_prompt: tokens of the prompt, whose probabilities nobody asks for.
            at_once: completion tokens whose scores are held at the same time.
        """
        # The state before a token tells its probability.
        state = self.hidden(tokens[:, :-1])[:, n_prompt - 1 :].flatten(0, 1)
        wanted = tokens[:, n_prompt:].flatten()
        pairs = zip(torch.split(state, at_once), torch.split(wanted, at_once), strict=True)
        parts = [
            -F.cross_entropy(self.head(some).float(), targets, reduction="none")
            for some, targets in pairs
        ]
        return torch.cat(parts).view(len(tokens), -1)

    def new_cache(self, n_rows: int, length: int) -> Tensor:
        """Make an empty cache, ``[n_layers, 2, n_rows, n_kv_heads, length, head_dim]``.

        Keys and values stand in its second dimension.

        Args:
            n_rows: rows of the batch.
            length: tokens that a row may have in it.
        """
        s = self.shape
        sizes = (s.n_layers, 2, n_rows, s.n_kv_heads, length, s.head_dim)
        return torch.zeros(sizes, device=self.device, dtype=self.embedding.weight.dtype)

    def prefill(self, tokens: Tensor, cache: Tensor) -> Tensor:
        """Fill a cache from its beginning; returns the scores after the last token, [rows, vocab].

        Args:
            tokens: ``[n_rows, length] int64``.
            cache: that is filled.
        """
        length = tokens.shape[1]
        x, rope = self.embedding(tokens), self._rope(slice(0, length))
        for (keys, values), block in zip(cache, self._layers(), strict=True):
            x, keys[:, :, :length], values[:, :, :length] = block.full(x, rope)
        out: Tensor = self.head(self.norm(x[:, -1]))
        return out

    def step(
        self, tokens: Tensor, position: Tensor, seen: int, cache: Tensor, pieces: Pieces = EAGER
    ) -> Tensor:
        """Compute one token of each row on a cache; returns the scores after it, [rows, vocab].

        Args:
            tokens: ``[n_rows] int64``.
            position: of all of them, ``[1] int64`` on the device.
            seen: length of the cache that is read, above the position.
            cache: that holds all tokens before and takes up this one.
            pieces: what lies between the matrix products.
        """
        x, rope = self.embedding(tokens[:, None]), self._rope(position)
        after = torch.arange(seen, device=x.device) > position
        mask = torch.zeros(seen, device=x.device, dtype=x.dtype).masked_fill(after, float("-inf"))
        mask = mask.view(1, 1, 1, seen)
        layers = self._layers()
        norms = [*(block.attention_norm.weight for block in layers[1:]), self.norm.weight]
        y: Tensor = layers[0].attention_norm(x)
        for block, cached, following in zip(layers, cache, norms, strict=True):
            mixed = block.step(y, rope, cached, position, mask, pieces)
            x, y = pieces.added(x, mixed, block.mlp_norm.weight)
            x, y = pieces.added(x, block.mlp(y, pieces), following)
        out: Tensor = self.head(y[:, 0])
        return out

    def _layers(self) -> list[DecoderBlock]:
        return [block for block in self.blocks if isinstance(block, DecoderBlock)]

    def _rope(self, positions: slice | Tensor) -> Rope:
        cos, sin = self.get_buffer("_cos"), self.get_buffer("_sin")
        return cos[positions], sin[positions]
