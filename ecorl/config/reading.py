"""Reading a config from TOML and flags, and writing it back.

Every mistake becomes one `ConfigError` that names the key, the value, what is allowed, and the
file and line where that is known.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import BaseModel, ValidationError

from ecorl.config.mistakes import NOT_GIVEN, Mistake, explain, line_of
from ecorl.config.run import Config
from ecorl.errors import ConfigError
from ecorl.plain_text import text_refusal


def preset_names() -> list[str]:
    """List the names of the presets that travel with the package."""
    folder = resources.files("ecorl.config") / "presets"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def read_config_text(source: str, key: str = "--config") -> tuple[str, str]:
    """Read the text and the display name of a config from a file or a preset.

    Args:
        source: path of a TOML file, or name of a preset.
        key: what the config is given as, for the errors.

    Raises:
        ConfigError: when neither exists or the file cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_file():
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigError(key, source, f"a readable file ({error.strerror})") from error
        try:
            return raw.decode("utf-8-sig"), str(path)
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            allowed = f"a TOML file in UTF-8 (byte 0x{raw[error.start]:02x} is not)"
            raise ConfigError(key, source, allowed, path, line) from error
    if source in preset_names():
        preset = resources.files("ecorl.config") / "presets" / f"{source}.toml"
        return preset.read_text("utf-8"), f"preset {source}"
    raise ConfigError(key, source, f"an existing TOML file or one of the presets {preset_names()}")


def read_toml(path: Path, key: str) -> dict[str, Any]:
    """Read a TOML file other than a config.

    Args:
        path: the file.
        key: what the file is given as, for the errors.

    Raises:
        ConfigError: when it cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        allowed = f"a readable file ({error.strerror})"
        raise ConfigError(key, str(path), allowed) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(key, path.name, f"TOML ({error})", path) from error


def load_config(source: str, overrides: Sequence[str] = (), key: str = "--config") -> Config:
    """Read, override and validate a config.

    Args:
        source: path of a TOML file, or name of a preset.
        overrides: ``dotted.key=value`` with a TOML value; a bare word counts as a string.
        key: what the config is given as, for the errors: a flag, or an argument of a function.

    Raises:
        ConfigError: for the first mistake found, with file and line when known.
    """
    text, name = read_config_text(source, key)
    config = parse_config(text, name, overrides)
    for parts, path in _paths(config.model_dump()):
        refusal = text_refusal(path)
        if refusal is not None:
            dotted = ".".join(map(str, parts))
            raise ConfigError(dotted, str(path), refusal, name, line_of(text, parts))
    return config


def _paths(value: Any, *parts: str | int) -> Iterator[tuple[tuple[str | int, ...], Path]]:
    """List the paths of a config with their keys, part by part."""
    if isinstance(value, Path):
        yield parts, value
    elif isinstance(value, Mapping | tuple | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from _paths(item, *parts, key)


def parse_config(text: str, name: str, overrides: Sequence[str] = ()) -> Config:
    """Parse a config from TOML text.

    Args:
        text: TOML.
        name: where it comes from, for the errors.
        overrides: as for `load_config`.

    Raises:
        ConfigError: for the first mistake found, with its line when known.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(error, text, name) from error
    overridden: set[str] = set()
    for item in overrides:
        apply_override(data, item, overridden)
    return validate_config(data, name, text, overridden)


def validate_config(
    data: Mapping[str, Any],
    name: str | None = None,
    text: str = "",
    overridden: set[str] | None = None,
    find_line: Callable[[str, Sequence[str | int]], int | None] = line_of,
) -> Config:
    """Validate plain data into a `Config`.

    Args:
        data: tables and values as TOML has them.
        name: where they come from, for the errors; None where that is not known.
        text: the text, to find the line of a mistake.
        overridden: dotted keys that ``--set`` gave.
        find_line: finds the line of a key, part by part, in the text; by default in TOML.

    Raises:
        ConfigError: for the first mistake found, with its line when known.
    """
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        found = explain(error, Config)
        for mistake in filter(None, (found, found.instead)):
            if any(_comes_from(override, mistake) for override in overridden or ()):
                key = f"--set {mistake.key}"
                raise ConfigError(key, mistake.value, mistake.allowed) from error
        line = find_line(text, found.parts)
        raise ConfigError(found.key, found.value, found.allowed, name, line) from error


