"""The same reward model by torch (float32) and by ONNX Runtime (float32 and dynamic INT8).

All read the reward at the last token of rows of one length, without padding.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ecorl.bench.rounds import timed_rounds
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import MissingToolError

INPUT, OUTPUT = "input_ids", "reward"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Dimensions of a Llama reward model."""

    hidden_size: int = 512
    n_layers: int = 8
    intermediate_size: int = 1376
    n_heads: int = 8
    n_kv_heads: int = 8
    vocab_size: int = 32_000


def make_reward_checkpoint(folder: Path, size: ModelSize, max_positions: int, seed: int) -> None:
    """Write a reward model with random weights as a Hugging Face checkpoint.

    Args:
        folder: where it is written; made if need be.
        size: dimensions of the model.
        max_positions: longest row that the model takes, tokens.
        seed: of the weights.

    Raises:
        MissingToolError: without torch and transformers.
    """
    with _random_model("LlamaForSequenceClassification", size, max_positions, seed) as model:
        # Five times the usual start of the head: rewards of rows then differ by about 1.
        model.score.weight.data.mul_(5.0)
        model.save_pretrained(folder)


def make_lm_checkpoint(folder: Path, size: ModelSize, max_positions: int, seed: int) -> None:
    """Write a language model with random weights as a Hugging Face checkpoint.

    Args:
        folder: where it is written; made if need be.
        size: dimensions of the model.
        max_positions: longest row that the model takes, tokens.
        seed: of the weights.

    Raises:
        MissingToolError: without torch and transformers.
    """
    with _random_model("LlamaForCausalLM", size, max_positions, seed) as model:
        model.save_pretrained(folder)


@contextmanager
def _random_model(kind: str, size: ModelSize, max_positions: int, seed: int) -> Iterator[Any]:
    """A model of a class of transformers with random weights, while nothing is printed."""
    torch, transformers = _import_torch()
    config = transformers.LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.n_layers,
        num_attention_heads=size.n_heads,
        num_key_value_heads=size.n_kv_heads,
        max_position_embeddings=max_positions,
        num_labels=1,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]), _quiet_export():
        torch.manual_seed(seed)
        yield getattr(transformers, kind)(config)


class Scorer(Protocol):
    """Anything that answers rewards for rows of one length."""

    def score(self, ids: Int64) -> Float32:
        """Rewards ``[n_rows] float32`` of ``[n_rows, length] int64`` ids."""
        ...


@dataclass(frozen=True, slots=True)
class InParts:
    """A peer that scores its rows in several calls.

    Attributes:
        peer: answers ``n_rows`` rows a call.
        n_rows: rows a call.
    """

    peer: Scorer
    n_rows: int

    def score(self, ids: Int64) -> Float32:
        """Rewards ``[n] float32``; ``n`` is a multiple of `n_rows`."""
        parts = range(0, len(ids), self.n_rows)
        return np.concatenate([self.peer.score(ids[i : i + self.n_rows]) for i in parts])


@dataclass(frozen=True, slots=True)
class Split:
    """The rows a call with which a peer is fastest, and its speeds.

    Attributes:
        n_rows: rows a call.
        tokens_per_s: best speed seen at each size that was tried.
    """

    n_rows: int
    tokens_per_s: dict[int, float]


def fastest_split(by_rows: Mapping[int, Scorer], ids: Int64, n_rounds: int = 2) -> Split:
    """Find the rows a call with which a peer is fastest.

    Args:
        by_rows: the peer for each size.
        ids: ``[n, length] int64``; ``n`` is a multiple of each size.
        n_rounds: times that each is tried, in turns; the best counts.
    """
    calls = {str(n): partial(InParts(peer, n).score, ids) for n, peer in by_rows.items()}
    times = timed_rounds(calls, n_rounds)
    speeds = {int(n): ids.size / min(each) for n, each in times.items()}
    return Split(max(speeds, key=speeds.__getitem__), speeds)


