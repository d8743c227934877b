"""The peers compute the model that the engine computes; otherwise no speed is comparable."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.studies.peers import (
    InParts,
    ModelSize,
    OrtReward,
    TorchReward,
    agreement,
    fastest_split,
    make_reward_checkpoint,
    quantise_onnx,
)
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import Stage

SIZE = ModelSize(64, 2, 176, 4, 2, 200)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("peers") / "model"
    make_reward_checkpoint(folder, SIZE, max_positions=32, seed=3)
    return folder


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(1, SIZE.vocab_size, size=(24, 16))


def test_all_peers_and_the_engine_give_the_models_own_rewards(
    checkpoint, ids, tmp_path, require_tool
):
    for tool in ("torch", "onnxruntime", "gxx"):
        require_tool(tool)
    import torch
    from transformers import AutoModelForSequenceClassification

    own = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=1).eval()
    with torch.inference_mode():
        exact = own(input_ids=torch.from_numpy(ids)).logits[:, 0].numpy()
    peer = TorchReward(checkpoint)
    np.testing.assert_allclose(peer.score(ids), exact, atol=1e-5)

    peer.export(tmp_path / "f.onnx", ids.shape)
    np.testing.assert_allclose(OrtReward(tmp_path / "f.onnx").score(ids), exact, atol=1e-4)

    nodes = quantise_onnx(tmp_path / "f.onnx", tmp_path / "q.onnx")
    assert nodes["MatMulInteger"] >= 7 * SIZE.n_layers
    quantised = OrtReward(tmp_path / "q.onnx").score(ids)
    assert not np.array_equal(quantised, exact)
    assert agreement(quantised, exact)["correlation"] > 0.98

    engine = FpgaEngine(checkpoint, Stage.REWARD)
    batch = ScoreBatch(tuple(map(str, range(len(ids)))), tuple(ids), (0,) * len(ids))
    assert agreement(engine.score(batch).values, exact)["correlation"] > 0.98


def test_the_same_seed_gives_the_same_model(checkpoint, tmp_path):
    make_reward_checkpoint(tmp_path, SIZE, max_positions=32, seed=3)
    file = "model.safetensors"
    assert (tmp_path / file).read_bytes() == (checkpoint / file).read_bytes()


def test_agreement_tells_a_wrong_engine_from_a_right_one():
    exact = np.linspace(-1, 1, 50, dtype=np.float32)
    assert agreement(exact, exact) == {"correlation": pytest.approx(1.0), "error": 0.0}
    shuffled = np.random.default_rng(0).permutation(exact)
    assert agreement(shuffled, exact)["correlation"] < 0.5
    assert agreement(exact + 1, exact)["error"] > 1


class Slow:
    """Doubles its input; by its own clock slow for many rows at once, and slow to call."""

    def __init__(self) -> None:
        self.sizes, self.now_s = [], 0.0

    def perf_counter(self):
        return self.now_s

    def score(self, ids):
        self.sizes.append(len(ids))
        self.now_s += 0.001 + 0.002 * len(ids) ** 2 / 8
        return ids[:, 0].astype(np.float32) * 2


def test_a_peer_is_measured_in_the_calls_that_it_is_fastest_with(monkeypatch):
    ids = np.arange(16).reshape(8, 2)
    peer = Slow()
    clock = SimpleNamespace(perf_counter=peer.perf_counter, monotonic=peer.perf_counter)
    monkeypatch.setattr("ecorl.bench.rounds.time", clock)
    split = fastest_split(dict.fromkeys((1, 2, 8), peer), ids)
    assert split.n_rows == 2
    assert set(split.tokens_per_s) == {1, 2, 8}
    peer.sizes.clear()
    assert InParts(peer, 2).score(ids).tolist() == (ids[:, 0] * 2).tolist()
    assert peer.sizes == [2, 2, 2, 2]
