"""Tiny checkpoints and prompts on disk, as a user of a framework would have real ones."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

N_CHARACTERS = 297
N_PROMPTS = 64
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Wide enough for rewards and log-probs to differ from row to row.
    "initializer_range": 0.1,
}


@dataclass(frozen=True)
class Tiny:
    """Checkpoint folders with their tokenizers, and a JSONL file of prompts.

    Attributes:
        actor: causal language model, also of the reference.
        reward: reward model with the head ``score``, of which the critic begins as a copy.
        prompts: rows ``{"input": ..., "label": ...}``; no prompt is there twice.
    """

    actor: Path
    reward: Path
    prompts: Path


def characters() -> list[str]:
    """One token each, so that the text of any tokens gives the same tokens again."""
    blocks = [range(0x20, 0x7F), range(0xC0, 0x180), range(0x391, 0x3A2)]
    return [chr(c) for block in blocks for c in block][:N_CHARACTERS]


def make_tokenizer():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, *characters()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS
    )


def make_prompts(seed: int = 5) -> list[str]:
    draw, letters = random.Random(seed), characters()[:95]
    return [
        f"{i:02d}:" + "".join(draw.choices(letters, k=draw.randint(1, 24)))
        for i in range(N_PROMPTS)
    ]


def make_tiny(folder: Path) -> Tiny:
    """Write all of it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    tiny = Tiny(folder / "actor", folder / "reward", folder / "prompts.jsonl")
    tokenizer = make_tokenizer()
    shape = {"vocab_size": len(tokenizer), **SHAPE}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        actor = LlamaForCausalLM(LlamaConfig(**shape))
        # Likely enough for answers of all lengths, and so for rows with padding.
        actor.lm_head.weight.data[shape["eos_token_id"]] *= 4
        actor.save_pretrained(tiny.actor)
        LlamaForSequenceClassification(LlamaConfig(**shape, num_labels=1)).save_pretrained(
            tiny.reward
        )
    for model in (tiny.actor, tiny.reward):
        tokenizer.save_pretrained(model)
    rows = [{"input": prompt, "label": prompt[:2]} for prompt in make_prompts()]
    tiny.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return tiny
