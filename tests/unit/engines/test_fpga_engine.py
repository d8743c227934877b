"""The INT8 engine against the float model, against NumPy, and against itself."""

from __future__ import annotations

import functools
import os

import int8_golden as golden
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.devices import check_throughput, load_profile
from ecorl.engines.checkpoint import load_decoder
from ecorl.engines.fpga.cycles import BatchShape, CycleModel
from ecorl.engines.fpga.engine import FpgaEngine, card_bytes
from ecorl.engines.fpga.forward import Int8Decoder
from ecorl.engines.fpga.gemm import CsimLibrary, gemm_counts
from ecorl.engines.fpga.quantise import quantise_weight
from ecorl.engines.protocol import InferenceEngine, ScoreBatch
from ecorl.errors import CheckpointError, ConfigError, EngineError
from ecorl.records import ModelShape, Provenance, Stage

VOCAB = 97
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
COMMON = {
    "vocab_size": VOCAB,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "initializer_range": 0.15,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
MODELS = {
    # class, config class, fields
    "llama_reward": (
        "LlamaForSequenceClassification",
        "LlamaConfig",
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_labels": 1,
        },
    ),
    "qwen_reward": (
        "Qwen2ForSequenceClassification",
        "Qwen2Config",
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "num_labels": 1,
        },
    ),
    "llama_lm": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "attention_bias": True,
            "rope_parameters": LLAMA3,
        },
    ),
    "qwen_lm_tied": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
}
REWARDS, LMS = ("llama_reward", "qwen_reward"), ("llama_lm", "qwen_lm_tied")

RELATIVE_ERROR = 0.06
"""Bound on the relative INT8 error of a hidden state. A uniform rounding error has
step / sqrt(12) rms; with a largest magnitude of about 3 rms and 127 steps that is 0.7 % of an
operand, 1 % of a product with two such operands. A layer chains about 6 products; errors of two
layers and the head add up in squares to 0.01 * sqrt(13) = 3.6 %. The rest is margin."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Makes each model once: name -> (folder, float torch model)."""
    if "torch" not in os.environ.get("ECORL_REQUIRE", "").split(","):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    import torch
    import transformers

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def make(name):
        architecture, config, fields = MODELS[name]
        torch.manual_seed(len(name))
        config = getattr(transformers, config)(**COMMON, **fields)
        model = getattr(transformers, architecture)(config).eval()
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
            if "norm" in parameter_name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        model.save_pretrained(root / name)
        return root / name, model

    return make


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


@functools.cache
def library(build):
    return CsimLibrary.load(build)


def decoder(folder, build="fast", threads=1):
    return Int8Decoder(load_decoder(folder), library(build), threads)


def rows_of(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, n) for n in lengths]


def batch_of(rows, n_completion=None, temperature=1.0):
    counts = tuple(n_completion) if n_completion is not None else (0,) * len(rows)
    ids = tuple(f"s{i}" for i in range(len(rows)))
    return ScoreBatch(ids, tuple(rows), counts, temperature)


def float_logprobs(model, row, n, temperature):
    import torch

    with torch.no_grad():
        logits = model(torch.tensor(row)[None]).logits[0] / temperature
    logp = torch.log_softmax(logits.double(), -1)[:-1]
    return logp.gather(1, torch.tensor(row[1:])[:, None])[:, 0].numpy()[len(row) - 1 - n :]


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


@pytest.mark.parametrize("name", [*REWARDS, *LMS])
def test_hidden_states_agree_with_the_numpy_golden(models, name):
    checkpoint = load_decoder(models(name)[0])
    model = decoder(models(name)[0])
    differences = []
    for row in rows_of(1, 3, 16, 40, 70, seed=3):
        got, wanted = model.hidden([row]), golden.hidden(checkpoint, row)
        differences += list(np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1))
    # The two round in another order: a value on the edge between two integers may fall to either
    # side, which moves a few tokens by a step, and what depends on them. All others agree to
    # float32 precision.
    assert np.median(differences) < 1e-6
    assert max(differences) < RELATIVE_ERROR


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_agree_with_the_numpy_golden(models, name):
    checkpoint = load_decoder(models(name)[0])
    rows = rows_of(1, 4, 9, 20, 31, seed=4)
    wanted = np.array([golden.reward(checkpoint, row) for row in rows])
    difference = np.abs(decoder(models(name)[0]).score(rows) - wanted)
    assert np.median(difference) < 1e-5
    assert difference.max() < 0.02


@pytest.mark.parametrize("name", LMS)
def test_logprobs_agree_with_the_numpy_golden(models, name):
    checkpoint = load_decoder(models(name)[0])
    rows, counts = rows_of(2, 9, 20, seed=5), [1, 8, 4]
    got = decoder(models(name)[0]).logprobs(rows, counts, 0.8)
    for row, n, values in zip(rows, counts, got, strict=True):
        difference = np.abs(values - golden.logprobs(checkpoint, row, n, 0.8))
        assert np.median(difference) < 2e-5
        assert difference.max() < 0.1


