"""Reads config.json of a Llama-family decoder in the way of transformers 5.

Every key that changes the forward is either supported or refused with one line. transformers writes
many keys that change nothing (`_INERT`). A key that is neither known nor null is named in a
warning: transformers ignores it too, but the author of the file may have intended an effect.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.engines.models.gating import GATED_ARCHITECTURE, LLAMA3_PATTERN, MAX_OBJECTIVES, Gating
from ecorl.errors import CheckpointError, UnsupportedModel
from ecorl.records import ModelShape

logger = logging.getLogger(__name__)

_FAMILIES = {"llama": "Llama", "qwen2": "Qwen2"}  # model_type -> how its architectures begin
_HEADS = ("ForCausalLM", "ForSequenceClassification")

_SPELLED = {
    "bert": "BERT", "deberta-v2": "DeBERTa", "gemma": "Gemma", "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3", "gpt2": "GPT-2", "gpt_neox": "GPT-NeoX", "mistral": "Mistral",
    "mixtral": "Mixtral", "opt": "OPT", "phi3": "Phi-3", "qwen3": "Qwen3", "roberta": "RoBERTa",
}  # fmt: skip
"""Names of families by model_type, as their makers spell them; another goes by its model_type."""

ARCHITECTURES = (
    *(family + head for family in _FAMILIES.values() for head in _HEADS),
    GATED_ARCHITECTURE,
)

# As transformers has them where config.json says nothing.
_DEFAULT_THETA = 10000.0
_DEFAULT_POSITIONS = {"llama": 2048, "qwen2": 32768}
_DEFAULT_FULL_LAYERS = 28

# As the published model with a gate has them.
_DEFAULT_GATE = {"num_objectives": 19, "gating_hidden_dim": 1024, "gating_n_hidden": 3}
_DEFAULT_GATE_TEMPERATURE = 10.0
# 64 layers: assumed, far beyond the published model; it bounds the cost of one wrong number.
_MOST_GATE = {"num_objectives": MAX_OBJECTIVES, "gating_n_hidden": 64}

_ROPE_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_LLAMA3_KEYS = frozenset(
    {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ = _words(
    """
    architectures attention_bias head_dim hidden_act hidden_size id2label intermediate_size
    is_causal layer_types max_position_embeddings max_window_layers mlp_bias model_type
    num_attention_heads num_hidden_layers num_key_value_heads original_max_position_embeddings
    pad_token_id partial_rotary_factor per_layer_config quantization_config rms_norm_eps
    rope_parameters rope_scaling rope_theta sliding_window tie_word_embeddings use_sliding_window
    vocab_size
    """
)

_READ_WITH_GATE = _words(
    "gating_hidden_dim gating_n_hidden gating_temperature gating_token_pattern num_objectives"
)

# Keys about files, training or bookkeeping: no value of an evaluation forward depends on them.
# attention_dropout acts in training only; pretraining_tp and chunk_size_feed_forward only split
# products.
_INERT = _words(
    """
    attention_dropout attn_implementation auto_map bos_token_id chunk_size_feed_forward
    classifier_dropout dtype eos_token_id finetuning_task initializer_range is_decoder
    is_encoder_decoder label2id name_or_path num_labels output_attentions output_hidden_states
    prefix pretraining_tp problem_type return_dict task_specific_params
    tie_last_hidden_states tokenizer_class torch_dtype torchscript transformers_version
    unsloth_fixed unsloth_version use_bfloat16 use_cache
    """
)

# Settings of sampling, which transformers 4 wrote beside the model's own.
_GENERATION = _words(
    """
    bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature
    top_k top_p typical_p
    """
)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: ``default``, or ``llama3`` with its four parameters."""

    type: str
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0

    def frequencies(self, head_dim: int) -> npt.NDArray[np.float64]:
        """Angle per position of each pair of dimensions, rad: ``[head_dim / 2] float64``."""
        exponent = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        plain = np.asarray(self.theta**-exponent)
        if self.type == "default":
            return plain
        # Llama 3.1: wavelengths longer than the original context are slowed down by `factor`,
        # short ones are kept, and those in between are blended.
        turns = self.original_positions * plain / (2 * math.pi)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = np.clip(blend, 0.0, 1.0)
        return np.asarray((1 - blend) * plain / self.factor + blend * plain)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Configuration of a decoder.

    Attributes:
        architecture: class name in transformers, one of `ARCHITECTURES`.
        shape: sizes and numbers of parameters.
        rms_norm_eps: added to the mean square in each norm.
        rope: the rotary position embedding.
        is_reward: whether the head is scalar (``...ForSequenceClassification``) or has a gate; else
            it is a language-model head.
        tied: whether the language-model head shares the input embedding.
        qkv_bias: whether the q, k and v projections have a bias.
        output_bias: whether the attention's output projection has a bias.
        max_positions: longest row, tokens.
        gating: the gate of a reward head with several objectives, else None.
        pad_token_id: by which `reward_position` finds where a reward is read; None where the file
            names none. It is no part of the forward: models that differ in it are equal.
    """

    architecture: str
    shape: ModelShape
    rms_norm_eps: float
    rope: Rope
    is_reward: bool
    tied: bool
    qkv_bias: bool
    output_bias: bool
    max_positions: int
    gating: Gating | None = None
    pad_token_id: int | None = field(default=None, compare=False)


def read_shape(path: Path | str) -> ModelShape:
    """Read the shape of a decoder from its config.json alone.

    Raises:
        CheckpointError: when the folder or file is missing, or the model is not supported.
    """
    return read_config(path).shape


def read_config(path: Path | str) -> DecoderConfig:
    """Read the configuration of a decoder from the config.json in its folder.

    Raises:
        CheckpointError: as `read_shape`.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    return read_config_file(folder / "config.json")


