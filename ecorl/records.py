"""The records, in the order in which data flows. Read this file first.

    PowerSample -> SmoothedPower -> StageEnergy -> EdiReading
    StageWork -> SchedulerState -> Placement -> BarrierWait -> StageResult

Every record is frozen. A missing figure is None, never 0, and each figure says where it came
from (`Provenance`). Times are seconds of ``time.monotonic()``, which on Linux is one clock for
all processes of a machine; a reader of the ledger gives those of other machines in the head's.

Tokens are counted the same way in each record, for every framework, and never by what a loss masks:

- ``n_output_tokens``, the N_out of Eq. 4. Of generation: the tokens that the policy made, their
  EOS among them, also of samples that were thrown away or cut off; not what a tool or an
  environment wrote. Of every other stage: the tokens of the completions that its pass computed,
  from the first one that the policy made to the end of the row, what a tool or an environment
  wrote among them. Once for each pass: an epoch more counts them once more. 0 for a pass beside
  the one that the stage is for, such as old log-probs before training.
- ``n_tokens``: the same and what was read with them (prompts; in generation also what a tool or an
  environment wrote), without padding, each token of a row once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ecorl.kinds import EVALUATION as EVALUATION
from ecorl.kinds import EVALUATION_ROLE as EVALUATION_ROLE
from ecorl.kinds import GPU_NAME as GPU_NAME
from ecorl.kinds import HOST_NAME as HOST_NAME
from ecorl.kinds import INFERENCE_STAGES as INFERENCE_STAGES
from ecorl.kinds import Action as Action
from ecorl.kinds import Algorithm as Algorithm
from ecorl.kinds import DeviceKind as DeviceKind
from ecorl.kinds import EnergyMethod as EnergyMethod
from ecorl.kinds import EvaluationPhase as EvaluationPhase
from ecorl.kinds import EventKind as EventKind
from ecorl.kinds import FaultKind as FaultKind
from ecorl.kinds import GuardRefusal as GuardRefusal
from ecorl.kinds import Provenance as Provenance
from ecorl.kinds import Role as Role
from ecorl.kinds import Stage as Stage
from ecorl.kinds import kind_in_name as kind_in_name
from ecorl.kinds import phase_after_step as phase_after_step
from ecorl.kinds import place_name as place_name
from ecorl.kinds import role_of as role_of
from ecorl.kinds import stage_of as stage_of
from ecorl.kinds import step_of_phase as step_of_phase
from ecorl.kinds import weakest as weakest
from ecorl.statistics import expected


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a framework's training loop lets ecorl do beyond moving whole batches of frozen models.

    Each adapter states its own. An action that is not allowed becomes a1.

    Attributes:
        stream: hand over finished rows while generation goes on.
        early_forward: run the actor's forward pass before the barrier.
        defer_critic: put the critic's step off into the next generation.
        offload_critic: run the critic on the cards (its weights change: they are sent each time).
    """

    stream: bool = False
    early_forward: bool = False
    defer_critic: bool = False
    offload_critic: bool = False


NO_ABILITIES = Abilities()
"""Those of a framework that lets batches of frozen models be moved, and nothing else."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the cost model must know of a decoder: all counts, no units.

    ``n_params`` counts embedding and head; ``n_params_active`` is what one token's forward
    multiplies with (without the input embedding, which is a look-up).
    """

    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    n_params: int
    n_params_active: int


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One reading of one device.

    Attributes:
        device_id: stable name, e.g. ``gpu0`` or ``fpga0``.
        t_s: monotonic time of the reading, s.
        power_w: board power in W, or None when the device gave none.
        energy_j: the device's cumulative energy counter in J, or None without a counter. Where the
            counter is slow to read it is interpolated between two of its readings by the power.
        utilisation: share of time busy, 0 to 1, or None.
        provenance: measured, modelled or replayed.
        source: the instrument, e.g. ``nvml:field186:gpu``.
        error: the name of the driver error behind a missing reading, or None.
    """

    device_id: str
    t_s: float
    power_w: float | None
    energy_j: float | None
    utilisation: float | None
    provenance: Provenance
    source: str
    error: str | None = None


LOSS_ERRORS = frozenset(
    {
        "DeviceLost",
        "DriverNotLoaded",
        "LibraryNotFound",
        "DriverError",
        "CounterReset",
        "CounterStopped",
        "SamplerLost",
    }
)
"""Values of `PowerSample.error` after which the device's energy counter may have started again:
the driver may have been reloaded, or what counts in the sampling process (wraps of RAPL, the joules
of a model) began anew with it. No rise of a counter is counted across them."""

FOREIGN_COUNTER = "ForeignCounter"
"""Value of `PowerSample.error` of readings whose energy counter is not the device's own, or not in
its units. Their power stands; their counter is the evidence, and bills nothing."""

MIN_COVERAGE = 0.95
"""Least share of a window that valid readings must cover for its integral to be used as energy.

