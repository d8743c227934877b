"""The record of a run: its folder, its ledger, and which run may go on in it.

A run folder holds ``config.toml`` and the ledger. A run is either started by `ecorl run`, which
makes the trainer, or attached to a trainer that the user's script made; the ledger's head says
which.
"""

from __future__ import annotations

import contextlib
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ecorl
from ecorl.config import Config, config_toml, parse_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError, EcorlError, RunError
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader
from ecorl.ledger.nodes import NODES_FOLDER
from ecorl.records import EventKind
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.training import this_node

ORIGIN, ATTACH = "origin", "attach"
"""Key and value in the ledger's head of a run whose trainer the user's script made."""

GO_ON = "go_on"
"""Key in the ledger's head of how such a run is gone on with, where that is not `BY_SCRIPT`."""

BY_SCRIPT = "start its script again, with the same resume_from_checkpoint for attach and for train"
"""How a run is gone on with whose trainer the user's script made."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record that an attachment writes to.

    Attributes:
        ledger: open for writing; None in a process of a training that another one records.
        from_step: the step that it goes on from, 0 for a fresh one.
        edi: the EDI matrix to go on with, or None.
        before: what earlier attempts of the run have drawn; None for a fresh one.
        owned: whether the attachment ends the record when training ends.
        gears: what the run knew of its gears at the checkpoint that it goes on from.
    """

    ledger: Ledger | None
    from_step: int = 0
    edi: EdiMatrix | None = None
    owned: bool = False
    before: RunTotals | None = None
    gears: Mapping[str, Any] = field(default_factory=dict)


def run_facts(policy: object, reward: object, packages: Sequence[str] = ()) -> dict[str, str]:
    """Collect facts of a run for the ledger's head: host, models, commit, versions.

    Args:
        policy: name or folder of the model that is trained.
        reward: name or folder of the reward model.
        packages: the framework's packages whose versions count.
    """
    facts = {
        "host": platform.node(),
        "python": platform.python_version(),
        "policy_model": str(policy),
        "reward_model": str(reward),
    }
    commit = _commit()
    if commit:
        facts["commit"] = commit
    for package in ("ecorl", *packages):
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
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


# ---------------------------------------------------------------- opening a record


def create_run(
    config: Config, folder: Path, facts: dict[str, str], leave_out: Collection[str] = ()
) -> Ledger:
    """Make a run folder with ``config.toml`` and the ledger.

    Args:
        config: the resolved config.
        folder: the run's folder.
        facts: what is known of the run besides.
        leave_out: tables of the config that say nothing of this run.

    Raises:
        RunError: when the folder holds a run already, or cannot be written.
    """
    check_unused(folder)
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
        node=this_node(),
    )


def open_attached_run(
    config: Config, folder: Path, from_step: int | None, facts: Mapping[str, str]
) -> Ledger:
    """Open the record of a trainer that the user made: a fresh one, or the one to go on with.

    Args:
        config: the resolved config; its ``task`` and ``trainer`` tables say nothing of this
            trainer and are left out of the record.
        folder: the run's folder.
        from_step: step of the checkpoint that training goes on from, or None for a fresh start.
        facts: of the trainer, for a fresh record's head.

    Raises:
        RunError: when the folder holds a run that this is not a continuation of.
        ConfigError: when that run was recorded under another config.
    """
    ledger = folder / LEDGER_FILE
    if not ledger.exists():
        return create_run(config, folder, {ORIGIN: ATTACH, **facts}, ("task", "trainer"))
    _check_continues(folder, from_step)
    _check_same_config(folder, config)
    return Ledger.open_for_resume(
        ledger, from_step=from_step or 0, raw_samples=config.ledger.raw_samples
    )


def check_unused(folder: Path) -> None:
    """Check that a folder holds no run yet.

    Raises:
        RunError: when it does.
    """
    if (folder / LEDGER_FILE).exists():
        there = f": go on with `{resume_command(folder)}`"
        if is_complete(folder):
            there = f", which has finished: see `{shlex.join(['ecorl', 'report', str(folder)])}`"
        raise RunError(
            f"{folder} holds a run already{there}, or choose another with --set run_dir=..."
        )


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a run that has finished; not where its record cannot be read.

    Args:
        folder: of the run.
    """
    with contextlib.suppress(EcorlError, OSError), LedgerReader(folder) as reader:
        return any(event.kind is EventKind.FINISH for event in reader.events())
    return False


def resume_command(folder: Path) -> str:
    """The command that goes on with a run of `ecorl run`, as a shell takes it.

    Args:
        folder: of the run.
    """
    return shlex.join(["ecorl", "run", "--resume", str(folder)])


def check_writable(folder: Path) -> None:
    """Check that a run's folder can be made, before minutes go into preparation; leave no folder.

    Raises:
        ConfigError: when it cannot.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for path in missing:
            path.rmdir()
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or error
        allowed = f"a folder that can be written ({reason})"
        raise ConfigError("run_dir", str(folder), allowed) from error


def remove_run(folder: Path, before: Collection[Path] | None) -> None:
    """Remove a run that was just made and never began.

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
    if folder / NODES_FOLDER not in before:
        shutil.rmtree(folder / NODES_FOLDER, ignore_errors=True)


def resumable_config(folder: Path) -> Config:
    """Read the config of a run that `ecorl run` started and that can be gone on with.

    The ledger's copy counts, not the file beside it, which may have been edited: one record is of
    one config.

    Raises:
        RunError: when there is no run, it has finished, or a script of the user's started it.
    """
    if not (folder / LEDGER_FILE).is_file():
        raise RunError(f"{folder} holds no run to resume")
    with contextlib.closing(LedgerReader(folder)) as reader:
        record = reader.run()
        finished = any(event.kind is EventKind.FINISH for event in reader.events())
    if finished:
        raise RunError(f"{folder} has finished; `ecorl report {folder}` shows it")
    if record.meta.get(ORIGIN) == ATTACH:
        # Its trainer was made by the user's code; what a config holds is not that trainer.
        raise RunError(
            f"{folder} was started by another command: {record.meta.get(GO_ON, BY_SCRIPT)}"
        )
    return parse_config(record.config_toml, f"the ledger of {folder}")


def _check_continues(folder: Path, from_step: int | None) -> None:
    with contextlib.closing(LedgerReader(folder)) as reader:
        meta = reader.run().meta
        attached = meta.get(ORIGIN) == ATTACH
        finished = any(event.kind is EventKind.FINISH for event in reader.events())
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
            f"{folder} holds a run already: to go on with it {meta.get(GO_ON, BY_SCRIPT)}, "
            f"{elsewhere}"
        )


_MAY_CHANGE = ("budget_g", "over_budget", "beside", "country")
"""Keys of ``accounting`` that are no factor of what is recorded: a budget may be raised."""


def _check_same_config(folder: Path, config: Config) -> None:
    """One record is of one config: its policy, devices and carbon factors speak for all of it."""
    # The places too: which devices serve a role decides what its executions cost. `runtime` may
    # differ: a cluster may have another address by now.
    with contextlib.closing(LedgerReader(folder)) as reader:
        recorded = parse_config(reader.run().config_toml, f"the ledger of {folder}")
    before, now = recorded.model_dump(), config.anchored().model_dump()
    for key in _MAY_CHANGE:
        del before["accounting"][key], now["accounting"][key]
    for table in (
        "algorithm", "placement", "engine", "devices", "places", "telemetry", "accounting",
    ):  # fmt: skip
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
