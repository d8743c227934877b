"""Describes a ROLL job to ecorl: its models, its processes and their devices, its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from ecorl.engines.models.decoder_config import read_shape
from ecorl.errors import CheckpointError
from ecorl.records import ModelShape, Role, Stage, role_of
from ecorl.runtime.equipment.hardware import stays_on_gpu
from ecorl.runtime.ray.cluster import nodes
from ecorl.runtime.runs.found import GO_ON
from ecorl.runtime.training import FrozenModel, TrainingSide, plain_name
from roll_adapters.ray_jobs.models import local_folder
from roll_adapters.ray_jobs.processes import ActorFacts, answered, by_machine, tell
from roll_adapters.roll.config.convert import MOVABLE_MODEL
from roll_adapters.roll.config.settings import RollConfig
from roll_adapters.roll.stages.roles import (
    REWARD_PREFIX,
    kind_of_cluster,
    reference_name,
    reward_role,
)

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}

_GO_ON = "start ecorl-roll again with the same config and resume_from_checkpoint=FOLDER"

_RULE = "workers without a GPU"


@dataclass(frozen=True, slots=True)
class ModelRole:
    """A role of a job's and its model.

    Attributes:
        role: in ecorl's words.
        key: dotted key of its settings in ROLL's config.
        cluster: name of ROLL's cluster that serves it.
        model: name or folder of its model; empty without one.
        dtype: floating-point type in which ROLL computes with it.
    """

    role: Role
    key: str
    cluster: str
    model: str
    dtype: str


def model_roles(read: RollConfig, pipeline_config: Any) -> list[ModelRole]:
    """The roles of a job.

    Args:
        read: the config as it was read.
        pipeline_config: ROLL's, made of it.
    """
    found = []

    def add(role: Role, key: str, settings: Any, cluster: str = "") -> None:
        if settings is None:
            return
        arguments = getattr(settings, "model_args", None)
        model = str(getattr(arguments, "model_name_or_path", None) or "")
        dtype = _DTYPES.get(str(getattr(arguments, "dtype", "")), "float32")
        name = cluster or str(getattr(settings, "name", None) or key)
        found.append(ModelRole(role, key, name, model, dtype))

    for role, key in (
        (Stage.GENERATION, "actor_infer"), (Stage.ACTOR_TRAIN, "actor_train"),
        (Stage.ACTOR_TRAIN, "student"), (Stage.ACTOR_TRAIN, "sft_train"),
    ):  # fmt: skip
        add(str(role), key, getattr(pipeline_config, key, None))
    if getattr(pipeline_config, "adv_estimator", None) == "gae":
        for role in (Stage.CRITIC, Stage.CRITIC_TRAIN):
            add(str(role), "critic", getattr(pipeline_config, "critic", None))
    references = references_of(pipeline_config)
    for name, settings in references.items():
        key = _key_of(read, name)
        add(role_of(Stage.REFERENCE, reference_name(name, references)), key, settings)
    judge = getattr(pipeline_config, "reward_model", None)
    for domain, settings in (getattr(pipeline_config, "rewards", None) or {}).items():
        cluster = f"{REWARD_PREFIX}{domain}"
        if judge is not None and getattr(settings, "judge_model_type", None) == "inference":
            cluster = str(judge.name)  # its GPUs work while the reward is waited for
        add(reward_role(domain), f"rewards.{domain}", settings, cluster)
    return found


def _key_of(read: RollConfig, name: str) -> str:
    """Dotted key of a reference's settings: with distillation on own words it is a teacher."""
    if read.role(f"teacher.{name}"):
        return f"teacher.{name}"
    return "teacher" if read.role("teacher") and not read.role("reference") else "reference"


def references_of(pipeline_config: Any) -> Mapping[str, Any]:
    """The settings of a job's references by name; empty where it has none of their own.

    Args:
        pipeline_config: ROLL's.
    """
    if not getattr(pipeline_config, "enable_reference", True) or uses_lora(pipeline_config):
        return {}
    found = getattr(pipeline_config, "reference_configs", None)
    if found is not None:
        return dict(found)
    alone = getattr(pipeline_config, "reference", None)
    return {} if alone is None else {"default": alone}


def uses_lora(pipeline_config: Any) -> bool:
    """Whether the policy is trained with LoRA, so that the reference is itself without it.

    Args:
        pipeline_config: ROLL's.
    """
    arguments = getattr(getattr(pipeline_config, "actor_train", None), "model_args", None)
    return getattr(arguments, "lora_target", None) is not None


