"""Finds the adapters of frameworks, which register by the entry-point group ``ecorl.adapters``.

An adapter is a module. `ecorl run` calls its ``run(config, run_dir, console)``, ``resume`` and
``check``. ``ecorl bench`` also calls, where an adapter has them, ``preload()``, which imports what
a run needs, ``benchmark_task(config, folder, console)``, which gives the task of several runs as
files, and ``train_supervised(config, run_dir, console)``, which trains the same policy on reference
answers.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from ecorl.errors import ConfigError, MissingToolError

ALL_TOKENS = "n_all_tokens"
"""Metric of a supervised training's record: all tokens of a step, those of the prompts among them.
Tokens of its executions are those that it trained on."""


def load_adapter(name: str) -> Any:
    """Import the module of an adapter.

    Args:
        name: of the adapter.

    Raises:
        ConfigError: when no adapter of that name is installed.
        MissingToolError: when its framework is not installed.
    """
    found = {p.name: p for p in importlib.metadata.entry_points(group="ecorl.adapters")}
    if name not in found:
        raise ConfigError("adapter", name, f"one of {sorted(found)}")
    try:
        return found[name].load()
    except ImportError as error:
        # An adapter of this project has an extra of its name; of another's, only the name is known.
        own = found[name].module.startswith("roll_adapters.")
        hint = f"'ecorl[{name}]'" if own else name
        raise MissingToolError(
            f"adapter = {name!r} needs its framework: pip install {hint} ({error})"
        ) from error


def adapter_function(name: str, function: str) -> Any:
    """Find a function of an adapter.

    Args:
        name: of the adapter.
        function: of its module.

    Raises:
        ConfigError: when no adapter of that name is installed, or it lacks the function.
        MissingToolError: when its framework is not installed.
    """
    module = load_adapter(name)
    if not hasattr(module, function):
        raise ConfigError("adapter", name, f"an adapter with {function!r}, which this one lacks")
    return getattr(module, function)
