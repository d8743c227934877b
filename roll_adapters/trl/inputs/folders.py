"""Checks checkpoint folders by the names of their files and the heads of these, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.engines.models.checkpoint import StoredTensor, read_header
from ecorl.errors import CheckpointError

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_WEIGHTS = (
    "model.safetensors",
    _INDEX,
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
"""Files of which transformers reads one, in the order in which it looks for them."""

_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
)
"""Files of which each tokenizer that transformers loads has at least one."""

_HEADS = ("score.weight", "classifier.weight", "classifier.out_proj.weight")
"""Names of the last matrix of a classifier: one row for each of its labels."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checkpoint folder, as far as it was looked at.

    Attributes:
        architecture: class in transformers that its config.json names, or None.
        weights_bytes: size of its safetensors files; None where it has others.
    """

    architecture: str | None
    weights_bytes: int | None

    def __str__(self) -> str:
        size = self.weights_bytes
        weights = "" if size is None else f", weights {_size(size)}"
        return f"{self.architecture or 'a model'}{weights}, tokenizer"


def check_policy(folder: Path) -> ModelFolder:
    """Check the folder of the policy.

    Args:
        folder: as the config names it.

    Raises:
        CheckpointError: naming the folder or file and what is missing or damaged.
    """
    return _checked(folder, "the policy (task.policy)")[0]


def check_reward(folder: Path) -> ModelFolder:
    """Check the folder of the reward model, which gives one score a row.

    Args:
        folder: as the config names it.

    Raises:
        CheckpointError: as `check_policy`, and for a model with several labels.
    """
    what = "the reward model (task.reward)"
    found, tensors = _checked(folder, what)
    speaks = (found.architecture or "").endswith("ForCausalLM")
    if speaks and tensors and not any(name.endswith(_HEADS) for name in tensors):
        raise CheckpointError(
            f"{folder}: {what} is a {found.architecture}, which gives no scores: a model with "
            "a scalar head is needed (...ForSequenceClassification)"
        )
    for name in _HEADS:
        head = tensors.get(name)
        if head is not None and len(head.shape) == 2 and head.shape[0] != 1:
            n_labels = head.shape[0]
            raise CheckpointError(
                f"{folder}: {what} has {n_labels} labels, and `ecorl run` needs one scalar head: "
                "a model with num_labels = 1"
            )
    return found


def _checked(folder: Path, what: str) -> tuple[ModelFolder, dict[str, StoredTensor]]:
    try:
        config = _config(folder, what)
        tensors, size = _weights(folder, what, config)
        if not any((folder / name).is_file() for name in _TOKENIZERS):
            raise CheckpointError(
                f"{folder}: {what} has no tokenizer in its folder (tokenizer.json): copy there "
                "the tokenizer's files of the model that it was made from"
            )
    except OSError as error:
        raise CheckpointError(f"{folder}: {what} cannot be read ({error.strerror})") from error
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else None
    return ModelFolder(architecture, size), tensors


def _config(folder: Path, what: str) -> dict[str, Any]:
    if not (folder / _CONFIG).is_file():
        wanted = f"{what} needs a checkpoint folder with a {_CONFIG}"
        raise CheckpointError(f"{folder}: {wanted}{_why_none(folder)}")
    return _json_object(folder / _CONFIG)


def _why_none(folder: Path) -> str:
    if folder.is_dir():
        return ", and there is none in this folder"
    if folder.exists():
        return ", and this is a file"
    if not folder.is_absolute() and len(folder.parts) == 2:
        # As a model is called on the Hub; nothing is downloaded by a run.
        return (
            f", and there is no such folder; to take it from the Hugging Face Hub: hf download "
            f"{folder} --local-dir FOLDER"
        )
    return ", and there is no such folder"


def _json_object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return found


def _weights(
    folder: Path, what: str, config: dict[str, Any]
) -> tuple[dict[str, StoredTensor], int | None]:
    """Heads of the tensors that transformers would read, and their files' size.

    No tensor and no size where it would read another kind of file.
    """
    if config.get("transformers_weights"):
        return {}, None  # a file of another name, which transformers finds by this key
    first = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        raise CheckpointError(f"{folder}: {what} has no weights in its folder ({_WEIGHTS[0]})")
    if first not in _WEIGHTS[:2]:
        return {}, None
    files = _shards(folder) if first == _INDEX else [folder / first]
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        tensors |= read_header(file)
    return tensors, sum(file.stat().st_size for file in files)


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX
    shards = _json_object(index).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else set()
    if not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{index}: has no weight_map that names files")
    return [folder / name for name in sorted(names)]


def _size(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 1e3:.0f} kB"
