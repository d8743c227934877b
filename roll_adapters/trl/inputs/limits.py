"""What a model can take by its config: tokens of a row, and ids of its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from ecorl.engines.models.text_tokenizer import DoubledBegin, added_begin, own_begin
from ecorl.engines.torch.loading import loading_errors
from ecorl.errors import CheckpointError

_TABLES = frozenset(
    {
        "albert",
        "bert",
        "biogpt",
        "camembert",
        "distilbert",
        "electra",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gptj",
        "openai-gpt",
        "opt",
        "roberta",
        "xlm-roberta",
    }
)
"""Model types that look a position up in a table: a row beyond its end is an error. Others compute
an angle for any position, and go on beyond those that they were made for."""

_PAD_FIRST = frozenset({"camembert", "roberta", "xlm-roberta"})
"""Those of them whose first positions are left to the pad token."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model can take.

    Attributes:
        positions: tokens of a row; None for a model without a limit.
        ends_there: whether a longer row is an error, and not only beyond what it was made for.
        vocabulary: number of its token ids; None where its config does not tell.
    """

    positions: int | None
    ends_there: bool
    vocabulary: int | None


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model with its tokenizer.

    Attributes:
        folder: of its checkpoint.
        name: for messages.
        tokenizer: of transformers.
        limits: of the model.
        n_added: special tokens that the tokenizer adds to each text, where it is asked to.
        begin: warns of rows that begin twice.
    """

    folder: Path
    name: str
    tokenizer: Any
    limits: ModelLimits
    n_added: int
    begin: DoubledBegin


def text_model(folder: Path, name: str, *, adds: bool = False) -> TextModel:
    """Load a model's tokenizer and config, not its weights.

    Args:
        folder: checkpoint folder.
        name: for messages.
        adds: whether the tokenizer adds its special tokens to the texts that the model reads.

    Raises:
        CheckpointError: when one of them cannot be loaded.
    """
    tokenizer = load_tokenizer(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except loading_errors() as error:
        reason = first_line(error)
        raise CheckpointError(f"{folder}: {name} cannot be loaded ({reason})") from error
    n_added = len(tokenizer(text="", verbose=False)["input_ids"])
    begin = watch_of(tokenizer, f"{name} ({folder})", adds=adds)
    return TextModel(folder, name, tokenizer, limits_of(config), n_added, begin)


def watch_of(tokenizer: Any, model: str, *, adds: bool, or_else: str = "") -> DoubledBegin:
    """Make what warns of a model's rows that begin twice.

    Args:
        tokenizer: of transformers.
        model: what to call the model.
        adds: whether it adds its special tokens to the texts that the model reads.
        or_else: another way to mend it, first words of the sentence.
    """
    begin = added_begin(tokenizer) if adds else []
    mend = (
        f"{or_else}save the tokenizer with add_bos_token = False, or leave it out of the "
        "text, and a reward model reads none then"
    )
    ids = begin or own_begin(tokenizer)
    return DoubledBegin(model, ids, tokenizer.decode(ids), mend, adds=bool(begin))


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer in a checkpoint folder.

    Args:
        folder: checkpoint folder.

    Raises:
        CheckpointError: when it holds none that loads.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except loading_errors() as error:
        first = first_line(error)
        raise CheckpointError(f"{folder}: has no tokenizer that loads ({first})") from error


def first_line(error: Exception) -> str:
    """First line of an error's text; the name of its class where it has none.

    Args:
        error: of a library.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def limits_of(config: Any) -> ModelLimits:
    """Read what a model can take from its config.

    Args:
        config: of transformers.
    """
    text = config.get_text_config()
    kind = getattr(text, "model_type", "")
    vocabulary = getattr(text, "vocab_size", None)
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(vocabulary, int):
        vocabulary = None
    if not isinstance(positions, int) or positions < 1 or _has_no_limit(text):
        return ModelLimits(None, False, vocabulary)
    if kind in _PAD_FIRST:
        positions -= (getattr(text, "pad_token_id", None) or 0) + 1
    return ModelLimits(_scaled(text, positions), kind in _TABLES, vocabulary)


def _has_no_limit(text: Any) -> bool:
    """Whether a model goes by distances between tokens, of which its config bounds none."""
    return bool(getattr(text, "alibi", False) or getattr(text, "relative_attention", False))


def _scaled(text: Any, positions: int) -> int:
    """Positions with the factor by which the rotary embedding is stretched beyond those."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    if not isinstance(rope, dict):
        return positions
    factor = rope.get("factor")
    before = rope.get("original_max_position_embeddings") or positions
    if not isinstance(factor, int | float) or not isinstance(before, int | float):
        return positions
    return max(positions, int(before * factor))