Invented. Nothing is extrapolated over the uncovered part, so an integral understates the energy
by about the uncovered share; 0.95 keeps that at the size of an instrument's own error. Below it the
integral is still reported as such, next to its coverage, and the energy is missing.
"""

MAX_POWER_W = 1e6
MAX_ENERGY_J = 2**53 / 1e3
"""Bounds beyond which a figure of any source is missing: a megawatt, and the largest count of mJ
that a double holds exactly. Drivers refuse far smaller figures; these keep sums finite, and SQLite
holds neither an infinity nor 2**63."""


@dataclass(frozen=True, slots=True)
class SmoothedPower:
    """Time-aware exponential moving average of the power of a device; for control, not billing.

    Attributes:
        power_w: smoothed power in W, None until a first valid reading or when all are stale.
        age_s: time since the last valid reading, s; None without one.
    """

    device_id: str
    t_s: float
    power_w: float | None
    utilisation: float | None
    age_s: float | None
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class StageEnergy:
    """Energy of one device, or of several together, over one stage execution.

    Attributes:
        device_ids: the devices whose energies are added up, e.g. ``("gpu0", "gpu1")``.
        energy_j: the figure to use, J (the counter where it exists and can be believed, else the
            integral), or None.
        mean_power_w: ``energy_j / (t_end_s - t_start_s)``, W, or None.
        counter_energy_j: from the cumulative counter alone, J, or None.
        integral_energy_j: zero-order-hold integral of the samples, J, or None.
        n_samples: valid readings strictly inside the window.
        coverage: share of the window in which a valid reading held, 0 to 1.
        method: how ``energy_j`` was found.
    """

    device_ids: tuple[str, ...]
    t_start_s: float
    t_end_s: float
    energy_j: float | None
    mean_power_w: float | None
    counter_energy_j: float | None
    integral_energy_j: float | None
    n_samples: int
    coverage: float
    method: EnergyMethod
    provenance: Provenance

    @property
    def resolved(self) -> bool:
        """Whether the energy belongs to this window: at least two readings inside it.

        With fewer it is interpolated from readings around the window, which blurs neighbours into
        each other: right in the mean over many executions, wrong for one. A cycle model needs no
        readings.
        """
        return self.n_samples >= 2 or self.method is EnergyMethod.CYCLE_MODEL

    def by_power(self) -> StageEnergy:
        """The same by its power readings alone: the counter is not the device's."""
        energy_j = self.integral_energy_j
        # Summed spans round: a fully covered window may come out a bit below 1.
        if energy_j is None or self.coverage < MIN_COVERAGE - 1e-9:
            return replace(self, energy_j=None, mean_power_w=None, method=EnergyMethod.NONE)
        mean_w = self.mean_power_w
        if self.energy_j and mean_w is not None:
            mean_w *= energy_j / self.energy_j
        method = EnergyMethod.INTEGRAL_COUNTER_FOREIGN
        return replace(self, energy_j=energy_j, mean_power_w=mean_w, method=method)


@dataclass(frozen=True, slots=True)
class EdiReading:
    """One reading of the Energy Density Index, Eq. 4: EDI = mean power x time / output tokens.

    Attributes:
        edi_j_per_token: J per output token, or None when energy or tokens are missing.
        time_s: time of the execution, s, or None.
        role_name: which of the stage's models ran; empty where it has only one.
        variant: how it ran where that changes its price, e.g. the numeric gear of training; empty
            for the framework's own way.
        n_sequences: rows of the batch; 0 where that is not known.
        batch: 0-based number of its rollout batch; None where that is not known.
    """

    stage: Stage
    device: str
    energy_j: float | None
    n_output_tokens: int
    edi_j_per_token: float | None
    provenance: Provenance
    time_s: float | None = None
    role_name: str = ""
    variant: str = ""
    n_sequences: int = 0
    batch: int | None = None

    @property
    def role(self) -> Role:
        """Which of the stage's models it is about, e.g. ``reward:math``."""
        return role_of(self.stage, self.role_name)


