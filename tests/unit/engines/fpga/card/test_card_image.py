"""A model's constants in the card's memory, and the buffers that hold them and the rest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.engines.fpga.card.image import (
    REGIONS,
    WORD,
    digest_of,
    fill,
    head_blocks,
    place_model,
)
from ecorl.engines.fpga.card.plan import At
from ecorl.engines.fpga.card.runner import CardMemory
from ecorl.engines.fpga.kernels.banks import PORTS, SLOTTED
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces
from ecorl.engines.fpga.numerics.formats import integer_decoder, rope_tables
from ecorl.errors import DriverError
from tests.fakes import cards

N_POSITIONS = 70


@pytest.fixture(scope="module", params=cards.MODELS)
def model(request, card_root):
    """A model in the kernels' formats, its places and its image."""
    decoder = integer_decoder(cards.tensors(card_root, request.param))
    placed = place_model(decoder, N_POSITIONS)
    image = {name: np.full(n, 0xCD, np.uint8) for name, n in placed.sizes.items()}
    fill(image, placed, decoder, cards.int8_models.library("fast"))
    return decoder, placed, image


def linears(decoder, placed):
    for at, layer in zip(placed.layers, decoder.layers, strict=True):
        yield at.linears["qkv"], layer.qkv
        yield at.linears["output"], layer.output
        yield at.linears["gate_up"], layer.gate_up
        yield at.linears["down"], layer.down
    yield from zip(placed.head, head_blocks(decoder.head), strict=True)


def norms(decoder, placed):
    for at, layer in zip(placed.layers, decoder.layers, strict=True):
        yield at.norms["attention_norm"], layer.attention_norm
        yield at.norms["mlp_norm"], layer.mlp_norm
    yield placed.final_norm, decoder.final_norm