class TorchReward:
    """A reward model by torch in float32.

    Args:
        checkpoint: Hugging Face checkpoint folder.
        threads: torch threads; holds for the whole process.

    Raises:
        MissingToolError: without torch and transformers.
    """

    def __init__(self, checkpoint: Path, threads: int = 1) -> None:
        self._torch, transformers = _import_torch()
        self._torch.set_num_threads(threads)
        loader = transformers.AutoModelForSequenceClassification
        with _quiet_export():
            model = loader.from_pretrained(
                checkpoint, num_labels=1, local_files_only=True, dtype=self._torch.float32
            )
        self.module = _last_token_module(self._torch, model.eval())

    def score(self, ids: Int64) -> Float32:
        """Rewards ``[n_rows] float32`` of ``[n_rows, length] int64`` ids."""
        with self._torch.inference_mode():
            values: Float32 = self.module(self._torch.from_numpy(ids)).numpy()
        return values

    def export(self, path: Path, shape: tuple[int, int]) -> None:
        """Write the model as ONNX for one shape ``(n_rows, length)``, all positions computed.

        Args:
            path: the file.
            shape: rows and tokens a row.

        Raises:
            MissingToolError: without the packages that the export needs.
        """
        try:
            import onnx
            import onnxscript  # noqa: F401 - torch's exporter needs it
        except ImportError as error:
            raise MissingToolError(f'pip install "ecorl[bench]" ({error})') from error
        example = self._torch.ones(shape, dtype=self._torch.int64)
        with _quiet_export():
            self._torch.onnx.export(
                self.module, (example,), str(path), dynamo=True, verbose=False,
                input_names=[INPUT], output_names=[OUTPUT], external_data=False,
            )  # fmt: skip
        # The exporter leaves shapes of transposed weights that the quantiser's check rejects; it
        # infers them anew.
        graph = onnx.load(str(path))
        del graph.graph.value_info[:]
        onnx.save(graph, str(path))


class OrtReward:
    """An exported reward model by ONNX Runtime on the CPU.

    Args:
        path: the ONNX file.
        threads: threads within an operator; operators run one after another.

    Raises:
        MissingToolError: without onnxruntime.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        runtime = _import_ort()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def score(self, ids: Int64) -> Float32:
        """Rewards ``[n_rows] float32`` of ``[n_rows, length] int64`` ids of the exported shape."""
        values: Float32 = self._session.run([OUTPUT], {INPUT: ids})[0]
        return values


def quantise_onnx(source: Path, target: Path) -> dict[str, int]:
    """Quantise by ONNX Runtime's dynamic way: INT8 weights by channel, activations by tensor.

    Args:
        source: the exported model.
        target: the file to write.

    Returns:
        How many nodes of each matrix-product kind the quantised graph has.

    Raises:
        MissingToolError: without onnxruntime and onnx.
    """
    _import_ort()
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet_export():
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8, per_channel=True)
    kinds = [node.op_type for node in onnx.load(str(target)).graph.node]
    return {kind: kinds.count(kind) for kind in ("MatMulInteger", "MatMul", "Gemm")}


def agreement(values: Float32, exact: Float32) -> dict[str, float]:
    """Compare an engine's rewards with the exact ones.

    Args:
        values: the engine's rewards, ``[n_rows] float32``.
        exact: those of torch in float32.

    Returns:
        ``correlation`` and ``error``: root mean square of the difference over the standard
        deviation of the exact rewards.
    """
    difference = values.astype(np.float64) - exact
    return {
        "correlation": float(np.corrcoef(values, exact)[0, 1]),
        "error": float(np.sqrt(np.mean(difference**2)) / np.std(exact.astype(np.float64))),
    }


def _last_token_module(torch: Any, model: Any) -> Any:
    class LastTokenReward(torch.nn.Module):  # type: ignore[misc]  # torch is imported late
        """The model's body over all positions with its head at the last one."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            body = self.model.model(input_ids=input_ids, use_cache=False)
            return self.model.score(body.last_hidden_state[:, -1])[:, 0]

    return LastTokenReward().eval()


def _import_torch() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingToolError(f'pip install "ecorl[trl]" ({error})') from error
    return torch, transformers


def _import_ort() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingToolError(f'pip install "ecorl[bench]" ({error})') from error
    return onnxruntime


@contextmanager
def _quiet_export() -> Iterator[None]:
    """Keep bars, warnings and log lines of exporters and quantisers out of the output."""
    from transformers.utils import logging as hf_logging

    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if bars:
            hf_logging.enable_progress_bar()
