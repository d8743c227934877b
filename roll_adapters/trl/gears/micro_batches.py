"""The micro-batches of an optimizer step, kept until it is certain that they need no repetition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Trainer

from ecorl.trainer.gears.random_state import RandomState


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one call of the loss was given, so that it can be repeated.

    Attributes:
        inputs: prepared by the trainer, completions included.
        items: the trainer's count of items in the batch, or None.
        random: the state of the random numbers before the call.
        n_metrics: lengths of the trainer's lists of metrics before the call.
    """

    inputs: Mapping[str, Any]
    items: Any
    random: RandomState
    n_metrics: Mapping[str, int]


def metric_counts(trainer: Any) -> dict[str, int]:
    """Lengths of a trainer's lists of training metrics.

    Args:
        trainer: the TRL trainer.
    """
    return {key: len(values) for key, values in trainer._metrics["train"].items()}


def forget_metrics(trainer: Any, counts: Mapping[str, int]) -> None:
    """Drop what was added to a trainer's lists of metrics.

    Args:
        trainer: the TRL trainer.
        counts: their lengths to go back to; a list that is not in it was not there.
    """
    metrics = trainer._metrics["train"]
    for key in list(metrics):
        if key in counts:
            del metrics[key][counts[key] :]
        else:
            del metrics[key]


def repeat(trainer: Any, model: Any, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
    """Compute the gradients of a step anew, from the same rows and the same random numbers.

    Completions are not generated again, and the trainer's metrics are those of the repetition.

    Args:
        trainer: the TRL trainer.
        model: as it hands it to its training step.
        batches: of the step, in their order.

    Returns:
        The trainer's loss of each.
    """
    model.zero_grad(set_to_none=True)
    forget_metrics(trainer, batches[0].n_metrics)
    losses = []
    with _prepared(trainer):
        for number, batch in enumerate(batches, 1):
            batch.random.restore()
            is_last = number == len(batches)
            # Gradients of several processes meet with the last micro-batch.
            with nullcontext() if is_last else trainer.accelerator.no_sync(model):
                losses.append(Trainer.training_step(trainer, model, batch.inputs, batch.items))
    return losses


@contextmanager
def _prepared(trainer: Any) -> Iterator[None]:
    """Have the trainer take inputs as they are inside the block: they were prepared before."""
    own = trainer.__dict__.get("_prepare_inputs")
    trainer.__dict__["_prepare_inputs"] = lambda inputs: inputs
    try:
        yield
    finally:
        if own is None:
            del trainer.__dict__["_prepare_inputs"]
        else:
            trainer.__dict__["_prepare_inputs"] = own


def halves(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Split the rows of a micro-batch into two.

    Args:
        inputs: prepared by the trainer; what has a row for each completion is split, the rest is
            shared.

    Returns:
        Both halves; None for fewer than two rows, and where images go with the rows.
    """
    n_rows = len(inputs["completion_ids"])
    if n_rows < 2 or inputs.get("pixel_values") is not None:
        return None
    middle = n_rows // 2
    first, second = {}, {}
    for key, value in inputs.items():
        is_by_row = isinstance(value, torch.Tensor | list) and _length(value) == n_rows
        first[key] = value[:middle] if is_by_row else value
        second[key] = value[middle:] if is_by_row else value
    return first, second


def _length(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.shape[0]) if value.dim() else -1
    return len(value)
