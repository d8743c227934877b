"""The parts of a report. A missing figure is None, never 0.

Figures carry their provenance in the same dataclass; a dataclass never mixes two of them except
where it says that the provenance is that of the weakest part.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.ledger import FaultRow, MetricRow, PlacementRow, RunEnding
from ecorl.records import Action, Provenance, Role, Stage
from ecorl.report.beside import BesideFigures
from ecorl.report.decisions.model import RunCourse, SavedAgainst
from ecorl.report.energy.carbon_model import Footprint, PauseSummary
from ecorl.report.energy.model import (
    Balance,
    CardTimeline,
    Expectation,
    PathComparison,
    Spending,
    StageRow,
)
from ecorl.report.training_stage.model import TrainingStageFacts

WAIT = "wait"
"""Kind of a bar that shows a wait at the completion barrier."""


@dataclass(frozen=True, slots=True)
class Head:
    """What ran: framework, policy, devices, attempts, and how it ended.

    Attributes:
        state: how it ended, or that it is running now.
        ended_by: what ended it; see `ecorl.ledger.ending_of`.
        seed: from the config; None without one, and of a run that a script attached to.
        config_remark: what a reader should know of the config behind this report, or None.
        n_steps_planned: from the config, or what the trainer said that a script attached to.
        n_steps_done: iterations that the run kept and of which a metric of the trainer or a
            training execution was recorded; at least those that its newest checkpoint holds.
        checkpoint_step: last iteration that the newest checkpoint holds; None without one.
        run_time_s: monotonic time from the start of each attempt to its last record, s, summed.
        started_unix_s: wall clock of the first start, s since 1970.
        path: what to call where the framework computes, ``GPU`` or ``host``.
        attached: whether a script of the user's own made the trainer and attached to it.
        trainer: what that trainer was told, by name; empty for others.
    """

    run_id: str
    state: RunEnding
    algorithm: str | None
    adapter: str | None
    policy: str | None
    seed: int | None
    config_remark: str | None
    models: dict[str, str]
    devices: tuple[str, ...]
    commit: str | None
    n_attempts: int
    n_steps_planned: int | None
    n_steps_done: int
    checkpoint_step: int | None
    started_unix_s: float
    run_time_s: float
    meta: dict[str, str]
    path: str
    attached: bool
    trainer: dict[str, str]
    ended_by: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One machine in one attempt of a run that had several.

    Attributes:
        node: its name; None where the head's record does not name it.
        is_head: whether the run was started on it: its clock is the run's.
        offset_s: its monotonic clock minus the head's, s, to within ``offset_error_s``; None where
            it was not measured and the wall clocks stand in.
        devices: its devices, by the names that they have there.
        lost: why its record is missing or not whole; None: it is there.
    """

    node: str | None
    attempt: int
    is_head: bool
    offset_s: float | None
    offset_error_s: float | None
    devices: tuple[str, ...]
    lost: str | None

    @property
    def name(self) -> str:
        """What to call it."""
        return self.node or "the head"


@dataclass(frozen=True, slots=True)
class BarrierSummary:
    """Waits of the training thread, s, measured; percentiles over the waits that have a figure.

    ``n_duplicates`` and ``n_unknown`` are None without a wait.
    """

    n_waits: int
    total_s: float | None
    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    n_rows: int
    n_missing: int
    n_late: int
    waits_s: tuple[float, ...]
    n_duplicates: int | None = None
    n_unknown: int | None = None


@dataclass(frozen=True, slots=True)
class PairedGain:
    """Two evaluations of the same items: mean before, mean after, paired gain.

    Attributes:
        standard_error: of the mean paired difference; None below two pairs.
        n_pairs: items with a value in both.
        note: why there is no gain, or how many items were left out.
    """

    name: str
    before: str
    after: str
    mean_before: float | None
    mean_after: float | None
    gain: float | None
    standard_error: float | None
    n_pairs: int
    note: str | None


@dataclass(frozen=True, slots=True)
class RankFlips:
    """Held-out pairs whose order differs between INT8 and float, and how far scores moved.

    Attributes:
        share: flipped pairs over all pairs.
        interval: Wilson's 95 % interval of that share.
        shift_mean, shift_abs_mean, shift_abs_p99: of INT8 score minus float score; None when no
            score shifts were recorded.
    """

    phase: str
    n_pairs: int
    n_flips: int
    share: float
    interval: tuple[float, float]
    n_scores: int
    shift_mean: float | None
    shift_abs_mean: float | None
    shift_abs_p99: float | None


