"""What config.json says of a decoder: read as transformers reads it, or refused in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoint_files import CONFIG, LLAMA3, write_checkpoint

from ecorl.engines.lanes.threaded import error_of, fault_of
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.models.decoder_config import Rope, read_config, unsupported_reason
from ecorl.errors import CheckpointError, UnsupportedModel

QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
OLD_LLAMA3 = {k: v for k, v in LLAMA3.items() if k != "rope_theta"}


def write_config(folder, changes, drop=()):
    """config.json alone; a change to None is written as null."""
    fields = {k: v for k, v in {**CONFIG, **changes}.items() if k not in drop}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def refusal(folder, changes):
    """The one line with which a config is refused."""
    with pytest.raises(CheckpointError) as caught:
        read_config(write_config(folder, changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- rotary embedding

ROPES = {
    "nothing": {},
    "null": {"rope_parameters": None, "rope_scaling": None},
    "empty": {"rope_parameters": {}, "rope_theta": 30000.0},
    "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
    "new_without_type": {"rope_parameters": {"rope_theta": 20000.0}},
    "new_theta_at_top": {"rope_parameters": {"rope_type": "default"}, "rope_theta": 30000.0},
    "new_theta_nowhere": {"rope_parameters": {"rope_type": "default"}},
    "new_theta_twice": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "rope_theta": 30000.0,
    },
    "old": {"rope_theta": 30000.0},
    "old_null": {"rope_theta": 30000.0, "rope_scaling": None},
    "old_llama3": {"rope_theta": 500000.0, "rope_scaling": OLD_LLAMA3},
    "old_llama3_typed": {
        "rope_theta": 500000.0,
        "rope_scaling": {"type": "llama3"} | {k: OLD_LLAMA3[k] for k in list(OLD_LLAMA3)[1:]},
    },
    "old_llama3_theta_inside": {"rope_theta": 7.0, "rope_scaling": LLAMA3},
    "both": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "rope_scaling": OLD_LLAMA3,
    },
    "both_and_theta": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "rope_scaling": OLD_LLAMA3,
        "rope_theta": 30000.0,
    },
    "both_scaling_empty": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "rope_scaling": {},
    },
    "new_llama3": {"rope_parameters": LLAMA3},
    "new_llama3_theta_at_top": {"rope_parameters": OLD_LLAMA3, "rope_theta": 30000.0},
    "llama3_original_from_positions": {
        "rope_parameters": {
            k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"
        }
    },
    "llama3_original_at_top": {
        "rope_parameters": LLAMA3,
        "original_max_position_embeddings": 16,
    },
    "partial_of_one": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 2e4},
        "partial_rotary_factor": 1.0,
    },
}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("form", ROPES)
def test_rope_is_read_as_transformers_reads_it(tmp_path, form, family, require_tool):
    require_tool("trl")
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    kind = QWEN if family == "qwen2" else {}
    folder = write_config(
        tmp_path / "m", kind | ROPES[form], {"rope_parameters"} - set(ROPES[form])
    )
    embedding = Qwen2RotaryEmbedding if family == "qwen2" else LlamaRotaryEmbedding
    theirs = embedding(AutoConfig.from_pretrained(folder)).inv_freq.numpy()
    ours = read_config(folder).rope.frequencies(CONFIG["head_dim"])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


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


def test_ropes_that_are_refused(tmp_path, snapshot):
    changed = (
        {"rope_scaling": "linear"},
        {"rope_parameters": [1, 2]},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": None}},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 2]}},
        {"rope_scaling": {"factor": 4.0}},
        {"rope_parameters": {**LLAMA3, "beta_fast": 1}},
        {"rope_parameters": {**LLAMA3, "factor": None}},
        {"rope_parameters": {**LLAMA3, "factor": float("inf")}},
        {"rope_parameters": {**LLAMA3, "high_freq_factor": 0.5}},
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 1.5}},
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": None}},
        {"rope_parameters": {}, "rope_theta": None},
    )
    snapshot("\n".join(refusal(tmp_path / "m", changes) for changes in changed))


# ---------------------------------------------------------------- everything else


def test_unsupported_configs(tmp_path, snapshot):
    changed = (
        {"architectures": ["MixtralForCausalLM"]},
        {"architectures": None},
        {"model_type": "mistral", "sliding_window": 8},
        {"model_type": None},
        {"model_type": "qwen2"},
        {**QWEN, "model_type": "llama"},
        {"is_causal": False},
        {"is_causal": None},
        {"per_layer_config": {"0": {"head_dim": 4}}},
        {"sliding_window": 8},
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"quantization_config": {"bits": 4}},
        {**QWEN, "layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": "full_attention"},
        {**QWEN, "use_sliding_window": True, "max_window_layers": 1},
        {**QWEN, "use_sliding_window": True, "max_window_layers": None},
        {**QWEN, "use_sliding_window": True, "max_window_layers": "2"},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"hidden_size": "big"},
        {"vocab_size": None},
        {"rms_norm_eps": -1},
        {"rms_norm_eps": float("inf")},
        {"rms_norm_eps": 10**400},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10**400}},
    )
    lines = [refusal(tmp_path / "m", changes) for changes in changed]
    snapshot("\n".join(lines), huge=10**400)


def test_json_that_is_nested_too_deeply(tmp_path):
    write_config(tmp_path / "m", {})
    (tmp_path / "m" / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json: .*JSON"):
        read_config(tmp_path / "m")


def test_a_window_that_no_layer_uses_is_fine(tmp_path):
    unused = {**QWEN, "use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8}
    write_checkpoint(tmp_path / "m", unused)
    assert load_decoder(tmp_path / "m").config.shape.n_layers == 2
    off = {**QWEN, "use_sliding_window": False, "max_window_layers": 1, "sliding_window": 8}
    assert read_config(write_config(tmp_path / "m", off)).shape.n_layers == 2


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@pytest.mark.parametrize("head", ["ForCausalLM", "ForSequenceClassification"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_transformers_writes_is_read_in_silence(
    tmp_path, family, head, whole, caplog, require_tool
):
    """Every key that transformers itself writes is known, so that a warning means something."""
    require_tool("trl")
    import transformers

    config = getattr(transformers, f"{family}Config")(
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_labels=1,
        architectures=[family + head],
        dtype="bfloat16",
        pad_token_id=0,
    )
    tmp_path.joinpath("config.json").write_text(config.to_json_string(use_diff=not whole))
    read = read_config(tmp_path)
    assert read.architecture == family + head
    assert not caplog.records


def test_keys_that_nobody_knows_are_named(tmp_path, caplog):
    changes = {"residual_multiplier": 0.22, "logits_scaling": 8.0, "unused": None, "_private": 1}
    assert read_config(write_config(tmp_path / "m", changes)).shape.n_layers == 2
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "logits_scaling, residual_multiplier" in record.getMessage()
    assert "unused" not in record.getMessage()


# ---------------------------------------------------------------- in the user's words


def test_a_config_in_memory_is_judged_in_plain_words_and_warns_of_nothing(caplog, snapshot):
    assert unsupported_reason({**CONFIG, "my_own_key": 1}) is None
    reasons = [
        unsupported_reason({**CONFIG, **changes})
        for changes in (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            {"model_type": "minerva", "architectures": ["MinervaForCausalLM"]},
            {"hidden_act": "gelu"},
        )
    ]
    snapshot("\n".join(reasons))
    assert caplog.records == []


def test_a_refused_file_has_both_the_line_with_its_path_and_the_plain_words(tmp_path):
    folder = write_config(tmp_path / "m", {"hidden_act": "gelu"})
    with pytest.raises(UnsupportedModel) as caught:
        read_config(folder)
    assert str(caught.value).startswith(f"{folder / 'config.json'}: hidden_act ")
    # Between two processes too.
    sent = error_of(fault_of(caught.value))
    assert isinstance(sent, UnsupportedModel)
    assert (str(sent), sent.reason) == (str(caught.value), caught.value.reason)
