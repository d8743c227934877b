"""Attaches ecorl to a TRL trainer, with a new record or one that is open already."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from ecorl.config import Config, TrainerConfig, load_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError, RunError
from ecorl.records import Algorithm, EventKind
from ecorl.runtime.checkpoints import STATE_FILE, read_gears, read_state
from ecorl.runtime.frozen_models import FrozenModels, saved_version
from ecorl.runtime.local import build_runtime
from ecorl.runtime.processes.ranked import together
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.runs.folder import with_seed_of_trainer
from ecorl.runtime.runs.notices import ALREADY_ATTACHED, tell_end, tell_start
from ecorl.runtime.runs.record import AttachedRun, RunRecord, note_end, run_facts
from ecorl.runtime.runs.starts import Starts
from ecorl.runtime.training import TrainingSide
from roll_adapters.trl.adapters import check_reference, no_reference
from roll_adapters.trl.attachment import HOOKED, Changes, TrlAttachment
from roll_adapters.trl.callbacks import LedgerCallback, StageCallback
from roll_adapters.trl.description import (
    is_refreshed,
    trainer_facts,
    training_side,
    watches,
)
from roll_adapters.trl.gears.shifting import TrlGears
from roll_adapters.trl.inputs.first_rows import FirstPrompt
from roll_adapters.trl.packing.packed_trainer import TrlPacking
from roll_adapters.trl.packing.rule import check_packing
from roll_adapters.trl.processes import TrainerProcesses
from roll_adapters.trl.trainings import Checkpoint, Trainings

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "trl")
"""Packages whose versions stand in the ledger's head."""


def attach(
    trainer: Any,
    config: Config | str | Path,
    *,
    run_dir: Path | None = None,
    resume_from_checkpoint: Checkpoint = None,
    overwrite: bool = False,
) -> TrlAttachment:
    """Attach ecorl to a TRL ``GRPOTrainer`` or ``RLOOTrainer``.

    Each further training of the trainer is measured too, as an attempt of the run or as a run of
    its own: see `ecorl.runtime.runs.starts`.

    Args:
        trainer: the trainer, made but not yet training.
        config: a config, the path of a TOML file, or a preset's name. Its ``task`` table is not
            used here, and of ``trainer`` only ``adaptive_micro_batch`` and ``micro_batch_tokens``
            are: the trainer is made already. The algorithm is the trainer's where the config sets
            none, and so is the seed in any case.
        run_dir: folder of the run's record; default is the config's ``run_dir``.
        resume_from_checkpoint: what ``trainer.train`` will get under that name, when it goes on
            with a training that was stopped or killed: the record goes on too.
        overwrite: whether what ecorl wrote of a run that lies in the folder is removed first,
            whatever its state; otherwise such a run is refused.

    Returns:
        The attachment; the end of the first training closes its record, and
        `TrlAttachment.detach` ends it earlier and for good.

    Raises:
        ConfigError: for a config mistake, or a trainer that is not supported.
        UserError: for an engine or run folder that cannot be used.
    """
    check_free(trainer)

    def begin(trainings: Trainings[TrlAttachment], asked: Checkpoint) -> TrlAttachment:
        overwrites = overwrite and trainings.newest is None
        attachment = _attach(trainer, config, trainings.starts, asked, overwrites=overwrites)
        attachment.trainings = trainings
        return attachment

    trainings = Trainings(begin, None if run_dir is None else Path(run_dir))
    attachment = trainings.begin(resume_from_checkpoint)
    if attachment.runtime.is_head:
        attachment.first_prompt = FirstPrompt(trainer)  # once, not for each training
    return attachment


def _attach(
    trainer: Any,
    config: Config | str | Path,
    starts: Starts,
    asked: Checkpoint,
    *,
    overwrites: bool,
) -> TrlAttachment:
    """Attach for one training; see `attach`."""
    settings = _settings(trainer, config)
    check_supported(trainer, settings)
    processes = TrainerProcesses(trainer, settings)
    checkpoint = _checkpoint(trainer, asked)
    step, edi = _read_progress(checkpoint) if checkpoint else (None, None)

    def open_record() -> AttachedRun | None:
        if not processes.is_head:
            return None
        folder, goes_on = starts.next_folder(settings, step or 0)
        facts = _facts(trainer) | processes.facts()
        at = (step or 0) if goes_on else step
        opened = AttachedRun.open(settings, folder, at, facts, overwrite=overwrites)
        starts.folder = opened.folder
        return opened

    ranks = processes.ranks
    opened = open_record() if ranks is None else together(ranks, open_record)
    gears = read_gears(checkpoint)
    if opened is None:
        # Nothing is written here: the folder is the head's to choose.
        folder = starts.run_dir or settings.run_dir_at("")
        record = RunRecord(None, step or 0, edi, owned=True, gears=gears)
        return attach_to_record(trainer, settings, folder, record, processes)
    try:
        record = RunRecord(
            opened.ledger,
            step or 0,
            edi,
            owned=True,
            before=opened.spent,
            gears=gears,
            opened=opened,
        )
        return attach_to_record(trainer, opened.config, opened.folder, record, processes)
    except BaseException:
        opened.withdraw()  # refused before anything ran: free for another try
        raise