def test_logprobs_over_several_head_blocks(models, monkeypatch):
    """The log-sum-exp streams over blocks of the vocabulary; their size is no part of it."""
    folder, _ = models("llama_lm")
    rows = rows_of(30, 12, seed=6)
    whole = decoder(folder).logprobs(rows, [29, 5], 1.0)
    monkeypatch.setattr("ecorl.engines.fpga.forward.HEAD_BLOCK", 32)
    blocks = decoder(folder).logprobs(rows, [29, 5], 1.0)
    np.testing.assert_allclose(np.concatenate(blocks), np.concatenate(whole), atol=2e-6)


# ---------------------------------------------------------------- against itself


def same_bits(a, b):
    return np.asarray(a, np.float32).tobytes() == np.asarray(b, np.float32).tobytes()


@pytest.mark.parametrize("name", ["llama_reward", "qwen_lm_tied"])
def test_strict_and_fast_give_the_same_bits(models, name, require_tool):
    require_tool("hls_headers")
    fast, strict = decoder(models(name)[0]), decoder(models(name)[0], "strict")
    rows = rows_of(1, 5, 20, 9, seed=7)
    assert same_bits(fast.hidden(rows), strict.hidden(rows))
    if name in REWARDS:
        assert same_bits(fast.score(rows), strict.score(rows))
    else:
        counts = [0, 4, 10, 8]
        a, b = (m.logprobs(rows, counts, 1.3) for m in (fast, strict))
        assert same_bits(np.concatenate(a), np.concatenate(b))


POOL = [1, 1, 2, 3, 12, 12, 12, 31, 40, 63, 64, 65, 120, 257, 300]


@functools.cache
def alone(folder):
    """The reward of each row of the pool, scored by itself."""
    model = decoder(folder)
    return [model.score([row])[0] for row in rows_of(*POOL, seed=8)]


@pytest.fixture(scope="module")
def reward_folder(models):
    return models("llama_reward")[0]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), threads=st.sampled_from([1, 2]))
def test_a_row_has_the_same_bits_in_any_batch(reward_folder, data, threads):
    pool, wanted = rows_of(*POOL, seed=8), alone(reward_folder)
    picked = data.draw(st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=24))
    model = shared_decoder(reward_folder)
    model.threads = threads
    assert same_bits(model.score([pool[i] for i in picked]), [wanted[i] for i in picked])


