"""The record of a run: its folder, its ledger, and which run may go on in it.

A run folder holds ``config.toml`` and the ledger. A run is either started by `ecorl run`, which
makes the trainer, or attached to a trainer that the user's script made; the ledger's head says
which.
"""

from __future__ import annotations

import contextlib
import os
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
from ecorl.errors import ConfigError, EcorlError, LedgerError, RunError
from ecorl.files import made_folder
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader, RunEnding, ending_of
from ecorl.ledger.nodes import NODES_FOLDER
from ecorl.plain_text import line_at, text_refusal
from ecorl.records import EventKind
from ecorl.runtime.energy.run_energy import recorded_totals
from ecorl.runtime.handles import RunTotals
from ecorl.runtime.runs.folder import in_new_folder, in_newest_folder
from ecorl.runtime.runs.found import (
    ATTACH,
    BEGINS_AGAIN,
    ORIGIN,
    FoundRun,
    remove_record,
    remove_unbegun,
)
from ecorl.runtime.training import this_node

_LONGEST_ERROR = 300
"""Characters of an exception's first line that are recorded. Invented: some quote whole tensors."""

_LEAST_BYTES = 4096
"""What a folder must have room for before a run begins in it: a page of its ledger."""

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""How PyTorch tells it, of GPUs and of the host."""

_RAN_OUT: set[Path] = set()
"""Folders of runs that ran out of memory in this process: who tries again, with smaller batches,
goes on with the run as a further attempt."""


def note_end(folder: Path, error: BaseException | None) -> None:
    """Note how a run has ended, so that one that ran out of memory may be tried again.

    Args:
        folder: of the run.
        error: that has ended it; None when it ended by itself.
    """
    told = str(error).lower()
    if isinstance(error, MemoryError) or any(words in told for words in _OUT_OF_MEMORY):
        _RAN_OUT.add(folder.absolute())
    else:
        _RAN_OUT.discard(folder.absolute())


def ending_by(error: BaseException) -> tuple[EventKind, str]:
    """What to record of a run that an exception ends.

    Args:
        error: the exception.

    Returns:
        The kind of the event and its detail: type and first line of the exception.
    """
    if isinstance(error, KeyboardInterrupt):
        return EventKind.STOP, "stopped from the keyboard"
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if len(line) > _LONGEST_ERROR:
        line = line[: _LONGEST_ERROR - 1].rstrip() + "…"
    name = type(error).__name__
    return EventKind.FAILURE, f"{name}: {line}" if line else name


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
        opened: what was opened for it; None where the caller opened the ledger alone.
    """

    ledger: Ledger | None
    from_step: int = 0
    edi: EdiMatrix | None = None
    owned: bool = False
    before: RunTotals | None = None
    gears: Mapping[str, Any] = field(default_factory=dict)
    opened: AttachedRun | None = None


