"""What of a TRL run goes into the ledger besides stages: metrics, checkpoints, start and end."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

import ecorl
from ecorl.config import Config, config_toml, save_config
from ecorl.edi import EdiMatrix
from ecorl.errors import DataError, RunError
from ecorl.ledger import LEDGER_FILE, Ledger

if TYPE_CHECKING:
    from roll_adapters.trl_attachment import TrlAttachment

STATE_FILE = "ecorl_state.json"
"""Stands in a checkpoint folder once all of it is written: without it the checkpoint is not
complete and is not resumed from."""

_METRICS = {
    "loss": "loss",
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "clipped_ratio",
    "step_time": "step_time_s",
}
"""TRL's names and the ledger's."""


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


def open_ledger(config: Config, folder: Path, trainer: Any) -> Ledger:
    """A fresh run folder with the resolved config and an empty ledger.

    Raises:
        RunError: when the folder holds a run already.
    """
    policy = getattr(trainer.model.config, "_name_or_path", "") or type(trainer.model).__name__
    return create_run(config, folder, run_facts(policy, trainer.reward_func_names))


def create_run(config: Config, folder: Path, facts: dict[str, str]) -> Ledger:
    """Make a run folder: ``config.toml`` and the ledger.

    Raises:
        RunError: when the folder holds a run already, or cannot be written.
    """
    if (folder / LEDGER_FILE).exists():
        raise RunError(
            f"{folder} holds a run already: go on with `ecorl run --resume {folder}`, "
            "or choose another with --set run_dir=..."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_config(config, folder / "config.toml")
    except OSError as error:
        raise RunError(f"run_dir: {folder} cannot be written ({error})") from error
    return Ledger.create(
        folder / LEDGER_FILE,
        run_id=f"{config.name}-{config.seed}",
        config_toml=config_toml(config),
        meta=facts,
        raw_samples=config.ledger.raw_samples,
    )


def write_state(checkpoint: Path, iteration: int, edi: EdiMatrix) -> None:
    """Mark a checkpoint complete, with what ecorl itself must remember; atomic."""
    temporary = checkpoint / f".{STATE_FILE}.new"
    temporary.write_text(
        json.dumps({"iteration": iteration, "edi": json.loads(edi.to_json())}), "utf-8"
    )
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(checkpoint / STATE_FILE)


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


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint below a folder, or None."""
    complete = [
        (int(path.name.rsplit("-", 1)[1]), path)
        for path in folder.glob("checkpoint-*")
        if path.name.rsplit("-", 1)[1].isdigit() and (path / STATE_FILE).is_file()
    ]
    return max(complete)[1] if complete else None


class LedgerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Writes metrics and checkpoints of a trainer into the ledger."""

    def __init__(self, attachment: TrlAttachment, close_at_end: bool) -> None:
        self._attachment, self._close_at_end = attachment, close_at_end
        self._ledger = attachment.runtime.ledger

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training starts or goes on."""
        kind = "resume" if state.global_step else "start"
        self._ledger.event(kind, f"training from step {state.global_step} of {state.max_steps}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer's metrics; NaN is a missing value."""
        for key, name in _METRICS.items():
            value = (logs or {}).get(key)
            if isinstance(value, int | float):
                finite = float(value) if math.isfinite(value) else None
                self._ledger.metric(state.global_step, name, finite)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is on disk: complete it with ecorl's own state."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        runtime = self._attachment.runtime
        runtime.tick()
        self._ledger.edi(runtime.edi.to_json())
        self._ledger.checkpoint(state.global_step, str(checkpoint))
        self._ledger.flush()
        if checkpoint.is_dir():
            write_state(checkpoint, state.global_step, runtime.edi)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over."""
        self._ledger.event("training_end", f"{state.global_step} of {state.max_steps} steps")
        if self._close_at_end:
            self._ledger.event("finish", "training ended")
            self._attachment.detach()
