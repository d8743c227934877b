"""Describes an OpenRLHF job to ecorl: its processes and their devices, its models and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from ecorl.config import Config
from ecorl.engines.models.decoder_config import read_shape
from ecorl.errors import CheckpointError, ConfigError
from ecorl.records import ModelShape, Role, Stage
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.ray.cluster import nodes
from ecorl.runtime.runs.found import GO_ON
from ecorl.runtime.training import FrozenModel, TrainingSide, plain_name
from roll_adapters.openrlhf.flags import value_of
from roll_adapters.ray_jobs.models import local_folder
from roll_adapters.ray_jobs.processes import ActorFacts, answered, by_machine

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}

_GO_ON = "start ecorl-openrlhf again with the same flags and --ckpt.load_enable"

_MODELS = {
    Stage.GENERATION: "actor",
    Stage.ACTOR_TRAIN: "actor",
    Stage.REFERENCE: "actor",
    Stage.CRITIC: "critic",
    Stage.CRITIC_TRAIN: "critic",
    Stage.REWARD: "reward",
}
"""Whose ``--<section>.model_name_or_path`` the model of a stage is."""


@dataclass(frozen=True, slots=True)
class Job:
    """The processes of a job, as they were found.

    Attributes:
        processes: by the stage that each group of actors trains or answers in; rollout engines
            under generation.
    """

    processes: Mapping[Stage, Sequence[ActorFacts]]

    @classmethod
    def ask(cls, refs: Mapping[Stage, Sequence[Any]]) -> Job:
        """Wait for what the processes tell.

        Args:
            refs: references of `tell`'s answers, by stage.
        """
        return cls({stage: answered(asked) for stage, asked in refs.items()})

    @property
    def on_gpus(self) -> bool:
        """Whether some of the processes have GPUs that NVML knows."""
        return any(process.gpus for found in self.processes.values() for process in found)

    def of(self, stage: Stage) -> Sequence[ActorFacts]:
        """Processes that serve a stage; the critic's forward runs where it is trained."""
        return self.processes.get(Stage.CRITIC_TRAIN if stage is Stage.CRITIC else stage, ())


def describe(config: Config, args: Any, job: Job) -> TrainingSide:
    """Describe a job to the runtime.

    Args:
        config: the run's configuration.
        args: OpenRLHF's flags, nested.
        job: its processes.

    Raises:
        ConfigError: for a frozen model that an engine could not load.
    """
    models = shapes(args)
    frozen = frozen_models(config, args)
    elsewhere = _elsewhere(args)
    if not job.on_gpus:
        own = ray.get_runtime_context().get_node_id()
        here = [p.pid for found in job.processes.values() for p in found if p.node == own]
        return TrainingSide("cpu", (), models, frozen, elsewhere=elsewhere, pids=tuple(here))
    names = {node.node_id: node.name for node in nodes()}
    titles = {title for stage in _MODELS for p in job.of(stage) for title in p.titles}
    return TrainingSide(
        "none",
        models=models,
        frozen=frozen,
        elsewhere=elsewhere,
        places={stage: by_machine(job.of(stage), names) for stage in _MODELS if job.of(stage)},
        gpu_title=titles.pop() if len(titles) == 1 else "",
    )


def shapes(args: Any) -> dict[Role, ModelShape]:
    """Shapes of the models, as far as their folders tell; generation's is the policy's.

    Args:
        args: OpenRLHF's flags, nested.
    """
    found: dict[Role, ModelShape] = {}
    for stage, section in _MODELS.items():
        name = value_of(args, f"{section}.model_name_or_path")
        folder = local_folder(str(name)) if name else None
        if folder is None:
            continue
        try:
            found[stage] = read_shape(folder)
        except CheckpointError:
            continue  # its cost stays unknown
    return found


def frozen_models(config: Config, args: Any) -> dict[Role, FrozenModel]:
    """The frozen models that the policy may send to an engine.

    Args:
        config: the run's configuration.
        args: OpenRLHF's flags, nested.

    Raises:
        ConfigError: for a model that is in no folder on this machine.
    """
    dtype = _DTYPES.get(str(value_of(args, "ds.param_dtype", "bf16")), "float32")
    found: dict[Role, FrozenModel] = {}
    for stage, section in _offloadable(args).items():
        if stays_on_gpu(config.placement.policy, stage):
            continue
        flag = f"{section}.model_name_or_path"
        name = str(value_of(args, flag))
        folder = local_folder(name)
        if folder is None:
            allowed = "a checkpoint folder, or a model of the hub that is in this machine's cache"
            raise ConfigError(f"--{flag}", name, allowed)
        found[stage] = FrozenModel(folder, dtype, plain_name(name))
    return found


def _offloadable(args: Any) -> dict[Stage, str]:
    """The frozen models of a job, each with the section of its flags."""
    found = {}
    if not value_of(args, "reward.remote_url") and value_of(args, "reward.model_name_or_path"):
        found[Stage.REWARD] = "reward"
    if float(value_of(args, "algo.kl.init_coef", 0.0)) > 0:
        found[Stage.REFERENCE] = "actor"
    return found


def normalised(args: Any) -> dict[Role, tuple[float, float]]:
    """Mean and standard deviation of rewards that OpenRLHF normalises after its model.

    Args:
        args: OpenRLHF's flags, nested.
    """
    name = value_of(args, "reward.model_name_or_path")
    if not value_of(args, "reward.normalize_enable", False) or not name:
        return {}
    folder = local_folder(str(name))
    if folder is None:
        return {}
    told = json.loads((folder / "config.json").read_text("utf-8"))
    return {Stage.REWARD: (float(told.get("mean", 0.0)), float(told.get("std", 1.0)))}


def _elsewhere(args: Any) -> dict[Role, str]:
    """Roles that none of OpenRLHF's own processes with a GPU serve."""
    urls = value_of(args, "reward.remote_url") or ()
    urls = [urls] if isinstance(urls, str) else list(urls)
    if any(str(url).startswith(("http:", "https:")) for url in urls):
        return {Stage.REWARD: f"{len(urls)} reward services" if len(urls) > 1 else "a service"}
    return {}


def job_facts(args: Any) -> dict[str, str]:
    """Settings of a job for the ledger's head.

    Args:
        args: OpenRLHF's flags, nested.
    """
    names = (
        "algo.advantage.estimator", "algo.kl.init_coef", "rollout.batch_size",
        "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens",
        "rollout.temperature", "train.batch_size", "train.max_epochs", "train.async_enable",
        "train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward",
        "actor.adam.lr", "critic.adam.lr", "ds.param_dtype", "ds.zero_stage", "ds.lora.rank",
        "vllm.num_engines",
    )  # fmt: skip
    told = {name: value_of(args, name) for name in names}
    found = {f"--{name}": str(value) for name, value in told.items() if value is not None}
    return {"trainer": "OpenRLHF", GO_ON: _GO_ON, **found}
