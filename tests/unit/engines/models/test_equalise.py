"""Equalisation keeps the function and takes planted outlier channels out of the INT8 error."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from int8_models import LMS, MODELS, REWARDS, batch_of, library, rows_of, same_bits

from benchmarks.harness.outliers import PLACES, plant, write_checkpoint
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.models.equalise import channel_factors, equalised
from ecorl.records import Stage

LENGTHS = [3, 5, 9, 17, 33, 60] * 8


def outputs(folder, rows):
    """Scores or logits of the exact float32 model."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    loader = getattr(transformers, config.architectures[0])
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        if hasattr(model, "score"):
            every = [model.score(model.model(torch.tensor(r)[None])[0])[0, -1:] for r in rows]
        else:
            every = [model(torch.tensor(r)[None]).logits[0] for r in rows]
    return torch.cat(every).numpy()


def factors_of(checkpoint):
    """Every factor that is not 1, by tensor name."""
    found = {}
    for name, scaling in checkpoint.scalings.items():
        for part in (scaling.rows, scaling.columns):
            if part is not None and (part != 1).any():
                found[name] = part
    return found


# ---------------------------------------------------------------- the function stays


@pytest.mark.parametrize("name", list(MODELS))
def test_planted_and_equalised_models_compute_the_same_function(models, tmp_path, name):
    folder, _ = models(name)
    rows = rows_of(2, 7, 40, seed=31)
    exact = outputs(folder, rows)
    planted = plant(load_decoder(folder), PLACES, seed=5)
    for step, checkpoint in (("planted", planted), ("equalised", equalised(planted))):
        assert factors_of(checkpoint)
        write_checkpoint(checkpoint, tmp_path / step)
        got = outputs(tmp_path / step, rows)
        assert np.abs(got - exact).max() <= 1e-5 * np.abs(exact).max(), step


def test_equalised_floats_are_the_same_floats_with_other_exponents(models):
    planted = plant(load_decoder(models("qwen_reward")[0]), PLACES)
    made = equalised(planted)
    for name, scaling in made.scalings.items():
        for part in (scaling.rows, scaling.columns):
            if part is not None:
                assert part.dtype == np.float32
                assert set(np.frexp(part)[0]) == {0.5}  # powers of two
        before, after = planted.tensor(name), made.tensor(name)
        assert after.dtype == np.float32
        np.testing.assert_array_equal(np.frexp(after)[0], np.frexp(before)[0])
    assert made.tensor("model.embed_tokens.weight").tobytes() == (
        planted.tensor("model.embed_tokens.weight").tobytes()
    )


@pytest.mark.parametrize("name", [*REWARDS, *LMS])
def test_a_model_without_outliers_stays_as_it_is(models, name):
    """All but a channel or two of a head that is a single row, whose entries vary most."""
    changed = factors_of(equalised(load_decoder(models(name)[0])))
    assert set(changed) <= {"model.norm.weight", "score.weight"}
    assert all((part != 1).sum() <= 2 for part in changed.values())


def test_a_tied_head_and_its_norm_stay_as_they_are(models):
    tied = equalised(plant(load_decoder(models("qwen_lm_tied")[0]), PLACES))
    assert not {"model.norm.weight", "model.embed_tokens.weight"} & set(tied.scalings)
    untied = equalised(plant(load_decoder(models("llama_lm")[0]), PLACES))
    assert (untied.scalings["lm_head.weight"].columns != 1).any()


def test_planted_channels_are_the_ones_that_change(models):
    planted = plant(load_decoder(models("llama_lm")[0]), PLACES, size=50.0)
    made = equalised(planted)
    for name, theirs in planted.scalings.items():
        ours = made.scalings[name]
        for one, other in ((theirs.rows, ours.rows), (theirs.columns, ours.columns)):
            if one is not None:
                # 50 is nearest to 64; some channels were a little smaller than others before.
                np.testing.assert_array_equal(one != 1, other != 1)
                assert set(np.abs(np.log2(other))) <= {0.0, 5.0, 6.0}


# ---------------------------------------------------------------- the INT8 error goes


WITHOUT = {"norm": 3.0, "up": 1.6, "values": 3.0, "keys": 3.0}
"""At least so many times the error with equalisation. Seen: norm 9.5 and 10.5, up 2.2 and 2.4 (the
outliers of most rows meet nearly closed gates), values 6.5 and 7.1, keys 4.5 and 4.7."""


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("place", PLACES)
def test_the_error_of_planted_outliers_goes(models, require_tool, name, place):
    """With equalisation it is that of the plain model: seen 0.91 to 1.08 times."""
    require_tool("gxx")
    rows = rows_of(*LENGTHS, seed=32)
    exact = outputs(models(name)[0], rows)[:, 0]

    def error(checkpoints):
        every = [Int8Decoder(each, library("fast")).score(rows) - exact for each in checkpoints]
        return np.sqrt(np.mean(np.square(every)))

    plain = load_decoder(models(name)[0])
    planted = [plant(plain, (place,), seed=seed) for seed in range(3)]
    with_it, without = error(map(equalised, planted)), error(planted)
    assert with_it < 1.35 * error([plain])
    assert without > WITHOUT[place] * with_it


