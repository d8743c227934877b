"""What was decided over the time of a run, and what that saved; a missing figure is None.

All times are wall clock since the run began, s, so that several attempts stand on one axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ecorl.records import Action, Provenance, Role
from ecorl.report.training_stage.model import StageBand


class DecisionKind(StrEnum):
    """What a decision is about."""

    PLACEMENT = "placement"  # where a stage runs
    GEAR = "gear"  # the numeric format of the training stage
    WIDTH = "workers"  # the number of workers of the training stage
    PAUSE = "pause"  # whether anything runs


@dataclass(frozen=True, slots=True)
class DecisionStretch:
    """Decisions in a row about one thing that came out the same, or alternated.

    Attributes:
        kind: what they are about.
        role: whose placement; None for other kinds.
        start_s, end_s: from the first of them until the next stretch, or until a pause or the end
            of the attempt.
        before: the values of the stretch before; none at the begin.
        after: what was decided and how often, or how many steps followed from it; several values
            where they took turns, the most frequent first.
        reason: of the newest of them; of values that took turns one of each. None: none is known.
    """

    kind: DecisionKind
    role: Role | None
    start_s: float
    end_s: float
    before: tuple[str, ...]
    after: tuple[tuple[str, int], ...]
    reason: str | None

    @property
    def n(self) -> int:
        """How many decisions it is of, or steps that followed from them."""
        return sum(n for _, n in self.after)


@dataclass(frozen=True, slots=True)
class PlacementBand:
    """A time in which a role's calls were placed alike; without an action they took turns."""

    role: Role
    start_s: float
    end_s: float
    action: Action | None


@dataclass(frozen=True, slots=True)
class RunningEnergy:
    """The energy of the machines so far, by their power readings, without simulated cards.

    Attributes:
        provenance: of the readings.
        at_least: whether readings are missing.
        points: time, s, and energy since the run began, J.
    """

    provenance: Provenance
    points: tuple[tuple[float, float], ...]
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class RunCourse:
    """All decisions of a run on one axis, with the grid's intensity and the running energy.

    Attributes:
        kinds: of which something was decided that changed anything; at least two.
        stretches: by kind, role and time.
        placements: of the roles that may leave the framework's devices, by role and time.
        bands: in which gear and width the training stage ran, and when it was paused.
        attempts: begin and end of each attempt.
        intensities: begin of each value of the average intensity, and the value, g/kWh; None:
            unknown from there on.
        intensity_provenance: None where no intensity is known.
        gas: what the intensity's grams are of.
        energy: a curve for each provenance.
    """

    kinds: tuple[DecisionKind, ...]
    stretches: tuple[DecisionStretch, ...]
    placements: tuple[PlacementBand, ...]
    bands: tuple[StageBand, ...]
    attempts: tuple[tuple[float, float], ...]
    intensities: tuple[tuple[float, float | None], ...]
    intensity_provenance: Provenance | None
    gas: str
    energy: tuple[RunningEnergy, ...]

    @property
    def end_s(self) -> float:
        """End of the newest attempt, s."""
        return max((end_s for _, end_s in self.attempts), default=0.0)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that have placements, each once."""
        return tuple(dict.fromkeys(band.role for band in self.placements))


@dataclass(frozen=True, slots=True)
class SavedAgainst:
    """What one kind of decisions saved against not deciding; below 0 it cost more.

    Attributes:
        what: what was decided about.
        against: what it is held against.
        saved: joules or grams, by ``unit``; None where it cannot be known.
        unit: ``J``, or the gas that the grams are of.
        bound: ``at most`` or ``at least`` where parts of the comparison are missing; else empty.
        provenance: of the figure; None without one.
        told: how it comes about, or why there is no figure.
        applies: whether anything was decided that can be compared.
        remark: without which the figure would mislead; empty where there is none.
    """

    what: str
    against: str
    saved: float | None
    unit: str
    bound: str
    provenance: Provenance | None
    told: str
    applies: bool = True
    remark: str = ""
