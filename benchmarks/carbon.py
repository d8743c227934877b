"""How good are forecasts of a grid's intensity, what does waiting by them save, is the sum exact?

Forecasts and waits are played along recorded years (``--traces``, or ``ECORL_TRACES``); each
forecast knows what had ended by then and nothing later. Forecasts are scored on the second half of
each recording, since constants of the pool were tuned on the first halves (on all of Bonneville's),
in steps of 25 h, so that all hours of the day come round. Waiting jobs begin on every tenth day,
four hours apart and on other hours the next time, from four weeks after the recording's begin on;
ten days are no whole weeks, so that all days of the week come round too. ``--every-days`` takes
more or fewer.

A job draws constant power for six hours and may wait for up to a day. Its CO2e is by the average
intensity: what an inventory shows, and not what the power stations emit less for its wait. Power
that a machine draws while it waits is not counted.

The error of the integral needs no recording: feed, PUE and power are made up, and the exact sum is
known in closed form. Nor does the training that is paused, and compared with one that is not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Figure, FigureTable, Target, run_benchmark
from benchmarks.studies.carbon.integration import integration_errors
from benchmarks.studies.carbon.scores import (
    LEADS_H,
    ForecastScores,
    RememberedForecasts,
    score_forecasts,
)
from benchmarks.studies.carbon.traces import (
    KNOWN_GRIDS,
    WHY_MISSING,
    add_traces_option,
    recorded_grids,
)
from benchmarks.studies.carbon.waits import (
    BEST_START,
    START,
    WAITED_PERCENTILE,
    Savings,
    WaitingJob,
    start_numbers,
    wait_savings,
)
from ecorl.carbon.forecasts.history import DAY_S, HOUR_S
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.config import Config, validate_config
from ecorl.control import Command
from ecorl.ledger import LedgerReader
from ecorl.loop import measure as measured_run

FIGURES = FigureTable("carbon")

SMALL = 0.05
"""Below this share a saving is called small. Invented."""

JOB = WaitingJob()
N_STEPS = 12
N_ROWS, N_INPUTS, N_CLASSES = 32, 64, 10
_HOUR_S = 0.2
"""Length of a replayed hour, s."""

_NO_VALUE = "no value is known a day after any origin"


class Plan(NamedTuple):
    """How much of a recording is played.

    Attributes:
        warm_up_days: what comes before the first job, days.
        every_days: from one day with jobs to the next; no multiple of seven.
        every_h: from one job of a day to the next, h.
        origins_every_h: from one scored forecast to the next, h; has no factor in common with 24.
    """

    warm_up_days: int = 28
    every_days: int = 10
    every_h: float = 4.0
    origins_every_h: int = 25


QUICK = Plan(every_days=61, every_h=8.0, origins_every_h=193)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    plan = QUICK if options.quick else Plan()
    if options.every_days is not None:
        plan = plan._replace(every_days=options.every_days)
    grids = recorded_grids(options)
    figures = [integration_figure(5 if options.quick else 10), pause_figure()]
    for name, trace in grids.items():
        figures += grid_figures(name, trace.series, plan)
    if not grids:
        figures += [f for name in KNOWN_GRIDS for f in missing_figures(name, WHY_MISSING)]
    about = {name: _about(trace) for name, trace in grids.items()}
    return {**plan._asdict(), "job": asdict(JOB), "traces": about}, figures


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    add_traces_option(parser)
    parser.add_argument(
        "--every-days",
        type=_days,
        metavar="N",
        help="days from one day with waiting jobs to the next (default: 10)",
    )


def _days(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of days")
    return int(text)


def integration_figure(n_intensities: int) -> Figure:
    """The larger error of both paths."""
    found = integration_errors(n_intensities)
    error = max(found["timeline"], found["ledger"])
    return FIGURES.figure("carbon.integration_error", error, found, **found)


def pause_figure() -> Figure:
    """Whether standing still changes no bit."""
    found = train_paused()
    if not found["n_pauses"]:
        why = "the training never had to wait"
        return FIGURES.figure("carbon.pause_weights_equal", None, why=why, judged=False)
    return FIGURES.figure(
        "carbon.pause_weights_equal", float(found["weights_equal"]), found, **found
    )


def train_paused() -> dict[str, Any]:
    """Train the same small network twice, once under a replayed grid that makes it wait.

    Returns:
        ``weights_equal``, whether all weights of both are the same, bit for bit; ``n_pauses``, how
        often the one stood still; ``n_weights``, the numbers that were compared.
    """
    # Where the records lie is of no use to who reads figures: they are gone at the end.
    quiet = contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet:
        plain = _train(validate_config({"run_dir": f"{folder}/plain", **_MODELLED}))
        waits = validate_config(
            {"run_dir": f"{folder}/paused", "carbon": _blinking(Path(folder)), **_MODELLED}
        )
        paused = _train(waits)
        with LedgerReader(Path(folder) / "paused") as reader:
            commands = [row.choice.command for row in reader.choices()]
    starts = [c for i, c in enumerate(commands) if c is Command.PAUSE and commands[i - 1] is not c]
    first = commands[:1] == [Command.PAUSE] and commands[-1] is Command.PAUSE
    equal = [torch.equal(a, b) for a, b in zip(plain, paused, strict=True)]
    return {
        "weights_equal": all(equal),
        "n_pauses": len(starts) + first,
        "n_weights": sum(w.numel() for w in plain),
    }


_MODELLED = {"telemetry": {"gpu": {"type": "modelled"}}}


def _blinking(folder: Path) -> dict[str, object]:
    """A grid that is clean for one of ten replayed hours."""
    path = folder / "blinking_grid.csv"
    values = ([400] * 9 + [100]) * 200
    lines = [f"{1_600_000_000 + 3600 * hour},{g_per_kwh}" for hour, g_per_kwh in enumerate(values)]
    path.write_text("\n".join(["time,g_per_kwh", *lines, ""]), encoding="utf-8")
    feed = {"type": "replay", "path": str(path), "speed": 3600.0 / _HOUR_S}
    return {
        "feeds": [feed], "threshold_g_per_kwh": 250.0, "pause": "steps", "max_wait_s": 5.0,
        "recheck_s": 0.1, "stale_after_s": 1.0,
    }  # fmt: skip


def _train(config: Config) -> list[torch.Tensor]:
    """Train with dropout and AdamW, both of which have a state that a pause could upset."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(N_INPUTS, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, N_CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(7)
    with measured_run(config, total_steps=N_STEPS) as run:
        for _ in range(N_STEPS):
            rows = torch.from_numpy(rng.normal(size=(N_ROWS, N_INPUTS)).astype(np.float32))
            classes = torch.from_numpy(rng.integers(0, N_CLASSES, N_ROWS))
            loss = nn.functional.cross_entropy(model(rows), classes)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.step(n_samples=N_ROWS, loss=loss.item())
    return [w.detach().clone() for w in model.state_dict().values()]


