"""The cycle model: how long a card would take for a batch, term by term. Everything is modelled.

The array is ``gemm_int8`` as written: TILE_M x TILE_N x TILE_K = 4,096 multiply-accumulates a
cycle on 2,048 DSPs. A profile's DSP budget (``n_dsp_used`` x ``macs_per_dsp``) decides how many
such arrays there are; they share the columns of each product. No synthesis report backs any figure:

- the array: loop counts of the kernel in closed form (`gemm_counts`), initiation interval 1
  assumed, waits for activations included;
- memory: activations, weights (once for each block of 64 rows, as the kernel reads them) and INT32
  results at the profile's full bandwidth;
- vector units: VECTOR_LANES float32 lanes an array, II = 1, a fixed number of passes per result
  (`PASSES`); they work on one tile while the array works on the next;
- a product takes the longest of the three; products follow one another;
- ``launch_s`` of the profile a layer, and once for the head, where the profile has it;
- the link: 4 bytes a token id in, 4 bytes a reward or log-prob out, ``link_latency_s`` each way.

The schedule is that of the C-simulation: attention takes blocks of 64 queries of one sequence over
pages of 64 keys up to the last query, the second product twice (a weight is two codes), the last
layer goes on with the wanted tokens only, the head sees nothing else, and a prompt that rows share
is computed once. Energy is the profile's
``active_w`` over the whole time.

Before a batch is placed its rows are not all known, only their number, their tokens and their
completion tokens: `mean_rows` spreads these evenly. Every product with weights, the link and the
launches depend on the sums alone, so the modelled time is then off by what attention gains or
loses, and by nothing for equal rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from ecorl.devices import DeviceProfile
from ecorl.devices.card import n_arrays
from ecorl.engines.fpga.gemm import TILE_M, gemm_counts
from ecorl.records import ModelShape, Stage, StageWork

VECTOR_LANES = 32
"""Float32 lanes of the vector units beside one array: two 512-bit words of INT32 results a cycle.
Not from a synthesis: at about 30 DSPs a lane (3 a multiplier, 2 an adder) 32 lanes take 960, which
with the array's 2,048 stays within the 3,136 DSPs of the paper's Table 2."""

PASSES = {"norm": 2, "qkv": 2, "scores": 3, "context": 2, "residual": 1, "gate": 2, "head": 2}
"""Passes of the vector units over each result: dequantise and find the maximum, then quantise;
softmax finds its maximum first."""

_ID_BYTES = 4
_RESULT_BYTES = 4
_QUERY_BLOCK = TILE_M
PAGE = 64
"""Keys of one page of the cache, and of one step of the softmax."""


@dataclass(frozen=True, slots=True)
class CardTime:
    """Modelled time and energy of one batch on a card, with each term.

    Attributes:
        array_s: cycles of the MAC array over the clock, summed over products, s.
        memory_s: memory traffic over the bandwidth, summed over products, s.
        vector_s: cycles of the vector units over the clock, summed over products, s.
        kernel_s: sum over products of the longest of the three, s.
        launch_s: kernel starts, s.
        link_s: transfers of ids and results and their latency, s.
        time_s: kernel + launch + link, s.
        energy_j: ``active_w`` x ``time_s``, J.
        macs: useful multiply-accumulates.
        memory_bytes: bytes through the card's memory.
    """

    array_s: float
    memory_s: float
    vector_s: float
    kernel_s: float
    launch_s: float
    link_s: float
    time_s: float
    energy_j: float
    macs: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Product:
    """Equal products ``[m, k] x [n, k]^T``, ``repeat`` of them, and vector work on the results.

    Attributes:
        vector_elements: element operations of the vector units per product.
    """

    m: int
    n: int
    k: int
    vector_elements: int
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What the cycle model must know of a batch.

    Attributes:
        lengths: tokens of each row.
        wanted: tokens of each row whose last hidden state is needed (1 for a reward, the number
            of completion tokens for log-probs).
        head_rows: outputs of the head: 1, or the vocabulary.
        first_positions: of the first token of each row, where rows go on from a shared prompt that
            is a row of its own; empty: all 0.
        n_results: results that cross the link; None: one a row for a reward, else all wanted.
    """

    lengths: tuple[int, ...]
    wanted: tuple[int, ...]
    head_rows: int
    first_positions: tuple[int, ...] = ()
    n_results: int | None = None