@dataclass(frozen=True, slots=True)
class StageWork:
    """What one stage execution has to do, known before it is placed.

    Attributes:
        n_sequences: rows in the batch.
        n_tokens: tokens that pass through the model (prompt and completion), summed over rows.
        n_output_tokens: the N_out of Eq. 4; see above. For generation an expectation.
        max_length: longest row in tokens.
        model: shape of the model that runs, or None when unknown.
        role_name: which of the stage's models runs; empty where it has only one.
        gear: numeric format of the training stage, by `ecorl.control.gear_label`; None: as the
            framework has it.
        width: workers that take part in it; None where nobody counts them.
        kept_because: why only the framework itself can do it, for the record; empty where an
            engine might, or where nobody says.
    """

    stage: Stage
    n_sequences: int
    n_tokens: int
    n_output_tokens: int
    max_length: int
    model: ModelShape | None = None
    role_name: str = ""
    gear: str | None = None
    width: int | None = None
    kept_because: str = ""

    @property
    def role(self) -> Role:
        """Which of the stage's models it is about, e.g. ``reward:math``."""
        return role_of(self.stage, self.role_name)

    @property
    def mean_length(self) -> float:
        """Mean row length in tokens; 0.0 for an empty batch."""
        return self.n_tokens / self.n_sequences if self.n_sequences else 0.0


@dataclass(frozen=True, slots=True)
class PathCost:
    """What a stage has cost on one path so far in this run, and how sure and how old that is.

    The plain means are over all executions. The recent figures leave out the first one, which is
    slower than the rest (compilation, cold caches), and forget old ones (`recent_weight` of
    `ecorl.statistics`).

    Attributes:
        time_s_per_token: plain mean of time over output tokens, s.
        energy_j_per_token: plain mean of energy over output tokens (EDI), J; None where nobody
            could meter it.
        count: executions behind both.
        provenance: of the energy; of the time where there is none.
        role_name: which of the stage's models ran; empty where it has only one.
        recent_s_per_token: recent mean of time over output tokens, s; None before the second
            execution.
        recent_j_per_token: recent mean of energy over output tokens, J; None likewise, and where
            the energy is not known.
        n_recent: executions behind the recent figures, 0 or more.
        spread: standard deviation of time over output tokens, as a share of its mean; of the
            executions after the first, 0.0 with fewer than two of them.
        age: rollout batches from that of the newest execution to the one at hand, 0 or more: 1
            where it ran in the batch before. 0 also where it is not known.
        mean_length: output tokens a row behind the recent figures, their recent mean; None where
            they are None, or the rows are not known.
        on_card: whether it is of the offload path; its provenance is then the card's, modelled
            for a simulated one.
        later_s_per_token: plain mean of time over output tokens after the first execution, s; None
            where it is not known.
    """

    stage: Stage
    time_s_per_token: float
    energy_j_per_token: float | None
    count: int
    provenance: Provenance
    role_name: str = ""
    recent_s_per_token: float | None = None
    recent_j_per_token: float | None = None
    n_recent: int = 0
    spread: float = 0.0
    age: int = 0
    mean_length: float | None = None
    on_card: bool = False
    later_s_per_token: float | None = None

    @property
    def expected_per_token(self) -> tuple[float | None, float | None]:
        """What the next execution is expected to take over its output tokens, s and J.

        See `ecorl.statistics.expected`; the energy is the recent power for that time. None before
        the second execution, and the energy where it is not known.
        """
        recent_s, recent_j = self.recent_s_per_token, self.recent_j_per_token
        if not recent_s or not self.later_s_per_token:
            return recent_s, recent_j
        time_s = expected(recent_s, self.later_s_per_token, self.spread, self.age)
        return time_s, None if recent_j is None else recent_j * time_s / recent_s

    @property
    def role(self) -> Role:
        """Which of the stage's models it is about, e.g. ``reward:math``."""
        return role_of(self.stage, self.role_name)


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """The state of Eq. 6 before encoding, plus what the guards and the look-ahead need.

    Attributes:
        gpu_power_share: power of each GPU over its TDP, length N; None where missing.
        gpu_utilisation: utilisation of each GPU, 0 to 1, length N; None where missing.
        fpga_queue: batches waiting or running on the FPGA.
        fpga_available: whether the FPGA path may be used at all (engine up, not quarantined).
        work: the work to place.
        batch: 0-based number of the rollout batch; equals ``iteration - 1`` when each step
            generates, and stays where a step trains once more on the batch before.
        paths: what the roles have cost so far on the GPU path, and on the card those that ran
            there; empty before anything has run.
        fpga_occupancy: share of time in which the cards worked lately, 0 to 1, measured; None
            without real cards. How busy a simulation is must decide nothing.
        decided: the stages of this iteration that were placed before, with where they run, in the
            order of the decisions; empty at its start, and where nobody keeps them.
        framework_on: kind of the devices on which the framework computes, for words alone.
    """

    iteration: int
    algorithm: Algorithm
    stage: Stage
    gpu_power_share: tuple[float | None, ...]
    gpu_utilisation: tuple[float | None, ...]
    fpga_queue: int
    fpga_available: bool
    work: StageWork
    batch: int = 0
    paths: tuple[PathCost, ...] = ()
    fpga_occupancy: float | None = None
    decided: tuple[tuple[Stage, Action], ...] = ()
    framework_on: DeviceKind = DeviceKind.GPU

    @property
    def place(self) -> str:
        """What a user reads for where the framework computes, ``GPU`` or ``host``."""
        return place_name(self.framework_on)


