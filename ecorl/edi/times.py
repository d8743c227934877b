"""What executions of one model of a stage took on one device, whatever their energy.

The figures about time are those that each cell of the EDI matrix has as well. A device whose energy
nobody can meter, such as a process on the host, has these alone: its time was measured, and no
joule is made up for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from ecorl.records import EdiReading, PathCost, Provenance, Stage
from ecorl.statistics import recent_weight

CellKey = tuple[Stage, str, str, Provenance, str]
"""Stage, name of its model, device, provenance and variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCell:
    """Times of one model of a stage on one device.

    The plain mean is over all readings. The recent figures, `later_s_per_token` and `m2_time` are
    over those after the first one that had a time: the first execution of a stage is slower than
    the rest (compilation, cold caches). Recent means forget: see `recent_weight`.

    Attributes:
        stage: row of the matrix.
        device: column of the matrix, a profile name.
        provenance: of all readings in this cell.
        count: readings so far.
        mean_time_s_per_token: plain mean of time over output tokens, s; None while a reading came
            without its time, which only a cell with energies takes.
        role_name: which of the stage's models ran; empty where it has only one.
        variant: how it ran where that changes its price; empty for the framework's own way.
        recent_s_per_token: recent mean of time over output tokens, s; None before a second reading.
        n_recent: readings behind the recent figures.
        mean_length: output tokens a row behind the recent figures, their recent mean; None where
            they are None, or the rows are not known.
        later_s_per_token: plain mean of time over output tokens after the first reading, s; None
            before a second one.
        m2_time: sum of squared deviations from that mean (Welford), from which `spread` follows.
        last_batch: 0-based number of the rollout batch of the newest reading; None where that is
            not known.
    """

    stage: Stage
    device: str
    provenance: Provenance
    count: int
    mean_time_s_per_token: float | None = None
    role_name: str = ""
    variant: str = ""
    recent_s_per_token: float | None = None
    n_recent: int = 0
    mean_length: float | None = None
    later_s_per_token: float | None = None
    m2_time: float = 0.0
    last_batch: int | None = None

    @property
    def key(self) -> CellKey:
        """Its place in the matrix."""
        return self.stage, self.role_name, self.device, self.provenance, self.variant

    @property
    def spread(self) -> float:
        """Sample standard deviation of time per token after the first reading, over its mean.

        0.0 with fewer than two such readings.
        """
        if self.n_recent < 2 or not self.later_s_per_token:
            return 0.0
        return math.sqrt(self.m2_time / (self.n_recent - 1)) / self.later_s_per_token


AnyCell = TypeVar("AnyCell", bound=TimeCell)


def time_per_token(reading: EdiReading) -> float | None:
    """Return a reading's time over its output tokens, s; None where a part is missing.

    Args:
        reading: the reading.
    """
    time_s, n_tokens = reading.time_s, reading.n_output_tokens
    if time_s is None or not math.isfinite(time_s) or time_s < 0 or n_tokens <= 0:
        return None
    return time_s / n_tokens


def first_time(reading: EdiReading, time_s: float | None) -> dict[str, Any]:
    """Return the fields of a cell at its first reading, but for those of energy.

    Args:
        reading: the reading.
        time_s: its time over its output tokens, s, or None.
    """
    return {
        "stage": reading.stage,
        "device": reading.device,
        "provenance": reading.provenance,
        "count": 1,
        "mean_time_s_per_token": time_s,
        "role_name": reading.role_name,
        "variant": reading.variant,
        "last_batch": reading.batch,
    }


def with_time(old: AnyCell, reading: EdiReading, time_s: float | None) -> AnyCell:
    """Return a cell with the time of one more reading.

    Args:
        old: the cell so far.
        reading: the reading.
        time_s: its time over its output tokens, s, or None.
    """
    count, before_s = old.count + 1, old.mean_time_s_per_token
    mean_s = None
    if before_s is not None and time_s is not None:
        mean_s = before_s + (time_s - before_s) / count
    # A reading without a time has none of what the recent figures are to say.
    later = old if time_s is None else _later(old, reading, time_s)
    return replace(
        later,
        count=count,
        mean_time_s_per_token=mean_s,
        last_batch=old.last_batch if reading.batch is None else reading.batch,
    )


def _later(old: AnyCell, reading: EdiReading, time_s: float) -> AnyCell:
    """Bring the figures that leave out the first reading to one more."""
    n = old.n_recent + 1
    weight = recent_weight(float(n))
    mean_s = old.later_s_per_token or 0.0
    delta_s = time_s - mean_s
    mean_s += delta_s / n
    length = old.mean_length
    if reading.n_sequences > 0:
        length = moved(length, reading.n_output_tokens / reading.n_sequences, weight)
    return replace(
        old,
        recent_s_per_token=moved(old.recent_s_per_token, time_s, weight),
        n_recent=n,
        mean_length=length,
        later_s_per_token=mean_s,
        m2_time=old.m2_time + delta_s * (time_s - mean_s),
    )


def moved(mean: float | None, new: float, weight: float) -> float:
    """Move a recent mean towards a new figure.

    Args:
        mean: so far; None at the first figure.
        new: the figure.
        weight: of it, above 0 and at most 1.
    """
    return new if mean is None else mean + weight * (new - mean)


def path_cost(
    cells: Sequence[TimeCell],
    energy_j: float | None = None,
    recent_j: float | None = None,
    batch: int | None = None,
    *,
    on_card: bool = False,
) -> PathCost | None:
    """Average the variants of one model by their readings; None where a time is missing.

    Args:
        cells: of the variants, at least one.
        energy_j: their plain mean of energy over output tokens, J; None: it is not known.
        recent_j: their recent mean of it, J, or None.
        batch: 0-based number of the rollout batch at hand; None: ages are not known.
        on_card: whether the device is the card.
    """
    first = cells[0]
    if len(cells) == 1:  # the usual case, at the start of each iteration
        mean_s, newest = first.mean_time_s_per_token, first.last_batch
        if mean_s is None:
            return None
        age = batch - newest if batch is not None and newest is not None and batch > newest else 0
        return PathCost(
            first.stage, mean_s, energy_j, first.count, first.provenance, first.role_name,
            first.recent_s_per_token, recent_j, first.n_recent, first.spread, age,
            first.mean_length, on_card, first.later_s_per_token,
        )  # fmt: skip
    times_s = [c.mean_time_s_per_token for c in cells if c.mean_time_s_per_token is not None]
    if len(times_s) < len(cells):
        return None
    batches = [c.last_batch for c in cells if c.last_batch is not None]
    age = max(0, batch - max(batches)) if batch is not None and batches else 0
    count, later = sum(c.count for c in cells), [c for c in cells if c.n_recent]
    time_s = sum(t * c.count for t, c in zip(times_s, cells, strict=True)) / count
    return PathCost(
        first.stage, time_s, energy_j, count, first.provenance, first.role_name,
        by_readings([(c.recent_s_per_token, c.n_recent) for c in later]),
        recent_j,
        sum(c.n_recent for c in later),
        _spread(later),
        age,
        by_readings([(c.mean_length, c.n_recent) for c in later]),
        on_card,
        by_readings([(c.later_s_per_token, c.n_recent) for c in later]),
    )  # fmt: skip


def by_readings(figures: Sequence[tuple[float | None, int]]) -> float | None:
    """Average figures by the readings behind each; None without a known one.

    Args:
        figures: each with its readings.
    """
    known = [(figure, n) for figure, n in figures if figure is not None]
    if len(known) < 2:
        return known[0][0] if known else None
    return sum(figure * n for figure, n in known) / sum(n for _, n in known)


def _spread(cells: Sequence[TimeCell]) -> float:
    """Pool the deviations of time per token, each from its own cell's mean, over the mean."""
    spread_over = sum(c.n_recent - 1 for c in cells if c.n_recent)
    mean_s = by_readings([(c.later_s_per_token, c.n_recent) for c in cells])
    if spread_over < 1 or not mean_s:
        return 0.0
    return math.sqrt(sum(c.m2_time for c in cells) / spread_over) / mean_s


# ---------------------------------------------------------------- the JSON text

_WORDS = ("stage", "device", "provenance", "role_name", "variant")


def restored(kind: type[AnyCell], raw: Mapping[str, Any]) -> AnyCell:
    """Restore a cell from its object in the JSON text.

    Args:
        kind: of the cell.
        raw: the object.

    Raises:
        KeyError, TypeError, ValueError: when it is not what this program writes, or holds a count
            or a figure that cannot be.
    """
    words = {"stage": Stage(raw["stage"]), "provenance": Provenance(raw["provenance"])}
    cell = kind(**{**raw, **words})
    figures = {f: getattr(cell, f.name) for f in fields(cell) if f.name not in _WORDS}
    known = [value for f, value in figures.items() if value is not None or f.default is not None]
    counts_fit = 0 <= cell.n_recent < cell.count
    if not counts_fit or not all(math.isfinite(x) and x >= 0 for x in known):
        raise ValueError(f"a cell of {cell.stage} on {cell.device} holds impossible figures")
    return cell
