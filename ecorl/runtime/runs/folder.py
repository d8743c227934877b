"""The folder of a run: whose seed it carries, and its time where ``run_dir`` asks for one.

``run_dir`` may hold ``{time}``. It is filled in once a run, by the process that keeps the record,
with the local date and time of the start; the config that is saved holds what came of it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ecorl.config import Config
from ecorl.errors import ConfigError, LedgerError
from ecorl.ledger import LEDGER_FILE, LedgerReader, RunEnding, ending_of

logger = logging.getLogger(__name__)

TIME_FORMAT = "%Y%m%d-%H%M%S"
"""How ``{time}`` is written, e.g. ``20261124-133001``."""


def with_seed_of_trainer(config: Config, seed: int, source: object) -> Config:
    """Take the seed from a trainer that the user made; warn where the config sets another one.

    Args:
        config: the run's.
        seed: the trainer's.
        source: what the config came from, for the warning.
    """
    if "seed" in config.model_fields_set and config.seed != seed:
        named = "the config" if isinstance(source, Config) else source
        logger.warning(
            "%s: seed = %d is not used: the trainer's seed is %d", named, config.seed, seed
        )
    return config.model_copy(update={"seed": seed})


def in_new_folder(config: Config) -> Config:
    """Fill in the time of a run that begins now, where ``run_dir`` asks for it.

    The folder is made at once, so that no other run that begins in the same second gets it.

    Args:
        config: the run's.

    Returns:
        The config with a ``run_dir`` in which nothing is to be filled in any more; the same
        config where no time is asked for.

    Raises:
        ConfigError: when the folder cannot be made.
    """
    if not config.names_time:
        return config
    start = datetime.now().strftime(TIME_FORMAT)
    for number in itertools.count(1):
        folder = config.run_dir_at(start if number == 1 else f"{start}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except (OSError, UnicodeEncodeError) as error:
            reason = getattr(error, "strerror", None) or error
            allowed = f"a folder that can be written ({reason})"
            raise ConfigError("run_dir", str(folder), allowed) from error
        return config.in_folder(folder)
    raise AssertionError("there is always a next number")


def in_newest_folder(config: Config) -> Config:
    """Fill in the time of the newest run that has not finished, for a training that goes on.

    Args:
        config: the run's.

    Returns:
        As `in_new_folder` does.

    Raises:
        ConfigError: when there is no such run.
    """
    if not config.names_time:
        return config
    found = [folder for folder in _matching(config) if _is_unfinished(folder)]
    if not found:
        allowed = (
            "a run that is not finished in a folder of that name, to go on with; there is none"
        )
        raise ConfigError("run_dir", str(config.run_dir), allowed)
    return config.in_folder(max(found, key=_begun))


def _matching(config: Config) -> Sequence[Path]:
    """The folders that ``run_dir`` may stand for, whatever the time."""
    mark = "\0"  # no path holds it
    pattern = Path(str(config.run_dir_at(mark)))
    parts = pattern.parts
    first = next(i for i, part in enumerate(parts) if mark in part)
    found = [Path(*parts[:first])]
    for part in parts[first:]:
        found = [path for folder in found for path in _children(folder, part, mark)]
    return found


def _children(folder: Path, part: str, mark: str) -> list[Path]:
    """What one part of a path stands for in a folder."""
    if mark not in part:
        return [folder / part] if (folder / part).is_dir() else []
    # Not a pattern of the shell's: a name may hold its signs.
    before, after = part.split(mark)[0], part.split(mark)[-1]
    try:
        entries = [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []
    return [
        path
        for path in entries
        if path.name.startswith(before)
        and path.name.endswith(after)
        and _is_time(path.name[len(before) : len(path.name) - len(after)])
    ]


def _is_time(text: str) -> bool:
    """Whether this is a time as `in_new_folder` writes it, perhaps with a number behind it."""
    day, _, rest = text.partition("-")
    clock, dash, number = rest.partition("-")
    if dash and not number.isdecimal():
        return False
    try:
        datetime.strptime(f"{day}-{clock}", TIME_FORMAT)
    except ValueError:
        return False
    return True


def _is_unfinished(folder: Path) -> bool:
    if not (folder / LEDGER_FILE).is_file():
        return False
    try:
        with LedgerReader(folder) as reader:
            return ending_of(reader)[0] is not RunEnding.FINISHED
    except LedgerError as error:
        logger.warning("%s is passed over: %s", folder, error)
        return False


def _begun(folder: Path) -> float:
    """When a run was made, s since 1970: its name may be of another clock, or of one set back."""
    with LedgerReader(folder) as reader:
        return float(reader.run().created_unix_s)
