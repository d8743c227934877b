"""Compares two runs, figure by figure, and refuses to where that would mislead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ecorl.records import Provenance, weakest
from ecorl.report.comparison.likeness import Likeness, likeness
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.stages import present
from ecorl.report.sharing.summary import EmissionFigure, EvaluationScores, RunSummary


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


_MANY = 1000
"""Tokens for which grams are told: those of one have no readable size."""
ENERGY_RATE, GRAMS_RATE = "energy per token", f"emissions per {_MANY:,} tokens"


def compare(baseline: RunSummary, other: RunSummary) -> Comparison:
    """Compare two runs.

    Args:
        baseline: the run that the other one is held against.
        other: the other one.
    """
    alike = likeness(baseline, other)
    grams = _emissions(baseline, other, IntensityKind.AVERAGE)
    totals = [
        _energy(baseline, other),
        _power(baseline, other),
        *(_emissions(baseline, other, kind) for kind in _kinds(baseline, other)),
        _plain("run time", "s", baseline.run_time_s, other.run_time_s),
        _plain("peak memory of the devices", "bytes", baseline.peak_memory_device_bytes,
               other.peak_memory_device_bytes),
        _plain("peak memory of the training process", "bytes", baseline.peak_memory_host_bytes,
               other.peak_memory_host_bytes),
        # A share of a loss is none: it has no zero that means anything.
        replace(_plain("loss of the last step", "", baseline.final_loss, other.final_loss),
                share=None),
    ]  # fmt: skip
    rates = [
        _rate(ENERGY_RATE, "J/token", 1, _energy(baseline, other), baseline, other),
        _rate(GRAMS_RATE, grams.unit, _MANY, grams, baseline, other),
    ]
    figures = [
        *(_withheld(figure, alike.no_totals) for figure in totals),
        *(_withheld(figure, alike.no_rates) for figure in rates),
        _intensity("intensity at the begin", baseline, other, _first),
        _intensity("intensity while training", baseline, other, _trained),
        _plain("waited", "s", _wait_s(baseline), _wait_s(other)),
    ]
    return Comparison(
        baseline=baseline,
        other=other,
        figures=tuple(figures),
        scores=tuple(_scores(baseline.scores, other.scores)),
        likeness=alike,
        refusals=tuple(
            f"{f.name} is not compared: {f.reason}" for f in figures if f.reason and f.saved is None
        ),
    )


def _withheld(figure: Compared, why: str | None) -> Compared:
    """A figure without what was saved, where the difference of the runs would explain it."""
    if why is None or figure.saved is None:
        return figure
    return replace(figure, saved=None, share=None, reason=why)


# ---------------------------------------------------------------- figures


def _energy(a: RunSummary, b: RunSummary) -> Compared:
    first, second = (
        None if s.energy is None else (s.energy.energy_j, s.energy.provenance, s.energy.at_least)
        for s in (a, b)
    )
    return _sourced("energy", "J", first, second)


def _power(a: RunSummary, b: RunSummary) -> Compared:
    def of(s: RunSummary) -> tuple[float, Provenance, bool] | None:
        e = s.energy
        if e is None or e.mean_power_w is None:
            return None
        return e.mean_power_w, e.provenance, e.at_least

    return _sourced("mean power", "W", of(a), of(b))


def _rate(
    name: str, unit: str, n_tokens: int, total: Compared, a: RunSummary, b: RunSummary
) -> Compared:
    """Divide a total of both runs by the tokens of each.

    Args:
        name: of the rate.
        unit: of the rate.
        n_tokens: tokens that it is for.
        total: of both runs.
        a: the first run.
        b: the other one.
    """
    counts = (a.work.n_tokens, b.work.n_tokens)
    first, second = (
        None if value is None or not n else value * n_tokens / n
        for value, n in zip((total.baseline, total.other), counts, strict=True)
    )
    told = replace(total, name=name, unit=unit, baseline=first, other=second)
    if total.saved is None:
        return told
    if first is None or second is None:
        return replace(told, saved=None, share=None, reason="nobody counted the tokens of a run")
    saved = first - second
    return replace(told, saved=saved, share=saved / first if first else None)


def _kinds(a: RunSummary, b: RunSummary) -> list[IntensityKind]:
    """Kinds of intensity by which one of the runs has emissions; the average always."""
    told = {e.kind for s in (a, b) for e in s.emissions}
    return [k for k in IntensityKind if k in told or k is IntensityKind.AVERAGE]


def _emissions(a: RunSummary, b: RunSummary, kind: IntensityKind) -> Compared:
    one, two = a.emission(kind), b.emission(kind)

    def of(e: EmissionFigure | None) -> tuple[float, Provenance, bool] | None:
        return None if e is None or e.carbon_g is None else (e.carbon_g, e.provenance, e.at_least)

    name = f"emissions, {kind} intensity"
    gas = next((e.gas for e in (one, two) if e is not None), "CO2e")
    found = _sourced(name, f"g{gas}", of(one), of(two))
    if found.saved is None or one is None or two is None:
        return found
    why = _unlike(one, two)
    return found if why is None else replace(found, saved=None, share=None, reason=why)


def _unlike(one: EmissionFigure, two: EmissionFigure) -> str | None:
    """Why the grams of two runs are not of one kind, or None."""
    if one.gas != two.gas:
        return f"of {_listed({one.gas})} against {_listed({two.gas})}"
    told = {"scope": "by", "basis": "by", "provenance": "by intensities that are"}
    for name, word in told.items():
        first, second = ({str(getattr(f, name)) for f in e.feeds} for e in (one, two))
        if first != second:
            return f"{word} {_listed(first)} against {_listed(second)}"
    return None


def _listed(words: set[str]) -> str:
    return " and ".join(sorted(words)).replace("_", "-") or "nothing"


_Sourced = tuple[float, Provenance, bool] | None
"""A value, its provenance, and whether it is a lower bound; None: missing."""


def _sourced(name: str, unit: str, a: _Sourced, b: _Sourced) -> Compared:
    """Compare two figures of one provenance; of two, or where one is missing, refuse."""
    if a is None or b is None:
        which = "either run" if a is None and b is None else f"the {'other' if a else 'first'} run"
        return Compared(
            name, unit, None if a is None else a[0], None if b is None else b[0],
            None if a is None else a[1], None if b is None else b[1],
            reason=f"it is missing from {which}",
        )  # fmt: skip
    if a[1] is not b[1]:
        return Compared(name, unit, a[0], b[0], a[1], b[1], reason=f"{a[1]} against {b[1]}")
    bounds = [w for w, one in (("first", a), ("other", b)) if one[2]]
    limits = f"that of the {' and the '.join(bounds)} run is a lower bound" if bounds else None
    saved = a[0] - b[0]
    part = saved / a[0] if a[0] else None
    return Compared(name, unit, a[0], b[0], a[1], b[1], saved, part, limits)


def _plain(name: str, unit: str, a: float | None, b: float | None) -> Compared:
    """Compare two figures that are read in each run; a missing one is no mistake."""
    saved = None if a is None or b is None else a - b
    part = saved / a if saved is not None and a else None
    measured = Provenance.MEASURED
    return Compared(name, unit, a, b, measured, measured, saved, part)


def _intensity(
    name: str, a: RunSummary, b: RunSummary, of: Callable[[RunSummary], float | None]
) -> Compared:
    """Compare intensities of the grid, which are as good as what told them."""
    found: list[_Sourced] = []
    for s in (a, b):
        value, emission = of(s), s.emission()
        feeds = () if emission is None else emission.feeds
        known = value is not None and feeds
        told = weakest(*(feed.provenance for feed in feeds)) if feeds else Provenance.PUBLISHED
        found.append((value, told, False) if known and value is not None else None)
    compared = _sourced(name, "g/kWh", found[0], found[1])
    # Of a run that waited for nothing nobody asks where it began.
    return compared if None not in found else replace(compared, reason=None)


def _wait_s(s: RunSummary) -> float | None:
    # A run in which nothing was to be waited for has waited for nothing.
    return 0.0 if s.waiting is None else s.waiting.wait_s


def _first(s: RunSummary) -> float | None:
    return None if s.waiting is None else s.waiting.first_g_per_kwh


def _trained(s: RunSummary) -> float | None:
    if s.waiting is not None:
        return s.waiting.training_g_per_kwh
    emission = s.emission()
    return None if emission is None else emission.mean_g_per_kwh


# ---------------------------------------------------------------- evaluations


def _scores(
    first: Sequence[EvaluationScores], second: Sequence[EvaluationScores]
) -> list[ScoresCompared]:
    others = {s.name: s for s in second}
    found = []
    for one in first:
        two = others.get(one.name)
        if two is None or one.mean is None or two.mean is None:
            continue
        paired = len(one.values) == len(two.values)
        difference, error = two.mean - one.mean, _error_of(one, two)
        if paired:
            pairs = [
                b - a
                for a, b in zip(one.values, two.values, strict=True)
                if a is not None and b is not None
            ]
            if pairs:
                difference = statistics.fmean(pairs)
                error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
        values = present([*one.values, *two.values])
        found.append(
            ScoresCompared(
                name=one.name,
                baseline=one.mean,
                other=two.mean,
                baseline_error=one.standard_error,
                other_error=two.standard_error,
                difference=difference,
                difference_error=error,
                paired=paired,
                is_share=set(values) <= {0.0, 1.0},
            )
        )
    return found


def _error_of(one: EvaluationScores, two: EvaluationScores) -> float | None:
    """Standard error of the difference of two independent means."""
    if one.standard_error is None or two.standard_error is None:
        return None
    return math.hypot(one.standard_error, two.standard_error)
