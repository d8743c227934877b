"""Lengths and times of a recorded run, laid over an episode batch by batch.

What is drawn from distributions has neither the spells nor the outliers of a machine. A replay goes
through the batches of one run in their order, from any of them on and around, so that what follows
what stays as it was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np

from ecorl.errors import ConfigError
from ecorl.records import Provenance
from ecorl.scheduler.tables import Float64
from ecorl.sim.factors import N_POWERS, N_TIMES


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The batches of one run, in their order.

    Attributes:
        run_id: name of the run.
        length: ``[n_batches] float64``: mean completion, tokens.
        longest: ``[n_batches]``: longest completion, tokens.
        tail: ``[n_handovers, n_batches]``: `ecorl.stages.figures.Work.tail`.
        time: ``[N_TIMES, n_batches]``: measured times over those of the run's fitted table at the
            batch's length, by `ecorl.sim.factors.PATHS`; NaN where the stage did not run on that
            path alone, or its reading is not believed.
        power: ``[N_POWERS, n_batches]``: mean powers likewise; NaN also where there is no energy.
        readings: provenance of the readings.
        n_left_out: readings of a time or a power that were not believed.
    """

    run_id: str
    length: Float64
    longest: Float64
    tail: Float64
    time: Float64
    power: Float64
    readings: Provenance
    n_left_out: int = 0

    def __post_init__(self) -> None:
        n = self.n_batches
        factors = np.concatenate([self.time.ravel(), self.power.ravel()])
        checks = (
            ("length", n >= 1 and bool((self.length > 0).all()), "one batch or more, above 0"),
            ("longest", self.longest.shape == (n,) and bool((self.longest >= self.length).all()),
             "the mean length or more"),
            ("tail", self.tail.ndim == 2 and self.tail.shape[1] == n, "a column a batch"),
            ("time", self.time.shape == (N_TIMES, n), f"{N_TIMES} factors a batch"),
            ("power", self.power.shape == (N_POWERS, n), f"{N_POWERS} factors a batch"),
            ("time", bool((np.isnan(factors) | (factors > 0)).all()), "factors above 0, or NaN"),
        )  # fmt: skip
        for key, fine, allowed in checks:
            if not fine:
                raise ConfigError(f"scenario.replay.{key}", self.run_id, allowed)

    @property
    def n_batches(self) -> int:
        """Batches of the run."""
        return len(self.length)

    def origin(self) -> dict[str, str]:
        """Which run it is, and where its figures came from, as plain data."""
        return {
            "run": self.run_id,
            "provenance": str(Provenance.REPLAYED),
            "readings": str(self.readings),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of all that is replayed, in hexadecimal."""
        found = hashlib.sha256(self.run_id.encode())
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                found.update(np.ascontiguousarray(value).tobytes())
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class Laid:
    """A replay over the iterations of an episode; as in `Replay`, an iteration a column.

    Attributes:
        at: ``[n_iterations] int64``: the batch of each iteration.
        length, longest, tail: of its completions.
        time, power: factors, all of them numbers.
    """

    at: np.ndarray[tuple[int], np.dtype[np.int64]]
    length: Float64
    longest: Float64
    tail: Float64
    time: Float64
    power: Float64


def lay(replay: Replay, start: int, n_iterations: int) -> Laid:
    """Lay a replay over an episode.

    Args:
        replay: of a run.
        start: batch of the first iteration; after the last batch comes the first one again.
        n_iterations: of the episode.
    """
    at = (start + np.arange(n_iterations, dtype=np.int64)) % replay.n_batches
    return Laid(
        at,
        replay.length[at],
        replay.longest[at],
        replay.tail[:, at],
        carried(replay.time)[:, at],
        carried(replay.power)[:, at],
    )


def carried(factors: Float64) -> Float64:
    """Fill in the factors of paths that did not run.

    A batch takes the factor of the nearest earlier one that has it; before the first batch stands
    the last one, as in an episode that goes around. A path that never ran costs what the table
    says.

    Args:
        factors: ``[n_paths, n_batches] float64``, NaN where the path did not run.
    """
    n = factors.shape[-1]
    around = np.concatenate([factors, factors], axis=-1)
    place = np.where(np.isnan(around), -1, np.arange(2 * n))
    last = np.maximum.accumulate(place, axis=-1)
    found = np.take_along_axis(around, np.maximum(last, 0), axis=-1)
    return np.asarray(np.where(last >= 0, found, 1.0)[..., n:])


def mean_so_far(values: Float64, first: float) -> Float64:
    """What the values before each one let expect of it, ``[n] float64``.

    Args:
        values: ``[n]``, in order.
        first: what is expected before there is any.
    """
    sums = np.cumsum(values[:-1]) / np.arange(1, len(values))
    return np.concatenate([[first], sums])
