"""Sums gradients, loss and buffers of a step over the members of a group; compares weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ecorl.errors import RunError
from ecorl.trainer.elastic.groups import ProcessGroup, device_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""As what numbers of so many bytes are read whose bits are summed."""

_MODULUS = 2**48
"""Fingerprints lie below it, so that a number in double precision holds one exactly."""


def reduce_gradients(
    model: nn.Module, loss: float, group: ProcessGroup | None, *, compares: bool = False
) -> float:
    """Sum the gradients of all members in place, and their parts of the loss.

    A parameter that no member's rows have used has no gradient afterwards, as without a group: an
    optimizer would let a gradient of zeros decay it. Buffers are the first member's afterwards.

    Args:
        model: the model.
        loss: this member's part of the loss.
        group: the members; None for a member alone.
        compares: whether it is looked whether all members have the same weights.

    Returns:
        The loss.

    Raises:
        CollectiveFailed: when a collective does not complete; gradients and buffers are then
            worth nothing.
        RunError: when members have other weights than the first.
    """
    if group is None:
        return loss
    # All of them, since a task may freeze and unfreeze some while it trains.
    parameters = list(model.parameters())
    prints = [0.0] * len(group.spec.members)
    if compares:
        prints[group.rank] = float(_fingerprint(parameters))
    # Double precision: the loss's parts are, and a count and a fingerprint are exact in it.
    facts = torch.tensor(
        [loss, *prints, *(float(one.grad is not None) for one in parameters)],
        dtype=torch.float64,
        device=device_of(model),
    )
    group.all_reduce(facts)
    total, *rest = facts.tolist()
    prints, counts = rest[: len(prints)], rest[len(prints) :]
    _check_same(group.spec.members, prints)
    used = [one for one, count in zip(parameters, counts, strict=True) if count]
    for kind in dict.fromkeys(one.dtype for one in used):
        _sum([one for one in used if one.dtype == kind], group)
    for kind in dict.fromkeys(one.dtype for one in model.buffers()):
        _copy_first([one for one in model.buffers() if one.dtype == kind], group)
    return float(total)


def _fingerprint(parameters: Sequence[Tensor]) -> int:
    """A number that differs where a weight differs; of their bits, so in whatever order summed."""
    # What a library has made of a tensor may have no bits to read.
    plain = [one.detach() for one in parameters if type(one) in (nn.Parameter, Tensor)]
    sums = [one.reshape(-1).view(_BITS[one.element_size()]).sum(dtype=torch.int64) for one in plain]
    # Together, since each number that is fetched waits for the device.
    found: list[int] = torch.stack(sums).tolist() if sums else []
    mixed = 0
    for one in found:
        mixed = (mixed * 31 + one) % _MODULUS
    return mixed


def _check_same(members: Sequence[str], prints: Sequence[float]) -> None:
    """Raise when members have other weights than the first."""
    others = [name for name, one in zip(members, prints, strict=True) if one != prints[0]]
    if others:
        raise RunError(
            f"the weights of {', '.join(others)} differ from those of {members[0]}: each member "
            "has to apply the same updates, so loss() and before_update() must keep no state of "
            "their own, and all that they set must follow from the step's number"
        )


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
