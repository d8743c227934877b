"""How near do width and gear controllers come to what nobody could do better?

A training of 512 GPUs for 30 days is played along each recorded grid that ``--traces`` or
``ECORL_TRACES`` names, in epochs of 300 s, through the very control step that a run acts on. Regret
is what a controller emits beyond the optimum of a linear programme that knows the whole course. The
default controller knows the past alone (``_history``), or has forecasts of 96 h whose errors grow
from 6 to 12 % (``_forecast96``). Power and throughput are modelled: those of the study that the
targets come from. Savings stand beside static FP8 and static BF16.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace

import numpy as np

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target, missing
from benchmarks.studies.carbon.control.grid_study import (
    DEFAULT,
    PEER,
    ControlSaving,
    GridStudy,
    study_grids,
)
from benchmarks.studies.carbon.control.harder import harder_cases
from benchmarks.studies.carbon.control.marginal import marginal_series
from benchmarks.studies.carbon.control.regrets import Regrets, cases, regrets
from benchmarks.studies.carbon.control.scenario import SLACKS, Study, filled
from benchmarks.studies.carbon.control.speed import decision_times, lp_seconds, year_seconds
from benchmarks.studies.carbon.traces import (
    KNOWN_GRIDS,
    WHY_MISSING,
    add_traces_option,
    recorded_grids,
)
from ecorl.bench.stats import bootstrap_interval
from ecorl.carbon.traces.trace import GridTrace
from ecorl.controllers.catalogue import build
from ecorl.records import Provenance

MODELLED, MEASURED = Provenance.MODELLED, Provenance.MEASURED

BOX_S = 70.0
"""Time for all grids together, s."""

HISTORY = {"CISO": 0.022, "PJM": 0.014, "NYIS": 0.010, "BPAT": 0.057}
FORECAST = {"CISO": 0.013, "PJM": 0.013, "NYIS": 0.009, "BPAT": 0.041}
CAPTURE = {"CISO": 0.89, "PJM": 0.67, "NYIS": 0.79, "BPAT": 0.62}
"""What a study reached on these recordings, to be beaten."""

REGRETS = (
    "regret_{}_history", "regret_{}_history_h2", "regret_{}_forecast96", "capture_{}_history",
    "carbonscaler_regret_{}", "paper_dual_regret_{}", "paper_softq_regret_{}",
    "static_fp8_regret_{}",
)  # fmt: skip


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    study = Study()
    grids = recorded_grids(options)
    figures = speed_figures(options.quick)
    box_s = 6.0 if options.quick else (options.box_s or BOX_S)
    deficits = []
    recorded = {name: filled(trace.series) for name, trace in grids.items()}
    # All of it before the harder cases: beside them the last grids would have half of the time.
    studies = list(study_grids(recorded, study, box_s, n_late=2 if options.quick else 8))
    for name, found in studies:
        trace = grids[name]
        if found is None:
            days = len(trace.series.values) * trace.series.step_s / 86400.0
            figures += missing_figures(name, f"its {days:.0f} days are too few for one start")
            continue
        figures += grid_figures(name, found)
        if options.harder:
            figures += harder_figures(name, study, trace)
        deficits.append(max(one.deficit for one in _all(found)))
    if not grids:
        figures += [f for name in KNOWN_GRIDS for f in missing_figures(name, WHY_MISSING)]
    figures.append(deficit_figure(deficits))
    about = {name: _about(trace) for name, trace in grids.items()}
    return {"study": asdict(study), "traces": about}, figures


def grid_figures(name: str, found: GridStudy) -> list[Figure]:
    """All figures of one grid."""
    figures = [
        _history_figure(name, found),
        _late_figure(name, found),
        _regret(
            f"carbon.regret_{name}_forecast96",
            found.forecast,
            "with forecasts of 96 h, errors AR(1) with a mean of 6 % in the first hour growing to "
            "12 % in the last, drawn anew each day",
            FORECAST.get(name),
            found.n_left_out,
        ),
        _capture_figure(name, found),
        _peer_figure(name, found),
        _regret(
            f"carbon.paper_dual_regret_{name}",
            found.dual,
            "RobustDual (CarbonGearRL, Algorithm 2) pacing: deficit against the pro-rata schedule, "
            "its missing update line restored, first price from history, epochs of an hour",
        ),
        _regret(
            f"carbon.paper_softq_regret_{name}",
            found.soft_q,
            "soft Q-learning as CarbonGearRL prints it, temperature 1 and tokens penalised, in "
            "epochs of an hour and with FP8 alone, which is the best for it; with all gears "
            f"{100 * found.soft_q_all:.0f} % over three starts",
        ),
        Figure(
            f"carbon.static_fp8_regret_{name}", found.race, "1", MODELLED,
            note="all GPUs in FP8 from the start on, whatever the grid does",
        ),
    ]  # fmt: skip
    for slack in SLACKS:
        figures += _saving_figures(name, slack, found)
    return figures


def harder_figures(name: str, study: Study, trace: GridTrace) -> list[Figure]:
    """Regrets in the harder cases, and of CARL, which takes long to train; without targets."""
    series = filled(trace.series)
    hourly = replace(study, epoch_s=min(3600.0, series.step_s))
    days = study.starts(series)
    found = harder_cases(hourly, series, days, marginal_series(trace))
    carl = regrets(lambda problem: build("carl", problem), cases(hourly, series, days), series)
    told = "CARL, trained on the past that it is shown, in epochs of an hour, full speed or a pause"
    return [_regret(f"carbon.carl_regret_{name}", carl, told)] + [
        Figure(
            f"carbon.harder_{case}_{name}", one.regrets.mean, "1", MODELLED,
            {"by_start_day": one.regrets.by_day, "race": one.race, "saved_against_race": one.saved},
            note=f"{one.what}; {len(one.regrets.runs)} starts, epochs of an hour, history only "
            f"unless said; the optimum of the case is the measure. Racing: {100 * one.race:.1f} %",
        )
        for case, one in found.items()
    ]  # fmt: skip


def _history_figure(name: str, found: GridStudy) -> Figure:
    beside = {one: played.mean for one, played in found.beside.items()}
    beside |= {"dual": found.dual.mean, "soft-q-printed": found.soft_q.mean}
    best = min({**beside, DEFAULT: found.history.mean}.items(), key=lambda item: item[1])[0]
    told = "the default one itself" if best == DEFAULT else best
    figure = _regret(
        f"carbon.regret_{name}_history",
        found.history,
        f"known is the recording up to now; told the last 60 days before a start alone "
        f"{100 * found.history_60.mean:.1f} %. CarbonFlex prints 2.1 % for a cluster of many jobs, "
        "which is another problem. Other controllers, in epochs of an hour: "
        + ", ".join(f"{n} {100 * r:.1f} %" for n, r in sorted(beside.items(), key=lambda i: i[1]))
        + f"; the best of all, known only afterwards, is {told}",
        HISTORY.get(name),
        found.n_left_out,
    )
    spread = {**(figure.spread or {}), "beside": beside, "history_60": found.history_60.by_day}
    return Figure(figure.id, figure.value, "1", MODELLED, spread, figure.target, figure.note)


def _late_figure(name: str, found: GridStudy) -> Figure:
    id = f"carbon.regret_{name}_history_h2"
    if found.late is None:
        return missing(id, "1", "the recording ends before a start in July")
    told = "epochs of an hour; starts from July on, none of which the controller was tuned on"
    if name == "BPAT":
        told = "epochs of an hour; starts from July on; this grid was tuned on all year"
    return _regret(id, found.late, told)


def _capture_figure(name: str, found: GridStudy) -> Figure:
    low = None if found.n_left_out else CAPTURE.get(name)
    return Figure(
        f"carbon.capture_{name}_history", found.history.captured, "1", MODELLED,
        {"n_starts": len(found.history.runs)}, None if low is None else Target(low=low),
        "share of what the optimum saves against racing in FP8 that the default controller saves "
        "from the past alone, all starts together",
    )  # fmt: skip


def _peer_figure(name: str, found: GridStudy) -> Figure:
    """CarbonScaler, and how much less the default controller emits from the same starts."""
    peer, ours = found.beside[PEER].by_day, found.history.by_day
    less = [100 * (peer[day] - ours[day]) for day in ours]
    told = ""
    if (ends := bootstrap_interval(less, of_mean=True)) is not None:
        told = f" ({ends[0]:.2f} to {ends[1]:.2f}, 95 % by bootstrap)"
    figure = _regret(
        f"carbon.carbonscaler_regret_{name}",
        found.beside[PEER],
        "CarbonScaler's greedy in FP8, its best gear, in epochs of an hour, which expects the mean "
        "day of the last week; the default controller's regret is less by "
        f"{float(np.mean(less)):.2f} points on average, start by start{told}",
    )
    spread = {**(figure.spread or {}), "less_by_points": less}
    return replace(figure, spread=spread)


def _saving_figures(name: str, slack: str, found: GridStudy) -> list[Figure]:
    s: ControlSaving = found.savings[slack]
    parts = f"of static BF16's emissions FP8 alone saves {100 * s.gear:.1f} %"
    if s.timing is not None and s.width is not None:
        parts += (
            f", running in other hours {100 * s.timing:.1f} % more, other widths "
            f"{100 * s.width:.1f} % more (these two by every third start)"
        )
    late = ""
    if s.bf16_days > 30.0:
        late = f"; static BF16 takes {s.bf16_days:.1f} days and misses the deadline of 30"
    gains = ""
    if slack == "1.67":
        gains = "; with a measured gain of FP8 over BF16 in place of 1.45, by every third start: "
        gains += ", ".join(
            f"{gain:g} {100 * one.static_fp8:.1f} % of static FP8, {100 * one.static_bf16:.1f} % "
            f"of static BF16" for gain, one in found.by_gain.items()
        )  # fmt: skip
    epochs = "300 s" if slack == "1.67" else "an hour"
    note = f"{s.n_starts} starts, epochs of {epochs}, history only: {parts}{late}{gains}"
    spread = asdict(s)
    return [
        Figure(f"carbon.saving_vs_static_{against}_{name}_{slack}", value, "1", MODELLED, spread,
               note=note)
        for against, value in (("fp8", s.static_fp8), ("bf16", s.static_bf16))
    ]  # fmt: skip


def _regret(
    id: str, found: Regrets, how: str, target: float | None = None, n_left_out: int = 0
) -> Figure:
    values = list(found.by_day.values())
    left = f", {n_left_out} left out for want of time" if n_left_out else ""
    note = (
        f"mean over {len(values)} starts of 30 days{left}, slack 1.67, emissions beyond the "
        f"clairvoyant optimum; {how}"
    )
    spread = {
        "by_start_day": found.by_day,
        "worst": max(values),
        "median": float(np.median(values)),
    }
    # The targets are of all nine starts, which differ from each other tenfold.
    limit = None if target is None or n_left_out else Target(high=target)
    return Figure(id, found.mean, "1", MODELLED, spread, limit, note)


def deficit_figure(deficits: list[float]) -> Figure:
    """The largest share of a budget that any training lacked at its deadline."""
    id = "carbon.token_deficit_max"
    if not deficits:
        return missing(id, "1", "nothing was played", Target(high=0.0))
    note = "largest share of a budget that was not trained at the deadline, over all trainings here"
    return Figure(id, max(deficits), "1", MODELLED, None, Target(high=0.0), note)


def speed_figures(quick: bool) -> list[Figure]:
    """How long a decision, a bound and a year take."""
    times = decision_times(days=1.0 if quick else 4.0)
    lp_s, year = lp_seconds(2 if quick else 5), year_seconds(30 if quick else 365)
    return [
        Figure(
            "carbon.decision_ms", times.median_ms, "ms", MEASURED, asdict(times), Target(high=1.0),
            f"median of {times.n} decisions of the default controller, 512 widths and 4 gears, "
            f"epochs of 300 s; when an hour begins and all is planned anew "
            f"{times.new_hour_median_ms:.2f} ms",
        ),
        Figure(
            "carbon.lp_30d_s", lp_s[len(lp_s) // 2], "s", MEASURED, {"all": lp_s},
            Target(high=3.0), "30 days in epochs of 300 s, hourly intensities, by HiGHS",
        ),
        Figure(
            "carbon.year_s", year.seconds, "s", MEASURED, asdict(year), Target(high=15.0),
            f"one training of {year.days} days along made-up hours, {year.n_epochs:,} epochs of "
            "300 s, with the default controller",
        ),
    ]  # fmt: skip


def missing_figures(name: str, why: str) -> list[Figure]:
    """The figures of a grid that cannot be made."""
    ids = [one.format(name) for one in REGRETS]
    for slack in SLACKS:
        ids += [f"saving_vs_static_{gear}_{name}_{slack}" for gear in ("fp8", "bf16")]
    return [missing(f"carbon.{id}", "1", why) for id in ids]


def _all(found: GridStudy) -> list[Regrets]:
    several = [found.history, found.history_60, found.forecast, found.dual, found.soft_q]
    several += found.beside.values()
    return several + ([found.late] if found.late is not None else [])


def _about(trace: GridTrace) -> dict[str, object]:
    values = trace.series.values
    return {
        "file": trace.path.name,
        "n": len(values),
        "n_missing": int(np.count_nonzero(~np.isfinite(values))),
        "factors": trace.factors,
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    add_traces_option(parser)
    parser.add_argument(
        "--harder", action="store_true", help="the harder cases too, half a minute a grid"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark("carbon_control", measure, options=options))
