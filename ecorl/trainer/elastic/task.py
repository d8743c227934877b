"""What an elastic trainer trains: the user's task, the order of its rows, and their split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.optim import Optimizer

from ecorl.control import Gear
from ecorl.errors import ConfigError


class ElasticTask(Protocol):
    """A training of the user's own. It is pickled, and each member has a copy of it.

    It keeps no state: what it remembers in itself, in the model's attributes that are no weights
    or buffers, or in a scheduler of torch reaches neither joiners nor checkpoints, and members
    would drift apart. All that it does follows from the step's number and the rows.

    Random numbers of torch may be drawn in all functions but `rows`: the generators are seeded by
    seed, step and row, so that the same step at the same width draws the same numbers. `rows` is
    called in the driver, unseeded, and again for a step that is computed again.
    """

    def make_model(self) -> nn.Module:
        """Make the model, on the device on which this process trains it."""

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Make the optimizer of the model's parameters."""

    def rows(self, step: int) -> Sequence[int]:
        """Tell the rows of a step, in order; of the step's number (from 0) alone."""

    def loss(self, model: nn.Module, indices: Sequence[int]) -> Tensor:
        """Compute the loss of each of these rows, [n_rows] float32, with its graph.

        It knows nothing of the step's other rows, which other members or later calls compute; a
        loss that is no mean over rows is what `WeighsRows` is for.
        """


@runtime_checkable
class WeighsRows(Protocol):
    """A task in whose loss rows do not weigh the same, e.g. a mean over a step's tokens."""

    def weight(self, indices: Sequence[int]) -> float:
        """Tell by what the sum of a step's losses is divided; without it by the number of rows.

        For a mean over tokens `loss` returns the sum over each row's tokens, and this their number.

        Args:
            indices: all rows of the step, those of other members included.

        Returns:
            A number above 0 that follows from these rows alone.
        """


@runtime_checkable
class ShiftsGears(Protocol):
    """A task that can change the numeric format in which it computes."""

    def shift(self, model: nn.Module, gear: Gear) -> None:
        """Change the format, between two steps; parameters stay as they are."""


@runtime_checkable
class PreparesUpdates(Protocol):
    """A task that acts on gradients or learning rates before the optimizer does."""

    def before_update(self, model: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Clip gradients, set learning rates. Each member does it, so it must do the same.

        Keep no state here, such as a scheduler of torch, which counts its calls: who joins later
        has not seen the earlier ones. Set the rate that follows from the step.

        Args:
            model: the model, with the gradients of the whole step.
            optimizer: its optimizer.
            step: number of the step, from 0.
        """


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """Rows in an order that is shuffled anew each epoch; each row comes once an epoch.

    A step may hold the end of one epoch and the start of the next, so that no row is left out.

    Attributes:
        n_rows: rows of the data.
        batch_rows: rows of a step, over all members.
        seed: of the shuffling.
    """

    n_rows: int
    batch_rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ConfigError("n_rows", self.n_rows, "a number of rows, at least 1")
        if self.batch_rows < 1:
            raise ConfigError("batch_rows", self.batch_rows, "a number of rows, at least 1")

    def rows(self, step: int) -> tuple[int, ...]:
        """Tell the rows of a step, in order.

        Args:
            step: its number, from 0.
        """
        first = step * self.batch_rows
        places = (divmod(i, self.n_rows) for i in range(first, first + self.batch_rows))
        return tuple(int(_shuffled(self.n_rows, self.seed, epoch)[i]) for epoch, i in places)


@lru_cache(maxsize=4)
def _shuffled(n_rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of an epoch's rows."""
    return np.random.default_rng((seed, epoch)).permutation(n_rows)


def split_rows(n_rows: int, width: int) -> list[range]:
    """Split a step's rows over its members: contiguous, and as even as possible.

    Where it does not divide, the first members have one row more. Each row weighs the same, since
    every member divides the sum over its rows by the rows of the whole step.

    Args:
        n_rows: rows of the step.
        width: number of members.

    Returns:
        Positions of each member's rows within the step; an empty range where there are too few.
    """
    share, more = divmod(n_rows, width)
    sizes = [share + (rank < more) for rank in range(width)]
    starts = [sum(sizes[:rank]) for rank in range(width)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def micro_batches(n_rows: int, most: int | None) -> Iterator[slice]:
    """Cut a member's rows into parts that one forward pass takes.

    Args:
        n_rows: rows of the member.
        most: rows of one forward pass at most; None: all.
    """
    size = most or max(1, n_rows)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