def test_places_follow_each_other_and_fill_their_regions(model):
    decoder, placed, _ = model
    halves = sorted((s.at, s.n_bytes) for at, _ in linears(decoder, placed) for s in at.slices)
    sides = [(at.side, len(norm.weight) * 4) for at, norm in norms(decoder, placed)]
    sides += [(at.side, 1) for at, _ in linears(decoder, placed)]
    assert all(at + n == following for (at, n), (following, _) in pairwise(halves))
    assert halves[0][0] == 0
    assert sum(halves[-1]) == placed.sizes["low"] == placed.sizes["high"]
    for (at, n_bytes), (following, _) in pairwise(sorted(sides)):
        assert at + n_bytes <= following
    for at, _ in (*halves, *sides):
        assert at % (WORD // 2) == 0
    assert all(at % WORD == 0 for at, _ in sides)
    assert placed.rope + N_POSITIONS * 4 * WORD == placed.sizes["tables"]
    assert set(placed.sizes) == set(REGIONS)


def test_weights_are_what_the_library_packs_in_two_halves(model):
    decoder, placed, image = model
    library = cards.int8_models.library("fast")
    for at, linear in linears(decoder, placed):
        first = 0
        for part in at.slices:
            packed = library.pack(np.ascontiguousarray(linear.codes[:, first : first + part.k]))
            low, high = (image[h][part.at : part.at + part.n_bytes] for h in ("low", "high"))
            both = np.stack([low.reshape(-1, 32), high.reshape(-1, 32)], axis=1)
            assert np.array_equal(both.reshape(-1), packed.data.view(np.uint8))
            first += part.k
        assert first == linear.codes.shape[1]


def test_constants_of_channels_norms_and_heads(model):
    decoder, placed, image = model
    sides = image["sides"].view(np.int32).reshape(-1, 16)
    for at, norm in norms(decoder, placed):
        n = len(norm.weight)
        assert np.array_equal(sides[at.side // WORD :].reshape(-1)[:n], norm.weight)
    d = decoder.config.shape.head_dim
    for at, linear in linears(decoder, placed):
        n, words = len(linear.codes), sides[at.side // WORD :]
        is_heads = any(linear is layer.qkv for layer in decoder.layers)
        if is_heads:  # one panel in these models: 64 exponents, then the channels
            exponents = linear.exponents + 32 - linear.input_shift
            assert np.array_equal(words.reshape(-1)[: n // d], exponents)
            words = words[4:]
        channels = words[: -(-n // 16) * 3].reshape(-1, 3, 16).swapaxes(0, 1).reshape(3, -1)[:, :n]
        bias = np.zeros(n) if linear.bias is None else linear.bias
        for row, wanted in zip(channels, (linear.mantissa, linear.shift, bias), strict=True):
            assert np.array_equal(row, wanted)


def test_tables_of_tokens_and_positions(model):
    decoder, placed, image = model
    table = image["tables"].view(np.int16)
    tokens = table[: placed.rope // 2].reshape(len(decoder.embedding), -1)
    hidden = decoder.config.shape.hidden_size
    assert np.array_equal(tokens[:, 0], decoder.embedding_exponent)
    assert np.array_equal(tokens[:, 32 : 32 + hidden], decoder.embedding)
    assert not tokens[:, 1:32].any()
    positions = table[placed.rope // 2 :].reshape(N_POSITIONS, 2, 64)
    half = decoder.config.shape.head_dim // 2
    for part, wanted in enumerate(rope_tables(decoder.config, N_POSITIONS)):
        assert np.array_equal(positions[:, part, :half], wanted)
        assert not positions[:, part, half:].any()


def test_an_image_is_the_same_each_time_and_in_any_memory(model):
    decoder, placed, image = model
    again = {name: np.full(n, 0x11, np.uint8) for name, n in placed.sizes.items()}
    fill(again, placed, decoder, cards.int8_models.library("fast"))
    assert digest_of(again[r] for r in REGIONS) == digest_of(image[r] for r in REGIONS)
    again["sides"][5] ^= 1
    assert digest_of(again[r] for r in REGIONS) != digest_of(image[r] for r in REGIONS)


def test_long_inputs_lie_in_slices(card_root, monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.kernels.sequence.MAX_K", 40)
    decoder = integer_decoder(cards.tensors(card_root, "llama_reward"))
    placed = place_model(decoder, 8)
    assert [s.k for s in placed.layers[0].linears["down"].slices] == [40, 40, 32]
    assert [s.k for s in placed.layers[0].linears["qkv"].slices] == [40, 24]


# ---- buffers -----------------------------------------------------------------------------------


class Part:
    def __init__(self, n_bytes):
        self.n_bytes = n_bytes

    def part(self, offset, n_bytes):
        assert offset + n_bytes <= self.n_bytes
        return Part(n_bytes)


class Room:
    """A card with so much memory; a buffer takes it as long as somebody holds it."""

    def __init__(self, n_bytes=1 << 60):
        self.left, self.sizes = n_bytes, []

    def allocate(self, n_bytes, *ports):
        assert ports
        if n_bytes > self.left:
            raise DriverError("no room")
        self.left -= n_bytes
        self.sizes.append(n_bytes)
        room = self

        class Held(Part):
            def __del__(self):
                room.left += self.n_bytes

        return Held(n_bytes)


def memory(room):
    return CardMemory(room, {k.kernel: k for k in kernel_interfaces()})


@given(
    sizes=st.lists(
        st.tuples(
            st.sampled_from(sorted(PORTS)), st.integers(1, 1 << 20), st.integers(0, 1)
        ), max_size=30,
    )
)  # fmt: skip
def test_a_reserved_buffer_is_large_enough_and_used_again(sizes):
    room = Room()
    buffers, largest = memory(room), {}
    for name, n_bytes, slot in sizes:
        made = buffers.reserve(name, n_bytes, slot)
        key = (name, slot if name in SLOTTED else 0)
        largest[key] = max(largest.get(key, 0), n_bytes)
        assert made.n_bytes >= n_bytes
        assert made.n_bytes <= max(4096, 2 * largest[key])
        assert buffers.at(At(name), slot) is made is buffers.reserve(name, 1, slot)
        assert buffers.at(At(name, 64), slot) is buffers.at(At(name, 64), slot)
    assert len(room.sizes) <= sum(n.bit_length() for n in largest.values())


def test_growth_gives_the_old_memory_back_first():
    room = Room(100_000)
    buffers = memory(room)
    buffers.reserve("x", 60_000)
    buffers.at(At("x", 64), 0)
    assert buffers.reserve("x", 90_000).n_bytes == 90_000  # 120,000 are not there
    buffers.reserve("x", 90_000)
    assert room.sizes == [60_000, 90_000]
    with pytest.raises(DriverError, match="no room"):
        buffers.reserve("x", 110_000)
    assert buffers.reserve("x", 100_000).n_bytes == 100_000


def test_weights_have_exactly_their_size():
    room = Room(100_000)
    buffers = memory(room)
    first = buffers.exact("low", 60_000)
    assert buffers.exact("low", 60_000) is first
    del first
    assert buffers.exact("low", 50_000).n_bytes == 50_000
    assert buffers.exact("low", 100_000).n_bytes == 100_000
    assert room.left == 0


def test_parts_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.runner._MOST_PARTS", 4)
    buffers = memory(Room())
    buffers.reserve("x", 64 * 100)
    for i in range(1, 40):
        assert buffers.at(At("x", 64 * i), 0).n_bytes == 64 * (100 - i)
        assert len(buffers._parts) <= 4


def test_a_buffer_that_nobody_reserved_is_a_mistake():
    with pytest.raises(KeyError):
        memory(Room()).at(At("x"), 0)
