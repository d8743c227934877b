"""Refuses gears that the devices of a job lack, before its models are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.config.trainer import GearsConfig
from ecorl.errors import ConfigError
from roll_adapters.ray_jobs.gears.orders import GearOrder, GearRefusal
from roll_adapters.ray_jobs.gears.worker import refusal

_ANSWER_S = 600.0
"""Longest wait for the processes that train, s. Invented: they import torch first."""


def ask_refusals(config: GearsConfig, actors: Iterable[Any]) -> list[Any]:
    """Ask the processes that train what they cannot do, without waiting.

    Args:
        config: the run's ``[gears]``.
        actors: handles of the processes, their models not yet loaded.

    Returns:
        References for `check_refusals`.
    """
    order = GearOrder(config.allowed, config.simulate_fp8)
    return [actor.__ray_call__.remote(refusal, order) for actor in actors]


def check_refusals(refs: Sequence[Any]) -> None:
    """Wait for what processes cannot do.

    Args:
        refs: from `ask_refusals`. A process that fails meanwhile is the framework's to tell of.

    Raises:
        ConfigError: for the first refusal.
    """
    try:
        found: list[GearRefusal | None] = ray.get(list(refs), timeout=_ANSWER_S)
    except RayError:
        return
    for one in found:
        if one is not None:
            raise ConfigError(one.key, one.value, one.allowed)
