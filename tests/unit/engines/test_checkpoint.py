"""Checkpoint folders: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from ecorl.engines.checkpoint import (
    Rope,
    expected_tensors,
    load_decoder,
    read_config,
    read_shape,
)
from ecorl.errors import CheckpointError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 30,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write_safetensors(path, tensors):
    """An own writer, so that the reader is not tested against itself: name -> (dtype, array)."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, array) in tensors.items():
        data = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_checkpoint(folder, changes=None, drop=(), extra=None, shards=1):
    folder.mkdir(exist_ok=True)
    config = {k: v for k, v in {**CONFIG, **(changes or {})}.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = {
        name: ("F32", rng.normal(size=shape).astype(np.float32))
        for name, shape in expected_tensors(read_config(folder)).items()
        if name not in drop
    }
    tensors |= extra or {}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return {name: array for name, (_, array) in tensors.items()}
    index = {}
    for shard in range(shards):
        part = dict(list(tensors.items())[shard::shards])
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(folder / file, part)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return {name: array for name, (_, array) in tensors.items()}


def refused(folder, *words):
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# ---------------------------------------------------------------- reading


def test_tensors_and_shape(tmp_path):
    written = write_checkpoint(tmp_path / "m")
    checkpoint = load_decoder(tmp_path / "m")
    for name, array in written.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array)
    shape = read_shape(tmp_path / "m")
    assert checkpoint.config.shape == shape
    assert shape.n_params == sum(a.size for a in written.values())
    assert shape.n_params_active == shape.n_params - 30 * 24
    assert (shape.n_layers, shape.n_kv_heads, shape.head_dim) == (2, 2, 8)
    assert checkpoint.head_name == "lm_head.weight"


def test_tied_head_counts_once_and_multiplies(tmp_path):
    written = write_checkpoint(tmp_path / "m", {"tie_word_embeddings": True})
    checkpoint = load_decoder(tmp_path / "m")
    assert "lm_head.weight" not in written
    assert checkpoint.head_name == "model.embed_tokens.weight"
    shape = checkpoint.config.shape
    assert shape.n_params == shape.n_params_active == sum(a.size for a in written.values())


def test_a_tied_checkpoint_may_still_hold_its_head(tmp_path):
    extra = {"lm_head.weight": ("F32", np.zeros((30, 24), np.float32))}
    write_checkpoint(tmp_path / "m", {"tie_word_embeddings": True}, extra=extra)
    assert load_decoder(tmp_path / "m").head_name == "model.embed_tokens.weight"


def test_shards(tmp_path):
    written = write_checkpoint(tmp_path / "m", shards=3)
    checkpoint = load_decoder(tmp_path / "m")
    for name, array in written.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array)


def test_half_precisions_are_widened_exactly(tmp_path):
    values = np.array([1.0, -2.5, 3.140625, 1e-3, 65504.0, 0.0], np.float32)
    norm = np.resize(values, 24).astype(np.float32)
    bf16 = (norm.view(np.uint32) >> 16).astype(np.uint16)
    f16 = norm.astype(np.float16)
    extra = {
        "model.norm.weight": ("BF16", bf16),
        "model.layers.0.input_layernorm.weight": ("F16", f16),
        "model.layers.1.input_layernorm.weight": ("F64", norm.astype(np.float64)),
    }
    write_checkpoint(tmp_path / "m", extra=extra)
    checkpoint = load_decoder(tmp_path / "m")
    wide = checkpoint.tensor("model.norm.weight")
    np.testing.assert_array_equal(wide.view(np.uint32), bf16.astype(np.uint32) << 16)
    np.testing.assert_array_equal(checkpoint.tensor("model.layers.0.input_layernorm.weight"), f16)
    np.testing.assert_array_equal(checkpoint.tensor("model.layers.1.input_layernorm.weight"), norm)


def test_rope_in_the_old_form(tmp_path):
    old = {"rope_parameters": None, "rope_theta": 500000.0, "rope_scaling": {**LLAMA3}}
    old["rope_scaling"].pop("rope_theta")
    old["rope_scaling"]["type"] = old["rope_scaling"].pop("rope_type")
    write_checkpoint(tmp_path / "old", old)
    write_checkpoint(tmp_path / "new", {"rope_parameters": LLAMA3})
    assert read_config(tmp_path / "old").rope == read_config(tmp_path / "new").rope
    plain = {"rope_parameters": None, "rope_theta": 7.0, "rope_scaling": None}
    write_checkpoint(tmp_path / "plain", plain)
    assert read_config(tmp_path / "plain").rope == Rope("default", 7.0)


