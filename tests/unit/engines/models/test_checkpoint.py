"""Checkpoint folders: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from checkpoint_files import write_checkpoint

from ecorl.engines.models.checkpoint import load_decoder, read_header
from ecorl.engines.models.decoder_config import read_shape
from ecorl.errors import CheckpointError


def refused(folder, *words):
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


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
    tied = {"tie_word_embeddings": True}
    embedding = write_checkpoint(tmp_path / "m", tied)["model.embed_tokens.weight"]
    write_checkpoint(tmp_path / "m", tied, extra={"lm_head.weight": ("F32", embedding)})
    checkpoint = load_decoder(tmp_path / "m")
    assert checkpoint.head_name == "model.embed_tokens.weight"
    assert checkpoint.config.shape == read_shape(tmp_path / "m")


def test_a_head_unlike_the_embedding_is_not_tied_to_it(tmp_path, caplog):
    """As transformers 5: the tensors decide, not the word in config.json."""
    own = np.random.default_rng(5).normal(size=(30, 24)).astype(np.float32)
    tied = {"tie_word_embeddings": True}
    write_checkpoint(tmp_path / "m", tied, extra={"lm_head.weight": ("F32", own)})
    checkpoint = load_decoder(tmp_path / "m")
    assert checkpoint.head_name == "lm_head.weight"
    np.testing.assert_array_equal(checkpoint.tensor("lm_head.weight"), own)
    assert not checkpoint.config.tied
    tied_shape, shape = read_shape(tmp_path / "m"), checkpoint.config.shape
    assert shape.n_params == tied_shape.n_params + own.size
    assert shape.n_params_active == tied_shape.n_params_active
    assert "lm_head.weight" in caplog.text


def test_a_tied_head_of_another_size_is_refused(tmp_path):
    extra = {"lm_head.weight": ("F32", np.zeros((29, 24), np.float32))}
    write_checkpoint(tmp_path / "m", {"tie_word_embeddings": True}, extra=extra)
    refused(tmp_path / "m", "lm_head.weight", "[29, 24]", "[30, 24]")


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_tied_head_is_used_as_transformers_uses_it(tmp_path, same, require_tool):
    require_tool("trl")
    import torch
    from transformers import AutoModelForCausalLM

    tied = {"tie_word_embeddings": True}
    head = write_checkpoint(tmp_path / "m", tied)["model.embed_tokens.weight"]
    if not same:
        head = np.random.default_rng(6).normal(size=(30, 24)).astype(np.float32)
    write_checkpoint(tmp_path / "m", tied, extra={"lm_head.weight": ("F32", head)})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    ours = load_decoder(tmp_path / "m")
    np.testing.assert_array_equal(
        ours.tensor(ours.head_name), theirs.lm_head.weight.detach().numpy()
    )
    assert ours.config.tied is (theirs.lm_head.weight is theirs.model.embed_tokens.weight) is same


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


def test_reading_imports_no_torch():
    code = (
        "import sys, ecorl.engines.models.checkpoint, ecorl.engines.fpga.engine;"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# ---------------------------------------------------------------- refusing


def test_missing_folder_config_and_weights(tmp_path, snapshot):
    lines = [refused(tmp_path / "nowhere"), refused(tmp_path)]
    write_checkpoint(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    lines.append(refused(tmp_path / "m"))
    (tmp_path / "m" / "config.json").write_text("[]")
    lines.append(refused(tmp_path / "m"))
    snapshot("\n".join(lines))
    (tmp_path / "m" / "config.json").write_text("{")
    refused(tmp_path / "m", "config.json")


def test_missing_tensor_and_missing_shard(tmp_path):
    write_checkpoint(tmp_path / "m", drop=("model.layers.1.mlp.up_proj.weight",))
    refused(tmp_path / "m", "model.layers.1.mlp.up_proj.weight")
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
    "text",
    [
        b"not json at all",
        b"[1, 2]",
        b'{"a": 5}',
        b'{"a": {"dtype": 1}}',
        b"[" * 100_000,
        b'{"a\\n": 5}',
    ],
    ids=["text", "list", "number", "no shape", "nested", "line break"],
)
def test_damaged_header(tmp_path, text):
    write_checkpoint(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    refused(tmp_path / "m", "damaged")


def test_wrong_shape_unknown_tensor_and_nan(tmp_path):
    flat = np.zeros((30, 23), np.float32)
    write_checkpoint(tmp_path / "a", extra={"lm_head.weight": ("F32", flat)})
    refused(tmp_path / "a", "lm_head.weight", "[30, 23]", "[30, 24]")
    bias = ("F32", np.ones(32, np.float32))
    write_checkpoint(tmp_path / "b", extra={"model.layers.0.self_attn.q_proj.bias": bias})
    refused(tmp_path / "b", "q_proj.bias")
    write_checkpoint(tmp_path / "c", extra={"model.norm.weight": ("I8", np.ones(24, np.int8))})
    with pytest.raises(CheckpointError, match="I8"):
        load_decoder(tmp_path / "c").tensor("model.norm.weight")
    broken = np.ones(24, np.float32)
    broken[3] = np.nan
    write_checkpoint(tmp_path / "d", extra={"model.norm.weight": ("F32", broken)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight .*NaN"):
        load_decoder(tmp_path / "d").tensor("model.norm.weight")


def test_a_header_that_contradicts_itself(tmp_path):
    write_checkpoint(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"shape": [30, 24]', b'"shape": [31, 24]', 1))
    refused(tmp_path / "m", "damaged", "invalid shape")


DAMAGED = {
    "wraps around in 64 bits": ([2**62, 4], [0, 0]),
    "beyond 64 bits": ([10**30], [0, 0]),
    "starts in the header": ([4], [-20, -4]),
    "starts before the file": ([4], [-400, -384]),
    "ends before it starts": ([0], [8, 0]),
    "negative twice": ([-2, -2], [0, 16]),
    "half a row": ([1.5], [0, 4]),
    "true": ([True], [0, 4]),
    "text": ("4", [0, 16]),
    "infinite": ([4], [0, float("inf")]),
    "three offsets": ([4], [0, 16, 16]),
    "longer than the file": ([20], [0, 80]),
    "no bytes beyond 64 bits": ([0, 10**30], [0, 0]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_entries_that_cannot_be_true_are_refused(tmp_path, case):
    shape, offsets = DAMAGED[case]
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    file = tmp_path / "x.safetensors"
    end = offsets[-1] if offsets[-1] in range(64) else 64  # so that nothing else is wrong
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [[0, 2**62], [1] * 100])
def test_shapes_that_no_array_has(tmp_path, shape):
    """They agree with their number of bytes, so they come to light when the tensor is read."""
    end = 4 * min(shape)
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    with pytest.raises(CheckpointError, match=r"x\.safetensors: .*shape"):
        read_header(file)["a"].read()


def test_a_shard_outside_the_folder_is_refused(tmp_path, snapshot):
    write_checkpoint(tmp_path / "m", shards=2)
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    snapshot(refused(tmp_path / "m"))


def test_a_shard_index_that_is_nested_too_deeply_is_refused(tmp_path):
    write_checkpoint(tmp_path / "m", shards=2)
    (tmp_path / "m" / "model.safetensors.index.json").write_text("[" * 100_000)
    refused(tmp_path / "m", "shard index")


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