def attach_to_record(
    trainer: Any,
    config: Config,
    run_dir: Path,
    record: RunRecord,
    processes: TrainerProcesses | None = None,
) -> TrlAttachment:
    """Attach to a supported trainer with a record that is open already; see `attach`.

    Args:
        trainer: the trainer, made but not yet training.
        config: the resolved configuration.
        run_dir: folder of the run's record; refreshed and changed models are saved below it.
        record: the open record; from here on it is written through the attachment's runtime.
        processes: that train together; None: this one alone.

    Raises:
        ConfigError: for a trainer that is not supported.
        UserError: for an engine that cannot be used.
    """
    check_free(trainer)
    check_supported(trainer, config)
    processes = processes or TrainerProcesses(trainer, config)
    training, head = _head(trainer, config, run_dir, record, processes)
    runtime = processes.runtime(training, head)
    changes = _changes(trainer, config, runtime, record, processes)
    runtime.start()
    if changes.gears is not None:
        changes.gears.record = runtime.record  # on a cluster another process keeps it from here on
    on_close = _ending(runtime, record) if record.owned else _nothing
    save = _saver(trainer, run_dir / "models", processes) if is_refreshed(trainer) else None
    frozen = FrozenModels(runtime, watches(trainer, runtime), save)
    # Wrapped last, so that an engine that does not start leaves the trainer as it was.
    attachment = TrlAttachment(
        trainer, runtime, on_close, frozen, processes.prefix, changes, processes.ranks
    )
    attachment.wrap()
    why = no_reference(trainer)
    if why is not None:
        runtime.record.event(EventKind.NO_REFERENCE, why)
    written = LedgerCallback(attachment, record.owned, record.from_step, run_dir)
    attachment.callbacks = (StageCallback(attachment), written)
    for callback in attachment.callbacks:
        trainer.add_callback(callback)
    if record.opened is not None:
        offloaded = [role for role in runtime.training.frozen if runtime.offloads(role)]
        goes_on = not record.opened.is_new
        tell_start(run_dir, config, runtime.record, offloaded, goes_on=goes_on)
    return attachment


def _changes(
    trainer: Any, config: Config, runtime: Runtime, record: RunRecord, processes: TrainerProcesses
) -> Changes:
    """Make what the config changes in how the trainer computes."""
    gears = packing = None
    if config.gears.is_on:
        gears = TrlGears(trainer, config, runtime.record, processes.ranks, record.gears)
    if config.trainer.adaptive_micro_batch:
        packing = TrlPacking(trainer, config, processes.ranks)
    return Changes(gears, packing)


def _ending(
    runtime: Runtime, record: RunRecord
) -> Callable[[TrlAttachment, BaseException | None], None]:
    """Make what ends the record of an attachment that has one of its own."""

    def end(attachment: TrlAttachment, error: BaseException | None) -> None:
        opened = record.opened
        if opened is not None and not attachment.has_begun:
            opened.withdraw()  # detached again: nothing is in it
            return
        runtime.record.close()
        if opened is not None:
            note_end(opened.folder, error)
            tell_end(opened.folder, error)

    return end


def _head(
    trainer: Any, config: Config, run_dir: Path, record: RunRecord, processes: TrainerProcesses
) -> tuple[TrainingSide, Runtime | None]:
    """Describe the trainer, and make the runtime that decides where this process keeps the record.

    Of several processes the first alone saves models that are not on disk as they are in memory.
    """

    def make() -> tuple[TrainingSide, Runtime | None]:
        models = run_dir if processes.is_head else None
        training = processes.described(training_side(trainer, config, models))
        if record.ledger is None:
            return training, None
        return training, build_runtime(
            config, record.ledger, training, edi=record.edi, before=record.before
        )

    return make() if processes.ranks is None else together(processes.ranks, make)