def config_toml(config: Config, leave_out: Collection[str] = ()) -> str:
    """Write the resolved config as TOML text; keys whose value is None are not in it.

    Args:
        config: the resolved config.
        leave_out: names of top-level tables to leave out.
    """
    return tomlkit.dumps(_plain_data(config.model_dump(exclude=set(leave_out))))


def config_changes_toml(config: Config) -> str:
    """Write what a config has otherwise than the defaults as TOML text, which reads back equal.

    Args:
        config: the resolved config.
    """
    return tomlkit.dumps(_plain_data(_changes(config)))


def _changes(model: BaseModel) -> dict[str, Any]:
    """List the keys of a table that differ from the defaults; its type goes with them."""
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name == "type" or value != field.get_default(call_default_factory=True):
            found[name] = _changed_value(value)
    return found


def _changed_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _changes(value)
    if isinstance(value, Mapping):
        return {key: _changed_value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_changed_value(item) for item in value]
    return value


def _plain_data(value: Any) -> Any:
    """Convert values to what TOML can hold; numbers, text and dates stay as they are."""
    if isinstance(value, Mapping):
        return {key: _plain_data(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple | list):
        return [_plain_data(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _syntax_error(error: tomllib.TOMLDecodeError, text: str, name: str) -> ConfigError:
    lines = text.rstrip().split("\n")
    found = re.search(r"\(at line (\d+)", str(error))
    line = min(int(found[1]), len(lines)) if found else len(lines)
    reason = re.sub(r" \(at (line|end).*\)$", "", str(error))
    return ConfigError("(syntax)", lines[line - 1].strip(), f"valid TOML ({reason})", name, line)


def parse_override(item: str) -> tuple[str, Any]:
    """Read ``dotted.key=value`` with a TOML value; a bare word counts as a string.

    Args:
        item: as ``--set`` was given it.

    Raises:
        ConfigError: when it is something else.
    """
    refusal = text_refusal(item, "dotted.key=value")  # bytes of the command line may be no text
    if refusal is not None:
        raise ConfigError("--set", item, refusal)
    key, sep, raw = item.partition("=")
    key = key.strip()
    if not sep or not all(key.split(".")):
        raise ConfigError("--set", item, "dotted.key=value")
    try:
        data = tomllib.loads(f"v = {raw}")
    except tomllib.TOMLDecodeError:
        return key, raw.strip()
    if len(data) > 1:
        raise ConfigError("--set", item, "one dotted.key=value; repeat --set for more")
    return key, data["v"]


def apply_override(data: dict[str, Any], item: str, overridden: set[str]) -> None:
    """Set what ``--set`` gives, in place of what a file says of the key.

    Args:
        data: the tables.
        item: as ``--set`` was given it.
        overridden: keys that were given before; takes this one.

    Raises:
        ConfigError: when it is no ``dotted.key=value``, or a part of the key is a value.
    """
    key, value = parse_override(item)
    set_dotted(data, key, value)
    overridden.add(key)


def set_dotted(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a value in nested tables; tables that are missing are made.

    Args:
        data: the tables.
        key: dotted.
        value: for the key.

    Raises:
        ConfigError: when a part of the key is a value.
    """
    *parents, last = key.split(".")
    node = data
    for part in parents:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}", value, f"a key below a table; {part} is a value")
        node = child
    node[last] = value


def _comes_from(override: str, found: Mistake) -> bool:
    """Tell whether a mistake lies in, below or above a key that ``--set`` gave."""
    if f"{found.key}.".startswith(f"{override}.") or override.startswith(f"{found.key}."):
        return True
    # Another type was asked for, and what it needs is not there.
    table = found.key.rpartition(".")[0]
    return found.value is NOT_GIVEN and override == f"{table}.type"
