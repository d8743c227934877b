"""The parts of a comparison of two runs; a figure that cannot be compared says why."""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.records import Provenance
from ecorl.report.comparison.likeness import Likeness
from ecorl.report.sharing.summary import RunSummary


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of both runs.

    Attributes:
        name: what it is, e.g. ``energy``.
        unit: of all values.
        baseline, other: the two values; None where one is missing.
        baseline_provenance, other_provenance: of them; None for counts and times of the record.
        saved: ``baseline - other``; None where the two cannot be compared.
        share: that over the baseline's; None likewise, and where the baseline is 0.
        reason: why they cannot be compared, or what limits the comparison; None where nothing does.
    """

    name: str
    unit: str
    baseline: float | None
    other: float | None
    baseline_provenance: Provenance | None = None
    other_provenance: Provenance | None = None
    saved: float | None = None
    share: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScoresCompared:
    """One evaluation of both runs.

    Attributes:
        name: of the evaluation.
        baseline, other: means over the items.
        baseline_error, other_error: standard errors of them.
        difference: ``other - baseline``; below 0 the other run is worse.
        difference_error: its standard error.
        paired: whether it is of the same number of items, compared item by item.
        is_share: whether the values are 0 or 1, so that means are shares of right answers.
    """

    name: str
    baseline: float
    other: float
    baseline_error: float | None
    other_error: float | None
    difference: float
    difference_error: float | None
    paired: bool
    is_share: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other.

    Attributes:
        baseline, other: the figures of both.
        figures: energy, emissions, power, time, wait, memory and loss, in the order of the report.
        scores: evaluations that both have.
        likeness: how the two differ in their work, their methods and their instruments.
        refusals: figures that are not compared, one sentence each.
    """

    baseline: RunSummary
    other: RunSummary
    figures: tuple[Compared, ...]
    scores: tuple[ScoresCompared, ...]
    likeness: Likeness
    refusals: tuple[str, ...]

    @property
    def differences(self) -> tuple[str, ...]:
        """How the work of the two and the way it was done differ, one sentence each."""
        alike = self.likeness
        return (*alike.amounts, *alike.kinds, *alike.methods)

    def figure(self, name: str) -> Compared:
        """The figure of a name.

        Raises:
            KeyError: when there is none.
        """
        for one in self.figures:
            if one.name == name:
                return one
        raise KeyError(name)
