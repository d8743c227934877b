"""A comparison as JSON: savings in the units that comparisons of training runs are published in."""

from __future__ import annotations

from typing import Any

from ecorl.report.comparison.compare import ENERGY_RATE
from ecorl.report.comparison.model import Compared, Comparison, ScoresCompared
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.sharing.files import footprint_data, plain
from ecorl.report.training import is_correctness

_MB = 1e6
BY_AVERAGE = f"emissions, {IntensityKind.AVERAGE} intensity"


def comparison_data(c: Comparison) -> dict[str, Any]:
    """What ``comparison_report.json`` holds; a figure that is missing or not compared is null.

    Args:
        c: the comparison.
    """
    emissions, energy = c.figure(BY_AVERAGE), c.figure("energy")
    return {
        "carbon_savings": {
            "baseline_emissions_kg": _scaled(emissions.baseline, 1e-3),
            "optimized_emissions_kg": _scaled(emissions.other, 1e-3),
            "reduction_kg": _scaled(emissions.saved, 1e-3),
            "reduction_percentage": _scaled(emissions.share, 100.0),
            "provenance": _provenances(emissions),
            "not_compared": _refusal(emissions),
        },
        "energy_savings": {
            "baseline_energy_kwh": _scaled(energy.baseline, 1 / 3.6e6),
            "optimized_energy_kwh": _scaled(energy.other, 1 / 3.6e6),
            "reduction_kwh": _scaled(energy.saved, 1 / 3.6e6),
            "reduction_percentage": _scaled(energy.share, 100.0),
            "provenance": _provenances(energy),
            "not_compared": _refusal(energy),
        },
        "per_token": _per_token(c),
        "accuracy_impact": _accuracy(c),
        "memory_savings": _memory(c),
        "waiting": {
            "baseline_wait_s": c.figure("waited").baseline,
            "optimized_wait_s": c.figure("waited").other,
        },
        "same_work": c.likeness.same_work,
        "same_instruments": c.likeness.same_instruments,
        "differences": list(c.differences),
        "instrument_differences": [*c.likeness.instruments, *c.likeness.remarks],
        "not_recorded": list(c.likeness.unknown),
        "seeds": c.likeness.seeds,
        "refusals": list(c.refusals),
        "figures": [plain(figure) for figure in c.figures],
        "evaluations": [plain(scores) for scores in c.scores],
        "runs": {"baseline": footprint_data(c.baseline), "optimized": footprint_data(c.other)},
    }


def _per_token(c: Comparison) -> dict[str, Any]:
    figure = c.figure(ENERGY_RATE)
    return {
        "baseline_energy_j_per_token": figure.baseline,
        "optimized_energy_j_per_token": figure.other,
        "reduction_percentage": _scaled(figure.share, 100.0),
        "provenance": _provenances(figure),
        "not_compared": _refusal(figure),
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _refusal(figure: Compared) -> str | None:
    return figure.reason if figure.saved is None else None


def _provenances(figure: Compared) -> dict[str, str | None]:
    both = (figure.baseline_provenance, figure.other_provenance)
    first, second = (None if p is None else str(p) for p in both)
    return {"baseline": first, "optimized": second}


def _accuracy(c: Comparison) -> dict[str, float | bool | str | None] | None:
    """The evaluation of right answers, in per cent; None where the runs share none."""
    found = next((s for s in c.scores if _is_accuracy(s)), None)
    if found is None:
        return None
    return {
        "evaluation": found.name,
        "baseline_accuracy": 100.0 * found.baseline,
        "optimized_accuracy": 100.0 * found.other,
        "degradation_percentage": 100.0 * (found.baseline - found.other),
        "degradation_standard_error": _scaled(found.difference_error, 100.0),
        "paired": found.paired,
    }


def _is_accuracy(scores: ScoresCompared) -> bool:
    return is_correctness(scores.name) and scores.is_share


def _memory(c: Comparison) -> dict[str, float | str | None]:
    """Of the devices, where both runs measured it, and otherwise of the training process."""
    device = c.figure("peak memory of the devices")
    host = c.figure("peak memory of the training process")
    figure = host if device.saved is None else device
    return {
        "of": figure.name if figure.saved is not None else None,
        "baseline_memory_mb": _scaled(figure.baseline, 1 / _MB),
        "optimized_memory_mb": _scaled(figure.other, 1 / _MB),
        "reduction_percentage": _scaled(figure.share, 100.0),
    }
