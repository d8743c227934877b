"""Reads a config of ROLL's with ecorl's block in it.

ROLL ignores the top-level key ``ecorl``. Below it stand the keys of ecorl's own config, and one
table of this adapter's, ``roll``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, StrictBool, ValidationError

from ecorl.config import Config, validate_config
from ecorl.config.base import Model
from ecorl.config.mistakes import Part, explain
from ecorl.config.reading import apply_override
from ecorl.errors import ConfigError
from ecorl.records import Algorithm
from roll_adapters.roll.config import handles
from roll_adapters.roll.config.convert import Kind, kind_of
from roll_adapters.roll.config.yaml_text import line_of

BLOCK = "ecorl"
"""Top-level key of ecorl's settings in a config of ROLL's."""

_ALGORITHMS = {
    "gae": Algorithm.PPO,
    "grpo": Algorithm.GRPO,
    "reinforce": Algorithm.REINFORCE_PP,
}
"""ecorl's algorithm by ``adv_estimator``."""


class RollSettings(Model):
    """Settings of this adapter alone: ``ecorl.roll``."""

    overlap_reference: StrictBool = Field(
        False,
        description="run a reference that stays on its own GPUs beside values and old log-probs",
    )


@dataclass(frozen=True, slots=True)
class RollConfig:
    """A config of ROLL's, read.

    Attributes:
        data: what ROLL takes: without ecorl's block, ``device_mapping`` with GPU ranks alone.
        config: ecorl's.
        own: settings of this adapter.
        kind: of the pipeline, by the config's keys; None where they tell none.
        cards: numbers of cards by the dotted key of the role that names them, e.g.
            ``rewards.general``.
        file: the YAML file.
    """

    data: dict[str, Any]
    config: Config
    own: RollSettings
    kind: Kind | None
    cards: Mapping[str, tuple[int, ...]]
    file: Path

    def role(self, key: str) -> Mapping[str, Any]:
        """Settings of a role; empty without any.

        Args:
            key: dotted, e.g. ``reference``.
        """
        found: Any = self.data
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def error(self, key: str, value: object, allowed: str) -> ConfigError:
        """Make the error for a value of the config, with its line where that is known.

        Args:
            key: dotted.
            value: as it was given.
            allowed: what would be accepted, in words.
        """
        text = self.file.read_text("utf-8")
        return ConfigError(key, value, allowed, self.file, line_of(text, key.split(".")))


def read(folder: Path, name: str, overrides: Sequence[str], own: Sequence[str]) -> RollConfig:
    """Read a config as ROLL's scripts do, and ecorl's block of it.

    Args:
        folder: of the YAML file.
        name: of the file, with or without its ending.
        overrides: of ROLL's settings, as Hydra takes them.
        own: ``dotted.key=value`` for ecorl's block.

    Raises:
        ConfigError: for the first mistake found, with its line where that is known.
    """
    file = folder / (name if name.endswith(".yaml") else f"{name}.yaml")
    if not file.is_file():
        raise ConfigError("--config_name", name, f"a YAML file in {folder} (there is no {file})")
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("--config_name", name, "a YAML file in UTF-8", file) from error
    line_of(text, (), str(file))  # what is no YAML is told with its line
    data = _composed(file, overrides)
    if "student_train" in data:
        # As ROLL's own script for on-policy distillation does.
        data["is_pure_opd"] = True
    config, settings = _block(data.pop(BLOCK, None), text, file, own, data)
    cards = _take_cards(data, text, file)
    return RollConfig(data, config, settings, kind_of(data), cards, file)


def _composed(file: Path, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        with initialize_config_dir(str(file.parent.resolve()), version_base=None):
            found = compose(file.stem, list(overrides))
        plain = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        why = " ".join(str(error).split())[:300]
        raise ConfigError(
            "--config_name", file.name, f"a config of ROLL's ({why})", file
        ) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _block(
    given: Any, text: str, file: Path, overrides: Sequence[str], data: Mapping[str, Any]
) -> tuple[Config, RollSettings]:
    if given is None:
        allowed = "a block with ecorl's settings; `ecorl-roll convert` writes one"
        raise ConfigError(BLOCK, None, allowed, file)
    if not isinstance(given, Mapping):
        line = line_of(text, [BLOCK])
        raise ConfigError(BLOCK, given, "a block with ecorl's settings", file, line)
    block: dict[str, Any] = dict(given)
    overridden: set[str] = set()
    for item in overrides:
        apply_override(block, item, overridden)
    settings = _settings(block.pop("roll", {}), text, file, overridden)
    algorithm = _ALGORITHMS.get(str(data.get("adv_estimator", "")))
    if algorithm is not None and "algorithm" not in block:
        block["algorithm"] = str(algorithm)
    if isinstance(data.get("seed"), int):
        block.setdefault("seed", data["seed"])
    try:
        config = validate_config(block, str(file), text, overridden, partial(_line, BLOCK))
    except ConfigError as error:
        if error.key.startswith("--set"):
            raise
        key = f"{BLOCK}.{error.key}"
        raise ConfigError(key, error.value, error.allowed, error.path, error.line) from error
    if algorithm is not None and config.algorithm_enum is not algorithm:
        allowed = f"{algorithm}, or left out: adv_estimator is {data['adv_estimator']}"
        line = line_of(text, [BLOCK, "algorithm"])
        raise ConfigError(f"{BLOCK}.algorithm", config.algorithm, allowed, file, line)
    return config.model_copy(update={"adapter": "roll"}), settings


def _settings(given: Any, text: str, file: Path, overridden: Collection[str]) -> RollSettings:
    try:
        return RollSettings.model_validate(given)
    except ValidationError as error:
        found = explain(error, RollSettings)
        parts = (BLOCK, "roll", *found.parts)
        own = f"roll.{found.key}" if found.parts else "roll"
        if any(own.startswith(key) for key in overridden):
            raise ConfigError(f"--set {own}", found.value, found.allowed) from error
        key = f"{BLOCK}.{own}"
        raise ConfigError(key, found.value, found.allowed, file, line_of(text, parts)) from error


def _line(prefix: str, text: str, parts: Sequence[Part]) -> int | None:
    return line_of(text, (prefix, *parts))


def _take_cards(data: dict[str, Any], text: str, file: Path) -> dict[str, tuple[int, ...]]:
    """Take the handles of cards out of the roles' ``device_mapping``."""
    found = {}
    for key, role in _roles(data):
        mapping = role.get("device_mapping")
        full = f"{key}.device_mapping"
        if isinstance(mapping, list) and any("fpga" in str(item) for item in mapping):
            allowed = 'text, as ROLL takes it: "[0, 1], fpga:0"'
            raise ConfigError(full, mapping, allowed, file, line_of(text, full.split(".")))
        if not isinstance(mapping, str) or "fpga" not in mapping:
            continue
        try:
            devices = handles.parse(mapping, full)
        except ConfigError as error:
            line = line_of(text, full.split("."))
            raise ConfigError(full, mapping, error.allowed, file, line) from error
        found[key] = devices.cards
        if devices.ranks is not None:
            role["device_mapping"] = devices.ranks
            continue
        # ROLL refuses null here, though it is what a role has that does not name the key.
        del role["device_mapping"]
        if role.get("world_size") is None:
            role["world_size"] = 1
    return found


def _roles(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of a config that may be roles, each with its dotted key."""
    for key, value in data.items():
        if not isinstance(value, dict):
            continue
        yield key, value
        for name, inner in value.items():
            if isinstance(inner, dict):
                yield f"{key}.{name}", inner
