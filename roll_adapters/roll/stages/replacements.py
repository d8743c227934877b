"""What stands in the place of ROLL's own functions while a pipeline runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roll_adapters.roll.stages import hooks
from roll_adapters.roll.stages.references import ReferenceRequest


def put_off(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make what stands in the place of ROLL's function that computes the references.

    Args:
        original: ROLL's.
    """

    def compute(
        batch: Any,
        references: Any,
        pipeline_config: Any,
        domain_to_teacher_names: Any = None,
        domain_values: Any = None,
        metrics_fn: Any = None,
    ) -> Any:
        call = ReferenceRequest(
            batch, references, pipeline_config, domain_to_teacher_names, domain_values, metrics_fn
        )
        if hooks.current is None:
            return call.again(batch, tuple(references), original, metrics_fn)
        return hooks.current.compute_references(call)

    return compute


def joined(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make what stands in the place of ROLL's function that uses the references first.

    Args:
        original: ROLL's.
    """

    def compute_token_reward(data: Any, *args: Any, **kwargs: Any) -> Any:
        if hooks.current is not None:
            hooks.current.join_references(data)
        return original(data, *args, **kwargs)

    return compute_token_reward
