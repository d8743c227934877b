"""Decoders of well-known shapes, without weights."""

from __future__ import annotations

from ecorl.engines.models.decoder_config import DecoderConfig, Rope
from ecorl.records import ModelShape


def config(layers, hidden, inner, heads, kv_heads, d, vocab, *, reward=True, positions=4096):
    shape = ModelShape(layers, hidden, inner, heads, kv_heads, d, vocab, 0, 0)
    name = "LlamaForSequenceClassification" if reward else "LlamaForCausalLM"
    return DecoderConfig(
        name, shape, 1e-5, Rope("default", 1e4), reward, False, False, False, positions
    )


SEVEN = config(32, 4096, 11008, 32, 32, 128, 32000)
EIGHT = config(32, 4096, 14336, 32, 8, 128, 128_256)
THIRTEEN = config(40, 5120, 13824, 40, 40, 128, 32000)
TINY = config(2, 64, 176, 4, 2, 16, 500)
