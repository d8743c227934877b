"""Small decoders of every shape that the kernels know, saved as checkpoints."""

from __future__ import annotations

import functools

import numpy as np

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.numerics.formats import integer_decoder, rope_tables
from ecorl.engines.models.checkpoint import load_decoder
from tests.fakes.gemm_library import GemmLibrary
from tests.golden.decoder import GoldenDecoder

VOCAB = 97
_COMMON = {
    "vocab_size": VOCAB,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "initializer_range": 0.12,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
}
_SCORE, _LM = "ForSequenceClassification", "ForCausalLM"


def _heads(n, n_kv, d):
    return {"num_attention_heads": n, "num_key_value_heads": n_kv, "head_dim": d, "hidden_size": 64}


MODELS = {
    "llama64": ("Llama", _SCORE, _heads(4, 2, 64)),
    "llama96": ("Llama", _SCORE, _heads(2, 2, 96)),
    "llama128": ("Llama", _SCORE, _heads(2, 2, 128)),
    "llama144": ("Llama", _SCORE, _heads(2, 1, 144) | {"num_hidden_layers": 1}),
    "qwen64": ("Qwen2", _SCORE, _heads(4, 2, 16)),
    "qwen_lm": ("Qwen2", _LM, _heads(4, 2, 16) | {"tie_word_embeddings": True}),
    "llama_lm": (
        "Llama",
        _LM,
        _heads(6, 2, 64) | {"hidden_size": 96, "attention_bias": True, "vocab_size": 5000},
    ),
    # these two can be split over two cards of the kernels
    "llama_even": ("Llama", _SCORE, _heads(4, 2, 64) | {"intermediate_size": 192}),
    "lm_even": (
        "Qwen2",
        _LM,
        _heads(4, 2, 16) | {"intermediate_size": 192, "vocab_size": 2100},
    ),
    "long": ("Llama", _SCORE, _heads(2, 1, 64) | {"num_hidden_layers": 1}),
    "outlier": ("Llama", _SCORE, _heads(2, 2, 64)),
    "extreme": ("Llama", _SCORE, _heads(4, 2, 64)),
}


def saved_decoder(root, name):
    """Save a model of `MODELS` once; its folder."""
    import torch
    import transformers

    folder = root / name
    if folder.exists():
        return folder
    family, task, fields = MODELS[name]
    torch.manual_seed(len(name))
    if task == _SCORE:
        fields = fields | {"num_labels": 1}
    config = getattr(transformers, f"{family}Config")(**(_COMMON | fields))
    model = getattr(transformers, family + task)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
            if "norm" in parameter_name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        if name == "outlier":
            model.model.embed_tokens.weight[7, 3] = 1e6
        if name == "extreme":
            _make_extreme(model)
    model.save_pretrained(folder)
    return folder


def _make_extreme(model):
    first, second = model.model.layers
    first.mlp.down_proj.weight[3] = 0
    first.self_attn.v_proj.weight[:64] = 0
    first.self_attn.q_proj.weight[5] = 1e-20
    first.mlp.gate_proj.weight[:40] = 1.0
    first.mlp.up_proj.weight[:40] = -1.0
    second.self_attn.k_proj.weight *= 30
    second.mlp.gate_proj.weight *= 1e4
    second.input_layernorm.weight[4] = 1e3
    second.post_attention_layernorm.weight[:] = 1e-20
    model.model.embed_tokens.weight[7] = 0
    model.model.embed_tokens.weight[8, 2] = 3e4


@functools.cache
def library(build):
    return GemmLibrary.load(build)


@functools.cache
def decoder(folder, build="fast", n_cards=1):
    return Int8Decoder(load_decoder(folder), library(build), n_cards=n_cards)


@functools.cache
def golden(folder):
    model = integer_decoder(load_decoder(folder))
    return GoldenDecoder(model, rope_tables(model.config, 8192))


def integers(values, bits):
    """Results in units of their last fraction bit."""
    return np.ldexp(values.astype(np.float64), bits)


def same(a, b):
    """Whether two arrays of float32 have the same bits."""
    return np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))