@dataclass(frozen=True, slots=True)
class ActionCost:
    """What the cost model expects of one action: modelled time (s), energy (J), wait (s)."""

    action: Action
    time_s: float
    energy_j: float
    wait_s: float
    provenance: Provenance = Provenance.MODELLED


@dataclass(frozen=True, slots=True)
class Placement:
    """One decision: where a stage runs, and why.

    Attributes:
        proposed: what the policy asked for.
        action: what stands after the guards.
        policy: name of the policy.
        reason: one sentence for the report.
        costs: what each action was expected to cost, empty when the policy did not ask.
        refusal: the guard that keeps a stage on the GPU that might have left it, also where the
            policy proposed the GPU because the guards left it nothing else; None otherwise.
        role_name: which of the stage's models is placed; empty where it has only one.
    """

    iteration: int
    stage: Stage
    proposed: Action
    action: Action
    policy: str
    reason: str
    costs: tuple[ActionCost, ...] = ()
    refusal: GuardRefusal | None = None
    role_name: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the stage runs on the GPU path."""
        return self.action is Action.GPU

    @property
    def role(self) -> Role:
        """Which of the stage's models it is about, e.g. ``reward:math``."""
        return role_of(self.stage, self.role_name)


@dataclass(frozen=True, slots=True)
class BarrierWait:
    """One wait of the training thread at the completion barrier, where a batch's rows are joined.

    Attributes:
        iteration: 1-based.
        stage: the stage that was waited for.
        wait_s: how long the thread stood there, s; None where a record does not tell.
        n_rows: rows of the batch.
        n_missing: rows without an answer before the deadline.
        n_late: rows that arrived too late since the wait before.
        n_duplicates: rows that were delivered again after the first answer to their sample id.
        n_unknown: delivered rows whose sample id nobody asked for.
        role_name: which of the stage's models was waited for; empty where it has only one.
    """

    iteration: int
    stage: Stage
    wait_s: float | None
    n_rows: int
    n_missing: int
    n_late: int
    n_duplicates: int = 0
    n_unknown: int = 0
    role_name: str = ""

    @property
    def role(self) -> Role:
        """Which of the stage's models it is about, e.g. ``reward:math``."""
        return role_of(self.stage, self.role_name)


@dataclass(frozen=True, slots=True)
class StageResult:
    """One finished stage execution on one device, or on several of one kind.

    Attributes:
        device_ids: the devices on which it ran, e.g. ``("fpga0",)``.
        device: profile name, e.g. ``u55c``; the column of the EDI matrix.
        time_s: time on the device, s: measured for the GPU path, modelled for a simulated card.
        host_time_s: wall-clock on this host, s, always measured. For a simulated card this is
            the C-simulation's run time, which never enters EDI.
        wait_s: how long the training thread stood at the barrier for it, s, measured.
        n_rows_fallback: rows that the exact path had to answer.
        fault: a `FaultKind`, or the class name of an exception from elsewhere; None without one.
        role_name: which of the stage's models ran; empty where it has only one.
        node: the machine whose devices ran it; None where the record does not tell.
        gear: numeric format of the training stage (FP32, BF16, "FP8 simulated", ...); None: as the
            framework has it.
        width: workers that took part in it; None where nobody counts them.
        clock_mhz: SM clock that the devices were locked to, MHz; None: they were not.
    """

    iteration: int
    stage: Stage
    action: Action
    device_ids: tuple[str, ...]
    device: str
    t_start_s: float
    t_end_s: float
    time_s: float | None
    time_provenance: Provenance
    host_time_s: float
    wait_s: float
    n_sequences: int
    n_tokens: int
    n_output_tokens: int
    energy: StageEnergy | None
    n_rows_fallback: int = 0
    fault: FaultKind | str | None = None
    role_name: str = ""
    node: str | None = None
    gear: str | None = None
    width: int | None = None
    clock_mhz: int | None = None

    @property
    def role(self) -> Role:
        """Which of the stage's models it is about, e.g. ``reward:math``."""
        return role_of(self.stage, self.role_name)


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """Something that went wrong and that the run survived.

    Attributes:
        iteration: in which it happened, or None outside of any.
        kind: a `FaultKind`, or the class name of an exception from elsewhere.
        where: the stage, the device or the part that it befell.
        detail: what is known of it, one line.
        n_rows: rows of the batch that it affected.
    """

    iteration: int | None
    kind: FaultKind | str
    where: str
    detail: str
    n_rows: int = 0