@pytest.mark.parametrize("kind", ["default", "llama3"])
def test_rope_frequencies_against_transformers(kind, require_tool):
    require_tool("trl")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    raw = LLAMA3 if kind == "llama3" else {"rope_type": "default", "rope_theta": 20000.0}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=dict(raw))
    theirs = LlamaRotaryEmbedding(config).inv_freq.numpy()
    fields = (
        (raw["factor"], raw["low_freq_factor"], raw["high_freq_factor"], 64)
        if kind == "llama3"
        else ()
    )
    ours = Rope(kind, raw["rope_theta"], *fields).frequencies(64)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_reading_imports_no_torch():
    code = (
        "import sys, ecorl.engines.checkpoint, ecorl.engines.fpga.engine;"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# ---------------------------------------------------------------- refusing


def test_missing_folder_config_and_weights(tmp_path):
    refused(tmp_path / "nowhere", "no such checkpoint folder")
    refused(tmp_path, "no config.json")
    write_checkpoint(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    refused(tmp_path / "m", "neither model.safetensors nor its index")
    (tmp_path / "m" / "config.json").write_text("{")
    refused(tmp_path / "m", "config.json", "cannot be read")
    (tmp_path / "m" / "config.json").write_text("[]")
    refused(tmp_path / "m", "not a JSON object")


def test_missing_tensor_and_missing_shard(tmp_path):
    write_checkpoint(tmp_path / "m", drop=("model.layers.1.mlp.up_proj.weight",))
    refused(tmp_path / "m", "model.layers.1.mlp.up_proj.weight is missing")
    write_checkpoint(tmp_path / "s", shards=2)
    (tmp_path / "s" / "model-00002-of-00002.safetensors").unlink()
    refused(tmp_path / "s", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_file(tmp_path, keep):
    write_checkpoint(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(tmp_path / "m", "truncated")


def test_file_truncated_after_it_was_opened(tmp_path):
    write_checkpoint(tmp_path / "m")
    checkpoint = load_decoder(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="truncated"):
        checkpoint.tensor("lm_head.weight")


@pytest.mark.parametrize(
    "text", [b"not json at all", b"[1, 2]", b'{"a": 5}', b'{"a": {"dtype": 1}}']
)
def test_damaged_header(tmp_path, text):
    write_checkpoint(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    refused(tmp_path / "m", "damaged")


def test_wrong_shape_unknown_tensor_and_nan(tmp_path):
    flat = np.zeros((30, 23), np.float32)
    write_checkpoint(tmp_path / "a", extra={"lm_head.weight": ("F32", flat)})
    refused(tmp_path / "a", "lm_head.weight is [30, 23], expected [30, 24]")
    bias = ("F32", np.ones(32, np.float32))
    write_checkpoint(tmp_path / "b", extra={"model.layers.0.self_attn.q_proj.bias": bias})
    refused(tmp_path / "b", "q_proj.bias has no place")
    write_checkpoint(tmp_path / "c", extra={"model.norm.weight": ("I8", np.ones(24, np.int8))})
    with pytest.raises(CheckpointError, match="I8"):
        load_decoder(tmp_path / "c").tensor("model.norm.weight")
    broken = np.ones(24, np.float32)
    broken[3] = np.nan
    write_checkpoint(tmp_path / "d", extra={"model.norm.weight": ("F32", broken)})
    with pytest.raises(CheckpointError, match=r"model.norm.weight holds NaN"):
        load_decoder(tmp_path / "d").tensor("model.norm.weight")


def test_a_header_that_contradicts_itself(tmp_path):
    write_checkpoint(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"shape": [30, 24]', b'"shape": [31, 24]', 1))
    refused(tmp_path / "m", "contradicts itself")


def test_a_shard_outside_the_folder_is_refused(tmp_path):
    write_checkpoint(tmp_path / "m", shards=2)
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(tmp_path / "m", "does not lie in this folder")


def test_two_labels_are_refused(tmp_path):
    reward = {"architectures": ["LlamaForSequenceClassification"]}
    write_checkpoint(tmp_path / "ok", {**reward, "id2label": {"0": "LABEL_0"}})
    assert load_decoder(tmp_path / "ok").config.is_reward
    with pytest.raises(CheckpointError, match="one label"):
        write_checkpoint(tmp_path / "two", {**reward, "id2label": {"0": "a", "1": "b"}})
    # the default of two labels is not written into config.json: the tensor tells
    two = {"score.weight": ("F32", np.zeros((2, 24), np.float32))}
    write_checkpoint(tmp_path / "default", reward, extra=two)
    refused(tmp_path / "default", "score.weight", "one label")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"use_sliding_window": True, "max_window_layers": 1}, "sliding window"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"rope_parameters": {**LLAMA3, "factor": None}}, "factor"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
    ],
)
def test_unsupported_configs(tmp_path, changes, word):
    with pytest.raises(CheckpointError, match=word) as caught:
        write_checkpoint(tmp_path / "m", changes)
    assert "config.json" in str(caught.value)


def test_a_window_that_no_layer_uses_is_fine(tmp_path):
    unused = {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8}
    write_checkpoint(tmp_path / "m", unused)
    assert load_decoder(tmp_path / "m").config.shape.n_layers == 2