class CycleModel:
    """Time and energy of a decoder on one card.

    Args:
        model: the decoder's shape.
        profile: a card with ``clock_hz``, ``n_dsp_used``, ``macs_per_dsp``,
            ``memory_bytes_per_s``, ``link_bytes_per_s``, ``link_latency_s`` and ``active_w``.

    Raises:
        ConfigError: when the profile lacks a figure, or its DSP budget holds no array.
    """

    def __init__(self, model: ModelShape, profile: DeviceProfile) -> None:
        self.model = model
        self.clock_hz = profile.value("clock_hz")
        self.memory_bytes_per_s = profile.value("memory_bytes_per_s")
        self.link_bytes_per_s = profile.value("link_bytes_per_s")
        self.link_latency_s = profile.value("link_latency_s")
        self.launch_s = profile.get("launch_s") or 0.0
        self.active_w = profile.value("active_w")
        self.n_arrays = n_arrays(profile)

    def batch(self, batch: BatchShape) -> CardTime:
        """Modelled time and energy of one batch; all zero for an empty one."""
        products = decoder_products(self.model, batch)
        macs = sum(p.repeat * p.m * p.n * p.k for p in products)
        terms = [_terms(p, self.n_arrays) for p in products]
        array_s = sum(t[0] for t in terms) / self.clock_hz
        vector_s = sum(t[2] for t in terms) / self.clock_hz
        memory_bytes = sum(t[1] for t in terms)
        kernel_s = self.kernel_s(products)
        n_tokens, n_wanted = sum(batch.lengths), sum(batch.wanted)
        n_results = batch.n_results
        if n_results is None:
            n_results = len(batch.lengths) if batch.head_rows == 1 else n_wanted
        launch_s = link_s = 0.0
        if n_tokens:
            launch_s = self.launch_s * (self.model.n_layers + 1)
            moved = _ID_BYTES * n_tokens + _RESULT_BYTES * n_results
            link_s = moved / self.link_bytes_per_s + 2 * self.link_latency_s
        time_s = kernel_s + launch_s + link_s
        return CardTime(
            array_s=array_s,
            memory_s=memory_bytes / self.memory_bytes_per_s,
            vector_s=vector_s,
            kernel_s=kernel_s,
            launch_s=launch_s,
            link_s=link_s,
            time_s=time_s,
            energy_j=self.active_w * time_s,
            macs=macs,
            memory_bytes=memory_bytes,
        )

    def kernel_s(self, products: Iterable[Product]) -> float:
        """Time of products one after the other, each the longest of its three terms, s."""
        return sum(
            max(array / self.clock_hz, moved / self.memory_bytes_per_s, vector / self.clock_hz)
            for array, moved, vector in (_terms(p, self.n_arrays) for p in products)
        )


def mean_rows(work: StageWork) -> BatchShape:
    """A batch of the work's sums with rows, and completions in them, as even as can be.

    Rows of one length are as given; otherwise see the module's text for what that changes.
    """
    n_rows = min(work.n_sequences, work.n_tokens)
    if n_rows <= 0:
        return BatchShape((), (), 1)
    lengths = _spread(work.n_tokens, n_rows)
    if work.stage is Stage.REWARD:
        return BatchShape(lengths, (1,) * n_rows, 1)
    wanted = _spread(min(work.n_output_tokens, work.n_tokens), n_rows)
    return BatchShape(lengths, wanted, work.model.vocab_size if work.model else 1)


def _spread(total: int, n_rows: int) -> tuple[int, ...]:
    least, n_longer = divmod(total, n_rows)
    return (least + 1,) * n_longer + (least,) * (n_rows - n_longer)


