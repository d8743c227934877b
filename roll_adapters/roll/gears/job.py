"""What of a pipeline's training of the policy can be changed between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ecorl.config import Config
from ecorl.runtime.checkpoints import read_gears
from ecorl.runtime.ray.runtime import RayRuntime
from roll_adapters.ray_jobs.gears.control import JobGears
from roll_adapters.ray_jobs.gears.devices import ask_refusals, check_refusals
from roll_adapters.ray_jobs.policy_training import PolicyTraining
from roll_adapters.roll.checkpoints import checkpoint_of
from roll_adapters.roll.gears.worker import prepare
from roll_adapters.roll.stages.roles import POLICY


def policy_training(
    config: Config, pipeline_config: Any, clusters: Mapping[str, Any], runtime: RayRuntime
) -> PolicyTraining:
    """Make what a pipeline's steps are shifted with.

    Args:
        config: the run's.
        pipeline_config: ROLL's.
        clusters: ROLL's, by their names.
        runtime: of the run.

    Raises:
        ConfigError: when the workers' devices lack a gear.
        RunError: when the checkpoint that is gone on from cannot be read.
    """
    cluster = clusters.get(POLICY)
    workers = [] if cluster is None else list(cluster.workers)
    if not config.gears.is_on or not workers:
        return PolicyTraining(len(workers) or None)
    # What the devices lack is told in one line, before anything is trained.
    check_refusals(ask_refusals(config.gears, workers))
    gears = JobGears(
        config.gears,
        config.carbon.control.low_share,
        workers,
        prepare,
        runtime.record,
        read_gears(checkpoint_of(pipeline_config)),
    )
    return PolicyTraining(len(workers), gears)
