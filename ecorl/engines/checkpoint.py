"""Reads Hugging Face checkpoint folders of Llama-family decoders without torch or transformers.

    shape = read_shape(path)            # from config.json alone
    checkpoint = load_decoder(path)     # checks every tensor's name and shape
    checkpoint.tensor("model.norm.weight")

What cannot be computed faithfully is refused with one clear line, never approximated: other
architectures, sliding windows, other activations, unknown RoPE scaling, unknown tensors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.engines.protocol import Float32
from ecorl.engines.safetensors_file import StoredTensor, read_header
from ecorl.errors import CheckpointError
from ecorl.records import ModelShape

ARCHITECTURES = (
    "LlamaForCausalLM",
    "LlamaForSequenceClassification",
    "Qwen2ForCausalLM",
    "Qwen2ForSequenceClassification",
)

_IGNORED_TENSORS = re.compile(r"\.rotary_emb\.inv_freq$")  # recomputed from rope_theta


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
        """Angle per position, rad: ``[head_dim / 2] float64``."""
        exponent = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        plain = np.asarray(self.theta**-exponent)
        if self.type == "default":
            return plain
        # Llama 3.1: long waves are slowed by `factor`, short ones kept, blended in between.
        turns = self.original_positions * plain / (2 * math.pi)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = np.clip(blend, 0.0, 1.0)
        return np.asarray((1 - blend) * plain / self.factor + blend * plain)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What config.json says of a decoder.

    Attributes:
        is_reward: a scalar head (``...ForSequenceClassification``), else a language-model head.
        tied: the language-model head shares the input embedding.
        qkv_bias: whether q, k and v projections have a bias.
        output_bias: whether the attention's output projection has one.
        max_positions: longest row in tokens.
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


@dataclass(frozen=True, slots=True)
class DecoderCheckpoint:
    """A checked checkpoint folder; tensors are read when asked for."""

    path: Path
    config: DecoderConfig
    tensors: Mapping[str, StoredTensor]

    def tensor(self, name: str) -> Float32:
        """One tensor as float32; bfloat16 and float16 are widened exactly.

        Raises:
            CheckpointError: when it cannot be read or holds NaN or infinity.
        """
        values = self.tensors[name].read()
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.path}: {name} holds NaN or infinity")
        return values

    @property
    def head_name(self) -> str:
        """Name of the tensor that the last hidden state is multiplied with."""
        if self.config.is_reward:
            return "score.weight"
        return "model.embed_tokens.weight" if self.config.tied else "lm_head.weight"


def read_shape(path: Path | str) -> ModelShape:
    """The shape of a decoder from its config.json alone.

    Raises:
        CheckpointError: when the folder or file is missing, or the model is not supported.
    """
    return read_config(path).shape


def read_config(path: Path | str) -> DecoderConfig:
    """The configuration of a decoder from its config.json.

    Raises:
        CheckpointError: as `read_shape`.
    """
    folder = Path(path).expanduser()
    file = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    try:
        data = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no config.json in this folder") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return _Reader(file, data).config()


def load_decoder(path: Path | str) -> DecoderCheckpoint:
    """Open a checkpoint folder: model.safetensors, or shards with their index.

    Every tensor that the forward needs is checked for presence and shape; tensor data is read
    later, by `DecoderCheckpoint.tensor`.

    Raises:
        CheckpointError: one line that names what is missing, damaged or not supported.
    """
    folder = Path(path).expanduser()
    config = read_config(folder)
    stored = _stored_tensors(folder)
    expected = expected_tensors(config)
    for name, shape in expected.items():
        found = stored.get(name)
        if found is None:
            raise CheckpointError(f"{folder}: tensor {name} is missing")
        if found.shape != shape:
            hint = "; the reward head must have one label" if name == "score.weight" else ""
            raise CheckpointError(
                f"{folder}: {name} is {list(found.shape)}, expected {list(shape)}{hint}"
            )
    spare = {"lm_head.weight"} if config.tied or config.is_reward else set()
    unknown = sorted(
        n for n in stored if n not in expected and n not in spare and not _IGNORED_TENSORS.search(n)
    )
    if unknown:
        raise CheckpointError(
            f"{folder}: tensor {unknown[0]} has no place in {config.architecture}"
        )
    return DecoderCheckpoint(folder, config, {name: stored[name] for name in expected})


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that the forward reads."""
    s = config.shape
    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (s.vocab_size, s.hidden_size)
    }
    for i in range(s.n_layers):
        at = f"model.layers.{i}"
        tensors |= {
            f"{at}.input_layernorm.weight": (s.hidden_size,),
            f"{at}.post_attention_layernorm.weight": (s.hidden_size,),
            f"{at}.self_attn.q_proj.weight": (q, s.hidden_size),
            f"{at}.self_attn.k_proj.weight": (kv, s.hidden_size),
            f"{at}.self_attn.v_proj.weight": (kv, s.hidden_size),
            f"{at}.self_attn.o_proj.weight": (s.hidden_size, q),
            f"{at}.mlp.gate_proj.weight": (s.intermediate_size, s.hidden_size),
            f"{at}.mlp.up_proj.weight": (s.intermediate_size, s.hidden_size),
            f"{at}.mlp.down_proj.weight": (s.hidden_size, s.intermediate_size),
        }
        if config.qkv_bias:
            for part, rows in (("q", q), ("k", kv), ("v", kv)):
                tensors[f"{at}.self_attn.{part}_proj.bias"] = (rows,)
        if config.output_bias:
            tensors[f"{at}.self_attn.o_proj.bias"] = (s.hidden_size,)
    tensors["model.norm.weight"] = (s.hidden_size,)
    if config.is_reward:
        tensors["score.weight"] = (1, s.hidden_size)
    elif not config.tied:
        tensors["lm_head.weight"] = (s.vocab_size, s.hidden_size)
    return tensors


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return read_header(single)
    if not index.is_file():
        raise CheckpointError(f"{folder}: neither model.safetensors nor its index is there")
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        shards = sorted(str(name) for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: cannot be read as a shard index") from error
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: shard {shard!r} does not lie in this folder")
        tensors |= read_header(folder / shard)
    return tensors


class _Reader:
    """Takes the fields out of a parsed config.json; each mistake is one `CheckpointError`."""

    def __init__(self, file: Path, data: dict[str, Any]) -> None:
        self.file, self.data = file, data

    def config(self) -> DecoderConfig:
        architecture = self._architecture()
        self._refuse_unsupported()
        is_reward = architecture.endswith("SequenceClassification")
        labels = self.data.get("id2label")
        if is_reward and isinstance(labels, dict) and len(labels) != 1:
            raise self._error("id2label", f"{len(labels)} labels", "one label")
        # Qwen2 always has q, k, v biases and never one on the output; Llama has all or none.
        qwen, bias = architecture.startswith("Qwen2"), bool(self.data.get("attention_bias", False))
        tied = bool(self.data.get("tie_word_embeddings", False)) and not is_reward
        return DecoderConfig(
            architecture=architecture,
            shape=self._shape(is_reward, tied, qwen or bias, bias and not qwen),
            rms_norm_eps=self._number(self.data, "rms_norm_eps", 1e-6),
            rope=self._rope(),
            is_reward=is_reward,
            tied=tied,
            qkv_bias=qwen or bias,
            output_bias=bias and not qwen,
            max_positions=self._count("max_position_embeddings", 2048),
        )

    def _architecture(self) -> str:
        names = self.data.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        if name not in ARCHITECTURES:
            raise self._error("architectures", name, f"one of {', '.join(ARCHITECTURES)}")
        return str(name)

    def _refuse_unsupported(self) -> None:
        data = self.data
        if data.get("hidden_act", "silu") not in ("silu", "swish"):
            raise self._error("hidden_act", data["hidden_act"], "silu")
        if data.get("mlp_bias"):
            raise self._error("mlp_bias", True, "false")
        if data.get("quantization_config"):
            raise self._error("quantization_config", "(present)", "an unquantised checkpoint")
        layer_types = data.get("layer_types")
        if isinstance(layer_types, list):
            windowed = any(kind != "full_attention" for kind in layer_types)
        else:
            windowed = bool(data.get("use_sliding_window")) and int(
                data.get("max_window_layers", 0)
            ) < self._count("num_hidden_layers")
        if windowed:
            raise self._error("layer_types", "sliding window", "full attention in every layer")

    def _shape(self, is_reward: bool, tied: bool, qkv_bias: bool, output_bias: bool) -> ModelShape:
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
        head = hidden if is_reward else vocab * hidden
        active = layers * per_layer + hidden + head
        total = active if tied else active + vocab * hidden
        return ModelShape(layers, hidden, inner, n_heads, n_kv, head_dim, vocab, total, active)

    def _rope(self) -> Rope:
        # transformers 5 keeps all of it under rope_parameters; before, theta and scaling were apart
        raw = self.data.get("rope_parameters")
        if raw is None:
            raw = dict(self.data.get("rope_scaling") or {})
            raw.setdefault("rope_theta", self.data.get("rope_theta", 10000.0))
        if not isinstance(raw, dict):
            raise self._error("rope_parameters", raw, "a table")
        kind = raw.get("rope_type", raw.get("type", "default"))
        partial = raw.get("partial_rotary_factor", self.data.get("partial_rotary_factor", 1.0))
        if partial not in (None, 1, 1.0):
            raise self._error("partial_rotary_factor", partial, "1")
        theta = self._number(raw, "rope_theta", 10000.0)
        if kind == "default":
            return Rope("default", theta)
        if kind != "llama3":
            raise self._error("rope_type", kind, "default or llama3")
        low, high = self._number(raw, "low_freq_factor"), self._number(raw, "high_freq_factor")
        if high <= low:
            raise self._error("high_freq_factor", high, f"above low_freq_factor = {low}")
        original = int(self._number(raw, "original_max_position_embeddings"))
        return Rope("llama3", theta, self._number(raw, "factor"), low, high, original)

    def _count(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._error(key, value, "a positive integer")
        return value

    def _number(self, table: Mapping[str, Any], key: str, default: float | None = None) -> float:
        value = table.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self._error(key, value, "a number above 0")
        return float(value)

    def _error(self, key: str, value: object, allowed: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {key} = {value!r} is not supported: want {allowed}")
