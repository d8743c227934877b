"""What limited the gears of a run: shares, noise, mismatch, overflows; what measuring it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ecorl.config import Config
from ecorl.control import Gear
from ecorl.controllers.planning.executions import MEASUREMENT_S, WholeExecution
from ecorl.ledger import FaultRow, MetricRow
from ecorl.records import FaultKind, weakest
from ecorl.report.energy.stages import energy_j, present, total
from ecorl.report.training_stage.model import (
    GearAccuracy,
    GearMeasurements,
    GearRow,
    LowPrecision,
    OldLogProbs,
    ShareLimit,
    is_low,
)

NOISE, MISMATCH = "gradient_noise_ratio_", "probability_mismatch_"
"""Metrics of a gear, whose name follows."""

Metrics = Mapping[str, Sequence[MetricRow]]


def gear_accuracy(metrics: Metrics, config: Config | None) -> tuple[GearAccuracy, ...]:
    """Take the newest measurement of each gear.

    Args:
        metrics: of the run, by name, in the order of iterations.
        config: of the run; None without one.
    """
    limit = None if config is None else config.gears.mismatch_limit
    reference = None if config is None else config.gears.reference
    found = []
    for gear in map(str, Gear):
        noise, mismatch = _newest(metrics, NOISE + gear), _newest(metrics, MISMATCH + gear)
        if noise or mismatch:
            found.append(
                GearAccuracy(
                    gear=gear,
                    noise_ratio=noise.value if noise else None,
                    noise_iteration=noise.iteration if noise else None,
                    mismatch=mismatch.value if mismatch else None,
                    mismatch_iteration=mismatch.iteration if mismatch else None,
                    mismatch_limit=limit,
                    reference=None if reference is None else str(reference),
                )
            )
    return tuple(found)


def _newest(metrics: Metrics, name: str) -> MetricRow | None:
    known = [row for row in metrics.get(name, ()) if row.value is not None]
    return known[-1] if known else None


def low_precision(
    rows: Sequence[GearRow], accuracy: Sequence[GearAccuracy], config: Config | None
) -> LowPrecision | None:
    """Hold the share of tokens in low precision against its limit.

    The mean excess variance over all tokens is the share times the gear's own, so that the budget
    of the one bounds the other: ``share <= noise_budget / (ratio^2 - 1)``.

    Args:
        rows: by gear and width.
        accuracy: the newest measurements.
        config: of the run; None without one.

    Returns:
        None where no gear of low precision could be chosen and none was run.
    """
    allowed = () if config is None else config.gears.allowed
    if not any(is_low(row.gear) for row in rows) and not any(gear.is_low for gear in allowed):
        return None
    own = [row for row in rows if row.stage is rows[0].stage]
    counted = [row for row in own if row.token_share is not None]
    shares = [row.token_share or 0.0 for row in counted if is_low(row.gear)]
    ratios = present(one.noise_ratio for one in accuracy if is_low(one.gear))
    ratio = max(ratios, default=None)
    share = math.fsum(shares) if counted else None
    if config is None:
        return LowPrecision(share, None, None, None, None, ratio)
    cap, budget = config.carbon.control.low_share, config.gears.noise_budget
    limit, binds = cap, ShareLimit.SHARE if cap < 1.0 else None
    excess = 0.0 if ratio is None else ratio * ratio - 1.0
    if budget is not None and excess > 0.0 and budget / excess < cap:
        limit, binds = budget / excess, ShareLimit.NOISE
    return LowPrecision(share, limit, binds, cap, budget, ratio)


def stopped_gears(faults: Sequence[FaultRow]) -> tuple[str, ...]:
    """Why gears were retired or barred, in the order of time.

    Args:
        faults: of the run.
    """
    kinds = (FaultKind.GEAR_RETIRED, FaultKind.GEAR_BARRED)
    own = [f for f in faults if f.kind in kinds and not f.superseded]
    return tuple(
        f.detail if f.iteration is None else f"step {f.iteration}: {f.detail}" for f in own
    )


def gear_measurements(
    wholes: Sequence[WholeExecution], metrics: Metrics, n_inside: int
) -> GearMeasurements | None:
    """Add up what measuring the gears took; None where nothing was measured.

    Args:
        wholes: the executions that measured.
        metrics: of the run, by name.
        n_inside: how many measurements were within the time of a step that trained.
    """
    times_s = present(row.value for row in metrics.get(MEASUREMENT_S, ()))
    if not times_s and not wholes:
        return None
    results = [whole.row.result for whole in wholes]
    known = [r for r in results if energy_j(r) is not None]
    provenances = [r.energy.provenance for r in known if r.energy is not None]
    return GearMeasurements(
        n=max(len(times_s), len(wholes) + n_inside),
        time_s=total(times_s) if times_s else total(r.time_s for r in results),
        n_with_energy=len(known),
        energy_j=total(map(energy_j, known)),
        energy_provenance=weakest(*provenances) if provenances else None,
        n_inside=n_inside,
    )


def old_log_probs(wholes: Sequence[WholeExecution]) -> OldLogProbs | None:
    """Add up forward passes for old log-probabilities; None without any.

    Args:
        wholes: the executions that passed forward for them.
    """
    if not wholes:
        return None
    results = [whole.row.result for whole in wholes]
    energies = [r.energy for r in results if r.energy is not None and energy_j(r) is not None]
    return OldLogProbs(
        n=len(results),
        time_s=total(r.time_s for r in results),
        time_provenance=weakest(*(r.time_provenance for r in results)),
        n_with_energy=len(energies),
        energy_j=total(map(energy_j, results)),
        energy_provenance=weakest(*(e.provenance for e in energies)) if energies else None,
    )
