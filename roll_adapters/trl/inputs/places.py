"""Where the models of a run may compute, as far as that is known before they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from ecorl import config as cfg
from ecorl.engines.fpga.engine import refusal
from ecorl.engines.registry import missing_bitstream, real_cards
from ecorl.errors import ConfigError
from ecorl.records import DeviceKind, Stage, place_name, role_of
from ecorl.runtime.equipment.accelerator import accelerator_profile
from ecorl.runtime.equipment.hardware import gpu_path, stays_on_gpu
from ecorl.runtime.training import FrozenModel, TrainingSide
from roll_adapters.trl.inputs.finding import Finding


def check_places(config: cfg.Config) -> Iterator[Finding]:
    """Check that the trainer's device can be told, and say where frozen models may run.

    Args:
        config: the run's.

    Raises:
        ConfigError: for a profile or power source that cannot stand for the trainer's device, or
            fewer GPUs than processes.
    """
    check_gpus(config.trainer.widths[0], config)
    on_gpu = torch.cuda.is_available()
    task = config.task
    models = (
        {Stage.REWARD: task.reward.expanduser(), Stage.REFERENCE: task.policy.expanduser()}
        if isinstance(task, cfg.FilesTask)
        else {}
    )
    frozen = {role_of(stage): FrozenModel(folder) for stage, folder in models.items()}
    path = gpu_path(config, TrainingSide("cuda" if on_gpu else "cpu", frozen=frozen))
    yield Finding("devices.gpu", config.devices.gpu, path.note)
    home = place_name(path.profile.kind)
    for stage, folder in models.items():
        yield Finding(f"{stage} model", "", _may_run(config, stage, folder, home))


def check_gpus(width: int, config: cfg.Config) -> None:
    """Refuse more processes than there are GPUs, where there are any: each needs one.

    Args:
        width: number of processes that train together.
        config: the run's.

    Raises:
        ConfigError: when there are fewer.
    """
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else width
    if width > n_gpus:
        allowed = f"at most {n_gpus}: each training process needs a GPU of its own"
        raise ConfigError("trainer.widths", list(config.trainer.widths), allowed)


def _may_run(config: cfg.Config, stage: Stage, folder: Path, home: str) -> str:
    """Say where a frozen model may run; `home` is where the framework computes."""
    offload = config.engine.offload
    if stage is Stage.REFERENCE and config.trainer.beta == 0:
        return "not needed: trainer.beta = 0"
    if stays_on_gpu(config.placement.policy, stage):
        return f"stays on the {home}, by placement.policy"
    if isinstance(offload, cfg.PluginEngineConfig):
        return f"may run in the engine {offload.name}"
    accelerator = accelerator_profile(config)
    if isinstance(offload, cfg.TorchEngineConfig):
        where = "" if accelerator.kind is DeviceKind.FPGA else f" ({accelerator.title})"
        return f"may run in the torch engine{where}"
    why = refusal(folder, stage, config.devices.accelerator)
    if why is not None:
        return f"stays on the {home}, since the card cannot run it: {why}"
    missing = missing_bitstream(config.engine)
    if missing is not None:
        return f"stays on the {home}: {missing}"
    card = "card" if real_cards(config.engine) else "simulated card"
    return f"may run on the {card} ({accelerator.title})"