def grid_figures(name: str, series: Series, plan: Plan) -> list[Figure]:
    """All figures of one grid."""
    per_hour = HOUR_S / series.step_s
    if per_hour < 1 or abs(per_hour - round(per_hour)) > 1e-9:
        return missing_figures(name, f"its intervals are of {series.step_s:g} s: an hour is needed")
    hour = round(per_hour)
    forecasts = RememberedForecasts(RecencyAdaptivePool((0.0, np.inf)), series, max(LEADS_H) * hour)
    n = len(series.values)
    starts = start_numbers(
        series, plan.warm_up_days, plan.every_days, plan.every_h, sum(JOB.steps(series))
    )
    origins = range(max(n // 2, plan.warm_up_days * 24 * hour), n - max(LEADS_H) * hour,
                    plan.origins_every_h * hour)  # fmt: skip
    if not starts or not origins:
        days = n * series.step_s / DAY_S
        return missing_figures(name, f"its {days:.0f} days are too few after a warm-up")
    # Waits first: they make forecasts in the order of time, which the scores then find made.
    savings = wait_savings(series, forecasts, starts, JOB)
    scores = score_forecasts(forecasts, series, origins)
    return [
        _mape_figure(name, scores),
        _coverage_figure(name, scores),
        _saving_figure(name, savings),
    ]


def missing_figures(name: str, why: str) -> list[Figure]:
    """The figures of a grid that cannot be made."""
    keys = [
        f"carbon.{figure}_{{grid}}"
        for figure in ("forecast_mape24", "forecast_coverage", "wait_saving")
    ]
    return FIGURES.all_missing(keys, why, judged=False, grid=name)


def _mape_figure(grid: str, scores: ForecastScores) -> Figure:
    mape, strongest = scores.lead(24).mape, scores.strongest_rule
    if mape is None or strongest is None:
        return FIGURES.figure("carbon.forecast_mape24_{grid}", None, grid=grid, why=_NO_VALUE)
    rule, of_rule = strongest
    spread = {
        "n_origins": scores.n_origins,
        "by_lead_h": {lead.lead_h: lead.mape for lead in scores.leads},
        "simple_rules": scores.simple_mape24,
        "less_than_strongest": 1.0 - mape / of_rule,
    }
    simple = ", ".join(f"{n} {100 * m:.1f} %" for n, m in scores.simple_mape24.items() if m)
    return FIGURES.figure(
        "carbon.forecast_mape24_{grid}", mape, spread, target=Target(high=of_rule), grid=grid,
        n_origins=scores.n_origins, rule=rule, simple=simple,
    )  # fmt: skip


def _coverage_figure(grid: str, scores: ForecastScores) -> Figure:
    key, coverages = "carbon.forecast_coverage_{grid}", {x.lead_h: x.coverage for x in scores.leads}
    if coverages[24] is None:
        return FIGURES.figure(key, None, grid=grid, why=_NO_VALUE)
    spread = {
        "n": scores.lead(24).n,
        "by_lead_h": coverages,
        "width_g_per_kwh": {lead.lead_h: lead.width for lead in scores.leads},
    }
    others = ", ".join(
        f"{lead_h} h {coverage:.2f}"
        for lead_h, coverage in coverages.items()
        if lead_h != 24 and coverage is not None
    )
    return FIGURES.figure(key, coverages[24], spread, grid=grid, others=others)


def _saving_figure(grid: str, savings: Savings | None) -> Figure:
    key = "carbon.wait_saving_{grid}"
    if savings is None:
        return FIGURES.figure(key, None, grid=grid, why="values are missing at all start times")
    saved, bound = savings.by_rule[START], savings.by_rule[BEST_START]
    between = "without an interval: too few weeks"
    if saved.interval_95 is not None:
        low, high = (100 * end for end in saved.interval_95)
        between = f"95 % interval {low:.1f} to {high:.1f} %, weeks redrawn"
    return FIGURES.figure(
        key,
        saved.share,
        asdict(savings) | {"interval_95": saved.interval_95},
        grid=grid,
        savings=savings,
        rule=savings.by_rule,
        saved=saved,
        job=JOB,
        percentile=WAITED_PERCENTILE,
        between=between,
        part=f", {100 * saved.share / bound.share:.0f} % of it" if bound.share > 0 else "",
        size="This is small. " if saved.share < SMALL else "",
    )


def _about(trace: GridTrace) -> dict[str, object]:
    values = trace.series.values
    known = values[np.isfinite(values)]
    return {
        "file": trace.path.name,
        "n": len(values),
        "n_missing": len(values) - len(known),
        "step_s": trace.series.step_s,
        "mean_g_per_kwh": float(np.mean(known)),
        "factors": trace.factors,
    }


if __name__ == "__main__":
    sys.exit(run_benchmark("carbon", measure, options=options))
