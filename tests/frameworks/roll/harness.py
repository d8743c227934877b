"""Runs ROLL's own RLVR script in a process of its own, over a Ray cluster of fake GPUs.

There are two of it: ROLL itself, from a checkout, and its double of `tests/fakes/roll`, which takes
the same configs. `cluster` starts Ray once for any number of trainings of either; `run_training`
runs one of them and reads what it left: the scalars and the saved weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.frameworks import ray_nodes, worker_forks
from tests.frameworks.ray_nodes import Cluster
from tests.frameworks.tiny import Tiny, make_prompts
from tests.frameworks.trainings import Ended, cpu_environment, run_to_end

CPU = Path(__file__).parent / "cpu"
DOUBLE = Path(__file__).parents[2] / "fakes" / "roll"
FRAMEWORKS = ("double", "real")
SCRIPT = Path("examples", "start_rlvr_pipeline.py")
N_STEPS, N_ROWS, MICRO = 4, 8, 4
N_GPUS = 4
PROMPT_LENGTH, RESPONSE_LENGTH = 48, 12
DOMAINS = ("long", "short")
LIBRARIES = (
    "torch", "numpy", "safetensors.torch",
    "asyncio", "google.protobuf.internal.builder", "jsonschema", "requests", "yaml",
)  # fmt: skip
"""What the double's processes load before they are the double's, see `worker_forks`."""


def source(framework: str = "real") -> Path | None:
    """The double's folder, or the checkout of ROLL that this process has on its path."""
    if framework == "double":
        return DOUBLE
    for folder in map(Path, sys.path):
        if (folder / SCRIPT).is_file() and folder.resolve() != DOUBLE.resolve():
            return folder.resolve()
    return None


def write_rows(file: Path, tags: Sequence[str] = DOMAINS) -> None:
    """Prompts of some domains, as ROLL's data sets have them."""
    rows = [
        {"id": str(i), "prompt": f"{prompt:.<12}", "tag": tags[i % len(tags)], "ground_truth": "0"}
        for i, prompt in enumerate(make_prompts())
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def critic_of(tiny: Tiny) -> Path:
    """Write a critic of the reward model's weights, beside it.

    ROLL's has a bias that a reward model lacks; what a checkpoint lacks is left as the memory was.
    """
    folder = tiny.reward.parent / "critic"
    if not folder.exists():
        import torch
        from transformers import LlamaConfig, LlamaForTokenClassification

        config = LlamaConfig.from_pretrained(tiny.reward, num_labels=1)
        config.classifier_dropout = 0.0
        model = LlamaForTokenClassification.from_pretrained(tiny.reward, config=config)
        torch.nn.init.zeros_(model.score.bias)
        model.save_pretrained(folder)
        for file in tiny.reward.glob("tokenizer*"):
            shutil.copy(file, folder)
    return folder


# ---------------------------------------------------------------- configs


def rlvr(tiny: Tiny, folder: Path, n_steps: int = N_STEPS) -> dict[str, Any]:
    """A config of RLVR with critic (GAE), reference and two domains, every role on its own GPU.

    Rollouts and policy share theirs, since ROLL then hands over weights without collectives.
    """
    rows, critic = folder / "rows.jsonl", critic_of(tiny)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows)
    return {
        "exp_name": "tiny",
        "seed": 42,
        "logging_dir": str(folder / "logs"),
        "output_dir": str(folder / "output"),
        "profiler_output_dir": str(folder / "profiler"),
        "length_profiler_dir": str(folder / "lengths"),
        "checkpoint_config": {
            "type": "file_system",
            "output_dir": str(folder / "checkpoints"),
            # A checkpoint that is in the record is whole.
            "async_upload": False,
        },
        "track_with": "tensorboard",
        "tracker_kwargs": {"log_dir": str(folder / "tensorboard")},
        "num_gpus_per_node": N_GPUS,
        "max_steps": n_steps,
        "save_steps": 1000,
        "eval_steps": 1000,
        "rollout_batch_size": N_ROWS,
        "prompt_length": PROMPT_LENGTH,
        "response_length": RESPONSE_LENGTH,
        "adv_estimator": "gae",
        "init_kl_coef": 0.1,
        "add_token_level_kl": True,
        "whiten_advantages": True,
        "actor_train": {
            **_trained(tiny.actor, 0),
            "data_args": {
                "template": "native",
                "file_name": [str(rows)],
                "domain_interleave_probs": dict.fromkeys(DOMAINS, 1 / len(DOMAINS)),
                "dataset_dir": "",
                "prompt": "prompt",
                "preprocessing_num_workers": 1,
            },
        },
        "actor_infer": {
            **_role(tiny.actor, 0, "vllm"),
            "generating_args": {
                "max_new_tokens": RESPONSE_LENGTH,
                "top_p": 1.0,
                "top_k": 0,
                "num_beams": 1,
                "temperature": 1.0,
                "num_return_sequences": 1,
            },
        },
        "reference": _role(tiny.actor, 1, "hf_infer"),
        "critic": {
            **_trained(critic, 2),
            "model_args": _model(critic) | {"model_type": "auto_token_classification"},
        },
        "rewards": {
            domain: {
                "worker_cls": "tests.frameworks.roll.rewards.LengthReward",
                "model_args": _model(tiny.reward),
                "tag_included": [domain],
                "world_size": 1,
            }
            for domain in DOMAINS
        },
    }