def _saver(trainer: Any, folder: Path, processes: TrainerProcesses) -> Callable[[Any], Path]:
    """Make a function that saves the refreshed reference below a folder, one version a step.

    All processes have the same reference: the one that keeps the record saves it.
    """

    def save(model: Any) -> Path:
        step = int(trainer.state.global_step)
        if not processes.is_head:
            return folder
        return saved_version(trainer.accelerator.unwrap_model(model), folder, step)

    return save


def _facts(trainer: Any) -> dict[str, str]:
    """Collect facts of a trainer that the user made, for the ledger's head."""
    policy = getattr(trainer.model.config, "_name_or_path", "") or type(trainer.model).__name__
    rewards = ", ".join(trainer.reward_func_names)
    return run_facts(policy, rewards, PACKAGES) | trainer_facts(trainer)


def _settings(trainer: Any, source: Config | str | Path) -> Config:
    """Read the config; what the trainer has and the config does not say comes from the trainer."""
    if isinstance(source, Config):
        settings = source
    else:
        settings = load_config(str(source), key="config")
        unused = _unused(settings)
        if unused:
            told = "%s: attach does not use %s: the trainer is made already"
            logger.warning(told, source, unused)
    if "algorithm" not in settings.model_fields_set:
        settings = settings.model_copy(update={"algorithm": str(_algorithm(trainer))})
    return with_seed_of_trainer(settings, int(trainer.args.seed), source)


def _unused(settings: Config) -> list[str]:
    """Tables and keys of a config that say nothing of a trainer which is made already."""
    unused = settings.model_fields_set & {"task", "trainer"}
    taken = settings.trainer.model_fields_set & TrainerConfig.of_any_trainer
    if taken:
        others = settings.trainer.model_fields_set - taken
        unused = (unused - {"trainer"}) | {f"trainer.{key}" for key in others}
    return sorted(unused)


def _nothing(attachment: TrlAttachment, error: BaseException | None) -> None:
    """Do nothing: the caller closes its ledger itself."""


def _checkpoint(trainer: Any, asked: Checkpoint) -> Path | None:
    """Find the checkpoint that `train` will take for the same argument."""
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


def _read_progress(checkpoint: Path) -> tuple[int, EdiMatrix | None]:
    """Read the step of a trainer's checkpoint, and the EDI matrix when ecorl completed it.

    Raises:
        RunError: when the trainer's own state in it cannot be read.
    """
    path = checkpoint / "trainer_state.json"
    try:
        step = int(json.loads(path.read_text("utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is missing or broken ({error})") from error
    if not (checkpoint / STATE_FILE).is_file():
        logger.warning("%s has no %s: the EDI matrix starts anew", checkpoint, STATE_FILE)
        return step, None
    return step, read_state(checkpoint)[1]


def check_free(trainer: Any) -> None:
    """Check that ecorl is not attached to a trainer already; an attachment that ended is undone.

    Raises:
        RunError: when it is: each step would be recorded twice.
    """
    for name in HOOKED:
        attachment = getattr(trainer.__dict__.get(name), "__self__", None)
        if isinstance(attachment, TrlAttachment):
            if not attachment.closed:
                raise RunError(ALREADY_ATTACHED)
            attachment.detach()


def _algorithm(trainer: Any) -> Algorithm:
    bases = {base.__name__ for base in type(trainer).__mro__}
    return Algorithm.RLOO if "RLOOTrainer" in bases else Algorithm.GRPO


def check_supported(trainer: Any, config: Config) -> None:
    """Check that a trainer is one of TRL's that ecorl can follow, under the config's algorithm.

    Raises:
        ConfigError: when it is not.
    """
    name = type(trainer).__name__
    bases = {base.__name__ for base in type(trainer).__mro__}
    if not bases & {"GRPOTrainer", "RLOOTrainer"}:
        raise ConfigError("trainer", name, "a GRPOTrainer or RLOOTrainer of TRL")
    missing = [name for name in HOOKED if not callable(getattr(trainer, name, None))]
    if missing:
        raise ConfigError("trainer", name, f"of TRL 1.16 to 1.x; this one lacks {missing}")
    check_reference(trainer, config)
    check_packing(trainer, config)
    expected = _algorithm(trainer)
    if config.algorithm_enum is not expected:
        allowed = f"{expected} for a {name}"
        raise ConfigError("algorithm", config.algorithm, allowed)
