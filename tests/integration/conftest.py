"""A tiny task on disk, for trainers that are made from it the way a TRL user makes them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster import two_nodes
from tests.conftest import demand
from tests.fakes.grids import patient, turning_grid  # noqa: F401
from tests.fakes.nvml.fake_nvml import FakeNvml, build
from tests.frameworks import worker_forks
from tests.integration.tiny_trainer import TinyTask, tiny_trainer
from tests.toy_runs import make_toy_plugin, use_toy_plugin

ACTORS_LIBRARIES = (
    "torch", "numpy", "ecorl.config", "ecorl.ledger", "ecorl.engines.torch",
    "ecorl.runtime.scheduling.stage_scheduler", "ecorl.runtime.monitor",
    "ecorl.trainer.elastic.member", "asyncio", "google.protobuf.internal.builder", "jsonschema",
    "requests", "yaml",
)  # fmt: skip
"""What Ray's actors load, see `worker_forks`."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> TinyTask:
    for tool in ("trl", "torch", "gxx"):
        demand(tool)
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    from roll_adapters.demo import arithmetic as task

    root = tmp_path_factory.mktemp("tiny")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=task.build_tokenizer(),
        pad_token=task.PAD,
        bos_token=task.BOS,
        eos_token=task.EOS,
        padding_side="left",
    )
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        # Wide enough for rewards and log-probs to differ from row to row.
        "initializer_range": 0.1,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(root / "policy")
        LlamaForSequenceClassification(LlamaConfig(**shape, num_labels=1)).save_pretrained(
            root / "reward"
        )
    tokenizer.save_pretrained(root / "policy")
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(root / "reward")
    rng = np.random.default_rng(3)
    numbers = [int(n) for n in task.all_numbers(rng)[:200]]

    def lines(name: str, rows: list[dict[str, str]]) -> Path:
        path = root / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return path

    ask = task.prompt_of
    pairs = [task.ranked_pairs(n, [], 0.0, rng)[0] for n in numbers[:64]]
    return TinyTask(
        policy=root / "policy",
        reward=root / "reward",
        prompts=lines("prompts.jsonl", [{"prompt": ask(n)} for n in numbers[32:]]),
        eval_prompts=lines(
            "eval.jsonl", [{"prompt": ask(n), "answer": task.answer_of(n)} for n in numbers[:32]]
        ),
        pairs=lines(
            "pairs.jsonl",
            [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in pairs],
        ),
    )


@pytest.fixture
def make_trainer(tiny, tmp_path):
    """Makes a plain TRL trainer on the tiny task; keyword arguments go to its config."""

    def make(algorithm: str = "grpo", name: str = "plain", **changes: Any) -> Any:
        return tiny_trainer(tiny, tmp_path / name, algorithm, **changes)

    return make


@pytest.fixture(scope="session")
def toy_plugin(tmp_path_factory) -> Path:
    """What registers the toy engine; the same folder for the nodes of the cluster."""
    return make_toy_plugin(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="session")
def ray_nodes(tmp_path_factory, toy_plugin):
    """A Ray cluster of two nodes for all tests, which nobody has joined yet.

    Its processes know the toy engine, and two GPUs by a stand-in for NVML's library.
    """
    demand("ray")
    demand("cc")
    folder = tmp_path_factory.mktemp("nvml")
    fake = FakeNvml(build(folder), folder / "control")
    fake.set("devices 2")
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            use_toy_plugin(toy_plugin, patch)
            patch.setenv("PYTHONPATH", f"{worker_forks.ASKS}:{os.environ['PYTHONPATH']}")
            patch.setenv(worker_forks.SOCKET, str(folder / "forks"))
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            for key, value in fake.child_environment().items():
                patch.setenv(key, value)
            prepared = worker_forks.prepared(folder, os.environ, ACTORS_LIBRARIES)
            await_forks = stack.enter_context(prepared)
            nodes = stack.enter_context(two_nodes())
            await_forks()
        yield nodes


@pytest.fixture
def ray_cluster(ray_nodes, toy_plugin, monkeypatch):
    """The cluster, which this process has joined."""
    import ray

    use_toy_plugin(toy_plugin, monkeypatch)
    if not ray.is_initialized():
        ray.init(
            address=ray_nodes.address,
            namespace="ecorl",
            log_to_driver=False,
            configure_logging=False,
        )
    return ray_nodes


@pytest.fixture
def elastic_cluster(ray_nodes):
    """The cluster, which this process has joined, for actors that know of no engine."""
    import ray

    if not ray.is_initialized():
        ray.init(
            address=ray_nodes.address,
            namespace="ecorl",
            log_to_driver=False,
            configure_logging=False,
        )
    return ray_nodes
