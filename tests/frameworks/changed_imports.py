"""Changes modules as they are imported, so that a framework's own code runs on the CPU.

It loads nothing large itself: a process that imports none of the modules is as it was.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def change_imports(
    after: Mapping[str, Callable[[Any], None]], instead: Mapping[str, Path] | None = None
) -> None:
    """Change modules from here on.

    Args:
        after: by a module's name: what is called with it once it was loaded.
        instead: by a module's name: the file that is loaded in its place.
    """
    sys.meta_path.insert(0, _Finder(after, instead or {}))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(
        self, after: Mapping[str, Callable[[Any], None]], instead: Mapping[str, Path]
    ) -> None:
        self._after, self._instead = after, instead

    def find_spec(self, fullname, path=None, target=None):
        if fullname in self._instead:
            return importlib.util.spec_from_file_location(fullname, self._instead[fullname])
        change = self._after.get(fullname)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec
