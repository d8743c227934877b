"""Cells of the EDI matrix: what one model of a stage has cost on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ecorl.errors import DataError
from ecorl.records import EdiReading, PathCost, Provenance, Stage
from ecorl.statistics import recent_weight


@dataclass(frozen=True, slots=True)
class EdiCell:
    """One cell of the matrix.

    The plain means are over all readings. The recent figures, `later_s_per_token` and `m2_time` are
    over those after the first one that had a time: the first execution of a stage is slower than
    the rest (compilation, cold caches). Recent means forget: see `recent_weight`.

    Attributes:
        stage: row of the matrix.
        device: column of the matrix, a profile name.
        provenance: of all readings in this cell.
        value_j_per_token: the smoothed figure of Eq. 5, J per output token.
        count: readings so far.
        mean_j_per_token: plain mean over all readings.
        m2: sum of squared deviations from the mean (Welford), from which the spread follows.
        mean_time_s_per_token: plain mean of time over output tokens, s; None while a reading came
            without its time.
        role_name: which of the stage's models ran; empty where it has only one.
        variant: how it ran where that changes its price; empty for the framework's own way.
        recent_s_per_token: recent mean of time over output tokens, s; None before a second reading.
        recent_j_per_token: recent mean of energy over output tokens, J; None likewise.
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
    value_j_per_token: float
    count: int
    mean_j_per_token: float
    m2: float
    mean_time_s_per_token: float | None = None
    role_name: str = ""
    variant: str = ""
    recent_s_per_token: float | None = None
    recent_j_per_token: float | None = None
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
    def std_j_per_token(self) -> float | None:
        """Sample standard deviation, or None with fewer than two readings."""
        return math.sqrt(max(self.m2, 0.0) / (self.count - 1)) if self.count > 1 else None

    @property
    def spread(self) -> float:
        """Sample standard deviation of time per token after the first reading, over its mean.

        0.0 with fewer than two such readings.
        """
        if self.n_recent < 2 or not self.later_s_per_token:
            return 0.0
        return math.sqrt(self.m2_time / (self.n_recent - 1)) / self.later_s_per_token


def cell_with(
    old: EdiCell | None, reading: EdiReading, new_j: float, alpha: float, n_profiling: int
) -> EdiCell:
    """Return a cell with one more reading.

    Args:
        old: the cell so far; None at its first reading.
        reading: the reading.
        new_j: its EDI, J per output token, finite and 0 or more.
        alpha: weight of a new reading after the profiling phase (Eq. 5).
        n_profiling: readings during which the cell is the running mean.
    """
    time_s = None
    if reading.time_s is not None and math.isfinite(reading.time_s) and reading.time_s >= 0:
        time_s = reading.time_s / reading.n_output_tokens
    if old is None:
        return EdiCell(
            reading.stage, reading.device, reading.provenance, new_j, 1, new_j, 0.0, time_s,
            reading.role_name, reading.variant, last_batch=reading.batch,
        )  # fmt: skip
    count = old.count + 1
    delta = new_j - old.mean_j_per_token
    mean = old.mean_j_per_token + delta / count
    smoothed = (1.0 - alpha) * old.value_j_per_token + alpha * new_j
    # A reading without a time has none of what the recent figures are to say.
    later = old if time_s is None else _later(old, reading, new_j, time_s)
    before_s = old.mean_time_s_per_token
    if before_s is not None and time_s is not None:
        time_s = before_s + (time_s - before_s) / count
    else:
        time_s = None
    return replace(
        later, value_j_per_token=mean if count <= n_profiling else smoothed,
        count=count, mean_j_per_token=mean,
        m2=old.m2 + delta * (new_j - mean), mean_time_s_per_token=time_s,
        last_batch=old.last_batch if reading.batch is None else reading.batch,
    )  # fmt: skip


def _later(old: EdiCell, reading: EdiReading, new_j: float, time_s: float) -> EdiCell:
    """Bring the figures that leave out the first reading to one more."""
    n = old.n_recent + 1
    weight = recent_weight(float(n))
    mean_s = old.later_s_per_token or 0.0
    delta_s = time_s - mean_s
    mean_s += delta_s / n
    length = old.mean_length
    if reading.n_sequences > 0:
        length = _moved(length, reading.n_output_tokens / reading.n_sequences, weight)
    return replace(
        old,
        recent_s_per_token=_moved(old.recent_s_per_token, time_s, weight),
        recent_j_per_token=_moved(old.recent_j_per_token, new_j, weight),
        n_recent=n,
        mean_length=length,
        later_s_per_token=mean_s,
        m2_time=old.m2_time + delta_s * (time_s - mean_s),
    )


def _moved(mean: float | None, new: float, weight: float) -> float:
    return new if mean is None else mean + weight * (new - mean)


CellKey = tuple[Stage, str, str, Provenance, str]
"""Stage, name of its model, device, provenance and variant."""


