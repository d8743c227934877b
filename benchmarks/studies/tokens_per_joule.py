"""The figures of ``make bench``: tokens per joule of each placement, and what else is asked."""

from __future__ import annotations

from benchmarks.harness.figures import Figure, Target, missing
from ecorl.bench.stats import spread_of
from ecorl.bench.tokens_per_joule.arms import PLACEMENTS
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.quality import first_reached
from ecorl.bench.tokens_per_joule.result import BenchResult
from ecorl.bench.tokens_per_joule.running.known_truth import LIMIT
from ecorl.bench.tokens_per_joule.summary import energy_provenance, is_bound, over_seeds
from ecorl.bench.tokens_per_joule.telling.energy_tables import at_target
from ecorl.records import Provenance

_NOT_HERE = "not among the placements of this pass: make bench-long has all"


def bench_figures(result: BenchResult) -> list[Figure]:
    """Make the figures.

    Args:
        result: of the benchmark.
    """
    return [
        *(_rate(result, placement) for placement in PLACEMENTS),
        _idle_share(result),
        _joules_to_reward(result),
        _known_truth(result),
    ]


def _with_card(run: RunFigures) -> float | None:
    return run.tokens_per_j_with_card


def _alone(run: RunFigures) -> float | None:
    return run.tokens_per_j


def _why(result: BenchResult, arm: str) -> str:
    return next(
        (r.missing for r in result.runs if r.arm == arm and r.missing), "no energy is known"
    )


def _rate(result: BenchResult, placement: str) -> Figure:
    """Output tokens over all joules, those of a simulated card among them where there is one."""
    id, unit = f"tpj.{placement}", "token/J"
    if not any(arm.name == placement for arm in result.arms):
        return missing(id, unit, _NOT_HERE)
    runs = result.of(placement)
    has_card = any(run.card is not None for run in runs)
    found = over_seeds(result, placement, _with_card if has_card else _alone)
    origin = Provenance.MODELLED if has_card else energy_provenance(runs)
    if found is None or origin is None:
        return missing(id, unit, _why(result, placement))
    spread = spread_of(found.values)
    note = f"output tokens of the actor over all energy, idle draw included; median of {found.n} "
    note += f"of {found.n_runs} runs, each of another seed"
    if has_card:
        alone = over_seeds(result, placement, _alone)
        spread |= {"this_machine_alone": None if alone is None else alone.median}
        note += "; with the simulated card in its modelled time, and what runs beside its "
        note += "simulation as slow as it was"
    if is_bound(runs):
        note += "; at most, since joules are missing"
    return Figure(id, found.median, unit, origin, spread, None, note)


def _idle_share(result: BenchResult) -> Figure:
    """Of the baseline: what of its joules was drawn while no stage ran."""
    id, base = "tpj.idle_share", result.baseline
    found = over_seeds(result, base, lambda run: run.idle_share)
    origin = energy_provenance(result.of(base))
    if found is None or origin is None:
        lacks = is_bound(result.of(base))
        return missing(id, "1", "joules are missing" if lacks else _why(result, base))
    others = {
        arm.name: one.median
        for arm in result.arms
        if (one := over_seeds(result, arm.name, lambda run: run.idle_share)) is not None
    }
    note = f"joules of this machine drawn while its device ran no stage, {base}; all arms in spread"
    return Figure(id, found.median, "1", origin, {**spread_of(found.values), **others}, None, note)


def _joules_to_reward(result: BenchResult) -> Figure:
    """Of the baseline: joules up to the first evaluation at or above the target."""
    id, base = "tpj.joules_to_reward", result.baseline
    target = result.target("reward")
    if target is None or target.value is None:
        return missing(id, "J", "no target" if target is None else target.why)
    found = over_seeds(result, base, at_target(target, lambda point: point.energy_j))
    origin = energy_provenance(result.of(base))
    if found is None or origin is None:
        reached = any(first_reached(run, target) is not None for run in result.of(base))
        why = "no energy is known" if reached else f"{base} did not reach it"
        return missing(id, "J", why)
    time = over_seeds(result, base, at_target(target, lambda point: point.time_s))
    told = {"held_out_reward": target.value, "s_measured": None if time is None else time.median}
    with_card = {
        f"{arm.name} with the simulated card (modelled)": one.median
        for arm in result.arms
        if (one := over_seeds(result, arm.name, at_target(target, lambda p: p.with_card_j)))
        is not None
    }
    note = (
        f"{base}, to a held-out reward of {target.value:.3g} ({target.why}), evaluations left out"
        f"; median of {found.n} of {found.n_runs} runs"
    )
    points = (first_reached(run, target) for run in result.of(base))
    if any(point is not None and point.at_least for point in points):
        note += "; at least, since joules are missing"
    spread = {**spread_of(found.values), **told, **with_card}
    return Figure(id, found.median, "J", origin, spread, None, note)


def _known_truth(result: BenchResult) -> Figure:
    id, limit = "tpj.known_truth_error", Target(high=LIMIT)
    truth = result.known_truth
    if truth is None or truth.error is None:
        return missing(id, "1", "it was not run" if truth is None else truth.why, limit)
    note = (
        "tokens/J of a run whose power is replayed, against tokens over the integral of its power"
    )
    spread = {"found": truth.found, "true": truth.true}
    return Figure(id, truth.error, "1", Provenance.REPLAYED, spread, limit, note)


def figure_settings(result: BenchResult) -> dict[str, object]:
    """What the figures depend on, and the runs that they are made of, plain data.

    Args:
        result: of the benchmark.
    """
    names = ("tokens_per_j", "tokens_per_j_with_card", "samples_per_s", "bubble", "idle_share")
    rows = [
        {
            "arm": run.arm,
            "seed": run.seed,
            "missing": run.missing or None,
            **{name: getattr(run, name) for name in names},
        }
        for run in (*result.runs, *result.supervised)
    ]
    plan = {key: value for key, value in result.plan.items() if key != "config"}
    return {
        **plan,
        "config_digest": result.stand.digest,
        "driver": result.stand.driver,
        "unit": result.stand.unit,
        "runs": rows,
        "idle": [
            {"device": r.device_id, "when": r.when, "power_w": r.power_w,
             "provenance": None if r.provenance is None else str(r.provenance)}
            for r in result.idle
        ],
    }  # fmt: skip
