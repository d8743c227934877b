"""Reward models with several objectives and a gate: what is read, refused, folded, and where."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoint_files import write_checkpoint
from int8_models import batch_of, same_bits

from ecorl.devices import load_profile
from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.cycles.model import CycleModel
from ecorl.engines.fpga.engine import FpgaEngine, card_bytes
from ecorl.engines.fpga.numerics.formats import LOG2_E, integer_decoder
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.models.decoder_config import read_config, read_shape
from ecorl.engines.models.equalise import equalised
from ecorl.engines.models.gating import LLAMA3_PATTERN, Gating
from ecorl.engines.torch.engine import TorchEngine
from ecorl.errors import CheckpointError
from ecorl.records import Stage

GATED = {
    "architectures": ["LlamaForRewardModelWithGating"],
    "num_objectives": 5,
    "gating_hidden_dim": 16,
    "gating_n_hidden": 2,
    "gating_temperature": 4,
    "gating_token_pattern": [7, 8],
    "tie_word_embeddings": None,
}
BIASES = tuple(f"gating.layers.{i}.bias" for i in range(3))


def refused(folder, *words):
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# ---------------------------------------------------------------- checkpoints


def test_a_gated_model_is_read(tmp_path, caplog):
    written = write_checkpoint(tmp_path / "m", GATED)
    checkpoint = load_decoder(tmp_path / "m")
    assert checkpoint.config.gating == Gating(5, 4.0, 16, 2, (7, 8), (True, True, True))
    assert (checkpoint.config.is_reward, checkpoint.config.tied) == (True, False)
    assert checkpoint.head_names == ("regression_layer.weight", "gating.layers.0.weight")
    shape = checkpoint.config.shape
    assert shape.n_params == sum(a.size for a in written.values())
    assert shape.n_params_active == shape.n_params - 30 * 24
    assert set(written) == set(checkpoint.tensors)
    assert not caplog.records


@pytest.mark.parametrize("dropped", [BIASES[:1], BIASES[2:], BIASES])
def test_a_gate_has_the_biases_that_are_stored(tmp_path, dropped):
    written = write_checkpoint(tmp_path / "m", GATED, drop=dropped)
    config = load_decoder(tmp_path / "m").config
    assert config.gating.biased == tuple(name not in dropped for name in BIASES)
    assert config.shape.n_params == sum(a.size for a in written.values())
    assert read_shape(tmp_path / "m").n_params > config.shape.n_params
    gate = integer_decoder(load_decoder(tmp_path / "m")).gate
    assert [layer.bias is not None for layer in gate.layers] == list(config.gating.biased)


def test_what_config_says_nothing_of(tmp_path):
    """As the published model: 19 objectives, three hidden layers of 1,024, temperature 10."""
    silent = {key: None for key in GATED if key != "architectures"} | {"vocab_size": 128256}
    write_checkpoint(tmp_path / "m", {**GATED, **silent, "id2label": {"0": "a", "1": "b"}})
    gating = read_config(tmp_path / "m").gating
    assert gating == Gating(19, 10.0, 1024, 3, LLAMA3_PATTERN, (True,) * 4)
    write_checkpoint(tmp_path / "small", {**GATED, "gating_token_pattern": None})
    assert read_config(tmp_path / "small").gating.token_pattern == ()


def test_a_wrong_key_is_refused(tmp_path, snapshot):
    lines = []
    for key, value in (
        ("num_objectives", 65),
        ("num_objectives", 0),
        ("gating_n_hidden", 65),
        ("gating_n_hidden", 2.5),
        ("gating_temperature", 0),
        ("gating_token_pattern", []),
        ("gating_token_pattern", [7, 30]),
        ("gating_token_pattern", "assistant"),
        ("gating_token_pattern", [True]),
    ):
        with pytest.raises(CheckpointError) as caught:
            write_checkpoint(tmp_path / "m", {**GATED, key: value})
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


@pytest.mark.parametrize(
    "name", ["regression_layer.weight", "reward_transform_matrix", "gating.logit_scale",
             "gating.layers.0.weight", "gating.layers.2.weight"],
)  # fmt: skip
def test_a_missing_or_misshapen_tensor_is_refused(tmp_path, name):
    write_checkpoint(tmp_path / "m", GATED, drop=(name,))
    refused(tmp_path / "m", name, "missing")
    wrong = {name: ("F32", np.zeros((6, 7), np.float32))}
    write_checkpoint(tmp_path / "m", GATED, extra=wrong)
    refused(tmp_path / "m", name, "[6, 7]")


def test_tensors_that_have_no_place_are_refused(tmp_path):
    for name, shape in (
        ("gating.layers.3.weight", (5, 5)),
        ("gating.layers.3.bias", (5,)),
        ("score.weight", (1, 24)),
        ("regression_layer.bias", (5,)),
    ):
        write_checkpoint(tmp_path / "m", GATED, extra={name: ("F32", np.zeros(shape, np.float32))})
        refused(tmp_path / "m", name, "no place")
    wrong = {BIASES[0]: ("F32", np.zeros(15, np.float32))}
    write_checkpoint(tmp_path / "m", GATED, extra=wrong)
    refused(tmp_path / "m", BIASES[0], "[15]", "[16]")


def test_keys_of_a_gate_are_unknown_to_other_models(tmp_path, caplog):
    write_checkpoint(tmp_path / "m", {"num_objectives": 3})
    assert "num_objectives" in caplog.text


# ---------------------------------------------------------------- where the gate is read


PATTERNED = Gating(3, 10.0, 16, 1, (7, 8), (True, True))


@pytest.mark.parametrize(
    ("row", "n_completion", "gates"),
    [
        ([7, 8, 1, 1], 0, [-1, 0, 0, 0]),
        ([1, 7, 8, 7, 8, 1], 0, [-1, -1, 1, 1, 3, 3]),
        ([7, 7, 8, 7], 0, [-1, -1, 1, 1]),
        ([8, 7], 0, [-1, -1]),
        ([1, 2, 3, 4], 0, [-1] * 4),
        ([1, 2, 3, 4], 2, [-1, 1, 1, 1]),
        ([1, 2, 3, 4], 4, [-1] * 4),  # no prompt
        ([1, 2, 3, 4], 9, [-1] * 4),
        ([1, 2, 7, 8], 3, [0, 0, 0, 2]),  # the answer itself begins a turn
        ([1, 7, 8, 4], 1, [-1, -1, 1, 1]),  # the pattern goes before the prompt's last token
        ([5], 0, [-1]),
        ([5], 1, [-1]),
    ],
)
def test_the_gate_is_read_at_the_last_turn(row, n_completion, gates):
    row = np.array(row)
    found = PATTERNED.positions(row, np.arange(len(row)), n_completion)
    assert found.tolist() == gates
    assert found.dtype == np.int64
    assert PATTERNED.positions(row, np.empty(0, np.int64), n_completion).tolist() == []


def test_llama3s_pattern_is_found_as_its_finder_finds_it():
    """The search of the published model: backwards, the first that fits."""
    rng = np.random.default_rng(0)
    gating = Gating(3, 10.0, 16, 1, LLAMA3_PATTERN, (True, True))
    for _ in range(50):
        row = rng.choice([*LLAMA3_PATTERN, 5], 60)
        for at in rng.integers(0, 55, rng.integers(0, 4)):
            row[at : at + 5] = LLAMA3_PATTERN
        ids = row.tolist()
        starts = [j for j in range(55, -1, -1) if ids[j : j + 5] == list(LLAMA3_PATTERN)]
        assert gating.positions(row, np.array([59]), 0)[0] == (starts[0] if starts else -1)


# ---------------------------------------------------------------- integers


def test_the_transform_and_the_gates_scale_are_in_the_heads_weights(tmp_path):
    written = write_checkpoint(tmp_path / "m", GATED)
    model = integer_decoder(load_decoder(tmp_path / "m"))
    regression, transform, scale = (
        written[name].astype(np.float64)
        for name in ("regression_layer.weight", "reward_transform_matrix", "gating.logit_scale")
    )
    h = np.random.default_rng(1).normal(size=24)
    head = model.head
    channel = np.ldexp(head.mantissa.astype(np.float64), head.exponents[0] - head.shift)
    weight = head.codes * channel[:, None]
    wanted = scale * transform.T @ regression
    assert np.abs(weight - wanted).max() <= 0.5001 * channel.max()
    rewards = (regression @ h) @ transform * scale
    assert np.abs(weight @ h - rewards).max() <= 0.5001 * channel.max() * np.abs(h).sum()


def test_biases_of_a_gate_are_in_its_units(tmp_path):
    written = write_checkpoint(tmp_path / "m", GATED)
    gate = integer_decoder(load_decoder(tmp_path / "m")).gate
    for i, factor in enumerate((1, 1, LOG2_E / 4)):
        exact = written[BIASES[i]].astype(np.float64) * factor * 65536
        assert np.abs(gate.layers[i].bias - exact).max() <= 0.5
    assert gate.scale.m * 2.0**gate.scale.e == pytest.approx(LOG2_E / 4, rel=1e-9)


def test_what_does_not_fit_the_formats_is_refused(tmp_path, snapshot):
    lines = []
    for name, value in (
        (BIASES[0], np.full(16, 17000, np.float32)),
        (BIASES[2], np.full(5, 5e4, np.float32)),
        ("gating.logit_scale", np.full(1, 3e38, np.float32)),
        ("gating.logit_scale", np.full(1, np.nan, np.float32)),
    ):
        write_checkpoint(tmp_path / "m", GATED, extra={name: ("F32", value)})
        with pytest.raises(CheckpointError) as caught:
            integer_decoder(load_decoder(tmp_path / "m"))
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_equalising_keeps_what_gate_and_rewards_compute(tmp_path):
    norm = np.ones(24, np.float32)
    norm[[3, 9]] = 60, 90
    extra = {"model.norm.weight": ("F32", norm)}
    write_checkpoint(tmp_path / "m", GATED, extra=extra)
    plain = load_decoder(tmp_path / "m")
    even = equalised(plain)
    factors = norm / even.tensor("model.norm.weight")
    assert (factors[[3, 9]] > 4).all()
    for name in plain.head_names:
        assert np.array_equal(even.tensor(name), plain.tensor(name) * factors)
    same = set(plain.config.gating.tensors(24)) - set(plain.head_names)
    for name in same:
        assert np.array_equal(even.tensor(name), plain.tensor(name))


# ---------------------------------------------------------------- engines


def test_the_engine_scores_a_gated_model(tmp_path, require_tool, caplog, snapshot):
    require_tool("gxx")
    write_checkpoint(tmp_path / "m", GATED)
    engine = FpgaEngine(tmp_path / "m", Stage.REWARD)
    rng = np.random.default_rng(3)
    rows = [np.concatenate([rng.integers(9, 30, 6), [7, 8], rng.integers(9, 30, n)]) for n in
            (4, 1, 9)]  # fmt: skip
    bare = rng.integers(9, 30, 12)
    result = engine.score(batch_of([rows[0], bare, rows[1]]))
    assert np.isfinite(result.values).tolist() == [True, False, True]
    (message,) = caplog.messages
    snapshot(message)
    alone = engine.score(batch_of([rows[0], rows[1]]))
    assert same_bits(alone.values, result.values[[0, 2]])
    assert alone.report.device_time_s == result.report.device_time_s > 0
    split = engine.score(batch_of([rows[0], bare], (4, 3)))
    assert np.isfinite(split.values).all()
    assert same_bits(split.values[:1], alone.values[:1])
    steps = engine.score_steps(batch_of([bare, rows[2]], (3, 9)), [[0, 8, 11], [16]])
    assert np.isnan(steps.values[0]).tolist() == [True, False, False]
    assert same_bits(steps.values[0][2], split.values[1])


def test_the_model_counts_tokens_of_gates_once(tmp_path, require_tool):
    """Rows of a family that share the gate's token pay for it once."""
    require_tool("gxx")
    write_checkpoint(tmp_path / "m", GATED)
    engine = FpgaEngine(tmp_path / "m", Stage.REWARD)
    prompt = np.concatenate([np.arange(9, 20), [7, 8]])
    rows = [np.concatenate([prompt, [9 + i, 10]]) for i in range(4)]
    cycles = CycleModel(engine.model, load_profile("u55c"))
    shared = BatchShape((13, 2, 2, 2, 2), (1,) * 5, 1, (0, 13, 13, 13, 13), 4)
    assert engine.modelled(batch_of(rows, (2,) * 4)) == cycles.batch(shared)
    apart = BatchShape((15,) * 4, (2,) * 4, 1, (0,) * 4, 4)
    assert engine.modelled(batch_of(rows)) == cycles.batch(apart)