def movable(
    read: RollConfig, pipeline_config: Any, roles: Sequence[ModelRole], *, moves: bool
) -> list[ModelRole]:
    """The roles that the policy may send to an engine.

    Args:
        read: the config as it was read.
        pipeline_config: ROLL's.
        roles: of the job.
        moves: whether the pipeline lets stages leave their GPUs.
    """
    found = []
    for own in roles if moves else ():
        stage = Stage(own.role.partition(":")[0])
        is_model = stage is Stage.REFERENCE or (
            stage is Stage.REWARD and read.role(own.key).get("worker_cls") == MOVABLE_MODEL
        )
        if is_model and own.model and not stays_on_gpu(read.config.placement.policy, stage):
            found.append(own)
    return found


def frozen_models(roles: Sequence[ModelRole]) -> dict[Role, FrozenModel]:
    """The checkpoints of roles that may move; each must be a folder of this machine.

    Args:
        roles: from `movable`, checked by `checks`.
    """
    found = {}
    for own in roles:
        folder = local_folder(own.model)
        if folder is not None:
            found[own.role] = FrozenModel(folder, own.dtype, plain_name(own.model))
    return found


def shapes(roles: Sequence[ModelRole]) -> dict[Role, ModelShape]:
    """Shapes of the models, as far as their folders tell.

    Args:
        roles: of the job.
    """
    found: dict[Role, ModelShape] = {}
    for own in roles:
        folder = local_folder(own.model) if own.model else None
        if folder is None:
            continue
        try:
            found[own.role] = read_shape(folder)
        except CheckpointError:
            continue  # its cost stays unknown
    return found


def describe(
    roles: Sequence[ModelRole],
    frozen: Mapping[Role, FrozenModel],
    cards: Mapping[Role, Any],
    clusters: Mapping[str, Any],
) -> TrainingSide:
    """Describe a job to the runtime.

    Args:
        roles: of the job.
        frozen: models that may move.
        cards: placement groups in which the workers of roles are started.
        clusters: ROLL's, by name, with their workers.
    """
    asked = {
        name: [worker.__ray_call__.remote(tell) for worker in cluster.workers]
        for name, cluster in clusters.items()
        if kind_of_cluster(name)
    }
    told: dict[str, list[ActorFacts]] = {name: answered(refs) for name, refs in asked.items()}
    models = shapes(roles)
    everyone = [process for found in told.values() for process in found]
    if not any(process.gpus for process in everyone):
        own = ray.get_runtime_context().get_node_id()
        here = tuple(process.pid for process in everyone if process.node == own)
        return TrainingSide("cpu", (), models, frozen, pids=here, cards=cards)
    names = {node.node_id: node.name for node in nodes()}
    titles = {title for process in everyone for title in process.titles}
    places, elsewhere = {}, {}
    for own_role in roles:
        processes = told.get(own_role.cluster, [])
        if any(process.gpus for process in processes):
            with_gpus = [process for process in processes if process.gpus]
            places[own_role.role] = by_machine(with_gpus, names)
        else:
            elsewhere[own_role.role] = _RULE
    return TrainingSide(
        "none",
        models=models,
        frozen=frozen,
        elsewhere=elsewhere,
        places=places,
        gpu_title=titles.pop() if len(titles) == 1 else "",
        cards=cards,
    )


def job_facts(read: RollConfig) -> dict[str, str]:
    """Settings of a job for the ledger's head.

    Args:
        read: the config as it was read.
    """
    names = (
        "exp_name", "adv_estimator", "rollout_batch_size", "num_return_sequences_in_group",
        "prompt_length", "response_length", "ppo_epochs", "max_steps", "init_kl_coef",
        "add_token_level_kl", "async_generation_ratio", "enable_old_logprobs_recompute",
        "actor_train.device_mapping", "actor_infer.device_mapping", "critic.device_mapping",
        "reference.device_mapping", "actor_train.training_args.learning_rate",
        "actor_train.strategy_args.strategy_name", "actor_infer.strategy_args.strategy_name",
    )  # fmt: skip
    found = {"trainer": "ROLL", GO_ON: _GO_ON}
    for name in names:
        key, _, last = name.rpartition(".")
        value = (read.role(key) if key else read.data).get(last)
        if value is not None:
            found[name] = str(value)
    return found
