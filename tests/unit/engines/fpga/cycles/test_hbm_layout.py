"""Where models lie in a card's memory, and when they are refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from decoder_shapes import EIGHT, SEVEN, THIRTEEN, TINY, config
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.devices import load_profile
from ecorl.engines.fpga.cycles.hbm_layout import HbmLayout, Resident, _model_buffers, _work_buffers
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.engine import card_bytes
from ecorl.engines.fpga.estimate import placed, workload
from ecorl.errors import CheckpointError
from ecorl.records import Stage
from tests.examples import examples

U55C, V80 = load_profile("u55c"), load_profile("v80")
CAPACITY = 32 << 29


def both(of, n_tokens=512, n_rows=1):
    return [
        workload("mine", of, Stage.REWARD, n_tokens, n_rows),
        workload("other", of, Stage.REFERENCE, n_tokens, n_rows),
    ]


def check(placement: HbmLayout):
    """Nothing overflows, and the sums agree."""
    assert len(placement.used_bytes) == placement.n_channels
    assert all(0 <= n <= placement.channel_bytes for n in placement.used_bytes)
    assert sum(r.n_bytes for r in placement.regions) == placement.n_bytes
    for region in placement.regions:
        assert set(region.channels) <= set(range(placement.n_channels))
        assert len(region.channels) * placement.channel_bytes >= region.n_bytes


def test_a_7b_reward_model_and_its_reference_share_a_u55c():
    placement = placed(both(SEVEN), U55C)
    check(placement)
    assert (placement.n_channels, placement.channel_bytes) == (32, 512 << 20)
    groups = {r.group: r for r in placement.regions}
    weights = [r.n_bytes for g, r in groups.items() if g.endswith("weights")]
    # INT8: a byte a weight of 32 layers, and of one head of 32,000 rows; one reward takes 16.
    layers = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert weights == [layers + 16 * 4096, layers + 32000 * 4096]
    # Nothing else lies where the batch's buffers are: 27 channels hold the models.
    work = {c for g, r in groups.items() if g.startswith("work") for c in r.channels}
    models = {c for g, r in groups.items() if not g.startswith("work") for c in r.channels}
    assert not work & models


def test_models_that_do_not_fit_together_are_refused_in_one_line_with_the_bytes():
    with pytest.raises(CheckpointError) as caught:
        placed(both(THIRTEEN), U55C)
    line = str(caught.value)
    assert "\n" not in line
    assert "mine (reward) and other (reference)" in line
    needed, capacity, channel = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]{9,}", line))
    assert needed > 2 * card_bytes(THIRTEEN) > CAPACITY == capacity
    assert channel == 512 << 20
    check(placed(both(THIRTEEN)[:1], U55C))
    check(placed(both(THIRTEEN), V80))


def test_a_batch_can_be_too_large_where_the_models_are_not():
    check(placed(both(EIGHT), U55C))
    with pytest.raises(CheckpointError, match="buffers"):
        placed(both(EIGHT, 8192, 4), U55C)


def test_stripes_of_a_matrix_lie_in_different_channels():
    """A card of two channels: each gets a half of every matrix, and no third stripe finds room."""
    figures = dict(U55C.figures)
    figures["memory_channels"] = replace(figures["memory_channels"], value=2.0)
    two = replace(U55C, figures=figures)
    placement = placed(both(TINY)[:1], two)
    check(placement)
    (weights,) = (r for r in placement.regions if r.group.endswith("weights"))
    assert weights.channels == (0, 1)
    figures["memory_channels"] = replace(figures["memory_channels"], value=1.0)
    with pytest.raises(CheckpointError, match="pieces"):
        placed(both(TINY)[:1], replace(U55C, figures=figures))


def test_unknown_channels_are_none_and_no_guess():
    for key in ("memory_channels", "memory_channel_bytes"):
        figures = {k: v for k, v in U55C.figures.items() if k != key}
        assert placed(both(SEVEN), replace(U55C, figures=figures)) is None


def test_work_space_is_shared_by_models_that_run_one_after_the_other():
    small, large = TINY, config(2, 128, 352, 4, 4, 32, 500, reward=False)
    works = [
        workload("a", small, Stage.REWARD, 100),
        workload("b", large, Stage.REFERENCE, 100),
    ]
    placement = placed(works, U55C)
    sizes = {r.group: r.n_bytes for r in placement.regions if r.group.startswith("work")}
    alone = [_work_buffers(Resident(w.name, w.config, w.batch)) for w in works]
    assert sizes == {g: max(own[g] for own in alone) for g in alone[0]}


def test_bytes_are_at_least_what_the_engine_counts():
    """The layouts of the kernels fill up to words; the engine's sum has no padding."""
    for of in (TINY, SEVEN, EIGHT, THIRTEEN):
        for reward in (True, False):
            own = replace(of, is_reward=reward)
            placed_bytes = sum(
                b.n_bytes for b in _model_buffers(Resident("m", own, BatchShape((), (), 1)), 2)
            )
            assert placed_bytes >= card_bytes(own)
            if of is not TINY:
                assert placed_bytes == pytest.approx(card_bytes(own), rel=0.005)


@settings(max_examples=examples(40), deadline=None)
@given(
    layers=st.integers(1, 6),
    heads=st.integers(1, 16),
    d=st.sampled_from([16, 64, 128]),
    inner=st.integers(16, 16_384),
    vocab=st.integers(1, 150_000),
    tokens=st.integers(2, 4000),
    channels=st.integers(1, 40),
    size=st.integers(1 << 20, 1 << 30),
)
def test_it_fits_or_it_is_refused(layers, heads, d, inner, vocab, tokens, channels, size):
    figures = dict(U55C.figures)
    for key, value in (("memory_channels", channels), ("memory_channel_bytes", size)):
        figures[key] = replace(figures[key], value=float(value))
    works = both(config(layers, heads * d, inner, heads, heads, d, vocab), tokens)
    try:
        check(placed(works, replace(U55C, figures=figures)))
    except CheckpointError as error:
        told = str(error)
    else:
        return
    assert f"{channels} channels" in told
    assert f"{size:,}" in told
