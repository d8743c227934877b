"""The INT8 decoder forward: weights quantised and packed once, then one C call per batch.

The arithmetic lives in ``hls_kernels/vector_ops`` (decoder.hpp says what is quantised where); this
module builds its model structure and calls it. ctypes releases the GIL for the length of a call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.engines.checkpoint import DecoderCheckpoint, DecoderConfig
from ecorl.engines.fpga.gemm import CsimLibrary, PackedWeight
from ecorl.engines.fpga.quantise import quantise_weight
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import BuildError, EngineError

HEAD_BLOCK = 2048
"""Outputs of the head in one product; bounds what of the logits exists at a time."""

MAX_ROW = (2**31 - 1) // 127**2
"""Longest row, tokens: attention sums products of INT8 weights and values, both within +-127, over
all keys of a row in INT32."""

_FIRST_POSITIONS = 512
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32


class _CLinear(ctypes.Structure):
    _fields_ = (("packed", _POINTER), ("scale", _POINTER), ("bias", _POINTER))


class _CLayer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("qkv", _CLinear),
        ("output", _CLinear),
        ("gate_up", _CLinear),
        ("down", _CLinear),
    )


class _CDecoder(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("n_layers", "hidden", "intermediate")),
        *((name, _INT) for name in ("n_heads", "n_kv_heads", "head_dim")),
        ("head_rows", _INT),
        ("head_block", _INT),
        ("rms_eps", ctypes.c_float),
        ("layers", ctypes.POINTER(_CLayer)),
        ("embedding", _POINTER),
        ("final_norm", _POINTER),
        ("cosine", _POINTER),
        ("sine", _POINTER),
        ("head", ctypes.POINTER(_POINTER)),
        ("head_scale", _POINTER),
    )


class _CBatch(ctypes.Structure):
    _fields_ = (
        ("ids", _POINTER),
        ("offsets", _POINTER),
        ("n_completion", _POINTER),
        ("n_rows", _INT),
    )


@dataclass(frozen=True, slots=True)
class Linear:
    """A packed linear map: INT8 weights, ``[n] float32`` scales, ``[n] float32`` bias or None."""

    packed: PackedWeight
    scale: Float32
    bias: Float32 | None


class Int8Decoder:
    """A frozen decoder, ready to run as C-simulation.

    Rows are arrays of token ids without padding; the caller has checked ids and lengths
    (`MAX_ROW`, `max_positions`, `vocab_size`). A row's result has the same bits in any batch,
    order, number of threads, build and on any CPU.

    Args:
        checkpoint: the model; its tensors are read one by one and not kept as floats, except the
            input embedding, norms and biases.
        library: the C-simulation library, fast or strict.
        threads: host threads of a call.

    Raises:
        CheckpointError: when a tensor cannot be read.
        BuildError: when the library lacks the decoder.
    """

    def __init__(
        self, checkpoint: DecoderCheckpoint, library: CsimLibrary, threads: int = 1
    ) -> None:
        self.config: DecoderConfig = checkpoint.config
        self.threads = max(1, threads)
        self._library = library
        self._keep: list[Any] = []  # arrays that the C structures point into
        _declare(library.handle)
        s = self.config.shape
        layers = (_CLayer * s.n_layers)(*(self._layer(checkpoint, i) for i in range(s.n_layers)))
        embedding = checkpoint.tensor("model.embed_tokens.weight")
        blocks, head_scale = self._head(checkpoint)
        self._model = _CDecoder(
            n_layers=s.n_layers,
            hidden=s.hidden_size,
            intermediate=s.intermediate_size,
            n_heads=s.n_heads,
            n_kv_heads=s.n_kv_heads,
            head_dim=s.head_dim,
            head_rows=len(head_scale),
            head_block=HEAD_BLOCK,
            rms_eps=self.config.rms_norm_eps,
            layers=layers,
            embedding=self._address(embedding),
            final_norm=self._address(checkpoint.tensor("model.norm.weight")),
            head=blocks,
            head_scale=self._address(head_scale),
        )
        self._n_positions = 0
        self._growing = threading.Lock()

    def score(self, rows: Sequence[Int64]) -> Float32:
        """Reward at the last token of each row: ``[n_rows] float32``.

        Raises:
            EngineError: when the host ran out of memory.
        """
        out = np.zeros(len(rows), np.float32)
        self._call("decoder_score", rows, None, out)
        return out

    def logprobs(
        self, rows: Sequence[Int64], n_completion: Sequence[int], temperature: float
    ) -> tuple[Float32, ...]:
        """Log-probs of the last ``n_completion[i]`` tokens of each row, nats, float32.

        The value of token t is ``log_softmax(logits[t - 1] / temperature)[x_t]``.

        Raises:
            EngineError: when the host ran out of memory.
        """
        counts = np.asarray(n_completion, np.int32)
        out = np.zeros(int(counts.sum()), np.float32)
        inverse = ctypes.c_float(1.0 / temperature)
        self._call("decoder_logprobs", rows, counts, inverse, out)
        ends = np.cumsum(counts)
        return tuple(np.split(out, ends[:-1])) if len(counts) else ()

    def hidden(self, rows: Sequence[Int64]) -> Float32:
        """Residual stream before the final norm, rows concatenated: ``[n_tokens, hidden]``.

        Raises:
            EngineError: when the host ran out of memory.
        """
        n_tokens = sum(len(row) for row in rows)
        out = np.zeros((n_tokens, self.config.shape.hidden_size), np.float32)
        self._call("decoder_hidden", rows, None, out)
        return out

    def _call(
        self,
        function: str,
        rows: Sequence[Int64],
        n_completion: npt.NDArray[np.int32] | None,
        *arguments: Any,
    ) -> None:
        if not rows:
            return
        lengths = [len(row) for row in rows]
        self._ensure_positions(max(lengths))
        ids = np.concatenate(rows).astype(np.int32)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        batch = _CBatch(
            ids.ctypes.data,
            offsets.ctypes.data,
            None if n_completion is None else n_completion.ctypes.data,
            len(rows),
        )
        passed = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
        call = getattr(self._library.handle, function)
        if call(ctypes.byref(self._model), ctypes.byref(batch), *passed, self.threads):
            raise EngineError("the host ran out of memory in the C-simulation")

    def _ensure_positions(self, length: int) -> None:
        """Cosines and sines of every position up to `length`, in double, rounded once.

        Another thread may be in a call: former tables stay where they are, their values are the
        beginning of the new ones, and the new length is told last.
        """
        with self._growing:
            if length <= self._n_positions:
                return
            n = max(_FIRST_POSITIONS, 1 << (length - 1).bit_length())
            frequencies = self.config.rope.frequencies(self.config.shape.head_dim)
            angles = np.arange(n, dtype=np.float64)[:, None] * frequencies[None, :]
            self._model.cosine = self._address(np.cos(angles).astype(np.float32))
            self._model.sine = self._address(np.sin(angles).astype(np.float32))
            self._n_positions = n

    def _layer(self, checkpoint: DecoderCheckpoint, index: int) -> _CLayer:
        at = f"model.layers.{index}"
        attention = [f"{at}.self_attn.{part}_proj" for part in ("q", "k", "v")]
        return _CLayer(
            self._address(checkpoint.tensor(f"{at}.input_layernorm.weight")),
            self._address(checkpoint.tensor(f"{at}.post_attention_layernorm.weight")),
            self._linear(checkpoint, attention, self.config.qkv_bias),
            self._linear(checkpoint, [f"{at}.self_attn.o_proj"], self.config.output_bias),
            self._linear(checkpoint, [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"], False),
            self._linear(checkpoint, [f"{at}.mlp.down_proj"], False),
        )

    def _linear(self, checkpoint: DecoderCheckpoint, names: list[str], bias: bool) -> _CLinear:
        """One product for several maps of the same input: their weights stacked."""
        weights = [quantise_weight(checkpoint.tensor(f"{name}.weight")) for name in names]
        packed = self._library.pack(np.concatenate([w.q for w in weights]))
        scale = np.concatenate([w.scale for w in weights])
        biases = None
        if bias:
            biases = np.concatenate([checkpoint.tensor(f"{name}.bias") for name in names])
        self._keep.append(Linear(packed, scale, biases))
        return _CLinear(
            packed.data.ctypes.data,
            scale.ctypes.data,
            None if biases is None else biases.ctypes.data,
        )

    def _head(self, checkpoint: DecoderCheckpoint) -> tuple[Any, Float32]:
        weight = quantise_weight(checkpoint.tensor(checkpoint.head_name))
        starts = range(0, len(weight.q), HEAD_BLOCK)
        packed = [self._library.pack(weight.q[at : at + HEAD_BLOCK]) for at in starts]
        self._keep.extend(packed)
        return (_POINTER * len(packed))(*(p.data.ctypes.data for p in packed)), weight.scale

    def _address(self, array: Float32) -> int:
        kept = np.ascontiguousarray(array)
        self._keep.append(kept)
        return int(kept.ctypes.data)


def _declare(handle: Any) -> None:
    pointer = ctypes.c_void_p
    signatures = {
        "decoder_score": [pointer, pointer, pointer, _INT],
        "decoder_logprobs": [pointer, pointer, ctypes.c_float, pointer, _INT],
        "decoder_hidden": [pointer, pointer, pointer, _INT],
    }
    try:
        for name, arguments in signatures.items():
            function: Callable[..., int] = getattr(handle, name)
            function.restype, function.argtypes = _INT, arguments  # type: ignore[attr-defined]
    except AttributeError as error:
        raise BuildError(f"the C-simulation library lacks the decoder: {error}") from error
