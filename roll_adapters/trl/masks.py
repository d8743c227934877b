"""What TRL's masks say of a batch's tokens: which the policy made, and which a pass computes.

A mask of tools or of an environment (``tool_mask``, ``env_mask``) says who wrote a completion's
tokens. ``completion_mask`` is of the loss: with ``mask_truncated_completions`` it is 0 over whole
completions, which the policy made and every pass computes like the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ecorl.engines.validate import EngineBoundary
from ecorl.records import FaultEvent, FaultKind, Stage
from ecorl.runtime.rollout import GeneratedRows, Rollout
from roll_adapters.transformers.batches import padding_tokenizer

logger = logging.getLogger(__name__)


def add_generated(rows: GeneratedRows, output: Sequence[Any], n_sampled: int) -> None:
    """Add the rows of a call of a trainer's ``_generate``.

    Args:
        rows: they are added to.
        output: what the call returns: GRPO's third part is the mask of tools and environments, or
            None; RLOO's three parts have none.
        n_sampled: tokens that the trainer's own generation has sampled for them.
    """
    lengths = [len(c) for c in output[1]]
    n_foreign = _foreign(output)
    rows.prompts += [len(p) for p in output[0]]
    rows.completions += lengths
    rows.n_foreign += n_foreign
    # Fewer where a rollout of the user's own generates elsewhere.
    rows.n_dropped += max(0, n_sampled - (sum(lengths) - n_foreign))


def computed(ids: torch.Tensor, mask: torch.Tensor, pad_token_id: int) -> torch.Tensor:
    """Find the tokens of completions among their padding, those that the loss leaves out too.

    A completion that is masked because it was cut off does not end in padding: TRL takes one that
    does for finished.

    Args:
        ids: ``[n_rows, n_columns] int64``, padded on the right.
        mask: same shape, 0 for padding and for what the loss leaves out.
        pad_token_id: of the policy's tokenizer.

    Returns:
        ``[n_rows, n_columns] bool``.
    """
    return reach(mask.bool() | (ids != pad_token_id))


def reach(mask: torch.Tensor) -> torch.Tensor:
    """Extend a mask in each row from its first column to the last one that is set.

    Args:
        mask: ``[n_rows, n_columns]``.

    Returns:
        Same shape, bool.
    """
    return mask.flip(1).cumsum(1).flip(1) > 0


class TrainedTokens(NamedTuple):
    """What a micro-batch of training holds; 0 is not known.

    Attributes:
        n_rows: its rows.
        n_tokens: of prompts and completions.
        n_output: of completions.
        unknown: why they are not known; None: they are.
    """

    n_rows: int = 0
    n_tokens: int = 0
    n_output: int = 0
    unknown: Exception | None = None


def trained(trainer: Any, inputs: Mapping[str, Any]) -> TrainedTokens:
    """Count a micro-batch of training, whatever the trainer and its batch are.

    Args:
        trainer: the TRL trainer.
        inputs: of the micro-batch.
    """
    n_rows = 0
    with EngineBoundary() as boundary:
        n_rows = int(inputs["completion_ids"].shape[0])
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        n_output = int(computed(ids, mask, pad_token_id(trainer)).sum())
        return TrainedTokens(n_rows, n_output + int(inputs["prompt_mask"].sum()), n_output)
    return TrainedTokens(n_rows, unknown=boundary.error)


def tell_not_counted(
    rollout: Rollout, stage: Stage, error: Exception, told: set[tuple[str, str]]
) -> None:
    """Warn that tokens of a stage are not in the record, and keep why, once for each reason.

    Args:
        rollout: whose record lacks them.
        stage: the stage.
        error: why.
        told: what was told already; it is added to.
    """
    why = f"tokens are not counted: {error}"
    if (stage, why) in told:
        return
    told.add((stage, why))
    number = None if rollout.iteration is None else rollout.iteration.number
    rollout.runtime.record.fault(FaultEvent(number, FaultKind.NOT_COUNTED, stage, why))
    logger.warning("the record lacks figures of %s, training goes on: %s", stage, why)


def pad_token_id(trainer: Any) -> int:
    """Tell with what a trainer pads completions.

    Args:
        trainer: the TRL trainer.
    """
    return int(padding_tokenizer(trainer).pad_token_id)


def _foreign(output: Sequence[Any]) -> int:
    """Count the tokens of completions that tools or an environment wrote."""
    mask = output[2] if len(output) > 3 else None
    return 0 if mask is None else sum(len(row) - int(sum(row)) for row in mask)
