"""What one member of an elastic training does; it knows neither Ray nor the driver.

Two threads call it. One trains: `load`, `compute`, `settle`, `share`, `snapshot`, `restore`. The
other, beside it, answers pings, makes process groups, and aborts those of lost members; it touches
neither model nor gradients.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ecorl.control import Gear
from ecorl.errors import DataError, EcorlError
from ecorl.trainer.elastic.groups import (
    CollectiveFailed,
    GroupCache,
    GroupSpec,
    ProcessGroup,
    device_of,
)
from ecorl.trainer.elastic.records import MemberOptions, Point, StepAnswer, StepOrder
from ecorl.trainer.elastic.state import (
    from_bytes,
    load_state,
    receive_state,
    reduce_gradients,
    send_state,
    state_of,
    to_bytes,
)
from ecorl.trainer.elastic.task import (
    ElasticTask,
    PreparesUpdates,
    ShiftsGears,
    WeighsRows,
    micro_batches,
)

_MODEL, _UPDATE, _FORWARD = range(3)
"""What random numbers are drawn for: each has its own seeds."""


class Member:
    """Holds a model and its optimizer, and trains its share of each step.

    Args:
        name: unlike that of all other members, earlier ones included.
        task: what is trained.
        options: how.
        host: address under which the other members reach this process.

    Attributes:
        model: the model, once it is loaded.
        optimizer: its optimizer, once it is loaded.
    """

    model: nn.Module
    optimizer: Optimizer

    def __init__(self, name: str, task: ElasticTask, options: MemberOptions, host: str) -> None:
        self.name = name
        self._task, self._options = task, options
        self._groups = GroupCache(name, options.groups, host)
        self._n_applied = 0
        self._is_torn = False
        self._pending: int | None = None
        self._gear: Gear | None = None
        self._buffers: list[Tensor] = []

    # ------------------------------------------------------------ beside the training

    def ping(self) -> int:
        """Tell that this process lives, by its number."""
        return os.getpid()

    def join(self, spec: GroupSpec) -> str | None:
        """Meet the other members of a new group.

        Returns:
            None, or why the group was not made.
        """
        self._drill(Point.MEETING, -1)
        try:
            self._groups.join(spec)
        except CollectiveFailed as error:
            return str(error)
        return None

    def abort(self, members: Sequence[str], newest: int | None = None) -> None:
        """Give up a group, so that the training thread leaves a collective that cannot complete.

        Args:
            members: of the group, by rank.
            newest: serial of the newest group that is meant; None: whichever there is.
        """
        self._groups.abort(members, newest)

    def forget(self, member: str) -> None:
        """Give up all groups of a member that is gone."""
        self._groups.forget(member)

    # ------------------------------------------------------------ the training thread

    def load(self, rows: Sequence[int]) -> None:
        """Make model and optimizer, and compute some rows once, so that later steps do not wait.

        Args:
            rows: what is computed and thrown away; nothing remembers it, random numbers included.
        """
        self._drill(Point.LOADING, -1)
        if self._options.n_threads:
            torch.set_num_threads(self._options.n_threads)
        self._seed(_MODEL)
        self.model = self._task.make_model()
        self.model.train()
        self.optimizer = self._task.make_optimizer(self.model)
        self._device = device_of(self.model)
        self._keep_buffers()
        for part in micro_batches(len(rows), self._options.micro_batch_rows):
            self._forward(rows[part], 0, 0).sum().backward()  # type: ignore[no-untyped-call]
            break
        self._drop()

    def compute(self, order: StepOrder) -> StepAnswer:
        """Compute a step up to the summed gradients, which wait until the step is committed.

        Args:
            order: what to compute. A step that it says is committed is applied first; one that
                waits and is not committed is dropped.

        Returns:
            The step's loss, or why its collectives failed; then nothing is left of the step.

        Raises:
            DataError: when the task's losses are not one a row, or their weight is not above 0.
            RunError: when members have other weights than the first.
            EcorlError: when this member is not where the driver thinks that it is.
        """
        self.settle(order.n_committed)
        self._shift(order.gear)
        self._drill(Point.COMPUTING, order.step)
        self._keep_buffers()
        try:
            group = self._groups.get(order.members) if len(order.members) > 1 else None
            total = self._accumulate(order, group)
            every = self._options.compare_every
            compares = every > 0 and order.step % every == 0
            loss = reduce_gradients(self.model, total, group, compares=compares)
        except CollectiveFailed as error:
            self._drop()
            return StepAnswer(order.step, None, str(error))
        except BaseException:
            self._drop()
            raise
        self._pending = order.step
        self._drill(Point.REDUCED, order.step)
        return StepAnswer(order.step, loss)

    def settle(self, n_committed: int) -> None:
        """Apply the step that waits if it is committed, else drop it.

        Args:
            n_committed: steps that are.

        Raises:
            EcorlError: when this member is not where the driver thinks that it is.
        """
        if self._is_torn:
            raise EcorlError(f"{self.name} has applied a part of step {self._n_applied}")
        if self._pending is not None and self._pending < n_committed:
            self._apply(self._pending)
        self._drop()
        if self._n_applied != n_committed:
            raise EcorlError(
                f"{self.name} has applied {self._n_applied} steps, and {n_committed} are committed"
            )

    def share(self, members: Sequence[str], n_committed: int | None) -> str | None:
        """Send the state to those who join, or receive it; all members of the group call this.

        Args:
            members: of the new group; the first one sends.
            n_committed: steps that are committed; None for those who join.

        Returns:
            None, or why it did not get through; who joins is then not to be used.
        """
        if n_committed is not None:
            self.settle(n_committed)
        self._drill(Point.SHARING, self._n_applied)
        try:
            group = self._groups.get(members)
            if group.rank == 0:
                state = state_of(self.model, self.optimizer, self._n_applied)
                send_state(state, group, self._device)
                return None
            received = receive_state(group, 0, self._device)
        except CollectiveFailed as error:
            return str(error)
        if n_committed is None:
            self._drop()
            self._n_applied = load_state(received, self.model, self.optimizer)
        return None

    def snapshot(self, n_committed: int) -> bytes:
        """Write the state down as it is after these steps."""
        self.settle(n_committed)
        return to_bytes(state_of(self.model, self.optimizer, self._n_applied))

    def restore(self, payload: bytes) -> None:
        """Take over a state that `snapshot` wrote."""
        self._drop()
        state = from_bytes(payload, self._device)
        self._n_applied = load_state(state, self.model, self.optimizer)
        self._is_torn = False

    def digest(self, n_committed: int) -> str:
        """SHA-256 of all weights and buffers after these steps."""
        self.settle(n_committed)
        summed = hashlib.sha256()
        for name, value in sorted(self.model.state_dict().items()):
            summed.update(name.encode())
            # Through bytes, since NumPy knows no bfloat16.
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            summed.update(raw.numpy().tobytes())
        return summed.hexdigest()

    # ------------------------------------------------------------ parts of a step

    def _accumulate(self, order: StepOrder, group: ProcessGroup | None) -> float:
        """Add up the gradients of this member's rows; returns its part of the loss."""
        total, weight = 0.0, self._weight(order)
        for part in micro_batches(len(order.rows), self._options.micro_batch_rows):
            if group is not None:
                group.check()  # who is left need not compute the rest of a step that has failed
            losses = self._forward(order.rows[part], order.step, order.first + part.start)
            # Of the whole step, not of this member: so each row weighs what it does without others.
            loss = losses.sum() / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(losses.detach().double().sum()) / weight
        return total

    def _weight(self, order: StepOrder) -> float:
        """By what the sum of the whole step's losses is divided."""
        if not isinstance(self._task, WeighsRows):
            return order.n_rows
        # A step's rows follow from its number, so that nobody has to send them to all members.
        weight = float(self._task.weight(self._task.rows(order.step)))
        if not (weight > 0 and math.isfinite(weight)):
            raise DataError(f"weight() returned {weight:g} for step {order.step}: it has to be > 0")
        return weight

    def _forward(self, rows: Sequence[int], step: int, first: int) -> Tensor:
        """One loss a row."""
        self._seed(_FORWARD, step, first)
        losses = self._task.loss(self.model, rows)
        if losses.shape != (len(rows),):
            raise DataError(
                f"loss() returned shape {tuple(losses.shape)} for {len(rows)} rows: "
                "it has to return one loss a row"
            )
        return losses

    def _apply(self, step: int) -> None:
        """Let the optimizer apply a step."""
        # Whoever fails halfway has applied a part of it, and must not apply that twice.
        self._pending = None
        self._seed(_UPDATE, step)
        # Whatever is raised from here on leaves a state that no checkpoint may hold.
        self._is_torn = True
        if isinstance(self._task, PreparesUpdates):
            self._task.before_update(self.model, self.optimizer, step)
        self.optimizer.step()
        self._is_torn = False
        self._n_applied += 1
        self._buffers = []
        self._drill(Point.APPLIED, step)

    def _drop(self) -> None:
        """Forget a step that was not committed: its gradients, and what it did to buffers."""
        # Of the model, since its parameters may be more than the optimizer's.
        self.model.zero_grad(set_to_none=True)
        self._pending = None
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), self._buffers, strict=False):
                buffer.copy_(before)
        self._buffers = []

    def _keep_buffers(self) -> None:
        """Remember the buffers as they are before a step, which may have to be undone."""
        self._buffers = [one.detach().clone() for one in self.model.buffers()]

    def _shift(self, gear: Gear | None) -> None:
        """Let the task compute in a gear, where it can and is not in it yet."""
        if gear is not None and gear is not self._gear:
            if isinstance(self._task, ShiftsGears):
                self._task.shift(self.model, gear)
            self._gear = gear

    def _seed(self, what: int, step: int = 0, row: int = 0) -> None:
        """Seed torch's generators, so that the same work draws the same numbers at any time."""
        words = f"{self._options.seed} {what} {step} {row}".encode()
        torch.manual_seed(int.from_bytes(hashlib.sha256(words).digest()[:8], "big"))

    def _drill(self, point: Point, step: int) -> None:
        """Call the drill, if there is one."""
        if self._options.drill is not None:
            self._options.drill(point, self.name, step)
