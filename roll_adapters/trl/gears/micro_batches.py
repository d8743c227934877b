"""The micro-batches of an optimizer step, kept until it is certain that they need no repetition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Trainer

from ecorl.trainer.gears.random_state import RandomState

_COUNTED = ("entropy_coef", "_entropy_window_stats", "_last_world_entropy")
"""What a trainer's loss counts on in the trainer itself, where it has it: the weight of an entropy
bonus follows the entropy of the steps before."""

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """What a call of the loss changes in a trainer, as it was at one moment.

    Attributes:
        n_metrics: lengths of the trainer's lists of training metrics.
        counted: attributes that the loss counts on in, where the trainer has them.
    """

    n_metrics: Mapping[str, int]
    counted: Mapping[str, Any]

    @classmethod
    def of(cls, trainer: Any) -> TrainerMemory:
        """Take it at this moment.

        Args:
            trainer: the TRL trainer.
        """
        counted = {name: vars(trainer).get(name, _ABSENT) for name in _COUNTED}
        return cls(
            {key: len(values) for key, values in trainer._metrics["train"].items()},
            {name: value for name, value in counted.items() if value is not _ABSENT},
        )

    def restore(self, trainer: Any) -> None:
        """Forget what was changed since; nothing but the loss was called meanwhile.

        Args:
            trainer: the TRL trainer.
        """
        _forget_metrics(trainer, self.n_metrics, None)
        vars(trainer).update(self.counted)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one call of the loss was given and has changed, so that it can be repeated.

    Attributes:
        inputs: prepared by the trainer, completions included.
        items: the trainer's count of items in the batch, or None.
        random: the state of the random numbers before the call.
        before: what the trainer remembered before the call.
        after: the same after it.
    """

    inputs: Mapping[str, Any]
    items: Any
    random: RandomState
    before: TrainerMemory
    after: TrainerMemory


def _forget_metrics(
    trainer: Any, before: Mapping[str, int], after: Mapping[str, int] | None
) -> None:
    """Drop from a trainer's lists of metrics what was added between two moments.

    Args:
        trainer: the TRL trainer.
        before: their lengths at the first; a list that is not in it was not there.
        after: the same at the second; None: now.
    """
    metrics = trainer._metrics["train"]
    for key in list(metrics):
        end = len(metrics[key]) if after is None else after.get(key, 0)
        del metrics[key][before.get(key, 0) : end]
        if not metrics[key]:
            del metrics[key]


def repeat(trainer: Any, model: Any, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
    """Compute the gradients of a step anew, from the same rows and the same random numbers.

    Completions are not generated again. The trainer's metrics of the loss are those of the
    repetition; those of generations between two micro-batches stay.

    Args:
        trainer: the TRL trainer.
        model: as it hands it to its training step.
        batches: of the step, in their order.

    Returns:
        The trainer's loss of each.
    """
    model.zero_grad(set_to_none=True)
    for batch in reversed(batches):  # later ones lie behind earlier ones
        _forget_metrics(trainer, batch.before.n_metrics, batch.after.n_metrics)
    vars(trainer).update(batches[0].before.counted)
    losses = []
    with prepared(trainer):
        for number, batch in enumerate(batches, 1):
            batch.random.restore()
            # Gradients of several processes meet with the last micro-batch, and losses look whether
            # it is this one.
            is_last = trainer.accelerator.sync_gradients = number == len(batches)
            with nullcontext() if is_last else trainer.accelerator.no_sync(model):
                losses.append(Trainer.training_step(trainer, model, batch.inputs, batch.items))
    return losses


@contextmanager
def prepared(trainer: Any) -> Iterator[None]:
    """Have the trainer take inputs as they are inside the block: they were prepared before.

    Args:
        trainer: the TRL trainer.
    """
    with replaced(trainer, "_prepare_inputs", lambda inputs: inputs):
        yield


@contextmanager
def replaced(trainer: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Have another function stand for a trainer's method inside the block, on the object only.

    Args:
        trainer: the TRL trainer.
        name: of the method.
        method: what is called in its place.
    """
    own = trainer.__dict__.get(name)
    trainer.__dict__[name] = method
    try:
        yield
    finally:
        if own is None:
            del trainer.__dict__[name]
        else:
            trainer.__dict__[name] = own


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
