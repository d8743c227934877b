"""Rows that a `LedgerReader` returns: records with the attempt that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ecorl.control import GearChoice
from ecorl.grid import Intensity
from ecorl.records import (
    BarrierWait,
    DeviceKind,
    EventKind,
    FaultEvent,
    Placement,
    Provenance,
    StageResult,
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run: its id, the resolved config as TOML, free facts, wall-clock of creation (s)."""

    run_id: str
    config_toml: str
    created_unix_s: float
    meta: dict[str, str]


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One start or resume.

    Attributes:
        from_step: last iteration that the checkpoint held; 0 for a fresh start.
        unix_anchor_s: wall clock at the start of the attempt, s since 1970.
        monotonic_anchor_s: ``time.monotonic()`` at the same instant, s.
        hold_s: for how long a power reading stands without a successor, s.
    """

    attempt: int
    from_step: int
    unix_anchor_s: float
    monotonic_anchor_s: float
    pid: int
    hold_s: float


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A machine of the attempt under way, as `Ledger.node` records it on the head.

    Attributes:
        node: the machine's name.
        file: its ledger, relative to the run folder; None where the head's own file is its record.
        offset_s: its monotonic clock minus the head's, s; None where it was not measured.
        offset_error_s: half the round trip in which the offset was measured, s: the offset is
            right to within that.
        t_s: the head's monotonic time of that measurement, s.
        lost: why its record could not be fetched; None: it is there.
    """

    node: str
    file: str | None = None
    offset_s: float | None = None
    offset_error_s: float | None = None
    t_s: float | None = None
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow(NodeRecord):
    """A machine of one attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """The time for which one file tells of a machine's devices, in the head's clock.

    Attributes:
        node: the machine's name; None where the file names none.
        start_t_s: when the file's record of the attempt begins, s.
        end_t_s: when the machine left the run by its own word, s; None where the record just ends.
        device_ids: its devices that the file tells of in this attempt.
    """

    attempt: int
    node: str | None
    start_t_s: float
    end_t_s: float | None
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One stage execution; ``superseded``: its result was thrown away by a later resume."""

    attempt: int
    superseded: bool
    result: StageResult


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """One placement decision, taken at ``t_s`` (monotonic, s)."""

    attempt: int
    superseded: bool
    t_s: float
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierRow(BarrierWait):
    """One wait of the training thread, ending at ``t_s`` (monotonic, s)."""

    attempt: int
    superseded: bool
    t_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow(FaultEvent):
    """A fault that the run survived, at ``t_s`` (monotonic, s).

    ``node`` is the machine that recorded it; None where its file names none.
    """

    attempt: int
    superseded: bool
    t_s: float
    node: str | None = None


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One scalar of the trainer; None when it was missing or not a number."""

    attempt: int
    superseded: bool
    iteration: int
    name: str
    value: float | None


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """Per-item values of one evaluation; None for an item without a value."""

    attempt: int
    t_s: float
    name: str
    phase: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device of the attempt under way, as `Ledger.device` records it.

    Attributes:
        device_id: as in `PowerSample` and `StageResult`.
        profile: name of the device profile.
        provenance: of its power readings.
        source: the instrument.
        idle_w: idle power, W, or None when unknown.
        figures_json: a JSON object with further figures, e.g. the achieved refresh.
        kind: what kind of machine it is; None leaves that to its name.
    """

    device_id: str
    profile: str
    provenance: Provenance
    source: str
    idle_w: float | None
    figures_json: str = "{}"
    kind: DeviceKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow(DeviceRecord):
    """A device as one attempt knew it.

    Its ``kind`` is told from its name where the record does not hold it.
    """

    attempt: int
    kind: DeviceKind


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint of the trainer that holds all work up to ``iteration``."""

    attempt: int
    superseded: bool
    iteration: int
    t_s: float
    path: str


@dataclass(frozen=True, slots=True)
class EdiRow:
    """The newest EDI matrix of one attempt, as JSON."""

    attempt: int
    t_s: float
    json: str


@dataclass(frozen=True, slots=True)
class EventRow:
    """A note about the course of the run.

    ``node`` is the machine that recorded it; None where its file names none.
    """

    attempt: int
    t_s: float
    kind: EventKind
    detail: str
    node: str | None = None


@dataclass(slots=True)
class EnergySums:
    """Times (s) and energies (J) of a second while they are added up; as in `PowerSecond`."""

    held_s: float = 0.0
    held_j: float = 0.0
    counted_s: float = 0.0
    counted_j: float = 0.0
    alone_s: float = 0.0
    alone_j: float = 0.0


@dataclass(frozen=True, slots=True)
class PowerSecond:
    """Readings of one device by one instrument within ``[second, second + 1)``, monotonic s.

    A second may appear in two parts, whose times and energies add up. Readings hold into the next
    seconds, so that one may have energy and no reading.

    Attributes:
        n: valid readings.
        n_missing: readings that failed.
        mean_w, min_w, max_w: over the valid readings, W; None when there were none.
        held_s, held_j: time for which a valid reading held, s, and power x that time, J.
        counted_s, counted_j: time over which the device's counter could be read, s, and its rise
            over that time, J.
        alone_s, alone_j: the part of held where the counter tells nothing; the energy of the
            second is ``counted_j + alone_j`` over ``counted_s + alone_s``.
        n_breaks: how often the counter fell, was reset or was away for too long.
    """

    attempt: int
    device_id: str
    provenance: Provenance
    source: str
    second: int
    n: int
    n_missing: int
    mean_w: float | None
    min_w: float | None
    max_w: float | None
    held_s: float = 0.0
    held_j: float = 0.0
    counted_s: float = 0.0
    counted_j: float = 0.0
    alone_s: float = 0.0
    alone_j: float = 0.0
    n_breaks: int = 0

    def by_power(self) -> PowerSecond:
        """The same where the device's counter tells nothing."""
        return replace(self, counted_s=0.0, counted_j=0.0, alone_s=self.held_s, alone_j=self.held_j)


@dataclass(frozen=True, slots=True)
class RawSampleRow:
    """One raw reading of the ring; fields as in `ecorl.records.PowerSample`."""

    attempt: int
    device_id: str
    provenance: Provenance
    source: str
    t_s: float
    power_w: float | None
    energy_j: float | None
    utilisation: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SampleErrorRow:
    """Failed readings of one series for one reason: their number, first and last time (s)."""

    attempt: int
    device_id: str
    source: str
    error: str
    n: int
    first_t_s: float
    last_t_s: float


@dataclass(frozen=True, slots=True)
class IntensityRow:
    """What was known of the grid's intensity from ``t_s`` (monotonic, s) on.

    Attributes:
        kind: `AverageIntensity` or `MarginalIntensity`.
        value: the value that counted; None: nothing was known.
    """

    attempt: int
    t_s: float
    kind: type[Intensity]
    value: Intensity | None


@dataclass(frozen=True, slots=True)
class GearChoiceRow:
    """A decision about the training stage; it counted from ``t_s`` (monotonic, s) to the next.

    ``memory`` is what its controller went on from after it; empty where there was nothing.
    """

    attempt: int
    t_s: float
    choice: GearChoice
    memory: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PueRow:
    """The power usage effectiveness from ``start_s`` (s since 1970) on; None: unknown."""

    attempt: int
    start_s: float
    pue: float | None
