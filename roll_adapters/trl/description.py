"""Describes a TRL trainer to ecorl: its device, its models and its settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from ecorl.config import Config, FpgaEngineConfig, TorchEngineConfig
from ecorl.engines.torch import loading
from ecorl.engines.torch.loading import nvml_name
from ecorl.engines.validate import EngineBoundary
from ecorl.records import Action, ModelShape, Role, Stage
from ecorl.runtime.frozen_models import Watch, frozen_model, int8_objection, model_name
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.training import FrozenModel, KeptModel, TrainingSide
from roll_adapters.trl.adapters import is_own_reference
from roll_adapters.trl.reward import RewardModelCall

logger = logging.getLogger(__name__)


def training_side(trainer: Any, config: Config, run_dir: Path | None) -> TrainingSide:
    """Describe a trainer to the runtime.

    Args:
        trainer: the TRL trainer.
        config: whose policy says which models may leave the GPU.
        run_dir: below it models are saved that are not on disk as they are in memory; None: the
            frozen models are described by another process.
    """
    models = _shapes(trainer)
    frozen, kept = _frozen(trainer, config, run_dir) if run_dir is not None else ({}, {})
    device = trainer.accelerator.device
    elsewhere = served_elsewhere(trainer)
    if device.type != "cuda":
        return TrainingSide("cpu", models=models, frozen=frozen, elsewhere=elsewhere, kept=kept)

    def fence() -> None:
        torch.cuda.synchronize(device)

    return TrainingSide("cuda", gpu_uuids(trainer), models, frozen, fence, elsewhere, kept=kept)


def served_elsewhere(trainer: Any) -> dict[Role, str]:
    """Find the roles that run on other devices than the trainer's, and what these are.

    A vLLM server has GPUs of its own; vLLM beside the training (``colocate``) has the trainer's.

    Args:
        trainer: the TRL trainer.
    """
    by_server = getattr(trainer, "use_vllm", False) and trainer.vllm_mode == "server"
    return {Stage.GENERATION: "a vLLM server"} if by_server else {}


def trainer_facts(trainer: Any) -> dict[str, str]:
    """Collect the settings that a trainer really has, for the ledger's head."""
    names = (
        "seed",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_generations",
        "num_iterations",
        "max_completion_length",
        "learning_rate",
        "beta",
        "temperature",
    )
    told = {name: getattr(trainer.args, name, None) for name in names}
    facts = {name: str(value) for name, value in told.items() if value is not None}
    return {"trainer": type(trainer).__name__, **facts}


def gpu_uuids(trainer: Any) -> tuple[str, ...]:
    """Find the UUIDs of the GPUs that a trainer uses, written as NVML writes them.

    By UUID, because CUDA and NVML number GPUs differently (fastest first against bus order).
    """
    first = trainer.accelerator.device.index or 0
    n_gpus = max(1, trainer.args.n_gpu)  # above 1 the trainer spreads batches over all of them
    indices = range(n_gpus) if n_gpus > 1 else [first]
    found = [getattr(torch.cuda.get_device_properties(i), "uuid", None) for i in indices]
    return tuple(nvml_name(str(uuid)) for uuid in found if uuid is not None)


def watches(trainer: Any, runtime: Runtime) -> dict[Role, Watch]:
    """Watch each model that has an engine: when it changes, the engine is out of date.

    Args:
        trainer: the TRL trainer.
        runtime: started.
    """
    found: dict[Role, Watch] = {
        reward.role: Watch(reward.model)
        for reward in RewardModelCall.find_all(trainer)
        if runtime.checkpoint(reward.role) is not None
    }
    if runtime.checkpoint(Stage.REFERENCE) is not None:
        found[Stage.REFERENCE] = Watch(trainer.ref_model)
    return found


def is_refreshed(trainer: Any) -> bool:
    """Whether TRL moves the reference towards the policy during training."""
    return bool(getattr(trainer.args, "sync_ref_model", False))


def can_refresh(config: Config) -> bool:
    """Whether the engine takes over weights while it runs; of ecorl's engines the INT8 one does."""
    return isinstance(config.engine.offload, FpgaEngineConfig)


def _frozen(
    trainer: Any, config: Config, run_dir: Path
) -> tuple[dict[Role, FrozenModel], dict[Role, KeptModel]]:
    """Describe the frozen models that the policy may offload, as they are in memory.

    Returns:
        Those that an engine may load, and those that it cannot.
    """
    found: dict[Role, FrozenModel] = {}
    kept: dict[Role, KeptModel] = {}
    for role, model in _offloadable(trainer, config).items():
        reason = _objection(trainer, config, role, model)
        with EngineBoundary() as boundary:
            if reason is None:
                found[role] = frozen_model(model, run_dir / "models" / role.replace(":", "-"))
        if boundary.error is not None:
            reason = f"it cannot be saved for its engine ({boundary.error})"
        if reason is not None:
            kept[role] = KeptModel(reason, model_name(model))
    precision = str(trainer.accelerator.mixed_precision)
    is_exact = isinstance(config.engine.offload, TorchEngineConfig)
    if Stage.REFERENCE in found and precision != "no" and is_exact:
        logger.warning(
            "the trainer computes the reference under %s autocast, the engine torch in the "
            "model's own type: log-probs differ by the autocast's rounding",
            precision,
        )
    return found, kept


def _offloadable(trainer: Any, config: Config) -> dict[Role, Any]:
    """The frozen models in memory that the policy may offload, by role."""
    policy = config.placement.policy
    wanted = {
        stage: getattr(policy, str(stage), Action.CONCURRENT) is not Action.GPU
        for stage in (Stage.REWARD, Stage.REFERENCE)
    }
    found: dict[Role, Any] = {}
    if wanted[Stage.REWARD]:
        found |= {reward.role: reward.model for reward in RewardModelCall.find_all(trainer)}
    if wanted[Stage.REFERENCE] and trainer.ref_model is not None:
        found[Stage.REFERENCE] = trainer.accelerator.unwrap_model(trainer.ref_model)
    return found


def _objection(trainer: Any, config: Config, role: Role, model: Any) -> str | None:
    """Why a model cannot be handed to the configured engine, as far as it shows from here."""
    if role == Stage.REFERENCE and is_refreshed(trainer) and not can_refresh(config):
        return "it is refreshed during training, and the engine cannot take over weights"
    is_int8 = isinstance(config.engine.offload, FpgaEngineConfig)
    return int8_objection(model) if is_int8 else None


def _shapes(trainer: Any) -> dict[Role, ModelShape]:
    policy = shape_of(trainer.accelerator.unwrap_model(trainer.model))
    shapes: dict[Role, ModelShape | None] = {Stage.GENERATION: policy, Stage.ACTOR_TRAIN: policy}
    if trainer.ref_model is not None:
        shapes[Stage.REFERENCE] = shape_of(trainer.accelerator.unwrap_model(trainer.ref_model))
    elif is_own_reference(trainer):
        shapes[Stage.REFERENCE] = policy
    for reward in RewardModelCall.find_all(trainer):
        shapes[reward.role] = shape_of(reward.model)
    return {role: shape for role, shape in shapes.items() if shape is not None}


def shape_of(model: Any) -> ModelShape | None:
    """Count a model's parts for the cost model; None when its config does not tell."""
    try:
        return loading.shape_of(model)
    except (AttributeError, TypeError, ZeroDivisionError):
        logger.warning("the shape of %s is not known: its cost stays unknown", type(model).__name__)
        return None
