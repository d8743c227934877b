"""OpenRLHF's flags on their way to an engine in another process: as JSON, and back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any


def args_of(flags: str) -> Any:
    """OpenRLHF's flags as a nested namespace.

    Args:
        flags: as JSON, from `options_for`.
    """
    return _nested(json.loads(flags))


def options_for(args: Any) -> dict[str, Any]:
    """Options of the engine for a job.

    Args:
        args: OpenRLHF's flags, nested; those that JSON cannot hold are left out.
    """
    return {"flags": json.dumps(_plain(args))}


def _plain(value: Any) -> Any:
    if isinstance(value, SimpleNamespace):
        found = {key: _plain(item) for key, item in vars(value).items()}
        return {key: item for key, item in found.items() if item is not _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return [item for item in items if item is not _LEFT_OUT]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _LEFT_OUT


_LEFT_OUT = object()


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _nested(item) for key, item in value.items()})
    return value
