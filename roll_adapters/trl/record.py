"""The record of a TRL run: its folder, its ledger, and what a checkpoint holds of ecorl."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import shutil
import subprocess
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ecorl
from ecorl.config import Config, config_toml, parse_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError, DataError, RunError
from ecorl.files import write_whole
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader

logger = logging.getLogger(__name__)

ORIGIN, ATTACH = "origin", "attach"
"""Key and value in the ledger's head of a run whose trainer the user made."""

STATE_FILE = "ecorl_state.json"
"""Stands in a checkpoint folder once all of it is written: without it the checkpoint is not
complete and is not resumed from."""


def run_facts(policy: object, reward: object) -> dict[str, str]:
    """Facts of a run for the ledger's head: versions, host, models."""
    facts = {
        "host": platform.node(),
        "python": platform.python_version(),
        "policy_model": str(policy),
        "reward_model": str(reward),
    }
    commit = _commit()
    if commit:
        facts["commit"] = commit
    for package in ("ecorl", "torch", "transformers", "trl"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _commit() -> str | None:
    """Commit of ecorl's own source when it runs from a checkout, else None."""
    root = Path(ecorl.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def open_ledger(config: Config, folder: Path, trainer: Any, from_step: int | None) -> Ledger:
    """The record of a trainer that the user made: a fresh one, or the one to go on with.

    Args:
        config: the resolved config; its ``task`` and ``trainer`` tables say nothing of this
            trainer and are left out of the record.
        folder: the run's folder.
        trainer: the TRL trainer.
        from_step: step of the checkpoint that training goes on from, or None for a fresh start.

    Raises:
        RunError: when the folder holds a run that this is not a continuation of.
        ConfigError: when that run was recorded under another config.
    """
    ledger = folder / LEDGER_FILE
    if ledger.exists():
        _check_continues(folder, from_step)
        _check_same_config(folder, config)
        return Ledger.open_for_resume(
            ledger, from_step=from_step or 0, raw_samples=config.ledger.raw_samples
        )
    policy = getattr(trainer.model.config, "_name_or_path", "") or type(trainer.model).__name__
    facts = run_facts(policy, ", ".join(trainer.reward_func_names)) | trainer_facts(trainer)
    return create_run(config, folder, {ORIGIN: ATTACH, **facts}, leave_out=("task", "trainer"))


def trainer_facts(trainer: Any) -> dict[str, str]:
    """What a trainer was really told, for the ledger's head."""
    names = (
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


def _check_continues(folder: Path, from_step: int | None) -> None:
    with contextlib.closing(LedgerReader(folder)) as reader:
        attached = reader.run().meta.get(ORIGIN) == ATTACH
        finished = any(event.kind == "finish" for event in reader.events())
        # Cut off before its first checkpoint a training can only start again, and its record with
        # it: what was recorded stays as superseded.
        has_checkpoint = bool(reader.checkpoints())
    elsewhere = "or choose another folder (run_dir in the config, or attach's run_dir)"
    if not attached:
        raise RunError(f"{folder} holds a run of `ecorl run`: choose another folder")
    if finished:
        raise RunError(f"{folder} holds a run that has finished: choose another folder")
    if from_step is None and has_checkpoint:
        raise RunError(
            f"{folder} holds a run already: to go on with it give attach the "
            f"resume_from_checkpoint that train gets, {elsewhere}"
        )


def _check_same_config(folder: Path, config: Config) -> None:
    """One record is of one config: its policy, devices and carbon factors speak for all of it."""
    with contextlib.closing(LedgerReader(folder)) as reader:
        recorded = parse_config(reader.run().config_toml, f"the ledger of {folder}")
    before, now = recorded.model_dump(), config.anchored().model_dump()
    for table in ("algorithm", "placement", "engine", "devices", "telemetry", "accounting"):
        found = _first_difference(table, before[table], now[table])
        if found is not None:
            key, old, new = found
            allowed = f"{old!r} as in the run that is in {folder}, or another run_dir"
            raise ConfigError(key, new, allowed)


def _first_difference(key: str, before: Any, now: Any) -> tuple[str, Any, Any] | None:
    """Dotted key and both values of the first place where two configs differ, or None."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in {**before, **now}:
            found = _first_difference(f"{key}.{name}", before.get(name), now.get(name))
            if found is not None:
                return found
        return None
    return None if before == now else (key, before, now)


def create_run(
    config: Config, folder: Path, facts: dict[str, str], leave_out: Collection[str] = ()
) -> Ledger:
    """Make a run folder: ``config.toml`` and the ledger.

    Args:
        config: the resolved config.
        folder: the run's folder.
        facts: what is known of the run besides.
        leave_out: tables of the config that say nothing of this run.

    Raises:
        RunError: when the folder holds a run already, or cannot be written.
    """
    if (folder / LEDGER_FILE).exists():
        raise RunError(
            f"{folder} holds a run already: go on with `ecorl run --resume {folder}`, "
            "or choose another with --set run_dir=..."
        )
    text = config_toml(config.anchored(), leave_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(text, "utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise RunError(f"run_dir: {folder} cannot be written ({error})") from error
    return Ledger.create(
        folder / LEDGER_FILE,
        run_id=f"{config.name}-{config.seed}",
        config_toml=text,
        meta=facts,
        raw_samples=config.ledger.raw_samples,
    )


def remove_run(folder: Path, before: Collection[Path] | None) -> None:
    """Take back a run that was just made.

    Args:
        folder: its folder.
        before: what was in the folder, which stays; None when there was no folder.
    """
    if before is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for file in (folder / "config.toml", *folder.glob(f"{LEDGER_FILE}*")):
        if file not in before:
            file.unlink(missing_ok=True)


def write_state(checkpoint: Path, iteration: int, edi_json: str) -> None:
    """Mark a checkpoint complete, with what ecorl itself must remember; atomic.

    Raises:
        OSError: when it cannot be written; the checkpoint then counts as incomplete.
    """
    state = {"iteration": iteration, "edi": json.loads(edi_json)}
    write_whole(checkpoint / STATE_FILE, json.dumps(state))


def read_state(checkpoint: Path) -> tuple[int, EdiMatrix]:
    """Iteration and EDI matrix of a complete checkpoint.

    Raises:
        RunError: when the file is missing or broken.
    """
    try:
        data = json.loads((checkpoint / STATE_FILE).read_text("utf-8"))
        return int(data["iteration"]), EdiMatrix.from_json(json.dumps(data["edi"]))
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise RunError(f"{checkpoint / STATE_FILE} is missing or broken ({error})") from error


def read_progress(checkpoint: Path) -> tuple[int, EdiMatrix | None]:
    """Step of a trainer's checkpoint, and the EDI matrix when ecorl completed it.

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


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint below a folder, or None."""
    complete = [
        (int(path.name.rsplit("-", 1)[1]), path)
        for path in folder.glob("checkpoint-*")
        if path.name.rsplit("-", 1)[1].isdigit() and (path / STATE_FILE).is_file()
    ]
    return max(complete)[1] if complete else None