def test_the_engine_equalises_what_it_loads(models, require_tool, tmp_path):
    require_tool("gxx")
    write_checkpoint(plant(load_decoder(models("llama_reward")[0]), PLACES), tmp_path)
    rows, checkpoint = rows_of(4, 30, seed=33), load_decoder(tmp_path)
    got = FpgaEngine(tmp_path, Stage.REWARD).score(batch_of(rows)).values
    wanted = Int8Decoder(equalised(checkpoint), library("fast")).score(rows)
    assert same_bits(got, wanted)
    assert not same_bits(got, Int8Decoder(checkpoint, library("fast")).score(rows))


# ---------------------------------------------------------------- factors

RANGES = arrays(
    np.float64,
    st.integers(1, 40),
    elements=st.one_of(st.just(0.0), st.floats(1e-6, 1e6)),
)


@given(RANGES, st.data())
def test_factors_are_powers_of_two_and_push_nothing_far_below_its_median(a, data):
    w = data.draw(arrays(np.float64, a.shape, elements=st.sampled_from([0, 1e-3, 0.5, 1, 7, 900])))
    f = channel_factors(a, w)
    assert f.dtype == np.float32
    assert set(np.frexp(f)[0]) == {0.5}
    assert not {0.5, 2.0} & set(f.tolist())  # the deadband
    if (f > 1).any():
        # half a rounding step below, at most
        assert (a[f > 1] / f[f > 1]).min() >= np.median(a[a > 0]) / np.sqrt(2) * 0.999
    if (f < 1).any():
        assert (w[f < 1] * f[f < 1]).min() >= np.median(w[w > 0]) / np.sqrt(2) * 0.999


@given(st.sampled_from([2.0**-20, 0.125, 3.0, 1000.0]))
def test_a_common_scale_changes_no_factor(scale):
    a = np.array([1, 1.5, 0.7, 60, 1.1, 0.9])
    w = np.array([1, 1.2, 0.8, 0.02, 1.0, 20.0])
    wanted = [1, 1, 1, 64, 1, 0.25]
    assert channel_factors(a, w).tolist() == wanted
    assert channel_factors(scale * a, w).tolist() == wanted
    assert channel_factors(a, scale * w).tolist() == wanted
    assert channel_factors(np.stack([a, a[::-1]]), np.stack([w, w[::-1]])).tolist() == [
        wanted,
        wanted[::-1],
    ]


def test_channels_that_are_not_made_or_not_read():
    a = np.array([1, 1, 1, 0, 0, 100, 1.0])
    w = np.array([1, 1, 1, 0, 100, 0, 0.0])
    # Nothing reads the hundredfold activation: it goes to the median, and so does its mirror.
    assert channel_factors(a, w).tolist() == [1, 1, 1, 1, 2.0**-7, 2.0**7, 1]
    nothing = np.zeros(4)
    assert channel_factors(nothing, nothing).tolist() == [1] * 4


@pytest.mark.filterwarnings("error")
def test_weights_near_the_end_of_float32_are_no_trouble(models, tmp_path):
    checkpoint = load_decoder(models("llama_reward")[0])

    class Large:
        def __getattr__(self, name):
            return getattr(checkpoint, name)

        def tensor(self, name):
            values = checkpoint.tensor(name)
            return values if values.ndim == 1 else np.float32(1e38) * np.sign(values)

    assert not factors_of(equalised(Large()))


def test_ranges_seen_in_data_go_before_the_estimate(models, caplog):
    checkpoint = load_decoder(models("llama_reward")[0])
    at = "model.layers.1"
    seen = {
        f"{at}.self_attn.q_proj.weight": np.ones(64, np.float32),
        f"{at}.self_attn.o_proj.weight": np.ones(128, np.float32),
        f"{at}.mlp.gate_proj.weight": np.ones(64, np.float32),
        f"{at}.mlp.down_proj.weight": np.ones(112, np.float32),
        "score.weight": np.ones(64, np.float32),
    }
    for channel, ranges in enumerate(seen.values(), start=3):
        ranges[channel] = 500
    with caplog.at_level(logging.INFO):
        made = equalised(checkpoint, seen)
    assert "channels equalised" in caplog.text
    readers = {
        **{f"{at}.self_attn.{part}_proj.weight": 3 for part in "qkv"},
        f"{at}.self_attn.o_proj.weight": 4,
        f"{at}.mlp.gate_proj.weight": 5,
        f"{at}.mlp.up_proj.weight": 5,
        f"{at}.mlp.down_proj.weight": 6,
        "score.weight": 7,
    }
    for name, channel in readers.items():
        columns = made.scalings[name].columns
        assert columns[channel] >= 8, name
    # o's channel 4 is read from the first value head by two query heads, 32 channels each
    assert made.scalings[f"{at}.self_attn.o_proj.weight"].columns[32 + 4] >= 8
    assert made.scalings[f"{at}.self_attn.v_proj.weight"].rows[4] <= 1 / 8
    assert made.scalings["model.layers.0.mlp.down_proj.weight"].columns.tolist() == [1] * 112
