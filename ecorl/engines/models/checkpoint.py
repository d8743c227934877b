"""Reads Hugging Face checkpoint folders of Llama-family decoders without torch or transformers.

    shape = read_shape(path)            # from config.json alone
    checkpoint = load_decoder(path)     # checks every tensor's name and shape
    checkpoint.tensor("model.norm.weight")

A model that cannot be computed faithfully is refused with one clear line, and never approximated:
other architectures, sliding windows, other activations, unknown RoPE scaling, unknown tensors.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ecorl.engines.models.decoder_config import DecoderConfig, read_config
from ecorl.engines.models.gating import REGRESSION, Gating, layer_name
from ecorl.engines.protocol import Float32
from ecorl.errors import CheckpointError

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: its name, dtype as the format calls it, and shape."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Float32:
        """The tensor as ``[*shape] float32``, in memory that the caller owns.

        Raises:
            CheckpointError: when the dtype is not a float or the file can no longer be read.
        """
        if self.dtype not in _FLOATS:
            raise CheckpointError(f"{self.path}: tensors of dtype {self.dtype} are not supported")
        try:
            with safe_open(self.path, framework="numpy") as file:
                if self.dtype == "BF16":
                    return self._widened()
                values = file.get_tensor(self.name)
            return np.asarray(values.astype(np.float32, copy=False))
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error})") from error
        except SafetensorError as error:
            raise _unreadable(self.path, error) from error
        except ValueError as error:  # no array has so many dimensions, or such long ones
            shape = self.shape
            raise CheckpointError(f"{self.path}: a shape of {shape} is no array's") from error

    def _widened(self) -> Float32:
        """A bfloat16 tensor, which the library hands to NumPy only with ml_dtypes installed.

        The library has checked the header, so that its entries are taken as they stand.
        """
        with self.path.open("rb") as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
            start, stop = json.loads(handle.read(header_bytes))[self.name]["data_offsets"]
            raw = np.fromfile(handle, "<u2", (stop - start) // 2, offset=start)
        # bfloat16 is the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name; no tensor data is read.

    Raises:
        CheckpointError: when the file is missing, truncated or not of this format.
    """
    try:
        path.open("rb").close()  # the library's own error has no text of the system's
        with safe_open(path, framework="numpy") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            stored = {
                name: StoredTensor(path, name, part.get_dtype(), tuple(part.get_shape()))
                for name, part in parts.items()
            }
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except SafetensorError as error:
        raise _unreadable(path, error) from error
    # A name with a line break would break the messages that tell of it.
    if not all(name.isprintable() for name in stored):
        raise CheckpointError(f"{path}: the safetensors header is damaged")
    return stored


def _unreadable(path: Path, error: SafetensorError) -> CheckpointError:
    """The line for a file that the library refuses, with the library's reason."""
    why = " ".join(str(error).split())
    return CheckpointError(f"{path}: not a safetensors file, damaged or truncated ({why})")


logger = logging.getLogger(__name__)

_IGNORED_TENSORS = re.compile(r"\.rotary_emb\.inv_freq$")  # recomputed from rope_theta
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class DecoderCheckpoint:
    """A checked checkpoint folder, whose tensors are read on demand."""

    path: Path
    config: DecoderConfig
    tensors: Mapping[str, StoredTensor]

    def tensor(self, name: str) -> Float32:
        """Read one tensor as float32; bfloat16 and float16 are widened exactly.

        Raises:
            CheckpointError: when it cannot be read or holds NaN or infinity.
        """
        values = self.tensors[name].read()
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.path}: {name} holds NaN or infinity")
        return values

    @property
    def head_name(self) -> str:
        """Name of the tensor by which the last hidden state is multiplied."""
        if self.config.gating is not None:
            return REGRESSION
        if self.config.is_reward:
            return "score.weight"
        return _EMBEDDING if self.config.tied else _HEAD

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the tensors that read the last hidden state: the head, and a gate's first."""
        gate = () if self.config.gating is None else (layer_name(0),)
        return (self.head_name, *gate)


def load_decoder(path: Path | str) -> DecoderCheckpoint:
    """Open a checkpoint folder: model.safetensors, or shards with their index.

    Every tensor that the forward needs is checked for presence and shape; tensor data is read
    later, by `DecoderCheckpoint.tensor`. The tensors decide whether the head is tied: a stored
    ``lm_head.weight`` that differs from the input embedding is the head, whatever config.json says.

    Raises:
        CheckpointError: one line that names what is missing, damaged or not supported.
    """
    folder = Path(path).expanduser()
    config = read_config(folder)
    stored = _stored_tensors(folder)
    # Decided before the expected tensors are listed: an untied head is one of them.
    if _has_own_head(folder, config, stored):
        config = _untied(config)
    if config.gating is not None:
        config = _with_biases(config, config.gating, config.gating.stored_as(stored))
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
    # transformers stores the head of a tied model, and of a classifier made from a language model,
    # without using it.
    spare = {_HEAD} if config.tied or config.is_reward else set()
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
    tensors: dict[str, tuple[int, ...]] = {_EMBEDDING: (s.vocab_size, s.hidden_size)}
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
    if config.gating is not None:
        tensors |= config.gating.tensors(s.hidden_size)
    elif config.is_reward:
        tensors["score.weight"] = (1, s.hidden_size)
    elif not config.tied:
        tensors[_HEAD] = (s.vocab_size, s.hidden_size)
    return tensors


def _has_own_head(folder: Path, config: DecoderConfig, stored: Mapping[str, StoredTensor]) -> bool:
    """Whether a head that config.json calls tied is stored with other values than the embedding.

    transformers 5 does not tie it then, whatever config.json says.
    """
    head, embedding = stored.get(_HEAD), stored.get(_EMBEDDING)
    if not config.tied or head is None or embedding is None:
        return False
    if head.shape == embedding.shape and np.array_equal(head.read(), embedding.read()):
        return False
    logger.warning(
        "%s: config.json ties the head to the input embedding, but %s differs from it and is used",
        folder,
        _HEAD,
    )
    return True


def _untied(config: DecoderConfig) -> DecoderConfig:
    shape = config.shape
    n_params = shape.n_params + shape.vocab_size * shape.hidden_size
    return replace(config, tied=False, shape=replace(shape, n_params=n_params))


def _with_biases(config: DecoderConfig, said: Gating, found: Gating) -> DecoderConfig:
    """The configuration with a gate's biases as stored; config.json does not mention them."""
    shape, hidden = config.shape, config.shape.hidden_size
    more = found.n_params(hidden) - said.n_params(hidden)
    shape = replace(
        shape, n_params=shape.n_params + more, n_params_active=shape.n_params_active + more
    )
    return replace(config, gating=found, shape=shape)


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return read_header(single)
    if not index.is_file():
        raise CheckpointError(f"{folder}: neither model.safetensors nor its index is there")
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        shards = sorted(str(name) for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index}: cannot be read as a shard index") from error
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        if Path(shard).name != shard:  # an index must not make us read files elsewhere
            raise CheckpointError(f"{index}: shard {shard!r} does not lie in this folder")
        tensors |= read_header(folder / shard)
    return tensors
