"""The INT8 decoder against the float model, and at the edges of its formats."""

from __future__ import annotations

import numpy as np
import pytest
from int8_models import LMS, REWARDS, batch_of, decoder, float_logprobs, rows_of

from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.numerics.formats import quantise_weight
from ecorl.records import Stage

RELATIVE_ERROR = 0.06
"""Bound on the relative INT8 error of a hidden state. A uniform rounding error has
step / sqrt(12) rms; with a largest magnitude of about 3 rms and 127 steps that is 0.7 % of an
operand, 1 % of a product with two such operands. A layer chains about 6 products; errors of two
layers and the head add up in squares to 0.01 * sqrt(13) = 3.6 %. The rest is margin."""


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


# ---------------------------------------------------------------- against the float model


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_are_within_the_int8_error(models, name):
    import torch

    folder, model = models(name)
    rows = rows_of(*[1, 2, 5, 12, 33, 64, 65, 130, 300] * 4, seed=1)
    with torch.no_grad():
        wanted = np.array(
            [model.score(model.model(torch.tensor(r)[None])[0])[0, -1, 0] for r in rows]
        )
    got = decoder(folder).score(rows)
    assert got.dtype == np.float32
    error = np.sqrt(np.mean((got - wanted) ** 2)) / np.sqrt(np.mean(wanted**2))
    assert error < RELATIVE_ERROR
    # and the ranking that a reward model is for survives
    order = np.corrcoef(np.argsort(np.argsort(wanted)), np.argsort(np.argsort(got)))[0, 1]
    assert order > 0.99


@pytest.mark.parametrize("name", LMS)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_within_the_int8_error(models, name, temperature):
    folder, model = models(name)
    rows, counts = rows_of(2, 7, 40, 90, 300, seed=2), [1, 3, 20, 89, 10]
    got = decoder(folder).logprobs(rows, counts, temperature)
    wanted = [float_logprobs(model, r, n, temperature) for r, n in zip(rows, counts, strict=True)]
    assert [len(v) for v in got] == counts
    got, wanted = np.concatenate(got), np.concatenate(wanted)
    # the error of a logit is the relative error times the logits' spread
    assert np.sqrt(np.mean((got - wanted) ** 2)) < RELATIVE_ERROR * np.std(wanted) * np.sqrt(2)
    assert (got <= 1e-5).all()


# ---------------------------------------------------------------- extremes


def edited(models, name, folder, edit):
    """A copy of a model with its weights changed."""
    import copy

    import torch

    model = copy.deepcopy(models(name)[1])
    with torch.no_grad():
        edit(model)
    model.save_pretrained(folder)
    return folder


def test_rows_of_zero_weights_and_outliers_stay_finite(models, tmp_path):
    def edit(model):
        layer = model.model.layers[0]
        layer.mlp.down_proj.weight[3] = 0
        layer.self_attn.v_proj.weight[:] = 0
        layer.self_attn.q_proj.weight[5] = 0
        model.model.embed_tokens.weight[7] = 0
        model.model.embed_tokens.weight[8, 2] = 3e4
        model.model.norm.weight[4] = 1e3

    model = decoder(edited(models, "llama_reward", tmp_path / "m", edit))
    rows = [np.array([7]), np.array([8]), np.array([7, 8, 7, 1, 8]), *rows_of(30)]
    assert np.isfinite(model.score(rows)).all()
    assert np.isfinite(model.hidden(rows)).all()


def test_a_row_that_overflows_is_nan_and_alone(models, tmp_path):
    """Token 7 drives gate x up beyond float32; rows without it must not notice."""

    def edit(model):
        model.model.embed_tokens.weight[:, 0] = 0
        model.model.embed_tokens.weight[7] = 0
        model.model.embed_tokens.weight[7, 0] = 1
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.gate_proj.weight[:, 0] = 1e20
        layer.mlp.up_proj.weight[:, 0] = 1e20

    folder = edited(models, "llama_reward", tmp_path / "m", edit)
    rows = [np.array([1, 2, 3]), np.array([1, 7, 3]), np.array([4, 5, 6, 9])]
    engine = FpgaEngine(folder, Stage.REWARD)
    result = engine.score(batch_of(rows))
    assert np.isnan(result.values[1])
    assert np.isfinite(result.values[[0, 2]]).all()


@pytest.mark.parametrize(("bits", "level"), [(8, 127), (4, 7)])
def test_quantised_weights(bits, level):
    rng = np.random.default_rng(13)
    weight = rng.normal(size=(5000, 12)).astype(np.float32)
    weight[17] = 0
    quantised = quantise_weight(weight, bits)
    assert quantised.q.dtype == np.int8
    assert quantised.scale[17] == 0
    assert not quantised.q[17].any()
    step = quantised.scale[:, None]
    assert (np.abs(weight - quantised.q * step) <= 0.5001 * step).all()
    used = np.delete(np.abs(quantised.q).max(axis=1), 17)
    assert (used == level).all()


def test_weights_of_other_widths_are_refused():
    with pytest.raises(ValueError, match=r"5 bits.*\[4, 8\]"):
        quantise_weight(np.ones((1, 1), np.float32), 5)
