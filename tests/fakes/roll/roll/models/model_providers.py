"""The double's models: two matrices each, read from the folder of a Hugging Face Llama.

A token is seen with the mean of those before it, weighted by their positions. So what it is given
depends on its prefix, and padding must be masked and positions be right, as with a real model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

EMBEDDING, HEAD, SCORE = "model.embed_tokens.weight", "lm_head.weight", "score.weight"
LORA_A, LORA_B = "lm_head.lora_A.weight", "lm_head.lora_B.weight"
FILE = "model.safetensors"


class TinyModel:
    """Weights by their names in the folder; what is not trained there is carried along."""

    def __init__(self, folder: str | Path, lora_rank: int = 0, lora_scale: float = 1.0) -> None:
        self.folder, self.lora_scale = Path(folder), lora_scale
        self.weights = load_file(self.folder / FILE)
        self.is_adapted = lora_rank > 0
        if self.is_adapted:
            n, width = self.weights[HEAD].shape
            draw = torch.Generator().manual_seed(0)
            self.weights[LORA_A] = torch.randn((lora_rank, width), generator=draw) / width**0.5
            self.weights[LORA_B] = torch.zeros((n, lora_rank))
        self.uses_adapter = self.is_adapted

    @property
    def trained(self) -> list[str]:
        if self.is_adapted:
            return [LORA_A, LORA_B]
        head = HEAD if HEAD in self.weights else SCORE
        return [EMBEDDING, head] + [name for name in ("score.bias",) if name in self.weights]

    def hidden(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        mask = attention_mask[..., None].float()
        seen = self.weights[EMBEDDING][input_ids] * mask
        before = (seen * (1 + 0.5 * torch.cos(position_ids[..., None].float()))).cumsum(1)
        mixed = seen + before / mask.cumsum(1).clamp(min=1)
        return mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + 1e-6)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = hidden @ self.weights[HEAD].T
        if self.uses_adapter:
            change = hidden @ self.weights[LORA_A].T @ self.weights[LORA_B].T
            logits = logits + self.lora_scale * change
        return logits

    def score(self, hidden: Tensor) -> Tensor:
        scores = (hidden @ self.weights[SCORE].T)[..., 0]
        bias = self.weights.get("score.bias")
        return scores if bias is None else scores + bias

    def merged(self) -> dict[str, Tensor]:
        """The weights under Hugging Face's names alone, as who generates takes them."""
        own = {name: weight.detach() for name, weight in self.weights.items()}
        if self.is_adapted:
            change = own.pop(LORA_B) @ own.pop(LORA_A)
            own[HEAD] = own[HEAD] + self.lora_scale * change
        return own

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: w.detach().contiguous() for name, w in self.weights.items()}, folder / FILE
        )
        shutil.copy(self.folder / "config.json", folder)

    def load(self, folder: Path) -> None:
        for name, weight in load_file(folder / FILE).items():
            self.weights[name].data.copy_(weight)


def token_log_probs(logits: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each token but the first, and the entropy that it was drawn with."""
    shares = torch.log_softmax(logits[:, :-1].float(), -1)
    own = shares.gather(-1, input_ids[:, 1:, None])[..., 0]
    return own, -(shares.exp() * shares).sum(-1)
