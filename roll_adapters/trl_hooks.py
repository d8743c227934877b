"""ecorl inside TRL's GRPO and RLOO trainers.

    from roll_adapters.trl_hooks import attach
    attach(trainer, "ecorl.toml")
    trainer.train()

`attach` wraps six methods of this one trainer object and changes nothing in TRL. What happens
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from ecorl.config import Config, load_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError
from ecorl.ledger import LEDGER_FILE, Ledger
from ecorl.runtime.local import LocalRuntime
from roll_adapters.trl.attachment import HOOKED, TrlAttachment
from roll_adapters.trl.callbacks import LedgerCallback, StageCallback
from roll_adapters.trl.frozen import FrozenModels
from roll_adapters.trl.record import open_ledger, read_progress, remove_run
from roll_adapters.trl.side import is_refreshed, training_side, watches

logger = logging.getLogger(__name__)


def attach(
    trainer: Any,
    config: Config | str | Path,
    *,
    run_dir: Path | None = None,
    resume_from_checkpoint: str | Path | bool | None = None,
) -> TrlAttachment:
    """Attach ecorl to a TRL ``GRPOTrainer`` or ``RLOOTrainer``.

    Args:
        trainer: the trainer, made but not yet training.
        config: a config, the path of a TOML file, or a preset's name. Its ``trainer`` and
            ``task`` tables are not used here: the trainer is made already.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        resume_from_checkpoint: what ``trainer.train`` will get under that name, when it goes on
            with a training that was stopped or killed: the record goes on too.

    Returns:
        The attachment; training closes it, `TrlAttachment.detach` does so earlier.

    Raises:
        ConfigError: for a config mistake, or a trainer that is not supported.
        UserError: for an engine, checkpoint or run folder that cannot be used.
    """
    settings = config if isinstance(config, Config) else _load(config)
    _check_supported(trainer, settings)
    folder = run_dir or settings.resolved_run_dir()
    checkpoint = _checkpoint(trainer, resume_from_checkpoint)
    step, edi = read_progress(checkpoint) if checkpoint else (None, None)
    before = set(folder.iterdir()) if folder.is_dir() else None
    ledger = open_ledger(settings, folder, trainer, step)
    try:
        return attach_to_record(trainer, settings, folder, Record(ledger, step or 0, edi, own=True))
    except BaseException:
        ledger.close()
        if before is None or folder / LEDGER_FILE not in before:
            remove_run(folder, before)  # refused before anything ran: free for another try
        raise


@dataclass(frozen=True, slots=True)
class Record:
    """The run's record that an attachment writes to.

    Attributes:
        ledger: open for writing.
        from_step: the step that it goes on from, 0 for a fresh one.
        edi: the EDI matrix to go on with, or None.
        own: whether the attachment ends the record when training ends.
    """

    ledger: Ledger
    from_step: int = 0
    edi: EdiMatrix | None = None
    own: bool = False


def attach_to_record(trainer: Any, config: Config, run_dir: Path, record: Record) -> TrlAttachment:
    """Attach to a supported trainer with a record that is open already; see `attach`."""
    _check_supported(trainer, config)
    training = training_side(trainer, config, run_dir)
    runtime = LocalRuntime(config, record.ledger, training, edi=record.edi)
    runtime.start()
    on_close = record.ledger.close if record.own else _nothing
    fresh = run_dir / "models" if is_refreshed(trainer) else None
    frozen = FrozenModels(trainer, runtime, watches(trainer, training), fresh)
    attachment = TrlAttachment(trainer, runtime, on_close, frozen)
    attachment.wrap()
    trainer.add_callback(StageCallback(attachment))
    trainer.add_callback(LedgerCallback(attachment, record.own, record.from_step))
    return attachment


def _load(source: str | Path) -> Config:
    settings = load_config(str(source))
    unused = sorted(settings.model_fields_set & {"task", "trainer"})
    if unused:
        logger.warning("%s: attach does not use %s: the trainer is made already", source, unused)
    return settings


def _nothing() -> None:
    """The caller closes its ledger itself."""


def _checkpoint(trainer: Any, asked: str | Path | bool | None) -> Path | None:
    """The checkpoint that `train` will take for the same argument."""
    if asked is None or asked is False:
        return None
    if asked is True:
        last = get_last_checkpoint(trainer.args.output_dir)
        if last is None:
            folder = trainer.args.output_dir
            raise ConfigError("resume_from_checkpoint", True, f"a checkpoint in {folder}")
        return Path(last)
    if not (Path(asked) / "trainer_state.json").is_file():
        raise ConfigError("resume_from_checkpoint", str(asked), "a checkpoint folder of a trainer")
    return Path(asked)


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
