"""Checkpoint folders of a tiny decoder, written without transformers or safetensors."""

from __future__ import annotations

import json

import numpy as np

from ecorl.engines.models.checkpoint import expected_tensors
from ecorl.engines.models.decoder_config import read_config

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
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
