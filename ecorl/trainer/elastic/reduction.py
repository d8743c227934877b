"""Sums gradients, loss and buffers of a step over the members of a group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ecorl.trainer.elastic.groups import ProcessGroup, device_of


def reduce_gradients(
    model: nn.Module, parameters: Sequence[Tensor], loss: float, group: ProcessGroup | None
) -> float:
    """Sum the gradients of all members in place, and their parts of the loss.

    A parameter that no member's rows have used has no gradient afterwards, as without a group: an
    optimizer would let a gradient of zeros decay it. Buffers are the first member's afterwards.

    Args:
        model: the model.
        parameters: those of its parameters that are trained, in the same order on each member.
        loss: this member's part of the loss.
        group: the members; None for a member alone.

    Returns:
        The loss.

    Raises:
        CollectiveFailed: when a collective does not complete; gradients and buffers are then
            worth nothing.
    """
    if group is None:
        return loss
    # Double precision: the loss's parts are, and a count is exact in it.
    facts = torch.tensor(
        [loss, *(float(one.grad is not None) for one in parameters)],
        dtype=torch.float64,
        device=device_of(model),
    )
    group.all_reduce(facts)
    total, *counts = facts.tolist()
    used = [one for one, count in zip(parameters, counts, strict=True) if count]
    for kind in dict.fromkeys(one.dtype for one in used):
        _sum([one for one in used if one.dtype == kind], group)
    for kind in dict.fromkeys(one.dtype for one in model.buffers()):
        _copy_first([one for one in model.buffers() if one.dtype == kind], group)
    return float(total)


def _sum(parameters: Sequence[Tensor], group: ProcessGroup) -> None:
    """Sum gradients of one kind, as one tensor: a call costs more than most gradients do."""
    parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    # A new tensor each time: a collective that was given up may still write into its own.
    flat = torch.cat([part.reshape(-1) for part in parts])
    group.all_reduce(flat)
    for one, part in zip(
        parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True
    ):
        one.grad = part.view_as(one)


def _copy_first(buffers: Sequence[Tensor], group: ProcessGroup) -> None:
    """Copy the first member's buffers of one kind to the others."""
    flat = torch.cat([one.detach().reshape(-1) for one in buffers])
    group.broadcast(flat, 0)
    with torch.no_grad():
        for one, part in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
            one.copy_(part.view_as(one))