@functools.cache
def shared_decoder(folder):
    return decoder(folder)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_logprobs_of_a_row_have_the_same_bits_in_any_batch(lm_folder, data):
    pool = rows_of(*POOL[2:], seed=9)
    model = shared_decoder(lm_folder)
    picked = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=10))
    counts = [data.draw(st.integers(0, len(pool[i]) - 1)) for i in picked]
    together = model.logprobs([pool[i] for i in picked], counts, 0.9)
    for i, n, values in zip(picked, counts, together, strict=True):
        (single,) = model.logprobs([pool[i]], [n], 0.9)
        assert same_bits(values, single)
        # fewer completion tokens are a suffix of more
        if n > 1:
            (suffix,) = model.logprobs([pool[i]], [n // 2], 0.9)
            assert same_bits(values[n - n // 2 :], suffix)


@pytest.fixture(scope="module")
def lm_folder(models):
    return models("qwen_lm_tied")[0]


def test_a_prefix_has_the_same_bits_as_the_whole_row(models):
    """Causality: later tokens cannot reach earlier ones."""
    model = decoder(models("llama_lm")[0])
    (row,) = rows_of(300, seed=10)
    whole = model.hidden([row])
    for n in (1, 17, 64, 65, 256, 299):
        assert same_bits(model.hidden([row[:n]]), whole[:n])


def test_threads_do_not_change_a_bit(models):
    folder, _ = models("llama_reward")
    rows = rows_of(*range(1, 60), 300, 200, seed=11)
    assert same_bits(decoder(folder).hidden(rows), decoder(folder, threads=2).hidden(rows))


def test_positions_beyond_the_first_table(models):
    """The rotary tables grow on demand; results do not depend on when."""
    folder, _ = models("llama_reward")
    early, late = decoder(folder), decoder(folder)
    short, long = rows_of(20, 512, seed=12)
    late.score([long])
    assert same_bits(early.score([short]), late.score([short]))
    assert same_bits(early.score([long]), late.score([long]))


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


def test_quantised_weights():
    rng = np.random.default_rng(13)
    weight = rng.normal(size=(5000, 12)).astype(np.float32)
    weight[17] = 0
    quantised = quantise_weight(weight)
    assert quantised.scale[17] == 0
    assert not quantised.q[17].any()
    step = quantised.scale[:, None]
    assert (np.abs(weight - quantised.q * step) <= 0.5001 * step).all()
    used = np.delete(np.abs(quantised.q).max(axis=1), 17)
    assert (used == 127).all()


# ---------------------------------------------------------------- the engine


def test_engine_answers_the_protocol(models):
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD, threads=2)
    assert isinstance(engine, InferenceEngine)
    assert (engine.name, engine.device, engine.row_invariant) == ("fpga", "u55c", True)
    rows = rows_of(4, 9)
    result = engine.score(batch_of(rows))
    assert result.sample_ids == ("s0", "s1")
    assert same_bits(result.values, decoder(models("llama_reward")[0]).score(rows))
    card = engine.modelled(batch_of(rows))
    assert result.report.device_time_s == card.time_s > 0
    assert result.report.device_energy_j == pytest.approx(73.0 * card.time_s)
    assert result.report.provenance is Provenance.MODELLED
    assert 0 < result.report.host_time_s < 60
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.score(batch_of(rows))


def test_reference_engine_and_empty_completions(models):
    engine = FpgaEngine(models("qwen_lm_tied")[0], Stage.REFERENCE)
    rows = rows_of(5, 1, 8)
    result = engine.logprobs(batch_of(rows, (4, 0, 2)))
    assert [len(v) for v in result.values] == [4, 0, 2]
    assert all(v.dtype == np.float32 for v in result.values)
    assert engine.logprobs(batch_of([])).values == ()
    with pytest.raises(EngineError, match="reference stage does not answer rewards"):
        engine.score(batch_of(rows))
    with pytest.raises(EngineError, match="row s1"):
        engine.logprobs(batch_of(rows, (1, 1, 1)))
    with pytest.raises(EngineError, match="temperature"):
        engine.logprobs(batch_of(rows, (1, 0, 1), temperature=0.0))


def test_bad_rows_are_named(models):
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD)
    good = np.array([1, 2])
    for bad, text in (
        (np.array([1, VOCAB]), "token id 97 is outside the vocabulary of 97"),
        (np.array([-1, 3]), "token id -1 is outside"),
        (np.array([2**40]), "outside the vocabulary"),
        (np.array([], np.int64), "row s1 has no tokens"),
        (np.zeros(513, np.int64), "513 tokens, the model knows 512"),
    ):
        with pytest.raises(EngineError, match=text):
            engine.score(batch_of([good, bad]))
    with pytest.raises(EngineError, match="reward stage does not answer log-probs"):
        engine.logprobs(batch_of([good]))


def test_empty_batch(models):
    engine = FpgaEngine(models("llama_reward")[0], Stage.REWARD)
    result = engine.score(batch_of([]))
    assert result.values.shape == (0,)
    assert result.report.device_time_s == 0.0


def test_wrong_requests_are_user_errors(models, tmp_path):
    reward, lm = models("llama_reward")[0], models("llama_lm")[0]
    with pytest.raises(CheckpointError, match="ForSequenceClassification"):
        FpgaEngine(lm, Stage.REWARD)
    with pytest.raises(CheckpointError, match="ForCausalLM"):
        FpgaEngine(reward, Stage.REFERENCE)
    with pytest.raises(ConfigError, match="frozen"):
        FpgaEngine(reward, Stage.CRITIC)
    with pytest.raises(ConfigError, match="strict"):
        FpgaEngine(reward, Stage.REWARD, build="quick")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no_such_card"):
        FpgaEngine(reward, Stage.REWARD, device="no_such_card")
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        FpgaEngine(tmp_path / "nowhere", Stage.REWARD)


def card_file(folder, **changes):
    """A copy of the U55C profile with other values."""
    profile = load_profile("u55c")
    lines = ['name = "mine"', 'title = "Mine"', 'kind = "fpga"']
    for key, figure in profile.figures.items():
        value = changes.get(key, figure.value)
        lines += [f"[figures.{key}]", f"value = {value}", f'unit = "{figure.unit}"']
        lines += ['provenance = "modelled"', 'source = "a test"']
    path = folder / "mine.toml"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_model_that_does_not_fit_is_refused(models, tmp_path):
    folder, _ = models("llama_reward")
    needed = card_bytes(load_decoder(folder).config)
    with pytest.raises(CheckpointError, match=r"needs .* GB in INT8, mine has"):
        FpgaEngine(folder, Stage.REWARD, device=card_file(tmp_path, memory_bytes=needed - 1))
    engine = FpgaEngine(folder, Stage.REWARD, device=card_file(tmp_path, memory_bytes=needed))
    assert engine.device == "mine"


def test_a_card_without_room_for_an_array_is_refused(models, tmp_path):
    small = card_file(tmp_path, n_dsp_used=2047)
    with pytest.raises(ConfigError, match="one array"):
        FpgaEngine(models("llama_reward")[0], Stage.REWARD, device=small)


# ---------------------------------------------------------------- the cycle model

SHAPE_7B = ModelShape(32, 4096, 11008, 32, 32, 128, 32000, 6_738_415_616, 6_607_343_616)


def small_shape(layers, hidden, heads, head_dim):
    per_layer = hidden * (4 * heads * head_dim + 6 * hidden)
    n = layers * per_layer
    return ModelShape(layers, hidden, 2 * hidden, heads, heads, head_dim, 500, n, n)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=20),
    layers=st.integers(1, 4),
    heads=st.integers(1, 8),
    head_dim=st.sampled_from([16, 64, 128]),
    head_rows=st.sampled_from([1, 500]),
    device=st.sampled_from(["u55c", "twice"]),
    data=st.data(),
)
def test_never_above_the_physical_bound(
    tmp_path_factory, lengths, layers, heads, head_dim, head_rows, device, data
):
    if device == "twice":
        device = card_file(tmp_path_factory.getbasetemp(), n_dsp_used=2 * 3136)
    profile = load_profile(device)
    model = small_shape(layers, heads * head_dim, heads, head_dim)
    limits = [1 if head_rows == 1 else n - 1 for n in lengths]
    wanted = tuple(data.draw(st.integers(min(1, n), n)) for n in limits)
    card = CycleModel(model, profile).batch(BatchShape(tuple(lengths), wanted, head_rows))
    peak = profile.value("n_dsp_used") * profile.value("macs_per_dsp") * profile.value("clock_hz")
    assert card.macs <= peak * card.array_s * (1 + 1e-9)
    assert card.kernel_s >= max(card.array_s, card.memory_s, card.vector_s) * (1 - 1e-9)
    assert card.time_s == pytest.approx(card.kernel_s + card.launch_s + card.link_s)
    assert card.energy_j == pytest.approx(profile.value("active_w") * card.time_s)
    if sum(wanted):
        check_throughput(profile, 2.0 * card.macs, card.memory_bytes, card.time_s,
                         Provenance.MODELLED)  # fmt: skip