@dataclass(frozen=True, slots=True)
class AttachedRun:
    """The record of a trainer that the user made, opened for an attempt.

    Attributes:
        config: of the run, with its folder filled in.
        folder: of the run.
        ledger: the record, open for writing.
        spent: what earlier attempts have drawn; None for a fresh run.
        existed: what was in the folder before; None for a folder of this run's own.
    """

    config: Config
    folder: Path
    ledger: Ledger
    spent: RunTotals | None
    existed: frozenset[Path] | None

    @classmethod
    def open(
        cls,
        config: Config,
        run_dir: Path | None,
        from_step: int | None,
        facts: Mapping[str, str],
        *,
        overwrite: bool = False,
    ) -> AttachedRun:
        """Open a run's record: a fresh one, or the one to go on with.

        Args:
            config: the resolved config; the time of its ``run_dir`` is filled in here.
            run_dir: the run's folder; None: that of the config.
            from_step: step of the checkpoint that training goes on from, None for a fresh start.
            facts: of the trainer, for a fresh record's head.
            overwrite: whether a run that is there is removed first.

        Raises:
            UserError: for a folder that cannot be used. Nothing is left behind then.
        """
        check_overwrite(overwrite, goes_on=from_step is not None)
        if run_dir is None:
            config = in_new_folder(config) if from_step is None else in_newest_folder(config)
            run_dir = config.resolved_run_dir()
        elif config.names_time:
            config = config.in_folder(run_dir)
        check_path(run_dir)
        if from_step is None and not overwrite and run_dir.absolute() in _RAN_OUT:
            from_step = 0
        if overwrite:
            remove_record(run_dir)
        elif from_step is None:
            remove_unbegun(run_dir)
        existed = frozenset(run_dir.iterdir()) if run_dir.is_dir() else frozenset()
        spent = recorded_totals(run_dir)
        try:
            ledger = open_attached_run(config, run_dir, from_step, facts)
        except BaseException:
            if not existed:
                with contextlib.suppress(OSError):
                    run_dir.rmdir()
            raise
        return cls(config, run_dir, ledger, spent, existed or None)

    @property
    def is_new(self) -> bool:
        """Whether the run began with this attempt."""
        return self.existed is None or self.folder / LEDGER_FILE not in self.existed

    def withdraw(self) -> None:
        """Close the record of a run in which nothing ran, and remove it where it is new."""
        self.ledger.close()
        if self.existed is not None:
            if self.is_new:
                remove_run(self.folder, self.existed)
            return
        # Whatever else lies in there by now is the user's.
        with contextlib.suppress(RunError, LedgerError):
            remove_record(self.folder)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


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
        done = subprocess.run(command, capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() or None


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
        LedgerError: when the ledger cannot be written. Nothing is left behind in all cases.
    """
    check_unused(folder)
    check_path(folder)
    text = config_toml(config.anchored(), leave_out)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f"{line_at(error)}, since that path is no text to this process"
        raise RunError(f"run_dir: {folder} cannot record {what}") from error
    try:
        before = frozenset(folder.iterdir()) if folder.is_dir() else frozenset()
        with made_folder(folder):
            # First, since its lock keeps a second run out that begins at the same time.
            ledger = Ledger.create(
                folder / LEDGER_FILE,
                run_id=f"{config.name}-{config.seed}",
                config_toml=text,
                meta=facts,
                raw_samples=config.ledger.raw_samples,
                node=this_node(),
            )
            try:
                (folder / "config.toml").write_text(text, "utf-8")
            except BaseException:
                ledger.close()
                remove_run(folder, before)
                raise
    except OSError as error:
        raise RunError(f"run_dir: {folder} cannot be written ({error})") from error
    return ledger


def open_attached_run(
    config: Config,
    folder: Path,
    from_step: int | None,
    facts: Mapping[str, str],
    *,
    begins_again: bool = False,
) -> Ledger:
    """Open the record of a trainer that the user made: a fresh one, or the one to go on with.

    Args:
        config: the resolved config; its ``task`` and ``trainer`` tables say nothing of this
            trainer and are left out of the record.
        folder: the run's folder.
        from_step: step of the checkpoint that training goes on from, or None for a fresh start.
        facts: of the trainer, for a fresh record's head.
        begins_again: whether a run that has no checkpoint yet is gone on with by a fresh start, as
            the job of a framework does that another process starts again.

    Raises:
        RunError: when the folder holds a run that this is not a continuation of.
        ConfigError: when that run was recorded under another config.
    """
    ledger = folder / LEDGER_FILE
    if not ledger.exists():
        again = {BEGINS_AGAIN: "yes"} if begins_again else {}
        head = {ORIGIN: ATTACH, **again, **facts}
        return create_run(config, folder, head, ("task", "trainer"))
    _check_continues(folder, from_step, begins_again)
    _check_same_config(folder, config)
    return Ledger.open_for_resume(
        ledger, from_step=from_step or 0, raw_samples=config.ledger.raw_samples
    )


def check_overwrite(overwrite: bool, *, goes_on: bool) -> None:
    """Check that a run is not to be removed and gone on with at once.

    Args:
        overwrite: whether the run that lies in the folder is to be removed.
        goes_on: whether training goes on from a checkpoint.

    Raises:
        ConfigError: when both hold.
    """
    if overwrite and goes_on:
        allowed = "False for a training that goes on from a checkpoint: its record goes on too"
        raise ConfigError("overwrite", True, allowed)


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
            f"{folder} holds a run already{there}, or choose another with --set run_dir=... "
            "(runs/{name}-{seed}-{time} is a new one each time)"
        )


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a run that has finished; not where its record cannot be read.

    Args:
        folder: of the run.
    """
    with contextlib.suppress(EcorlError, OSError), LedgerReader(folder) as reader:
        return ending_of(reader)[0] is RunEnding.FINISHED
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
    check_path(folder)
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        with made_folder(folder), tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_LEAST_BYTES))
            file.flush()
        with contextlib.suppress(OSError):  # another run may use one of them by now
            for path in missing:
                path.rmdir()
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror or error})"
        raise ConfigError("run_dir", str(folder), allowed) from error


def check_path(folder: Path) -> None:
    """Check that the whole path of a run's folder is text, as its record holds it.

    Raises:
        ConfigError: when it is not.
    """
    whole = os.path.abspath(folder)  # noqa: PTH100 - it follows no links
    refusal = text_refusal(whole)
    if refusal is not None:
        raise ConfigError("run_dir", whole, refusal)


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
            with contextlib.suppress(OSError):
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
    found = FoundRun.of(folder)
    if found.ending is RunEnding.FINISHED:
        raise RunError(f"{folder} has finished; `ecorl report {folder}` shows it")
    if found.attached:
        # Its trainer was made by the user's code; what a config holds is not that trainer.
        raise RunError(f"{folder} was started by another command: {found.how_to_go_on}")
    return parse_config(found.config_toml, f"the ledger of {folder}")


def _check_continues(folder: Path, from_step: int | None, begins_again: bool) -> None:
    found = FoundRun.of(folder)
    if not found.attached:
        raise RunError(f"{folder} holds a run of `ecorl run`: choose another folder")
    if begins_again:
        if found.ending is RunEnding.FINISHED:
            raise RunError(f"{folder} holds a run that has finished: choose another folder")
        if from_step is None and found.has_checkpoint:
            raise RunError(
                f"{folder} holds a run already: to go on with it {found.go_on}, or choose another "
                "folder (run_dir in the config)"
            )
    elif from_step is None or found.ending is RunEnding.FINISHED:
        raise found.refusal()


_MAY_CHANGE = ("budget_g", "over_budget", "beside", "country")
"""Keys of ``accounting`` that are no factor of what is recorded: a budget may be raised."""


def _check_same_config(folder: Path, config: Config) -> None:
    """One record is of one config: its policy, devices and carbon factors speak for all of it."""
    # The places too: which devices serve a role decides what its executions cost. `runtime` may
    # differ: a cluster may have another address by now.
    with LedgerReader(folder) as reader:
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
