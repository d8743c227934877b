"""A small reward model with several objectives and a gate, in torch, saved as a checkpoint."""

from __future__ import annotations

import json
from itertools import pairwise

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaModel

VOCAB = 97
PATTERN = (90, 91, 92)
"""Begins an assistant's turn; no other token of a test's rows is above 89."""

_CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.12,
    "max_position_embeddings": 512,
}
GATED = {
    "gated": {"num_objectives": 19, "gating_hidden_dim": 48, "gating_n_hidden": 3},
    "gated_one_layer": {"num_objectives": 5, "gating_hidden_dim": 80, "gating_n_hidden": 1,
                        "gating_temperature": 1.5, "bias": False},
    "gated_outlier": {"num_objectives": 3, "gating_hidden_dim": 16, "gating_n_hidden": 2},
}  # fmt: skip


class GatedRewardModel(torch.nn.Module):
    """``LlamaForRewardModelWithGating`` as it is published, for rows one at a time."""

    def __init__(self, config, n_objectives, hidden_dim, n_hidden, temperature, bias):
        super().__init__()
        self.model = LlamaModel(config)
        self.regression_layer = torch.nn.Linear(config.hidden_size, n_objectives, bias=False)
        self.reward_transform_matrix = torch.nn.Parameter(torch.eye(n_objectives))
        self.gating = torch.nn.Module()
        sizes = [config.hidden_size] + [hidden_dim] * n_hidden + [n_objectives]
        self.gating.layers = torch.nn.ModuleList(
            torch.nn.Linear(a, b, bias=bias) for a, b in pairwise(sizes)
        )
        self.gating.logit_scale = torch.nn.Parameter(torch.ones(1))
        self.temperature = temperature

    @torch.no_grad()
    def score(self, row, position, gate_position):
        """The reward of a row up to a position, its gate read at another."""
        ids = torch.as_tensor(row[: position + 1])[None]
        hidden = self.model(input_ids=ids).last_hidden_state[0]
        x = hidden[gate_position]
        for layer in self.gating.layers[:-1]:
            x = torch.relu(layer(x))
        gates = torch.softmax(self.gating.layers[-1](x) / self.temperature, 0)
        rewards = self.regression_layer(hidden[position]) @ self.reward_transform_matrix
        return float((gates * self.gating.logit_scale * rewards).sum())


def gated_model(name):
    """A model of `GATED`, and its config.json."""
    fields = dict(GATED[name])
    bias = fields.pop("bias", True)
    torch.manual_seed(len(name))
    config = LlamaConfig(**_CONFIG)
    temperature = fields.get("gating_temperature", 10)
    sizes = fields["num_objectives"], fields["gating_hidden_dim"], fields["gating_n_hidden"]
    model = GatedRewardModel(config, *sizes, temperature, bias).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        for layer in model.gating.layers:
            torch.nn.init.normal_(layer.weight, std=2 * layer.in_features**-0.5)
            if bias:
                torch.nn.init.normal_(layer.bias, std=0.3)
        model.gating.layers[-1].weight *= temperature  # gates that differ
        model.reward_transform_matrix += 0.2 * torch.randn(sizes[0], sizes[0])
        model.gating.logit_scale.fill_(1.3)
        if name == "gated_outlier":
            model.model.embed_tokens.weight[7, 3] = 1e6
    data = config.to_dict() | fields | {
        "architectures": ["LlamaForRewardModelWithGating"], "gating_token_pattern": list(PATTERN)
    }  # fmt: skip
    return model, data


def saved_gated(root, name, edit=None):
    """Save a model of `GATED`, changed by a function; its folder and the model."""
    model, config = gated_model(name)
    if edit is not None:
        with torch.no_grad():
            edit(model)
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder, model
