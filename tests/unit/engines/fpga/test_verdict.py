"""The verdict beside a checkpoint: what is written, and how the engine obeys it."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest

from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.verdict import (
    VERDICT_FILE,
    checkpoint_digest,
    judge,
    obey,
    study_of,
    write_verdict,
)
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.errors import CheckpointError
from ecorl.records import Stage


def a_study(n_flips, n=100):
    exact = np.stack([np.arange(n), np.arange(n) + 1.0], axis=1).astype(np.float32)
    other = exact.copy()
    other[:n_flips] = other[:n_flips, ::-1]
    return study_of(exact, {"INT8": other})


@pytest.fixture
def folder(models, tmp_path):
    """A reward model of one's own."""
    shutil.copytree(models("llama_reward")[0], tmp_path / "m")
    return tmp_path / "m"


def leave(folder, n_flips, budget=0.03, **changes):
    """Write a verdict on the folder's weights."""
    digest = checkpoint_digest(load_decoder(folder))
    verdict = judge(a_study(n_flips), "INT8", budget, digest)
    write_verdict(verdict, folder / VERDICT_FILE)
    path = folder / VERDICT_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return verdict


@pytest.mark.parametrize(("n_flips", "accepted"), [(0, True), (3, True), (4, False)])
def test_the_budget_itself_is_still_accepted(n_flips, accepted):
    verdict = judge(a_study(n_flips), "INT8", 0.03, "d")
    assert (verdict.rank_flip_share, verdict.accepted) == (n_flips / 100, accepted)
    assert verdict.provenance == "emulated"


def test_without_an_answer_nothing_is_accepted():
    exact = np.array([[1, 2]], np.float32)
    verdict = judge(study_of(exact, {"INT8": exact * np.nan}), "INT8", 1.0, "d")
    assert (verdict.rank_flip_share, verdict.accepted) == (None, False)


def test_the_file_holds_the_whole_study_and_replaces_another(folder):
    leave(folder, 50)
    verdict = leave(folder, 2)
    found = json.loads((folder / VERDICT_FILE).read_text())
    assert found["accepted"] is True
    assert found["checkpoint_digest"] == verdict.checkpoint_digest
    (int8,) = found["figures"]["precisions"]
    assert int8["flips"]["n_flips"] == 2
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_the_digest_is_of_weights_and_config(folder, tmp_path):
    first = checkpoint_digest(load_decoder(folder))
    assert first.startswith("sha256:")
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("notes")
    assert checkpoint_digest(load_decoder(tmp_path / "copy")) == first
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    second = checkpoint_digest(load_decoder(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
    assert len({first, second, checkpoint_digest(load_decoder(folder))}) == 3


def test_a_refused_model_is_not_loaded(folder, require_tool, snapshot):
    require_tool("gxx")
    leave(folder, 12)
    with pytest.raises(CheckpointError) as caught:
        FpgaEngine(folder, Stage.REWARD)
    snapshot(str(caught.value))
    FpgaEngine(folder, Stage.REWARD, obey_verdict=False).close()
    leave(folder, 12, budget=0.2)
    FpgaEngine(folder, Stage.REWARD).close()


def test_a_refusal_without_any_answer(folder, snapshot):
    leave(folder, 12, rank_flip_share=None)
    with pytest.raises(CheckpointError) as caught:
        obey(load_decoder(folder))
    snapshot(str(caught.value))


@pytest.mark.parametrize("of_others", ["checkpoint_digest", "kernels_digest"])
def test_a_stale_verdict_is_named_once_and_refuses_nothing(folder, caplog, of_others, snapshot):
    leave(folder, 12, **{of_others: "sha256:0"})
    obey(load_decoder(folder))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    snapshot(record.message)


@pytest.mark.parametrize("read_at", [None, "last"])
def test_a_verdict_on_rewards_read_elsewhere_is_none(folder, caplog, read_at):
    leave(folder, 12)
    path = folder / VERDICT_FILE
    found = json.loads(path.read_text())
    assert found.pop("read_at") == "last_no_pad"
    path.write_text(json.dumps(found if read_at is None else found | {"read_at": read_at}))
    obey(load_decoder(folder))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"{path} ")
    assert "read_at" in record.message


def test_without_a_verdict_that_is_said_quietly(folder, caplog, snapshot):
    with caplog.at_level(logging.INFO):
        obey(load_decoder(folder))
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    snapshot(record.message)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"accepted": false}', "\xff", '{"budget": null}', "[" * 9999]
)
def test_a_file_that_is_no_verdict_is_named_and_passed_over(folder, caplog, text):
    (folder / VERDICT_FILE).write_text(text, encoding="latin-1")
    obey(load_decoder(folder))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"{folder / VERDICT_FILE} ")
