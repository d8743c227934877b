from __future__ import annotations

import importlib
from typing import Any


def safe_import_class(path: str) -> Any:
    """The class of a dotted path, as configs name them."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
