"""State and gradients of members: as bytes for a checkpoint, over a group for others."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ecorl.errors import RunError
from ecorl.trainer.elastic.groups import ProcessGroup, device_of

_BUCKET_BYTES = 32 * 2**20
"""Bytes that are broadcast at once; invented: large against a call's cost, small against memory."""


def state_of(model: nn.Module, optimizer: Optimizer, n_applied: int) -> dict[str, Any]:
    """Collect all that a joiner has to know; tensors are not copied.

    Args:
        model: the model.
        optimizer: its optimizer.
        n_applied: steps that the optimizer has applied.
    """
    weights = model.state_dict()
    # Buffers that a model keeps out of its files change in training like all others.
    unsaved = {name: one for name, one in model.named_buffers() if name not in weights}
    return {
        "model": weights,
        "buffers": unsaved,
        "optimizer": optimizer.state_dict(),
        "n_applied": n_applied,
    }


def load_state(state: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> int:
    """Take over a state.

    Args:
        state: of `state_of`.
        model: a model of the same shape.
        optimizer: its optimizer.

    Returns:
        Steps that the optimizer has applied.
    """
    model.load_state_dict(state["model"])
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in state["buffers"].items():
            buffers[name].copy_(value)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["n_applied"])


def to_bytes(state: dict[str, Any]) -> bytes:
    """Write a state down; tensors are copied to the CPU's memory on the way."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def from_bytes(payload: bytes, device: torch.device) -> dict[str, Any]:
    """Read what `to_bytes` wrote.

    Args:
        payload: the bytes, whose hash was checked. They are unpickled: only a file that a run of
            one's own has written may be read.
        device: where its tensors shall lie.
    """
    # An optimizer of the user's own may keep any object in its state, which torch's reader of
    # tensors alone would refuse when all members are lost: the worst time to learn of it.
    state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location=device, weights_only=False)
    return state


def send_state(state: dict[str, Any], group: ProcessGroup, device: torch.device) -> None:
    """Send a state to all other members of a group; the sender's rank is the root.

    Raises:
        CollectiveFailed: when they do not receive it.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    shapes = [(one.dtype, tuple(one.shape)) for one in pickler.tensors]
    plan = pickle.dumps((file.getvalue(), shapes))
    size = torch.tensor([len(plan)], dtype=torch.int64, device=device)
    group.broadcast(size, group.rank)
    group.broadcast(torch.frombuffer(bytearray(plan), dtype=torch.uint8).to(device), group.rank)
    for bucket in _buckets(shapes):
        parts = [pickler.tensors[i].detach().to(device).reshape(-1) for i in bucket]
        group.broadcast(torch.cat(parts), group.rank)


def receive_state(group: ProcessGroup, root: int, device: torch.device) -> dict[str, Any]:
    """Receive what the root sends.

    Args:
        group: the group.
        root: rank of the sender.
        device: where the group's tensors lie.

    Raises:
        CollectiveFailed: when it does not arrive.
    """
    size = torch.zeros(1, dtype=torch.int64, device=device)
    group.broadcast(size, root)
    plan = torch.zeros(int(size.item()), dtype=torch.uint8, device=device)
    group.broadcast(plan, root)
    skeleton, shapes = pickle.loads(plan.cpu().numpy().tobytes())
    tensors: dict[int, Tensor] = {}
    for bucket in _buckets(shapes):
        sizes = [torch.Size(shapes[i][1]).numel() for i in bucket]
        flat = torch.empty(sum(sizes), dtype=shapes[bucket[0]][0], device=device)
        group.broadcast(flat, root)
        for i, part in zip(bucket, torch.split(flat, sizes), strict=True):
            # A copy: a view would keep its whole bucket in memory, and in each checkpoint.
            tensors[i] = part.reshape(shapes[i][1]).clone()
    state: dict[str, Any] = _Unpickler(io.BytesIO(skeleton), tensors).load()
    return state


def _buckets(shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> Iterator[list[int]]:
    """Put tensors of one kind together, in their order, up to a size."""
    by_kind: dict[torch.dtype, list[int]] = {}
    for i, (kind, _) in enumerate(shapes):
        by_kind.setdefault(kind, []).append(i)
    for kind, places in by_kind.items():
        bucket: list[int] = []
        n_bytes = 0
        for i in places:
            bucket.append(i)
            n_bytes += torch.Size(shapes[i][1]).numel() * kind.itemsize
            if n_bytes >= _BUCKET_BYTES:
                yield bucket
                bucket, n_bytes = [], 0
        if bucket:
            yield bucket


class _Pickler(pickle.Pickler):
    """Pickles all but tensors, which it lists."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, thing: object) -> int | None:
        """The tensor's place in the list; None for anything else."""
        if not isinstance(thing, Tensor):
            return None
        if id(thing) not in self._places:
            self._places[id(thing)] = len(self.tensors)
            self.tensors.append(thing)
        return self._places[id(thing)]


class _Unpickler(pickle.Unpickler):
    """Puts received tensors back in their places."""

    def __init__(self, file: io.BytesIO, tensors: dict[int, Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, place: int) -> Tensor:
        """The tensor of a place."""
        return self._tensors[place]


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