def test_a_gate_without_a_pattern_is_told_once(tmp_path, require_tool, caplog, snapshot):
    require_tool("gxx")
    write_checkpoint(tmp_path / "m", {**GATED, "gating_token_pattern": None})
    engine = FpgaEngine(tmp_path / "m", Stage.REWARD)
    snapshot("\n".join(caplog.messages))
    rows = [np.arange(1, 9), np.arange(2, 14)]
    assert np.isfinite(engine.score(batch_of(rows, (3, 4))).values).all()


def test_bytes_on_the_card_leave_out_what_is_folded(tmp_path):
    write_checkpoint(tmp_path / "gated", GATED)
    write_checkpoint(tmp_path / "plain", {"architectures": ["LlamaForSequenceClassification"]})
    gated, plain = (load_decoder(tmp_path / name).config for name in ("gated", "plain"))
    h, g, n = 24, 16, 5
    gate = g * (h + 5) + g * (g + 5) + n * (g + 5) + 4 * (g + g + n)
    assert card_bytes(gated) - card_bytes(plain) == n * (h + 5) + gate - (h + 5)


def test_the_exact_engine_refuses_a_gate(tmp_path, require_tool, snapshot):
    require_tool("trl")
    write_checkpoint(tmp_path / "m", GATED)
    with pytest.raises(CheckpointError) as caught:
        TorchEngine(tmp_path / "m", Stage.REWARD)
    snapshot(str(caught.value))
