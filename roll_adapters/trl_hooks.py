"""ecorl inside TRL's GRPO and RLOO trainers.

    from roll_adapters.trl_hooks import attach
    attach(trainer, "ecorl.toml")
    trainer.train()

`attach` wraps five methods of this one trainer object and changes nothing in TRL. What happens
within a step:

    _generate                                     generation, timed; rewards are submitted
    _get_per_token_logps_and_entropies(ref_model) reference is submitted; an unfilled tensor goes on
    _calculate_rewards                            completion barrier: both are joined by sample id,
                                                  the tensor is filled, advantages follow
    compute_loss .. optimizer step                actor_train, timed

TRL asks for the reference before the rewards and for advantages right after them, so within one
step the reference can only run beside the rewards. A stage placed on the GPU runs TRL's own code
with TRL's own arguments in TRL's own thread: bit for bit what plain TRL does.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ecorl.config import Config, load_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError
from ecorl.ledger import Ledger
from ecorl.records import Action, ModelShape, Stage
from ecorl.runtime.local import LocalRuntime
from roll_adapters.trl_attachment import HOOKED, StageCallback, TrlAttachment
from roll_adapters.trl_models import frozen_checkpoint, shape_of
from roll_adapters.trl_record import LedgerCallback, open_ledger

logger = logging.getLogger(__name__)


def attach(
    trainer: Any,
    config: Config | str | Path,
    *,
    run_dir: Path | None = None,
    ledger: Ledger | None = None,
    edi: EdiMatrix | None = None,
) -> TrlAttachment:
    """Attach ecorl to a TRL ``GRPOTrainer`` or ``RLOOTrainer``.

    Args:
        trainer: the trainer, made but not yet training.
        config: a config, the path of a TOML file, or a preset's name. Its ``trainer`` and
            ``task`` tables are not used here: the trainer is made already.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        ledger: an open ledger to write to; by default a new one is made and closed by ecorl.
        edi: an EDI matrix to go on with.

    Returns:
        The attachment; training closes it, `TrlAttachment.detach` does so earlier.

    Raises:
        ConfigError: for a config mistake, or a trainer that is not supported.
        UserError: for an engine, checkpoint or run folder that cannot be used.
    """
    settings = config if isinstance(config, Config) else load_config(str(config))
    _check_supported(trainer, settings)
    folder = run_dir or settings.resolved_run_dir()
    own_ledger = ledger is None
    record = ledger or open_ledger(settings, folder, trainer)
    try:
        runtime = LocalRuntime(
            settings,
            record,
            checkpoints=_frozen(trainer, settings, folder),
            models=_shapes(trainer),
            trainer_device="cuda" if trainer.accelerator.device.type == "cuda" else "cpu",
            edi=edi,
        )
        runtime.start()
    except BaseException:
        if own_ledger:
            record.close()
        raise
    attachment = TrlAttachment(
        trainer, runtime, on_close=record.close if own_ledger else lambda: None
    )
    attachment.wrap()
    trainer.add_callback(StageCallback(attachment))
    trainer.add_callback(LedgerCallback(attachment, close_at_end=own_ledger))
    return attachment


def _check_supported(trainer: Any, config: Config) -> None:
    name = type(trainer).__name__
    bases = {base.__name__ for base in type(trainer).__mro__}
    if not bases & {"GRPOTrainer", "RLOOTrainer"}:
        raise ConfigError("trainer", name, "a GRPOTrainer or RLOOTrainer of TRL")
    missing = [name for name in HOOKED if not callable(getattr(trainer, name, None))]
    if missing:
        raise ConfigError("trainer", name, f"of TRL 1.16 to 1.x; this one lacks {missing}")
    if trainer.accelerator.num_processes > 1:
        allowed = "1: one training process writes the run's record"
        raise ConfigError("trainer.num_processes", trainer.accelerator.num_processes, allowed)
    if (config.algorithm == "rloo") != ("RLOOTrainer" in bases):
        allowed = f"{'rloo' if 'RLOOTrainer' in bases else 'grpo'} for a {name}"
        raise ConfigError("algorithm", config.algorithm, allowed)


def _frozen(trainer: Any, config: Config, run_dir: Path) -> dict[Stage, Path]:
    """Checkpoint folders whose weights are those of the trainer's frozen models."""
    folders: dict[Stage, Path] = {}
    policy = config.placement.policy
    wanted = {
        stage: getattr(policy, str(stage), Action.CONCURRENT) is not Action.GPU
        for stage in (Stage.REWARD, Stage.REFERENCE)
    }
    reward = next((f for f in trainer.reward_funcs if isinstance(f, PreTrainedModel)), None)
    if reward is not None and wanted[Stage.REWARD]:
        folders[Stage.REWARD] = frozen_checkpoint(reward, run_dir / "models" / "reward")
    refreshed = bool(getattr(trainer.args, "sync_ref_model", False))
    if trainer.ref_model is not None and wanted[Stage.REFERENCE] and not refreshed:
        folders[Stage.REFERENCE] = frozen_checkpoint(
            trainer.accelerator.unwrap_model(trainer.ref_model), run_dir / "models" / "reference"
        )
    if refreshed:
        logger.warning("the reference is refreshed during training, so it stays on the GPU")
    return folders


def _shapes(trainer: Any) -> dict[Stage, ModelShape]:
    policy = shape_of(trainer.accelerator.unwrap_model(trainer.model))
    shapes = {Stage.GENERATION: policy, Stage.ACTOR_TRAIN: policy}
    if trainer.ref_model is not None:
        shapes[Stage.REFERENCE] = shape_of(trainer.accelerator.unwrap_model(trainer.ref_model))
    for function in trainer.reward_funcs:
        if isinstance(function, PreTrainedModel):
            shapes.setdefault(Stage.REWARD, shape_of(function))
    return {stage: shape for stage, shape in shapes.items() if shape is not None}
