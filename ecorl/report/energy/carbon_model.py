"""Emissions in a report: by kind of intensity, cause and feed, and what waiting brought.

Figures by the average and by the marginal intensity are records of their own and are never added.
Grams have the weakest provenance of the energy and of the intensities that they were made from.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.carbon.timeline import Emitted
from ecorl.grid import Basis, Gas, Scope
from ecorl.ledger import GearChoiceRow
from ecorl.records import Provenance
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.model import Cause

ROUNDING = 1e-9
"""Share of an energy or a time below which what is unknown of it is rounding."""


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """One feed whose values counted for some of the run time.

    Attributes:
        feed: its name.
        gas: unit of its values.
        factors: its emission factors; of a stated figure, where that comes from.
        is_estimated: whether the provider estimated its values; None where it does not say.
        provenance: published, replayed or modelled.
        time_s: for how long its values counted, s; ``share`` of the run time, 0 to 1.
        lowest_g_per_kwh, mean_g_per_kwh, highest_g_per_kwh: of those values; the mean over time.
    """

    feed: str
    gas: Gas
    basis: Basis
    scope: Scope
    factors: str
    is_estimated: bool | None
    provenance: Provenance
    time_s: float
    share: float
    lowest_g_per_kwh: float
    mean_g_per_kwh: float
    highest_g_per_kwh: float


@dataclass(frozen=True, slots=True)
class IntensityFacts:
    """What was known of one kind of intensity over the run time.

    Attributes:
        feeds: those that counted, the longest first.
        provenance: the weakest of theirs; None when nothing was known.
        gas: what the grams are of; of several, their names with ``or`` between them.
        unknown_s: run time for which none was known, s.
        mean_g_per_kwh: over the time for which one was known; None when there is no such time.
    """

    kind: IntensityKind
    feeds: tuple[FeedFacts, ...]
    provenance: Provenance | None
    gas: str
    unknown_s: float
    mean_g_per_kwh: float | None


@dataclass(frozen=True, slots=True)
class PueFacts:
    """The power usage effectiveness over the run time.

    Attributes:
        lowest, mean, highest: of what counted, the mean over time; None when nothing was known.
        unknown_s: run time for which none was known, s.
    """

    lowest: float | None
    mean: float | None
    highest: float | None
    unknown_s: float


@dataclass(frozen=True, slots=True)
class CarbonColumn:
    """Emissions of energy by one kind of intensity, with the PUE.

    Attributes:
        provenance: of the grams; of several provenances together, the weakest; ``n_provenances``
            says how many.
        simulated: whether it is what a simulated card would have emitted.
        gas: what the grams are of.
        emitted: all of it; ``unknown_j`` of it is missing from the grams.
        by_cause: by cause of the energy.
        at_least: whether something is missing from the grams.
        cue_kg_per_kwh: carbon usage effectiveness: kg of the building over kWh of the machines, of
            the energy for which both are known; None when there is none.
    """

    kind: IntensityKind
    provenance: Provenance
    n_provenances: int
    simulated: bool
    gas: str
    emitted: Emitted
    by_cause: dict[Cause, Emitted]
    at_least: bool
    cue_kg_per_kwh: float | None

    @property
    def is_incomplete(self) -> bool:
        """Whether energy is missing from the grams because intensity or PUE are unknown."""
        return self.emitted.unknown_j > ROUNDING * (self.emitted.known_j + self.emitted.unknown_j)

    @property
    def title(self) -> str:
        """What the column is of."""
        together = "together, " if self.n_provenances > 1 else ""
        return f"{'simulated card, ' if self.simulated else ''}{together}{self.kind}"

    @property
    def origin(self) -> str:
        """The provenance in brackets."""
        return f"({'as ' if self.n_provenances > 1 else ''}{self.provenance})"

    @property
    def heading(self) -> str:
        """Title, unit and provenance."""
        return f"{self.title}, g{self.gas} {self.origin}"


@dataclass(frozen=True, slots=True)
class SoftwareCarbonIntensity:
    """SCI = (E I + M) / R of the run by one kind of intensity, in g per functional unit.

    Attributes:
        kind: of the intensity I.
        provenance: of the figures.
        gas: what the grams are of.
        operational_g: E I: energy of the machines with the PUE of its time, times the intensity.
        embodied_g: M: emissions of making the hardware, by its share of reserved time; None where
            nothing is stated of them: the figures are then the operational part alone.
        per_token_g: R = output tokens of generation that is not superseded; None without any.
        per_sequence_g: R = sequences that were generated and kept, or where nothing is generated
            the samples that were trained on; None without any. ``sequence`` says which.
        per_run_g: R = this run.
        n_tokens, n_sequences: of those.
        at_least: whether something is missing from the grams.
        market_based: whether a market-based intensity is in it, which the standard leaves out.
    """

    kind: IntensityKind
    provenance: Provenance
    gas: str
    operational_g: float
    embodied_g: float | None
    per_token_g: float | None
    per_sequence_g: float | None
    per_run_g: float
    n_tokens: int
    n_sequences: int
    at_least: bool
    market_based: bool
    sequence: str = "sequence"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the energy of a run emitted, and by which intensities.

    Attributes:
        intensities: what was known of the average intensity, and of the marginal one where the run
            recorded any.
        pue: over the run time.
        run_time_s: that time, s.
        columns: of the machines one per kind and provenance of the grams, and, where a kind has
            several, together; then those of a simulated card.
        sci: by kind.
        renewable_share: of the energy for which the grid's mix is known, the share of renewable
            fuels, 0 to 1; None where it is known for none.
        mixed_share: share of the energy for which it is known, 0 to 1.
        is_constant: whether the one intensity and the one PUE of the config counted all the time.
    """

    intensities: tuple[IntensityFacts, ...]
    pue: PueFacts
    run_time_s: float
    columns: tuple[CarbonColumn, ...]
    sci: tuple[SoftwareCarbonIntensity, ...]
    renewable_share: float | None
    mixed_share: float | None
    is_constant: bool

    def facts(self, kind: IntensityKind) -> IntensityFacts | None:
        """What was known of one kind of intensity; None where the run recorded none."""
        return next((facts for facts in self.intensities if facts.kind is kind), None)

    def total(self, kind: IntensityKind) -> CarbonColumn | None:
        """All that the machines emitted by one kind of intensity; None without a figure."""
        own = [c for c in self.columns if c.kind is kind and not c.simulated]
        return own[-1] if own else None


