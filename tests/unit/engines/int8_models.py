"""Small float models, the INT8 decoder made of them, and rows to run through both."""

from __future__ import annotations

import functools

import numpy as np
from checkpoint_files import LLAMA3

from ecorl.devices import load_profile
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import ScoreBatch
from tests.fakes.gemm_library import GemmLibrary

VOCAB = 97
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


@functools.cache
def saved_model(root, name):
    """A model of `MODELS`, saved once: its folder and itself, in float32."""
    import torch
    import transformers

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


@functools.cache
def library(build):
    return GemmLibrary.load(build)


def decoder(folder, build="fast", threads=1):
    return Int8Decoder(load_decoder(folder), library(build), threads)


def rows_of(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, n) for n in lengths]


def batch_of(rows, n_completion=None, temperature=1.0):
    counts = tuple(n_completion) if n_completion is not None else (0,) * len(rows)
    ids = tuple(f"s{i}" for i in range(len(rows)))
    return ScoreBatch(ids, tuple(rows), counts, temperature)


def same_bits(a, b):
    return np.asarray(a, np.float32).tobytes() == np.asarray(b, np.float32).tobytes()


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


def float_logprobs(model, row, n, temperature):
    import torch

    with torch.no_grad():
        logits = model(torch.tensor(row)[None]).logits[0] / temperature
    logp = torch.log_softmax(logits.double(), -1)[:-1]
    return logp.gather(1, torch.tensor(row[1:])[:, None])[:, 0].numpy()[len(row) - 1 - n :]
