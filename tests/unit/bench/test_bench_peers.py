"""The peers compute the model that the engine computes; otherwise no speed is comparable."""

from __future__ import annotations

import numpy as np
import pytest

from ecorl.bench.peers import (
    ModelSize,
    OrtReward,
    TorchReward,
    agreement,
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