@dataclass(frozen=True, slots=True)
class WaitOutcome:
    """What waiting brought by one kind of intensity; of the machines, without a simulated card.

    Attributes:
        gas: what the grams are of.
        provenance: of the intensities and of ``trained_g`` and ``paused_g``.
        start_g_per_kwh: intensity at the begin of the run; None: unknown.
        trained_g_per_kwh, paused_g_per_kwh: means over the time in which the run went on, and in
            which it was paused; None: unknown.
        trained_g: emissions of all energy but that of the pauses, as it was drawn.
        trained_at_start_g: of the same joules at the intensity of the start, with the PUE of the
            time at which they were drawn; modelled.
        paused_g: emissions of what the devices drew while the run was paused.
        net_g: ``trained_at_start_g - trained_g - paused_g``: above 0 waiting emitted less; None
            where one of them is unknown.
        mean_g_per_kwh: mean over the run time, pauses included; None: unknown.
        net_at_mean_g: the same as ``net_g`` with the joules at that mean, as if they had been drawn
            evenly over the run time; modelled.
        unknown_j: energy that is in none of these figures, since the intensity or the PUE of its
            time is unknown, J.
        at_most: whether ``net_g`` lacks emissions of the pauses.
    """

    kind: IntensityKind
    gas: str
    provenance: Provenance
    start_g_per_kwh: float | None
    trained_g_per_kwh: float | None
    paused_g_per_kwh: float | None
    trained_g: float | None
    trained_at_start_g: float | None
    paused_g: float | None
    net_g: float | None
    unknown_j: float
    at_most: bool
    mean_g_per_kwh: float | None = None
    net_at_mean_g: float | None = None


@dataclass(frozen=True, slots=True)
class PauseSummary:
    """How a run waited for a clean window.

    Attributes:
        n: pauses.
        total_s: their length, s.
        paused_share: of the run time, 0 to 1; None for a run of no length.
        choices: all decisions, in order.
        outcomes: what waiting brought, by kind of intensity; empty where the run never paused.
    """

    n: int
    total_s: float
    paused_share: float | None
    choices: tuple[GearChoiceRow, ...]
    outcomes: tuple[WaitOutcome, ...]