def test_the_papers_rate_is_out_of_reach():
    """Table 2 claims 142 tokens/ms for 7 B; the array as written bounds it at about 150 per s."""
    batch = BatchShape((256,) * 32, (1,) * 32, 1)
    card = CycleModel(SHAPE_7B, load_profile("u55c")).batch(batch)
    tokens_per_s = 32 * 256 / card.time_s
    assert 100 < tokens_per_s < 4096 * 245e6 / 6.4e9


def test_cycles_and_macs_are_those_that_the_kernel_counts(models):
    """One row of 64 tokens is one block everywhere: the model must equal the kernel's counters."""
    folder, _ = models("llama_reward")
    engine, csim = FpgaEngine(folder, Stage.REWARD), library("fast")
    batch = batch_of(rows_of(64))
    csim.reset_counters()
    decoder(folder).score(batch.token_ids)
    counts, card = csim.counters(), engine.modelled(batch)
    assert card.macs == counts.macs
    assert card.memory_bytes == counts.bytes_a + counts.bytes_w + counts.bytes_c
    assert card.array_s * 245e6 == pytest.approx(counts.mac_cycles + counts.fill_cycles)


def test_two_arrays_halve_the_array_time(tmp_path):
    one, two = (
        CycleModel(SHAPE_7B, load_profile(card_file(tmp_path, n_dsp_used=n))) for n in (2048, 4096)
    )
    batch = BatchShape((128,) * 8, (1,) * 8, 1)
    assert (one.n_arrays, two.n_arrays) == (1, 2)
    assert one.batch(batch).array_s / two.batch(batch).array_s == pytest.approx(2, rel=0.01)


def test_link_and_launch_terms():
    profile = load_profile("u55c")
    model = CycleModel(small_shape(3, 64, 4, 16), profile)
    score = model.batch(BatchShape((10, 20), (1, 1), 1))
    assert score.link_s == pytest.approx((4 * 30 + 4 * 2) / 1.2e10 + 2 * 3e-5)
    assert score.launch_s == pytest.approx(4 * profile.value("launch_s"))
    logprobs = model.batch(BatchShape((10, 20), (5, 7), 500))
    assert logprobs.link_s == pytest.approx((4 * 30 + 4 * 12) / 1.2e10 + 2 * 3e-5)
    assert logprobs.macs > score.macs
    nothing = model.batch(BatchShape((), (), 1))
    assert nothing.time_s == nothing.energy_j == 0.0


def test_one_product_by_hand():
    """[64, 128] x [32, 128]^T: 2 tiles of 32 steps, after 4 x 32 words of activations."""
    counts = gemm_counts(64, 32, 128)
    assert counts.mac_cycles == 2 * 32
    assert counts.fill_cycles == 4 * 32
