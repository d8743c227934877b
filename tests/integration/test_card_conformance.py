"""One suite for whatever stands behind XRT's names: the same bits as the C-simulation gives.

The devices: XRT itself on its noop driver (computing through the C-simulation), a card in pure
Python in both generations of pyxrt's API, and a real card, where the environment names a bitstream
for it.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from ecorl.engines.fpga.card.health import CardState
from ecorl.errors import CheckpointError, EngineError
from tests.conftest import demand
from tests.fakes import cards
from tests.fakes.pyxrt_python import GENERATIONS

DEVICES = [
    "xrt-noop",
    f"python-{GENERATIONS[-1]}",
    *(pytest.param(f"python-{old}", marks=pytest.mark.deep) for old in GENERATIONS[:-1]),
    pytest.param("card", marks=pytest.mark.fpga),
]
GRPO = (30, 61, 7, 64, 1, 128, 63, 65)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    for tool in ("gxx", "torch"):
        demand(tool)
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", params=DEVICES)
def device(request, root):
    """Makes the setups of so many cards of one kind."""
    if request.param == "xrt-noop":
        demand("xrt")
        yield cards.noop_setups
    elif request.param == "card":
        if cards.BITSTREAM not in os.environ:
            pytest.skip(f"{cards.BITSTREAM} names no bitstream for a card")
        yield cards.real_setups
    else:
        generation = request.param.partition("-")[2]
        with cards.Cards(cards.container_in(root), generation=generation, n_cards=2) as made:
            yield lambda n_cards: made.setups[:n_cards]


@pytest.fixture(scope="module")
def on_device(device, root):
    """A decoder on one card or several, as a context."""
    return lambda name, n_cards=1: cards.on_setups(root, name, device(n_cards))


def batches():
    """Rows and completion tokens: odd lengths, one token, several pages, shared prompts."""
    alone = cards.rows_of(5, 17, 64, 65, 130, 1, 200, 450)
    counts = [max(0, len(row) - 4) for row in alone]
    shared, own = cards.group(100, GRPO)
    whole_page, more = cards.group(64, (1, 64, 3), seed=2)
    return alone + shared + whole_page, counts + own + more


def same(decoder, root, name, rows, counts, temperature=0.7):
    wanted = cards.answers(cards.csim_answers(root, name), rows, counts, temperature)
    assert all(np.isfinite(w).all() for w in wanted)
    return cards.same_rows(cards.answers(decoder, rows, counts, temperature), wanted)


@pytest.mark.parametrize("name", cards.MODELS)
def test_results_have_the_bits_of_the_csimulation(on_device, root, name):
    rows, counts = batches()
    with on_device(name) as decoder:
        assert same(decoder, root, name, rows, counts)
        for row, n in zip(rows[:6], counts, strict=False):
            assert same(decoder, root, name, [row], [n], temperature=1.0)


@pytest.mark.parametrize("name", cards.REWARDS)
def test_process_rewards(on_device, root, name):
    rows, counts = batches()
    places = [np.array([len(r) - 1, 0, len(r) // 2, len(r) // 2]) for r in rows]
    wanted = cards.csim_answers(root, name)
    with on_device(name) as decoder:
        for given in (counts, None):
            got = decoder.score_at(rows, places, given)
            assert cards.same_rows(got, wanted.score_at(rows, places, given))


@pytest.mark.parametrize("name", ["llama_reward", "llama_lm"])
def test_several_groups_and_blocks_of_rows(on_device, root, name, monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", 96)
    monkeypatch.setattr("ecorl.engines.fpga.card.plan_builder.ROWS_AT_ONCE", 32)
    rows, counts = batches()
    with on_device(name) as decoder:
        assert same(decoder, root, name, rows, counts)
        (status,) = decoder.status()
    assert status.n_groups > 5
    assert (status.depth, status.backlog_tokens, status.n_faults) == (0, 0, 0)
    assert 0 <= status.hidden_s <= status.transfer_s


@pytest.mark.parametrize("name", ["qwen_reward", "qwen_lm_tied"])
def test_two_cards_share_the_groups(on_device, root, name, monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", 64)
    rows, counts = batches()
    with on_device(name, 2) as decoder:
        for _ in range(3):
            assert same(decoder, root, name, rows, counts)
        first, second = decoder.status()
    assert (first.index, second.index) == (0, 1)
    assert min(first.n_groups, second.n_groups) > 0
    assert first.weights_digest == second.weights_digest != ""


@pytest.mark.parametrize("name", ["llama_reward", "llama_lm"])
def test_batches_grow_and_shrink(on_device, root, name, monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", 128)
    with on_device(name) as decoder:
        for step, n_rows in enumerate((1, 9, 2, 17, 1, 5)):
            lengths = 1 + np.random.default_rng(step).integers(0, 90 * (1 + step % 3), n_rows)
            rows = cards.rows_of(*lengths, seed=step)
            assert same(decoder, root, name, rows, [len(r) - 1 for r in rows])


@pytest.mark.parametrize("name", ["llama_reward", "llama_lm"])
def test_weights_change_and_change_back(on_device, root, name):
    rows, counts = batches()
    other = f"{name}_other"
    with on_device(name, 2) as decoder:
        digests = []
        for current in (name, other, other, name):
            named = decoder.load(cards.tensors(root, current))
            assert same(decoder, root, current, rows, counts)
            held = {status.weights_digest for status in decoder.status()}
            assert len(held) == 1
            digests.append((named, *held))
    assert digests[0] == digests[3]
    assert digests[1] == digests[2] != digests[0]
    assert len(set(digests[0] + digests[1])) == 4


def test_weights_of_another_shape_are_refused(on_device, root):
    rows, counts = batches()
    with on_device("llama_reward") as decoder:
        with pytest.raises(CheckpointError, match="another shape"):
            decoder.load(cards.tensors(root, "qwen_reward"))
        assert same(decoder, root, "llama_reward", rows, counts)


def test_a_closed_card_answers_at_once(on_device, root):
    with on_device("llama_reward") as decoder:
        assert same(decoder, root, "llama_reward", *batches())
        decoder.close()
        (status,) = decoder.status()
        assert (status.state, status.depth, status.weights_digest) == (CardState.CLOSED, 0, "")
        with pytest.raises(EngineError, match="closed"):
            decoder.score(cards.rows_of(3))
        with pytest.raises(EngineError, match="closed"):
            decoder.load(cards.tensors(root, "llama_reward_other"))


def marked_rows():
    """A number that does not fit: in a prompt, within rows, at an end; and rows without one."""
    alone = cards.rows_of(70, 9, 140, 3)
    for row in alone:
        row[row == cards.MARKED] = 1
    alone[2][66] = alone[3][-1] = cards.MARKED
    counts = [10, 3, 100, 1]
    for seed, place in ((3, 20), (4, None)):
        rows, own = cards.group(40, (5, 30, 64), seed)
        for row in rows:
            row[row == cards.MARKED] = 1
            if place is not None:
                row[place] = cards.MARKED
        alone, counts = alone + rows, counts + own
    alone[-1][50] = cards.MARKED  # in one child alone
    return alone, counts


@pytest.mark.parametrize("name", ["outlier", "outlier_lm"])
@pytest.mark.parametrize("n_tokens", [40, 2048])
def test_marks_reach_later_tokens_and_children_and_nothing_else(
    on_device, root, name, n_tokens, monkeypatch
):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", n_tokens)
    rows, counts = marked_rows()
    reference = cards.csim_answers(root, name)
    wanted = cards.answers(reference, rows, counts)
    with on_device(name) as decoder:
        got = cards.answers(decoder, rows, counts)
        if name == "outlier":
            every = [np.arange(len(row)) for row in rows]
            got += decoder.score_at(rows, every, counts)
            wanted += reference.score_at(rows, every, counts)
        (status,) = decoder.status()
    assert cards.same_rows(got, wanted)
    lost = [np.isnan(w) for w in wanted]
    assert any(one.any() and not one.all() for one in lost)
    assert {bool(one.all()) for one in lost} == {True, False}
    assert status.n_faults == 0