def read_config_file(file: Path) -> DecoderConfig:
    """Read the configuration of a decoder from a file in the format of config.json.

    Raises:
        CheckpointError: as `read_shape`.
    """
    try:
        data = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file.parent}: no {file.name} in this folder") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return _Reader(file, data).config(is_file=True)


def unsupported(file: Path, key: str, value: object, allowed: str) -> UnsupportedModel:
    """Make the error for a value of config.json that cannot be computed faithfully.

    Args:
        file: the config.json.
        key: the key.
        value: its value.
        allowed: the accepted values, in words.
    """
    return UnsupportedModel(
        f"{file}: {key} = {value!r} is not supported: want {allowed}",
        f"the INT8 engine cannot run a model with {key} = {value!r}; it wants {allowed}",
    )


def unsupported_reason(data: Mapping[str, Any]) -> str | None:
    """Tell from the content of a config.json why a model cannot be run, as a clause.

    Args:
        data: what the file holds, or would hold.

    Returns:
        The clause; None where the config alone says nothing against it.
    """
    try:
        _Reader(Path("config.json"), dict(data)).config()
    except UnsupportedModel as error:
        return error.reason
    return None


class _Reader:
    """Reads the fields of a parsed config.json; each mistake is one `CheckpointError`."""

    def __init__(self, file: Path, data: dict[str, Any]) -> None:
        self.file, self.data = file, data

    def config(self, *, is_file: bool = False) -> DecoderConfig:
        """Read it all.

        Args:
            is_file: whether it stands in a file, whose author may have meant something by each key.
        """
        architecture = self._architecture()
        self._refuse_unsupported()
        gating = self._gating() if architecture == GATED_ARCHITECTURE else None
        if is_file:
            self._name_unknown(_READ if gating is None else _READ | _READ_WITH_GATE)
        is_reward = not architecture.endswith("ForCausalLM")
        labels = self.data.get("id2label")
        if is_reward and gating is None and isinstance(labels, dict) and len(labels) != 1:
            raise self._error("id2label", f"{len(labels)} labels", "one label")
        # Qwen2 always has q, k, v biases and never one on the output; Llama has all or none.
        qwen, bias = architecture.startswith("Qwen2"), bool(self.data.get("attention_bias", False))
        tied = bool(self.data.get("tie_word_embeddings", False)) and not is_reward
        return DecoderConfig(
            architecture=architecture,
            shape=self._shape(self._head(is_reward, gating), tied, qwen or bias, bias and not qwen),
            rms_norm_eps=self._number(self.data, "rms_norm_eps", 1e-6),
            rope=self._rope(),
            is_reward=is_reward,
            tied=tied,
            qkv_bias=qwen or bias,
            output_bias=bias and not qwen,
            max_positions=self._max_positions(),
            gating=gating,
            pad_token_id=self._pad(),
        )

    def _architecture(self) -> str:
        names = self.data.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        if name not in ARCHITECTURES:
            raise self._other_family(name)
        # transformers goes by model_type: it decides which keys have a meaning.
        model_type = self.data.get("model_type")
        family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
        if family is None or not name.startswith(family):
            fitting = next(t for t, family in _FAMILIES.items() if name.startswith(family))
            raise self._error("model_type", model_type, f"{fitting} for a {name}")
        return str(name)

    def _other_family(self, name: object) -> UnsupportedModel:
        error = self._error("architectures", name, f"one of {', '.join(ARCHITECTURES)}")
        kind = self.data.get("model_type")
        if isinstance(kind, str) and kind and kind not in _FAMILIES:
            error.reason = (
                "the INT8 engine runs Llama and Qwen2.5 models, and this one is "
                f"{_SPELLED.get(kind, kind)}"
            )
        return error

    def _refuse_unsupported(self) -> None:
        data = self.data
        if data.get("hidden_act", "silu") not in ("silu", "swish"):
            raise self._error("hidden_act", data["hidden_act"], "silu")
        if data.get("mlp_bias"):
            raise self._error("mlp_bias", True, "false")
        if not data.get("is_causal", True):
            raise self._error("is_causal", data["is_causal"], "true")
        for key in ("quantization_config", "per_layer_config"):
            if data.get(key):
                raise self._error(key, "(present)", "a checkpoint without it")
        self._refuse_windows()

    def _refuse_windows(self) -> None:
        data = self.data
        layer_types, layers = data.get("layer_types"), self._count("num_hidden_layers")
        if layer_types is not None and not isinstance(layer_types, list):
            raise self._error("layer_types", layer_types, "a list")
        if layer_types is not None:
            windowed = any(kind not in ("full_attention", "attention") for kind in layer_types)
        elif data.get("use_sliding_window"):
            full = data.get("max_window_layers", _DEFAULT_FULL_LAYERS)
            if not isinstance(full, int) or isinstance(full, bool):
                raise self._error("max_window_layers", full, "an integer")
            windowed = full < layers
        else:
            windowed = False
        if windowed:
            raise self._error("layer_types", "sliding window", "full attention in every layer")
        # A Llama has no windows; one that says so was made from a model that has.
        if data["model_type"] == "llama" and data.get("sliding_window") is not None:
            raise self._error("sliding_window", data["sliding_window"], "null in a Llama model")

    def _gating(self) -> Gating:
        counts = {key: self._count(key, default) for key, default in _DEFAULT_GATE.items()}
        for key, most in _MOST_GATE.items():
            if counts[key] > most:
                raise self._error(key, counts[key], f"at most {most}")
        n_hidden = counts["gating_n_hidden"]
        return Gating(
            n_objectives=counts["num_objectives"],
            temperature=self._number(self.data, "gating_temperature", _DEFAULT_GATE_TEMPERATURE),
            hidden_dim=counts["gating_hidden_dim"],
            n_hidden=n_hidden,
            token_pattern=self._token_pattern(),
            biased=(True,) * (n_hidden + 1),
        )

    def _token_pattern(self) -> tuple[int, ...]:
        """The configured pattern, else that of Llama 3 where the vocabulary holds it."""
        vocab = self._count("vocab_size")
        pattern = self.data.get("gating_token_pattern")
        if pattern is None:
            return LLAMA3_PATTERN if vocab > max(LLAMA3_PATTERN) else ()
        good = isinstance(pattern, list) and all(
            isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab
            for token in pattern
        )
        if not good or not pattern:
            allowed = f"a list of token ids from 0 to {vocab - 1}, at least one"
            raise self._error("gating_token_pattern", pattern, allowed)
        return tuple(pattern)

    def _name_unknown(self, read: frozenset[str]) -> None:
        known = read | _INERT | _GENERATION
        unknown = sorted(
            key
            for key, value in self.data.items()
            if key not in known and value is not None and not key.startswith("_")
        )
        if unknown:
            logger.warning("%s: keys without a meaning here: %s", self.file, ", ".join(unknown))

    def _max_positions(self) -> int:
        return self._count("max_position_embeddings", _DEFAULT_POSITIONS[self.data["model_type"]])

    def _head(self, is_reward: bool, gating: Gating | None) -> int:
        """Number of parameters after the final norm."""
        hidden = self._count("hidden_size")
        if gating is not None:
            return gating.n_params(hidden)
        return hidden if is_reward else hidden * self._count("vocab_size")

    def _shape(self, head: int, tied: bool, qkv_bias: bool, output_bias: bool) -> ModelShape:
        hidden, n_heads = self._count("hidden_size"), self._count("num_attention_heads")
        head_dim = self._count("head_dim", hidden // n_heads)
        n_kv = self._count("num_key_value_heads", n_heads)
        if n_heads % n_kv:
            raise self._error("num_key_value_heads", n_kv, f"a divisor of {n_heads} heads")
        if head_dim % 2 or head_dim > 1024:
            raise self._error("head_dim", head_dim, "an even number up to 1024")
        layers, inner = self._count("num_hidden_layers"), self._count("intermediate_size")
        vocab = self._count("vocab_size")
        q, kv = n_heads * head_dim, n_kv * head_dim
        per_layer = hidden * (2 * q + 2 * kv + 3 * inner) + 2 * hidden
        per_layer += (q + 2 * kv if qkv_bias else 0) + (hidden if output_bias else 0)
        active = layers * per_layer + hidden + head
        total = active if tied else active + vocab * hidden
        return ModelShape(layers, hidden, inner, n_heads, n_kv, head_dim, vocab, total, active)

    def _rope(self) -> Rope:
        """Read the embedding as transformers 5 does: from one table, completed by top-level keys.

        ``rope_scaling`` is the older name of the table, and precedes ``rope_parameters``.
        """
        name = "rope_scaling" if self.data.get("rope_scaling") else "rope_parameters"
        raw = self.data.get(name) or {}
        if not isinstance(raw, dict):
            raise self._error(name, raw, "a table")
        nested = next((key for key, value in raw.items() if isinstance(value, dict)), None)
        if nested is not None:
            raise self._error(f"{name}.{nested}", "(a table)", "one table for all layers")
        raw = {"rope_theta": self.data.get("rope_theta", _DEFAULT_THETA)} | raw
        kind = raw.get("rope_type", raw.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise self._error("rope_type", kind, "default or llama3")
        allowed = _ROPE_KEYS | (_LLAMA3_KEYS if kind == "llama3" else frozenset())
        for key, value in raw.items():
            if key not in allowed and value is not None:
                raise self._error(f"{name}.{key}", value, f"nothing: rope_type {kind} has no such")
        partial = raw.get("partial_rotary_factor", self.data.get("partial_rotary_factor"))
        if partial not in (None, 1):
            raise self._error("partial_rotary_factor", partial, "1")
        theta = self._number(raw, "rope_theta")
        return Rope("default", theta) if kind == "default" else self._llama3(raw, theta)

    def _llama3(self, raw: Mapping[str, Any], theta: float) -> Rope:
        low, high = self._number(raw, "low_freq_factor"), self._number(raw, "high_freq_factor")
        if high <= low:
            raise self._error("high_freq_factor", high, f"above low_freq_factor = {low}")
        # For this key alone, transformers prefers the top level to the table.
        key = "original_max_position_embeddings"
        where = self.data if key in self.data else raw
        positions = self._number(where, key, self._max_positions())
        if positions != int(positions):
            raise self._error(key, positions, "a positive integer")
        return Rope("llama3", theta, self._number(raw, "factor"), low, high, int(positions))

    def _pad(self) -> int | None:
        value = self.data.get("pad_token_id")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._error("pad_token_id", value, "a token id or null")
        return value

    def _count(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._error(key, value, "a positive integer")
        return value

    def _number(self, table: Mapping[str, Any], key: str, default: float | None = None) -> float:
        value = table.get(key, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        # Integers in JSON are unbounded: compared as integers, since a float may not hold them.
        if not (good and 0 < value <= sys.float_info.max):
            raise self._error(key, value, "a finite number above 0")
        return float(value)

    def _error(self, key: str, value: object, allowed: str) -> UnsupportedModel:
        return unsupported(self.file, key, value, allowed)