@dataclass(frozen=True, slots=True)
class LogprobShift:
    """How far the log-probs of an INT8 reference lie from the float model's, nats.

    Attributes:
        n_rows: rows that were computed by both.
        mean_nats: mean over the rows of each row's mean absolute shift.
        max_nats: largest of them.
    """

    phase: str
    n_rows: int
    mean_nats: float
    max_nats: float


@dataclass(frozen=True, slots=True)
class DecisionGroup:
    """Decisions that agree in role, policy, proposal, action and reason but for its numbers.

    Attributes:
        role: which of the stage's models was placed; the stage's name where it has only one.
        reason: what their reasons have in common, with an ellipsis in place of figures that differ.
        example: the newest reason as it was given.
    """

    stage: Stage
    role: Role
    policy: str
    proposed: Action
    action: Action
    reason: str
    n: int
    example: str

    @property
    def told(self) -> str:
        """The reason as it is shown: an example, where the reasons differ in their figures."""
        return self.reason if self.reason == self.example else f"e.g. {self.example}"


@dataclass(frozen=True, slots=True)
class DeviceTelemetry:
    """How one device was read in the whole run by one source.

    Attributes:
        reading_interval_s: median time between readings of the raw ring, s.
        refresh_s: median time between *changes* of the reading: what the device really achieves.
        provenance: of its power readings.
        idle_w: of the device profile, W; no reading of this run.
        counter_gap: sum of the integrals over sum of the counters, minus 1, over the executions
            that have both; None where the counters say 0 J.
        counter_remark: what else there is to say of the counter, or "".
        counter_doubt: that its counter and its power readings contradict each other, in a sentence;
            None where they do not.
    """

    device_id: str
    profile: str
    provenance: Provenance
    source: str
    idle_w: float | None
    n_readings: int
    n_missing: int
    reading_interval_s: float | None
    refresh_s: float | None
    counter_gap: float | None
    n_counter_gap: int
    counter_remark: str
    counter_doubt: str | None
    errors: dict[str, int]
    figures: dict[str, object]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the timeline: seconds since ``Timeline.start_t_s``."""

    lane: str
    label: str
    kind: str
    start_s: float
    end_s: float
    simulated: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Some iterations that follow one another, as they ran.

    Attributes:
        offloaded: those among them in which the card worked.
        are_last: whether they are the last ones of the run.
    """

    iterations: tuple[int, ...]
    attempt: int
    bars: tuple[Bar, ...]
    offloaded: tuple[int, ...] = ()
    are_last: bool = True


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """Power of one device over the run: ``points`` are (s since the start, mean, min, max W)."""

    device_id: str
    provenance: Provenance
    source: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report of a run.

    Attributes:
        footprint: what its energy emitted.
        pauses: how it waited for a clean window; None where nothing was decided about that.
        beside: what CodeCarbon found of the same time; None where it did not run.
        training_stage: in which gears and widths it trained; None where nobody told of any.
        own_evaluations: what the trainer's own evaluations found; None where it made none.
        evaluated_along: what held-out evaluations along training found, one sentence a name.
        remarks: what else there is to say of the stages: why one of them is not there, and what
            packing their rows saved.
        course: all decisions on one axis; None where fewer than two kinds changed anything.
        savings: what placement, gears and width, and timing saved; none where nothing was
            offloaded, shifted or paused.
    """

    head: Head
    verdict: tuple[str, ...]
    missing: tuple[str, ...]
    stages: tuple[StageRow, ...]
    spending: Spending
    footprint: Footprint
    pauses: PauseSummary | None
    beside: BesideFigures | None
    comparisons: tuple[PathComparison, ...]
    balance: Balance | None
    card_timeline: CardTimeline | None
    expectation: Expectation | None
    barriers: BarrierSummary
    metrics: dict[str, tuple[MetricRow, ...]]
    gains: tuple[PairedGain, ...]
    flips: tuple[RankFlips, ...]
    decisions: tuple[DecisionGroup, ...]
    placements: tuple[PlacementRow, ...]
    faults: tuple[FaultRow, ...]
    telemetry: tuple[DeviceTelemetry, ...]
    timeline: Timeline
    power: tuple[PowerTrace, ...]
    notes: tuple[str, ...]
    nodes: tuple[NodeFacts, ...] = ()
    shifts: tuple[LogprobShift, ...] = ()
    training_stage: TrainingStageFacts | None = None
    own_evaluations: str | None = None
    evaluated_along: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    course: RunCourse | None = None
    savings: tuple[SavedAgainst, ...] = ()
