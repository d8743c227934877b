"""Checkpoint folders: what is missing or damaged is told before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ecorl.errors import CheckpointError
from roll_adapters.trl.inputs.folders import check_policy, check_reward


def make_folder(folder: Path, architecture: str, **tensors: tuple[int, ...]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "tokenizer.json").write_text("{}")
    weights = {name.replace("__", "."): np.zeros(shape) for name, shape in tensors.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def policy(tmp_path):
    return make_folder(tmp_path / "policy", "LlamaForCausalLM", lm_head__weight=(8, 4))


@pytest.fixture
def reward(tmp_path):
    name = "LlamaForSequenceClassification"
    return make_folder(tmp_path / "reward", name, score__weight=(1, 4))


def test_whole_folders_are_described(policy, reward, snapshot):
    snapshot(str(check_policy(policy)))
    assert check_reward(reward).architecture == "LlamaForSequenceClassification"


def test_shards_are_looked_at_by_their_index(policy):
    whole = policy / "model.safetensors"
    whole.rename(policy / "one.safetensors")
    index = policy / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "one.safetensors"}}))
    assert check_policy(policy).weights_bytes == (policy / "one.safetensors").stat().st_size
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "two.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"two\.safetensors: .*No such file"):
        check_policy(policy)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        check_policy(policy)


def test_weights_of_other_forms_are_left_to_those_who_load_them(policy):
    (policy / "model.safetensors").rename(policy / "pytorch_model.bin")
    assert check_policy(policy).weights_bytes is None
    (policy / "pytorch_model.bin").rename(policy / "weights.safetensors")
    (policy / "config.json").write_text(json.dumps({"transformers_weights": "weights.safetensors"}))
    assert check_policy(policy).weights_bytes is None


def test_what_is_missing_or_damaged_is_named(policy, snapshot):
    messages = []
    for name, content in (
        ("config.json", None),
        ("config.json", "{"),
        ("config.json", "[]"),
        ("tokenizer.json", None),
        ("model.safetensors", None),
        ("model.safetensors", ""),
        ("model.safetensors", "\x50\0\0\0\0\0\0\0{"),
    ):
        whole = (policy / name).read_bytes()
        (policy / name).unlink()
        if content is not None:
            (policy / name).write_text(content)
        with pytest.raises(CheckpointError, match=str(policy)) as caught:
            check_policy(policy)
        assert "\n" not in str(caught.value)
        messages.append(str(caught.value).partition(" (Error ")[0])  # and safetensors' words
        (policy / name).write_bytes(whole)
    snapshot("\n".join(messages))


def test_weights_that_were_cut_off_are_refused_by_their_head(policy):
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        check_policy(policy)


def test_no_folder_at_all_is_told_apart(tmp_path, policy, snapshot):
    lines = []
    for folder in (policy / "config.json", tmp_path / "none", Path("org/model")):
        with pytest.raises(CheckpointError) as caught:
            check_policy(folder)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_a_reward_model_has_one_scalar_head(tmp_path, policy, snapshot):
    name = "LlamaForSequenceClassification"
    two = make_folder(tmp_path / "two", name, score__weight=(2, 4))
    lines = []
    for folder in (policy, two):
        with pytest.raises(CheckpointError) as caught:
            check_reward(folder)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))
