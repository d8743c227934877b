"""The config that a report goes by: the one that the ledger recorded at the start of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecorl.config import Config, parse_config, read_config_text
from ecorl.errors import ConfigError
from ecorl.ledger import RunRow
from ecorl.runtime.runs.found import ATTACH, ORIGIN

CONFIG_FILE = "config.toml"
_LOST = "no plan, no carbon figure"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The config of a run, or the part of it that can be read.

    Attributes:
        config: the config, or None.
        gap: one sentence that says why there is none.
        remark: what else a reader should know of it, or None.
    """

    config: Config | None
    gap: str | None = None
    remark: str | None = None


def is_attached(run: RunRow) -> bool:
    """Whether a script of the user's own made the trainer and attached to it.

    The recorded config then has no ``task`` and ``trainer`` tables, and what stands in their place
    once it is read are defaults that say nothing of the run.
    """
    return run.meta.get(ORIGIN) == ATTACH


def read_config(run: RunRow, run_dir: Path) -> RunConfig:
    """The config that the ledger recorded; the file in the run folder where it recorded none.

    The file can be edited after the run, so it does not speak for what ran.

    Args:
        run: the run's row of the ledger.
        run_dir: the run folder.
    """
    path = run_dir / CONFIG_FILE
    if not run.config_toml.strip():
        return _from_file(path)
    try:
        config = parse_config(run.config_toml, "ledger")
    except ConfigError as error:
        return RunConfig(None, f"the config in the ledger cannot be read ({error}): {_LOST}")
    differs = path.is_file() and _from_file(path).config != config
    remark = f"as the ledger recorded it; {CONFIG_FILE} in the run folder differs"
    return RunConfig(config, remark=remark if differs else None)


def _from_file(path: Path) -> RunConfig:
    if not path.is_file():
        return RunConfig(None, f"{CONFIG_FILE} is not in the run folder: {_LOST}")
    try:
        # Read only: a path that this process cannot use does not matter.
        return RunConfig(parse_config(*read_config_text(str(path))))
    except ConfigError as error:
        return RunConfig(None, f"{CONFIG_FILE} cannot be read ({error}): {_LOST}")