@lru_cache(maxsize=4096)
def _terms(product: Product, n_arrays: int) -> tuple[int, int, int]:
    """Array cycles, bytes through memory and vector cycles, repeats included."""
    counts = gemm_counts(product.m, -(-product.n // n_arrays), product.k)
    whole = gemm_counts(product.m, product.n, product.k)
    traffic = whole.bytes_a + whole.bytes_w + whole.bytes_c
    vector = -(-product.vector_elements // (VECTOR_LANES * n_arrays))
    times = product.repeat
    return times * (counts.mac_cycles + counts.fill_cycles), times * traffic, times * vector


def decoder_products(model: ModelShape, batch: BatchShape) -> list[Product]:
    """Every product of a forward: those with weights, then those of attention."""
    if sum(batch.wanted) == 0:
        return []
    return weight_products(model, batch) + attention_products(model, batch)


def weight_products(model: ModelShape, batch: BatchShape) -> list[Product]:
    """The products with weights; they depend on sums over rows alone."""
    n_tokens, n_wanted = sum(batch.lengths), sum(batch.wanted)
    products = [
        replace(p, repeat=model.n_layers - 1)
        for p in _layer(model, n_tokens, n_tokens)
        if model.n_layers > 1
    ]
    products += _layer(model, n_tokens, n_wanted)
    passes = PASSES["head"] * n_wanted * batch.head_rows
    norm = PASSES["norm"] * n_wanted * model.hidden_size
    products.append(Product(n_wanted, batch.head_rows, model.hidden_size, passes + norm))
    return products


def attention_products(model: ModelShape, batch: BatchShape) -> list[Product]:
    """Both products of attention in every layer; equal runs of tokens are counted, not listed."""
    products: list[Product] = []
    firsts = batch.first_positions or (0,) * len(batch.lengths)
    if model.n_layers > 1:
        for (first, length), count in Counter(zip(firsts, batch.lengths, strict=True)).items():
            products += _attention(model, first, length, (model.n_layers - 1) * count)
    rows = Counter(zip(firsts, batch.lengths, batch.wanted, strict=True))
    for (first, length, wanted), count in rows.items():
        products += _attention(model, first + length - wanted, wanted, count)
    return products


def _layer(model: ModelShape, n_tokens: int, n_out: int) -> list[Product]:
    """The products with weights of one layer; all but the first for `n_out` tokens only."""
    hidden, inner = model.hidden_size, model.intermediate_size
    width = model.n_heads * model.head_dim
    qkv = width + 2 * model.n_kv_heads * model.head_dim
    norm = PASSES["norm"] * hidden
    return [
        Product(n_tokens, qkv, hidden, n_tokens * (PASSES["qkv"] * qkv + norm)),
        Product(n_out, hidden, width, n_out * (PASSES["residual"] * hidden + 2 * width)),
        Product(n_out, 2 * inner, hidden, n_out * (PASSES["gate"] * 2 * inner + norm)),
        Product(n_out, hidden, inner, n_out * PASSES["residual"] * hidden),
    ]


@lru_cache(maxsize=4096)
def _attention(model: ModelShape, first: int, n: int, times: int) -> tuple[Product, ...]:
    """Both products of all heads for n queries from a position on, repeated."""
    products: Counter[int] = Counter()
    for start in range(first, first + n, _QUERY_BLOCK):
        end = min(start + _QUERY_BLOCK, first + n)
        for page in range((end - 1) // PAGE + 1):
            products[end - max(start, page * PAGE)] += 1  # the queries that see this page
    d, repeat = model.head_dim, model.n_heads * times
    found = []
    for rows, count in products.items():
        scores, context = PASSES["scores"] * rows * PAGE, PASSES["context"] * rows * d
        found += [
            Product(rows, PAGE, d, scores, repeat * count),
            Product(2 * rows, d, PAGE, context, repeat * count),
        ]
    return tuple(found)