def _model(folder: Path) -> dict[str, Any]:
    return {
        "model_name_or_path": str(folder),
        "dtype": "fp32",
        "disable_gradient_checkpointing": True,
        "attn_implementation": "sdpa",
    }


def _role(folder: Path, gpu: int, strategy: str) -> dict[str, Any]:
    return {
        "model_args": _model(folder),
        "data_args": {"template": "native"},
        "strategy_args": {"strategy_name": strategy, "strategy_config": {}},
        "device_mapping": f"[{gpu}]",
        "infer_batch_size": MICRO,
    }


def _trained(folder: Path, gpu: int) -> dict[str, Any]:
    role = _role(folder, gpu, "fsdp2_train")
    role["strategy_args"]["strategy_config"] = {
        "fsdp_size": 1,
        "param_dtype": "float32",
        "reduce_dtype": "float32",
        "reshard_after_forward": True,
        "offload_policy": False,
    }
    return role | {
        "training_args": {
            "learning_rate": 1e-3,
            "weight_decay": 0,
            "per_device_train_batch_size": MICRO,
            "gradient_accumulation_steps": 1,
            "warmup_steps": 0,
        }
    }


# ---------------------------------------------------------------- processes


@contextlib.contextmanager
def cluster(
    folder: Path, framework: str = "real", *, n_fpgas: int = 2, **more: str
) -> Iterator[Cluster]:
    """Start a Ray node for the trainings of one of `FRAMEWORKS`. See `ray_nodes.cluster`."""
    checkout = source(framework)
    assert checkout is not None
    own = {
        "ROLL_TEST_GPUS": str(N_GPUS),
        "ROLL_TEST_SOURCE": str(checkout),
    }
    env = cpu_environment(folder, CPU if framework == "real" else DOUBLE, **(own | more))
    if framework == "double":
        env["PYTHONPATH"] = f"{worker_forks.ASKS}{os.pathsep}{env['PYTHONPATH']}"
    libraries = LIBRARIES if framework == "double" else ()
    with ray_nodes.cluster(
        folder, env, n_gpus=N_GPUS, n_fpgas=n_fpgas, libraries=libraries
    ) as started:
        yield started


class Result(Ended):
    """What one training left."""

    @property
    def numbers(self) -> dict[str, dict[int, float]]:
        """The scalars that are neither times nor made of times or of what a process holds."""
        return {name: v for name, v in self.metrics.items() if not _is_measured(name)}

    @cached_property
    def weights(self) -> dict[str, Any]:
        """Tensors of the last checkpoint by ``actor_train.<name>`` and ``critic.<name>``."""
        from safetensors.torch import load_file

        return {
            f"{role}.{name}": tensor
            for role, file in _weight_files(self.folder).items()
            for name, tensor in load_file(file).items()
        }


def newest_checkpoint(folder: Path) -> Path:
    """The checkpoint of a training that a further one goes on from."""
    states = (folder / "checkpoints").rglob("worker_state_pipeline.json")
    found = {int(file.parts[-3].removeprefix("checkpoint-")): file.parents[1] for file in states}
    return found[max(found)]


def _weight_files(folder: Path) -> dict[str, Path]:
    """The file of each trained role's weights in a training's last checkpoint."""
    newest = newest_checkpoint(folder)
    named = {"actor_train": "actor_train", "critic": "critic"}
    files = {role: newest / name / "model.safetensors" for role, name in named.items()}
    # ROLL keeps those of the policy beside the folders of the others.
    files["actor_train"] = next(
        file for file in (files["actor_train"], newest / "model.safetensors") if file.exists()
    )
    return {role: file for role, file in files.items() if file.exists()}


def _is_measured(name: str) -> bool:
    parts = name.split("/")
    return bool({"time", "memory", "system"} & set(parts)) or "tps" in name


def run_training(
    where: Cluster,
    folder: Path,
    config: Mapping[str, Any],
    *,
    command: Sequence[str] | None = None,
    check: bool = True,
) -> Result:
    """Run one training to its end.

    Args:
        where: of `cluster`.
        folder: for what it writes.
        config: ROLL's.
        command: what takes ``--config_path`` and ``--config_name``; None: ROLL's own script.
        check: whether the training must succeed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False), "utf-8")
    path = str(folder)
    if command is None:
        script = Path(where.environment["ROLL_TEST_SOURCE"]) / SCRIPT
        command, path = (sys.executable, str(script)), os.path.relpath(folder, script.parent)
    flags = ["--config_path", path, "--config_name", "tiny"]
    return Result(folder, *run_to_end(where, folder, [*command, *flags], check=check))
