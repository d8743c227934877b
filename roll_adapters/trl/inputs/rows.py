"""Reads files of prompts and of preference pairs: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecorl.errors import DataError

PROMPT_KEYS = ("prompt",)
"""Keys of a row of prompts."""

PAIR_KEYS = ("prompt", "chosen", "rejected")
"""Keys of a row of preference pairs."""

_MOST_SHOWN = 40
"""Characters of a wrong value that a message shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file.

    Attributes:
        line: its number in the file, from 1.
        values: the object.
    """

    line: int
    values: dict[str, Any]


def read_rows(path: Path, required: tuple[str, ...], key: str = "") -> list[dict[str, Any]]:
    """Read the rows of a JSON-lines file; see `numbered_rows`.

    Args:
        path: the file.
        required: keys that each row must have.
        key: the config key that names the file, for the message.

    Raises:
        DataError: naming the file, the line and what is wrong with it.
    """
    return [row.values for row in numbered_rows(path, required, key)]


def numbered_rows(path: Path, required: tuple[str, ...], key: str = "") -> list[Row]:
    """Read the rows of a JSON-lines file, each with the required keys as strings.

    Args:
        path: the file.
        required: keys that each row must have.
        key: the config key that names the file, for the message.

    Raises:
        DataError: naming the file, the line and what is wrong with it.
    """
    asked = f" ({key})" if key else ""
    try:
        with path.open(encoding="utf-8-sig") as file:
            # By line feeds alone: other breaks that Unicode knows may stand in a JSON string.
            rows = [
                Row(number, _parsed(path, number, line, required))
                for number, line in enumerate(file, start=1)
                if line.strip()
            ]
    except OSError as error:
        raise DataError(f"{path}{asked}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}{asked}: is not a text file in UTF-8 ({error})") from error
    if not rows:
        raise DataError(f"{path}{asked}: holds no rows")
    return rows


def _parsed(path: Path, number: int, line: str, required: tuple[str, ...]) -> dict[str, Any]:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({_reason(error)}){_hint(number, line)}") from error
    if not isinstance(row, dict):
        wanted = f"needs an object with {', '.join(required)}"
        raise DataError(f"{where}: {wanted}, not {_shown(row)}{_hint(number, line)}")
    for name in required:
        if not isinstance(row.get(name), str):
            raise DataError(f"{where}: {_no_string(name, row)}")
        if "\\u" in line:
            _check_encodable(where, name, row[name])
    return row


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at column {error.colno}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _hint(number: int, line: str) -> str:
    """What to do about a file that holds one array, the other common form of JSON."""
    is_array = number == 1 and line.lstrip().startswith("[")
    return "; the file holds one JSON object a line, and no array of them" if is_array else ""


def _no_string(name: str, row: dict[str, Any]) -> str:
    """Say what stands in the place of a string."""
    if name not in row:
        others = ", ".join(map(str, row))
        has = f"its keys are {others[:_MOST_SHOWN]}" if row else "it is empty"
        return f'needs a string "{name}" ({has})'
    value = row[name]
    if (
        isinstance(value, list)
        and value
        and all(isinstance(v, dict) and "role" in v for v in value)
    ):
        return (
            f'"{name}" is a list of chat messages, and `ecorl run` takes strings: write it as text '
            "with tokenizer.apply_chat_template(messages, tokenize=False, "
            "add_generation_prompt=True), or use attach in a TRL script of your own"
        )
    return f'needs a string "{name}", not {_shown(value)}'


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _check_encodable(where: str, name: str, value: str) -> None:
    """Refuse an escape that stands for half of a character: no tokenizer takes it."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise DataError(f'{where}: "{name}" holds {half}, half of a character') from error
