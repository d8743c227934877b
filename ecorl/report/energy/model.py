"""Energy in a report: by stage, by cause, and of one path against the other.

As in `ecorl.report.model`, a figure is None when it is missing, and stands beside its provenance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ecorl.records import Provenance, Role, Stage
from ecorl.report.energy.emissions import NO_EMISSIONS, Emissions


class Cause(StrEnum):
    """What energy was spent on; `ecorl.report.energy.causes` has the definitions."""

    GENERATION = "generation"
    SCORING = "scoring"
    TRAINING = "training"
    EVALUATION = "evaluation"
    BESIDE_STAGES = "beside stages"
    PAUSED = "paused"
    SUPERSEDED = "superseded"
    BARRIER_WAIT = "barrier wait"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class StageRow:
    """Executions of one stage on one path and kind of device whose figures share provenances.

    Attributes:
        role: which of the stage's models ran; the stage's name where it has only one.
        device: profile name, with the devices where the GPU path has that profile as well;
            ``device_ids`` are the devices of that kind that ran it.
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
        n_interpolated: calls with energy that saw fewer than two readings: their joules are
            interpolated from the readings around them.
        n_tokens, n_output_tokens: 0 where nobody counted the tokens.
        n_tokens_served: output tokens less the share of rows that the exact path had to answer.
        iterations: first and last iteration of these calls.
        emissions: of ``energy_j``, with the intensities and the PUE of the time of each call.
    """

    stage: Stage
    role: Role
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
    n_interpolated: int
    n_rows_fallback: int
    n_faults: int
    n_tokens_served: float
    iterations: tuple[int, int]
    on_gpu_path: bool
    emissions: Emissions = NO_EMISSIONS


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """Energy of one device for one cause, or of several devices whose energy was read together.

    Attributes:
        device_id: the device's id; of several, their ids with ``+`` between them, for display.
        device_ids: the devices.
        cause: what it was spent on.
        useful: whether the run got something for it.
        energy_j: J, or None when unknown.
        provenance: of ``energy_j``; None when there is no figure.
        time_s: the time it covers, s, or None.
        at_least: whether the figure is a lower bound; ``gap`` then says why.
        simulated: whether the device is a card that stands for no hardware.
        emissions: of ``energy_j``, with the intensities and the PUE of the time that it covers.
    """

    device_id: str
    device_ids: tuple[str, ...]
    device: str
    cause: Cause
    useful: bool
    energy_j: float | None
    provenance: Provenance | None
    time_s: float | None
    at_least: bool = False
    gap: str | None = None
    simulated: bool = False
    emissions: Emissions = NO_EMISSIONS


@dataclass(frozen=True, slots=True)
class EnergyTotals:
    """Energy of all parts with one provenance, or of all parts together.

    Attributes:
        title: heading of the column.
        provenance: of several, that of the weakest part; ``n_provenances`` says how many.
        other_j: spent beside the stages by a device that had more to do than they (evaluations,
            saving, the framework's own work) or nothing; which of both is not known.
        paused_j: drawn while the run waited for a clean window; neither useful nor wasted.
        by_cause: J per cause.
        tokens_per_joule: output tokens of generation over ``energy_j``; None unless the column
            holds all energy of the run that is known, that of generation among it. At most this
            where ``at_least``.
        carbon_g: emissions by the average intensity, with the PUE; None where nothing is known of
            it. A figure of its own provenance, which `ecorl.report.energy.carbon_model` has.
        carbon_unknown_j: the part of ``energy_j`` that is missing from ``carbon_g``, J.
        marginal_g: emissions by the marginal intensity, likewise; never added to ``carbon_g``.
        marginal_unknown_j: the part of ``energy_j`` that is missing from ``marginal_g``, J; None
            where the run recorded no marginal intensity.
        at_least: whether something is missing from ``energy_j``.
    """

    title: str
    provenance: Provenance
    n_provenances: int
    energy_j: float
    useful_j: float
    wasted_j: float
    other_j: float
    paused_j: float
    by_cause: dict[Cause, float]
    energy_kwh: float
    carbon_g: float | None
    carbon_unknown_j: float
    marginal_g: float | None
    marginal_unknown_j: float | None
    tokens_per_joule: float | None
    at_least: bool

    @property
    def origin(self) -> str:
        """The provenance in brackets; nothing where the title is its name."""
        if self.title == str(self.provenance):
            return ""
        return f"({'as ' if self.n_provenances > 1 else ''}{self.provenance})"

    @property
    def heading(self) -> str:
        """The title, and the provenance where the title is not its name."""
        return f"{self.title} {self.origin}".rstrip()


@dataclass(frozen=True, slots=True)
class Accounting:
    """Factors of the carbon figure, from the run's config.

    Attributes:
        pue: counts where the run recorded none.
        intensity_g_per_kwh: average intensity; counts where no feed was configured.
        source: where the two come from.
        embodied_kg: emissions of making the reserved hardware, kgCO2e; None where not stated.
        lifetime_h: hours for which that hardware serves.
        embodied_source: where that figure comes from; None where not stated.
    """

    pue: float
    intensity_g_per_kwh: float
    source: str
    embodied_kg: float | None = None
    lifetime_h: float = 43_800.0
    embodied_source: str | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """The joules of a run by device, cause and provenance.

    Attributes:
        columns: what the machine of this run spent; one per provenance, then, if there are
            several, together. A simulated card is in none of them.
        card: what the simulated card would have drawn, idle and at work; None without one.
        with_card: both, for the tokens per joule beside such a card; None without one.
        covered_share: share of stage calls of the whole run that have an energy figure.
        gaps: what is missing from the total, one sentence each.
        owner: whose energy the columns are: of this machine, or of several.
    """

    parts: tuple[EnergyPart, ...]
    columns: tuple[EnergyTotals, ...]
    card: EnergyTotals | None
    with_card: EnergyTotals | None
    n_output_tokens: int
    covered_share: float | None
    gaps: tuple[str, ...]
    accounting: Accounting | None
    owner: str = "this machine"

    @property
    def shown(self) -> tuple[EnergyTotals, ...]:
        """The columns, and that of the simulated card behind them."""
        return self.columns if self.card is None else (*self.columns, self.card)

    @property
    def unknown_causes(self) -> tuple[Cause, ...]:
        """Causes for which some device of the machine has no figure; their shares are low."""
        own = (p for p in self.parts if not p.simulated)
        return tuple(dict.fromkeys(p.cause for p in own if p.energy_j is None))


@dataclass(frozen=True, slots=True)
class PathComparison:
    """GPU path against card for one stage; None throughout where only one of them ran it.

    Attributes:
        role: which of the stage's models it is about; the stage's name where it has only one.
        ratio: card EDI over GPU path EDI; its provenance is that of the weaker of the two.
        gpu_would_j: GPU path EDI x the tokens that the card served, J, same provenance.
        card_j: what the card spent on all its calls of this stage, faulty ones included, J.
        card_at_least: whether calls without an energy figure are missing from ``card_j``.
        saved_j: ``gpu_would_j - card_j``, J, same provenance.
    """

    stage: Stage
    role: Role
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
        card_j: gross: what the cards drew on the calls that they took, J.
        gpu_would_j: what the GPU path would have drawn for what those calls served, J.
        saved_j: net of both: ``gpu_would_j - card_j``, J; ``at_most`` when a card's calls lack
            energy, ``card_j`` then being at least what it says.
        idle_j: what all cards drew while they ran nothing and the run went on, J, or None when
            unknown; of a simulated card, in the modelled time of the run where that is known.
        idle_share: share of the time for which the run had the cards in which they ran nothing,
            or None; ``whole_run`` when it had them in all its attempts.
        paused_j: what all cards drew while the run was paused, J; 0 where it never was, None when
            unknown.
        net_j: ``saved_j - idle_j - paused_j``, J, or None; above 0 offloading paid.
        provenance: that of the weakest part.
        is_simulated: whether one of the cards stands for no hardware.
        in_modelled_time: whether ``idle_j`` and ``idle_share`` are of the run as it would have gone
            had the simulated card answered in its modelled time.
        beside_at_least: whether something is missing from what the cards drew beside their calls.
        left_out: stages that were offloaded and have no energy on one of the paths; they are in no
            figure but those of the idle cards.
    """

    card_j: float
    gpu_would_j: float
    saved_j: float
    at_most: bool
    idle_j: float | None
    idle_share: float | None
    whole_run: bool
    net_j: float | None
    provenance: Provenance
    paused_j: float | None = 0.0
    is_simulated: bool = False
    in_modelled_time: bool = False
    beside_at_least: bool = False
    left_out: tuple[Role, ...] = ()

    @property
    def net_at_most(self) -> bool:
        """Whether ``net_j`` is an upper bound."""
        return self.at_most or self.beside_at_least


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
        idle_j: idle power of the cards x their idle part of the modelled time of the attempts that
            had them, J; None when the idle power is unknown.
        idle_share: that part, 0 to 1; None for cards that the run never had.
    """

    run_time_s: float
    waits_s: float
    modelled_waits_s: float
    modelled_run_time_s: float
    n_waits: int
    n_kept: int
    idle_j: float | None
    idle_share: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """Joules that the cost model expected over all decisions that asked it.

    Attributes:
        gpu_j: had all of them gone to the GPU path.
        chosen_j: for the actions that stood.
    """

    n: int
    gpu_j: float
    chosen_j: float
    provenance: Provenance
