"""What a report consists of. Every figure is None when it is missing, and never 0 for that.

Figures carry their provenance in the same dataclass; a dataclass never mixes two of them except
where it says that the provenance is that of the weakest part.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.ledger import FaultRow, MetricRow, PlacementRow
from ecorl.records import Action, Provenance, Stage


@dataclass(frozen=True, slots=True)
class Head:
    """What ran.

    Attributes:
        state: ``finished``, ``stopped`` or ``no end recorded``.
        n_steps_planned: from the config, or None without one.
        n_steps_done: iterations that the run kept and of which a metric of the trainer or a
            training execution was recorded.
        checkpoint_step: last iteration that the newest checkpoint holds; None without one.
        run_time_s: monotonic time from the start of each attempt to its last record, s, summed.
        started_unix_s: wall clock of the first start, s since 1970.
    """

    run_id: str
    state: str
    algorithm: str | None
    adapter: str | None
    policy: str | None
    seed: int | None
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


@dataclass(frozen=True, slots=True)
class StageRow:
    """All executions of one stage on one kind of device whose figures share their provenances.

    Attributes:
        device: profile name; ``device_ids`` are the devices of that kind that ran it.
        time_provenance: of ``time_s``.
        energy_provenance: of ``energy_j``, ``mean_power_w`` and ``edi_j_per_token``; None when no
            execution has an energy record.
        time_s: time on the device, s, over the ``n_timed`` calls that have one.
        host_time_s: wall-clock on this host, s, measured. Never part of EDI.
        energy_j: J over the ``n_with_energy`` calls that have it.
        mean_power_w: energy over time of the calls that have both, W.
        edi_j_per_token: Eq. 4 over all faultless calls with energy and output tokens: their
            joules over their output tokens.
        edi_spread: standard deviation of the per-call EDI, J/token; None below two calls.
        n_edi: calls behind the EDI.
        n_tokens_served: output tokens less the share of rows that the exact path had to answer.
        iterations: first and last iteration of these calls.
    """

    stage: Stage
    device: str
    device_ids: tuple[str, ...]
    time_provenance: Provenance
    energy_provenance: Provenance | None
    n_calls: int
    n_sequences: int
    n_tokens: int
    n_output_tokens: int
    n_timed: int
    time_s: float | None
    host_time_s: float | None
    n_with_energy: int
    energy_j: float | None
    mean_power_w: float | None
    edi_j_per_token: float | None
    edi_spread: float | None
    n_edi: int
    n_rows_fallback: int
    n_faults: int
    n_tokens_served: float
    iterations: tuple[int, int]
    on_gpu_path: bool


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """Energy of one device for one cause.

    Attributes:
        cause: one of ``generation``, ``scoring``, ``training``, ``beside stages``,
            ``superseded``, ``barrier wait`` and ``idle``.
        useful: whether the run got something for it.
        energy_j: J, or None when unknown.
        provenance: of ``energy_j``; None when there is no figure.
        time_s: the time it covers, s, or None.
        at_least: whether the figure is a lower bound; ``gap`` then says why.
    """

    device_id: str
    device: str
    cause: str
    useful: bool
    energy_j: float | None
    provenance: Provenance | None
    time_s: float | None
    at_least: bool = False
    gap: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Energy of all parts with one provenance, or of all parts together.

    Attributes:
        title: heading of the column.
        provenance: for the column of all parts together, that of the weakest part.
        other_j: spent beside the stages by a device that had more to do than they (evaluations,
            saving, the framework's own work) or nothing; which of both is not known.
        by_cause: J per cause.
        tokens_per_joule: output tokens of generation over ``energy_j``; None unless the column
            holds the energy of generation.
        carbon_g: gCO2e = kWh x PUE x intensity; None without a config.
        at_least: whether something is missing from ``energy_j``.
    """

    title: str
    provenance: Provenance
    energy_j: float
    useful_j: float
    wasted_j: float
    other_j: float
    by_cause: dict[str, float]
    energy_kwh: float
    carbon_g: float | None
    tokens_per_joule: float | None
    at_least: bool


@dataclass(frozen=True, slots=True)
class Accounting:
    """Factors of the carbon figure, from the run's config."""

    pue: float
    intensity_g_per_kwh: float
    source: str


@dataclass(frozen=True, slots=True)
class Spending:
    """Where the joules went.

    Attributes:
        columns: one per provenance, then, if there are several, all together.
        covered_share: share of stage calls of the whole run that have an energy figure.
        gaps: what is missing from the total, one sentence each.
    """

    parts: tuple[EnergyPart, ...]
    columns: tuple[Totals, ...]
    n_output_tokens: int
    covered_share: float | None
    gaps: tuple[str, ...]
    accounting: Accounting | None

    @property
    def unknown_causes(self) -> tuple[str, ...]:
        """Causes of which a part has no figure: a share of the total would flatter them."""
        return tuple(dict.fromkeys(p.cause for p in self.parts if p.energy_j is None))


