"""Prompts from files of rows, and what a request to generate looks like."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


def encode(folder: str, texts: list[str]) -> list[list[int]]:
    """Tokens of texts: one a character, as the tokenizers of the double's folders have them."""
    told = json.loads((Path(folder) / "tokenizer.json").read_text("utf-8"))["model"]
    tokens = told["vocab"]
    unknown = tokens[told["unk_token"]]
    return [[tokens.get(character, unknown) for character in text] for text in texts]


def special_tokens(folder: str) -> tuple[int, list[int]]:
    """Of padding, and those that end a response."""
    config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
    ends = config["eos_token_id"]
    return config["pad_token_id"], ends if isinstance(ends, list) else [ends]


def load_prompts(pipeline_config: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows of each domain, by the tags that its rewards are for."""
    args = pipeline_config.actor_train.data_args
    files = [args.file_name] if isinstance(args.file_name, str) else args.file_name
    rows = [
        json.loads(line)
        for file in files
        for line in (Path(args.dataset_dir or "") / file).read_text("utf-8").splitlines()
    ]
    folder = pipeline_config.actor_train.model_args.model_name_or_path
    for row, tokens in zip(rows, encode(folder, [r["prompt"] for r in rows]), strict=True):
        row["input_ids"] = tokens
    found: dict[str, list[dict[str, Any]]] = {}
    for domain, reward in pipeline_config.rewards.items():
        found[domain] = [
            {**row, "domain": domain}
            for row in rows
            if row["tag"] in reward.tag_included
            and len(row["input_ids"]) <= pipeline_config.prompt_length
        ]
        assert found[domain], f"no prompts of the domain {domain}"
    return found


@dataclass
class DataCollatorWithPaddingForPaddedKeys:
    """Rows side by side: tokens padded on the left, all else as objects."""

    max_length: int
    pad_token_id: int = 0

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        ids = torch.full((len(features), self.max_length), self.pad_token_id)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(features):
            n = len(row["input_ids"])
            ids[i, self.max_length - n :] = torch.tensor(row["input_ids"])
            mask[i, self.max_length - n :] = 1
        columns = {
            key: np.array([row[key] for row in features], dtype=object)
            for key in features[0]
            if key != "input_ids"
        }
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **columns}