def mean_cost(
    cells: Sequence[EdiCell], batch: int | None = None, *, on_card: bool = False
) -> PathCost | None:
    """Average the variants of one model by their readings; None where a time is missing.

    Args:
        cells: of the variants, at least one.
        batch: 0-based number of the rollout batch at hand; None: ages are not known.
        on_card: whether the device is the card.
    """
    first = cells[0]
    if len(cells) == 1:  # the usual case, at the start of each iteration
        time_s, newest = first.mean_time_s_per_token, first.last_batch
        if time_s is None:
            return None
        age = batch - newest if batch is not None and newest is not None and batch > newest else 0
        return PathCost(
            first.stage, time_s, first.mean_j_per_token, first.count, first.provenance,
            first.role_name, first.recent_s_per_token, first.recent_j_per_token, first.n_recent,
            first.spread, age, first.mean_length, on_card,
        )  # fmt: skip
    times_s = [c.mean_time_s_per_token for c in cells if c.mean_time_s_per_token is not None]
    if len(times_s) < len(cells):
        return None
    batches = [c.last_batch for c in cells if c.last_batch is not None]
    age = max(0, batch - max(batches)) if batch is not None and batches else 0
    count, later = sum(c.count for c in cells), [c for c in cells if c.n_recent]
    time_s = sum(t * c.count for t, c in zip(times_s, cells, strict=True)) / count
    energy_j = sum(c.mean_j_per_token * c.count for c in cells) / count
    return PathCost(
        first.stage, time_s, energy_j, count, first.provenance, first.role_name,
        _by_readings([(c.recent_s_per_token, c.n_recent) for c in later]),
        _by_readings([(c.recent_j_per_token, c.n_recent) for c in later]),
        sum(c.n_recent for c in later),
        _spread(later),
        age,
        _by_readings([(c.mean_length, c.n_recent) for c in later]),
        on_card,
    )  # fmt: skip


def _by_readings(figures: Sequence[tuple[float | None, int]]) -> float | None:
    """Average figures by the readings behind each; None without a known one."""
    known = [(figure, n) for figure, n in figures if figure is not None]
    if len(known) < 2:
        return known[0][0] if known else None
    return sum(figure * n for figure, n in known) / sum(n for _, n in known)


def _spread(cells: Sequence[EdiCell]) -> float:
    """Pool the deviations of time per token, each from its own cell's mean, over the mean."""
    spread_over = sum(c.n_recent - 1 for c in cells if c.n_recent)
    mean_s = _by_readings([(c.later_s_per_token, c.n_recent) for c in cells])
    if spread_over < 1 or not mean_s:
        return 0.0
    return math.sqrt(sum(c.m2_time for c in cells) / spread_over) / mean_s


_CELL_KEYS = frozenset(field.name for field in fields(EdiCell))


def refuse_unknown(raw: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse an object of the JSON text that holds what this program does not know.

    Args:
        raw: the object.
        known: what it may hold.

    Raises:
        DataError: when it holds something else.
    """
    # What a later version adds may change what the figures mean, so it is not passed over.
    unknown = sorted(set(raw) - known)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise DataError(f"EDI matrix: holds {names}, which this program does not know")


def cell_from(raw: Mapping[str, Any]) -> EdiCell:
    """Restore a cell from its object in the JSON text.

    Args:
        raw: the object.

    Raises:
        DataError: when it holds what this program does not know.
        KeyError, TypeError, ValueError: when it is not what this program writes.
    """
    refuse_unknown(raw, _CELL_KEYS)
    cell = EdiCell(
        stage=Stage(raw["stage"]),
        device=str(raw["device"]),
        provenance=Provenance(raw["provenance"]),
        value_j_per_token=float(raw["value_j_per_token"]),
        count=int(raw["count"]),
        mean_j_per_token=float(raw["mean_j_per_token"]),
        m2=float(raw["m2"]),
        # Matrices of earlier versions hold no times, and none of the figures after the first one.
        mean_time_s_per_token=_known(raw, "mean_time_s_per_token"),
        role_name=str(raw.get("role_name", "")),
        variant=str(raw.get("variant", "")),
        recent_s_per_token=_known(raw, "recent_s_per_token"),
        recent_j_per_token=_known(raw, "recent_j_per_token"),
        n_recent=int(raw.get("n_recent", 0)),
        mean_length=_known(raw, "mean_length"),
        later_s_per_token=_known(raw, "later_s_per_token"),
        m2_time=float(raw.get("m2_time", 0.0)),
        last_batch=None if (batch := raw.get("last_batch")) is None else int(batch),
    )
    figures = (
        cell.value_j_per_token, cell.mean_j_per_token, cell.m2, cell.mean_time_s_per_token or 0.0,
        cell.recent_s_per_token or 0.0, cell.recent_j_per_token or 0.0, cell.mean_length or 0.0,
        cell.later_s_per_token or 0.0, cell.m2_time,
    )  # fmt: skip
    counts_fit = 0 <= cell.n_recent < cell.count
    if not counts_fit or not all(math.isfinite(x) and x >= 0 for x in figures):
        raise ValueError(f"a cell of {cell.stage} on {cell.device} holds impossible figures")
    return cell


def _known(raw: Mapping[str, Any], name: str) -> float | None:
    value = raw.get(name)
    return None if value is None else float(value)
