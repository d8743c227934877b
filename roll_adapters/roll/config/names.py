"""The names of ROLL's that are replaced or built on; each is checked before anything starts."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from ecorl.errors import MissingToolError

RELEASE = "0.3.0"
"""Release of ROLL that this adapter was made against."""

DISPATCH = ("roll.distributed.executor.cluster", "func_generator")
RESOURCES = ("roll.pipeline.base_pipeline", "ResourceManager")
RLVR = "roll.pipeline.rlvr.rlvr_pipeline"
COMPUTE = (RLVR, "compute_ref_log_probs_with_routing")
TOKEN_REWARD = (RLVR, "compute_token_reward")
SCHEDULER = (RLVR, "DynamicSamplingScheduler")
ROLLED_OUT = (RLVR, "dump_rollout_to_specific_path")

_EVERYWHERE: dict[tuple[str, str], tuple[str, ...]] = {
    DISPATCH: ("cls", "method_name", "dispatch_fn", "collect_fn", "execute_fn"),
    RESOURCES: ("num_gpus_per_node", "num_nodes"),
    ("roll.distributed.scheduler.resource_manager", "ResourceManager.allocate_placement_group"): (
        "world_size", "device_mapping",
    ),
    ("roll.pipeline.base_pipeline", "BasePipeline.do_checkpoint"): ("global_step",),
    ("roll.distributed.scheduler.initialize", "init"): (),
}  # fmt: skip
_IN_RLVR: dict[tuple[str, str], tuple[str, ...]] = {
    COMPUTE: (
        "batch", "references", "pipeline_config", "domain_to_teacher_names", "domain_values",
        "metrics_fn",
    ),
    TOKEN_REWARD: ("data", "pipeline_config", "kl_ctrl"),
    SCHEDULER: ("pipeline_config", "actor_cluster", "reward_clusters"),
    ROLLED_OUT: ("path", "global_step", "data", "tokenizer"),
    ("roll.pipeline.base_pipeline", "BasePipeline.model_update"): ("global_step",),
    ("roll.utils.functionals", "merge_ref_log_probs_compat"): (
        "batch", "references", "is_routing",
    ),
    ("roll.distributed.scheduler.generate_scheduler", "RolloutContext.generate"): ("req", "domain"),
    ("roll.distributed.scheduler.generate_scheduler", "RolloutContext.compute_rewards"): (
        "req", "domain",
    ),
}  # fmt: skip


def check_names(*, rlvr: bool) -> None:
    """Check that ROLL is here, with the names and parameters that this adapter counts on.

    Args:
        rlvr: whether those of the RLVR pipeline are needed.

    Raises:
        MissingToolError: when something is missing.
    """
    try:
        importlib.import_module("roll.pipeline.base_pipeline")
    except ImportError as error:
        needs = f"ecorl-roll needs ROLL {RELEASE} on the path of Python"
        raise MissingToolError(f"{needs}: {error}") from error
    for (module, path), parameters in (_EVERYWHERE | (_IN_RLVR if rlvr else {})).items():
        found = look_up(module, path)
        if found is None or not _takes(found, parameters):
            what = f"{module}.{path}({', '.join(parameters)})"
            raise MissingToolError(
                f"this ROLL has no {what}: ecorl-roll was made for release {RELEASE}"
            )


def look_up(module: str, path: str) -> Any:
    """Find an object of ROLL's; None where it is not there.

    Args:
        module: its module.
        path: its name there; attributes behind dots.
    """
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _takes(found: Any, parameters: tuple[str, ...]) -> bool:
    try:
        known = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return False
    return set(parameters) <= set(known)
