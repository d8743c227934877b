"""Runs OpenRLHF's own PPO command in a process of its own, over a Ray cluster of fake GPUs.

`cluster` starts Ray once for any number of trainings; `run_training` runs one of them and reads
what it left: the scalars of its TensorBoard files and the saved weights.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.frameworks import ray_nodes
from tests.frameworks.ray_nodes import Cluster
from tests.frameworks.tiny import Tiny
from tests.frameworks.trainings import Ended, cpu_environment, run_to_end

CPU = Path(__file__).parent / "cpu"
COMMAND = (sys.executable, "-m", "openrlhf.cli.train_ppo_ray")
HOLD = "ECORL_TEST_HOLD"
"""Variable with the path of a file: how many requests are answered while it is there."""
N_STEPS, N_ROWS, MICRO = 4, 8, 4
LIBRARIES = (
    "torch", "transformers.trainer", "transformers.models.llama.modeling_llama", "deepspeed",
    "datasets", "peft", "torch.utils.tensorboard",
    "aiohttp", "google.protobuf.internal.builder", "jsonschema", "requests", "yaml",
    "ecorl.report", "ecorl.runtime.local",
)  # fmt: skip
"""What a training's processes load before OpenRLHF's own modules, see `worker_forks`."""
# Every role has a GPU of its own; `common` gives the rest that has no place on the CPU.
ROLES = ("actor", "ref", "reward", "critic")


def common(tiny: Tiny, folder: Path, n_steps: int = N_STEPS) -> dict[str, Any]:
    """Flags of every training: models, data, sizes, where it writes. True is a bare flag."""
    return {
        "actor.model_name_or_path": tiny.actor,
        "reward.model_name_or_path": tiny.reward,
        "data.prompt_dataset": tiny.prompts,
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_samples": n_steps * N_ROWS,
        "data.max_len": 64,
        "rollout.max_new_tokens": 12,
        "rollout.temperature": 0.7,
        "rollout.batch_size": N_ROWS,
        "rollout.micro_batch_size": MICRO,
        "train.batch_size": N_ROWS,
        "train.micro_batch_size": MICRO,
        "train.seed": 11,
        "actor.adam.lr": 1e-3,
        "critic.adam.lr": 1e-3,
        # With a warm-up the first step would have the learning rate 0.
        "actor.lr_warmup_ratio": 0,
        "critic.lr_warmup_ratio": 0,
        "algo.kl.init_coef": 0.05,
        "vllm.num_engines": 1,
        "vllm.sync_backend": "gloo",
        "ds.attn_implementation": "eager",
        "ds.zero_stage": 0,
        "ckpt.output_dir": folder / "final",
        "ckpt.path": folder / "checkpoints",
        "critic.save_value_network": True,
        "logger.tensorboard_dir": folder / "tensorboard",
        **{f"{role}.num_gpus_per_node": 1 for role in ROLES},
    }


# What changes a training with critic, reward model and reference (PPO with GAE) into another.
# None takes a flag away.
PPO: dict[str, Any] = {}
NO_REFERENCE = {"algo.kl.init_coef": 0}
REINFORCE = {"algo.advantage.estimator": "reinforce"}
RLOO = {"algo.advantage.estimator": "rloo", "rollout.n_samples_per_prompt": 2}
GROUP_NORM = {"algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 2}
ASYNC = {"train.async_enable": True}
COLOCATED = {"train.colocate_all": True}
SAVES = {"ckpt.save_steps": 2}
RESUMES = {"ckpt.save_steps": 2, "ckpt.load_enable": True}


def remote_reward(url: str | Path) -> dict[str, Any]:
    """Rewards of a server at http://..., or of the function `reward_func` in a file x.py."""
    return {"reward.remote_url": url, "reward.model_name_or_path": None}


def as_arguments(flags: dict[str, Any]) -> list[str]:
    words = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of the driver and of Ray's processes; `folder` is for their caches."""
    # DeepSpeed's optimiser was compiled there when the environment was made.
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch-extensions"))
    own = {
        "DS_ACCELERATOR": "cpu",
        # No thread in a process that is forked.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "TORCH_EXTENSIONS_DIR": extensions,
        HOLD: str(folder / "hold"),
    }
    return cpu_environment(folder, CPU, **(own | more))


@contextlib.contextmanager
def cluster(folder: Path, *, n_gpus: int = 8, n_fpgas: int = 2, **more: str) -> Iterator[Cluster]:
    """Start a Ray node for OpenRLHF's trainings. See `ray_nodes.cluster`.

    Args:
        folder: of Ray's session and of caches.
        n_gpus: as Ray counts them.
        n_fpgas: cards.
        **more: environment of all processes of the trainings.
    """
    env = environment(folder, **more)
    with ray_nodes.cluster(
        folder, env, n_gpus=n_gpus, n_fpgas=n_fpgas, libraries=LIBRARIES
    ) as started:
        yield started


@dataclass(frozen=True)
class Result(Ended):
    """What one training left; with the flags that it was given."""

    flags: dict[str, Any] = field(repr=False)

    @property
    def numbers(self) -> dict[str, dict[int, float]]:
        """The scalars that are not times."""
        return {name: v for name, v in self.metrics.items() if "/timing/" not in name}

    @cached_property
    def weights(self) -> dict[str, Any]:
        """Tensors of the saved models by ``actor.<name>`` and ``critic.<name>``."""
        from safetensors.torch import load_file

        folders = {"actor": self.folder / "final", "critic": self.folder / "final_critic"}
        return {
            f"{role}.{name}": tensor
            for role, folder in folders.items()
            for file in sorted(folder.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }


def run_training(
    where: Cluster,
    tiny: Tiny,
    folder: Path,
    changes: dict[str, Any] | None = None,
    *,
    n_steps: int = N_STEPS,
    command: Sequence[str] = COMMAND,
    env: dict[str, str] | None = None,
    check: bool = True,
) -> Result:
    """Run one training to its end.

    Args:
        where: of `cluster`.
        tiny: models and prompts.
        folder: for what it writes. A training that resumes is given the folder of the first one.
        changes: flags besides and in place of those of `common`; see `PPO` and the others here.
        n_steps: length of the training.
        command: what the flags are given to.
        env: of the driver, besides the cluster's. Ray's workers do not see it.
        check: whether the training must succeed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = common(tiny, folder, n_steps) | (changes or {})
    ended = run_to_end(where, folder, [*command, *as_arguments(flags)], env=env, check=check)
    return Result(folder, *ended, flags)
