"""Variants with outlier channels, and the figures that the precision benchmark makes."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.outliers import PLACES, plant
from benchmarks.studies.peers import ModelSize, make_reward_checkpoint
from ecorl.engines.fpga.validation import scoring
from ecorl.engines.fpga.validation.scoring import TokenPair, different
from ecorl.engines.fpga.verdict import study_of
from ecorl.engines.models.checkpoint import load_decoder

ROOT = Path(__file__).resolve().parents[3]
VOCAB = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("precision") / "reward"
    make_reward_checkpoint(folder, ModelSize(64, 2, 128, 4, 2, VOCAB), 48, seed=3)
    return folder


@pytest.fixture
def script(monkeypatch, require_tool):
    require_tool("trl")
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.precision")


def pair(chosen, rejected, line=1):
    return TokenPair(np.array(chosen), np.array(rejected), line)


def random_pairs(n):
    rng = np.random.default_rng(4)
    rows = [rng.integers(1, VOCAB, rng.integers(3, 30)) for _ in range(2 * n)]
    return [TokenPair(a, b, i) for i, (a, b) in enumerate(zip(rows[::2], rows[1::2], strict=True))]


def by_id(figures):
    figures = list(figures)
    assert len({f.id for f in figures}) == len(figures)
    return {f.id: f for f in figures}


# ---------------------------------------------------------------- outliers


@pytest.mark.parametrize("place", PLACES)
def test_one_channel_in_64_is_an_outlier_of_the_given_size(folder, place):
    plain = load_decoder(folder)
    planted = plant(plain, (place,), size=50.0, seed=1)
    made = {
        "norm": ("input_layernorm.weight", "self_attn.v_proj.weight", 1),
        "up": ("mlp.up_proj.weight", "mlp.down_proj.weight", 2),
        "values": ("self_attn.v_proj.weight", "self_attn.o_proj.weight", 2),  # one a value head
        "keys": ("self_attn.k_proj.weight", None, 4),  # one pair of dimensions a key head
    }
    source, reader, count = made[place]
    for layer in range(2):
        name = f"model.layers.{layer}.{source}"
        ratio = (planted.tensor(name) / plain.tensor(name)).reshape(len(plain.tensor(name)), -1)
        larger = np.isclose(ratio[:, 0], 50)
        assert larger.sum() == count
        np.testing.assert_allclose(ratio[~larger], 1)
        if reader:
            name = f"model.layers.{layer}.{reader}"
            ratio = planted.tensor(name) / plain.tensor(name)
            share = 2 if place == "values" else 1  # query heads that read a value head
            assert np.isclose(ratio[0], 1 / 50).sum() == share * count


def test_places_do_not_change_each_others_channels(folder):
    plain = load_decoder(folder)
    one, every = plant(plain, ("up",)), plant(plain, PLACES)
    name = "model.layers.1.mlp.down_proj.weight"
    np.testing.assert_array_equal(one.tensor(name), every.tensor(name))
    with pytest.raises(ValueError, match="'gate'"):
        plant(plain, ("gate",))


def test_variants_are_the_same_function_and_equalisation_mends_them(folder, require_tool, script):
    require_tool("gxx")
    pairs = random_pairs(100)
    found = script.variants(folder, pairs)
    assert [variant.place for variant in found] == [*PLACES, "all"]
    study = scoring.study(folder, pairs)
    plain = study.of(scoring.INT8)
    for variant in found:
        assert variant.function_shift < 1e-5 * study.score_std
        assert variant.equalised.shift_mean < 1.5 * plain.shift_mean
    assert found[-1].raw.shift_mean > 4 * plain.shift_mean


# ---------------------------------------------------------------- the benchmark


def test_further_pairs_are_of_one_prompt_and_all_different(script):
    pairs = [pair([1, 5], [1, 6]), pair([1, 7], [1, 5]), pair([2, 5], [2, 6]), pair([3, 1], [3, 2])]
    prompts = ["a", "a", "b", "c"]
    found = script.more_pairs(pairs, prompts, 99)
    assert list(found[:4]) == pairs
    (more,) = found[4:]
    assert {more.chosen[1], more.rejected[1]} == {6, 7}  # the only two answers not compared yet
    assert different(found).n_repeated == 0
    assert len(script.more_pairs(pairs, prompts, 3)) == 3


def a_study(n_pairs=2000):
    exact = np.random.default_rng(0).normal(size=(n_pairs, 2)).astype(np.float32)
    flipped = exact.copy()
    flipped[:100] = flipped[:100, ::-1]
    scores = {scoring.FP16: exact, scoring.INT8: flipped, scoring.INT4: -exact}
    return study_of(exact, scores)


def test_the_figures_of_a_study(script):
    figures = by_id(script.study_figures(a_study()))
    int8 = figures["engine.int8_rank_flip_share"]
    assert (int8.value, int8.holds, str(int8.provenance)) == (0.05, False, "emulated")
    assert int8.spread["n_flips"] == 100
    assert "0.38 %" in int8.note
    assert figures["engine.fp16_rank_flip_share"].value == 0
    assert figures["engine.int4_rank_flip_share"].value == 1
    assert figures["engine.int8_rank_flip_share_low_margin"].spread["n"] == 200
    assert figures["engine.int4_score_shift_p99"].value > 0


def test_too_few_pairs_give_no_share(script):
    figures = by_id(script.study_figures(a_study(150), enough=False))
    share = figures["engine.int8_rank_flip_share"]
    assert (share.value, share.holds) == (None, None)
    assert "150 pairs" in share.note
    assert figures["engine.int8_score_shift_mean"].value is not None


def test_the_figures_of_variants(script):
    study = a_study()
    int8, worse = study.of(scoring.INT8), study.of(scoring.INT4)
    variant = script.Variant("up", 1e-6, int8, worse)
    figures = by_id(script.variant_figures(study, [variant]))
    assert figures["engine.int8_outliers_up_flips"].value == 0.05
    assert figures["engine.int8_outliers_up_flips"].holds is False
    assert figures["engine.int8_outliers_up_flips_raw"].value == 1
    assert figures["engine.int8_outliers_up_shift"].value == 1
    assert figures["engine.int8_outliers_up_shift_raw"].value > 1
    assert figures["engine.outliers_function_shift"].holds is True