@dataclass(frozen=True, slots=True)
class Comparison:
    """GPU path against card for one stage; None throughout where only one of them ran it.

    Attributes:
        ratio: card EDI over GPU path EDI; its provenance is that of the weaker of the two.
        gpu_would_j: GPU path EDI x the tokens that the card served, J, same provenance.
        card_j: what the card spent on all its calls of this stage, faulty ones included, J.
        card_at_least: whether calls without an energy figure are missing from ``card_j``.
        saved_j: ``gpu_would_j - card_j``, J, same provenance.
    """

    stage: Stage
    gpu: StageRow | None
    card: StageRow | None
    ratio: float | None
    ratio_provenance: Provenance | None
    saved_j: float | None
    sentence: str
    gpu_would_j: float | None = None
    card_j: float | None = None
    card_at_least: bool = False


@dataclass(frozen=True, slots=True)
class Balance:
    """All offloaded calls against the GPU path, and what the cards drew beside them.

    Attributes:
        saved_j: sum of `Comparison.saved_j`, J; ``at_most`` when a card's calls lack energy.
        idle_j: what the cards drew while they ran nothing, J, or None when unknown.
        idle_share: share of the run time in which the cards ran nothing, or None.
        net_j: ``saved_j - idle_j``, J, or None; above 0 offloading paid.
        provenance: that of the weakest part.
    """

    saved_j: float
    at_most: bool
    idle_j: float | None
    idle_share: float | None
    net_j: float | None
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class CardTimeline:
    """The run as it would have gone had the simulated card answered in its modelled time.

    Everything beside the waits at the barrier is taken as measured. All figures but the first
    two are modelled.

    Attributes:
        run_time_s: measured, with the simulation in it, s.
        waits_s: waits at the barrier, measured, s.
        modelled_waits_s: the same waits with the card's modelled times, s.
        modelled_run_time_s: run time with the modelled waits in place of the measured, s.
        n_waits: waits that were modelled.
        n_kept: waits without a modelled time, left as they were measured.
        idle_j: idle power of the cards x their idle part of the modelled run time, J; None when
            the idle power is unknown.
    """

    run_time_s: float
    waits_s: float
    modelled_waits_s: float
    modelled_run_time_s: float
    n_waits: int
    n_kept: int
    idle_j: float | None


@dataclass(frozen=True, slots=True)
class BarrierSummary:
    """Waits of the training thread, s, measured; percentiles over the waits that have a figure."""

    n_waits: int
    total_s: float | None
    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    n_rows: int
    n_missing: int
    n_late: int
    waits_s: tuple[float, ...]


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
        share: flipped pairs over all pairs; ``standard_error`` is the binomial one.
        shift_mean, shift_abs_mean, shift_abs_p99: of INT8 score minus float score; None when no
            score shifts were recorded.
    """

    phase: str
    n_pairs: int
    n_flips: int
    share: float
    standard_error: float
    n_scores: int
    shift_mean: float | None
    shift_abs_mean: float | None
    shift_abs_p99: float | None


@dataclass(frozen=True, slots=True)
class DecisionGroup:
    """Decisions alike in stage, policy, proposal, action and reason (numbers in it aside)."""

    stage: Stage
    policy: str
    proposed: Action
    action: Action
    reason: str
    n: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the cost model expected over all decisions that asked it, J.

    Attributes:
        gpu_j: had all of them gone to the GPU path.
        chosen_j: for the actions that stood.
    """

    n: int
    gpu_j: float
    chosen_j: float
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class DeviceTelemetry:
    """How one device was read in the whole run.

    Attributes:
        reading_interval_s: median time between readings of the raw ring, s.
        refresh_s: median time between *changes* of the reading: what the device really achieves.
        counter_gap: sum of the integrals over sum of the counters, minus 1, over the executions
            that have both.
    """

    device_id: str
    profile: str
    provenance: Provenance | None
    source: str
    idle_w: float | None
    n_readings: int
    n_missing: int
    reading_interval_s: float | None
    refresh_s: float | None
    counter_gap: float | None
    n_counter_gap: int
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
    """The last iterations, as they ran on this host."""

    iterations: tuple[int, ...]
    attempt: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """Power of one device over the run: ``points`` are (s since the start, mean, min, max W)."""

    device_id: str
    provenance: Provenance
    source: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All of it."""

    head: Head
    verdict: tuple[str, ...]
    missing: tuple[str, ...]
    stages: tuple[StageRow, ...]
    spending: Spending
    comparisons: tuple[Comparison, ...]
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
