"""The environment of a process that runs a framework's own worker class beside other things."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_OF_A_GROUP = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
"""Variables by which the processes of a distributed process group find each other."""


@contextlib.contextmanager
def own_environment(**own: str) -> Iterator[None]:
    """Keep the variables of a process group from those of the surrounding process.

    Args:
        **own: variables that hold inside the block alone.
    """
    before = {name: os.environ.get(name) for name in {*_OF_A_GROUP, *own}}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
