from __future__ import annotations

import os

import ray

from roll.platforms import current_platform
from roll.utils.constants import RAY_NAMESPACE


def init() -> None:
    """Join Ray, unless this process has done so already."""
    if not ray.is_initialized():
        ray.init(
            address=os.environ.get("RAY_ADDRESS"),
            namespace=RAY_NAMESPACE,
            ignore_reinit_error=True,
            runtime_env={"env_vars": current_platform.get_custom_env_vars()},
        )
