"""How near does the cost model of GPUs come to published measurements of decoding?

Fits eight parameters a GPU to the points in `benchmarks.studies.published` and prints them, the
spread of each and the error at every point. Errors are relative and modelled over published; those
that are left out are at the points of one model, of a fit to the others. Points where the host set
the pace, whatever the model, are no part of the fit and are told apart. Beside them stands what was
measured on an H100 here: scoring, training and decoding of a 1 B model. Seconds, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.studies.decode_fit import (
    PARAMETERS,
    DecodeFit,
    PointError,
    bounds,
    fit_decoding,
    left_out_errors,
    point_errors,
)
from benchmarks.studies.published import ASSUMED_PROMPT_TOKENS, SOURCE, decode_points
from ecorl.bench.machine import repository
from ecorl.devices import DeviceProfile, cheapest, dearest, load_profile, stage_cost
from ecorl.devices.gpu_pass import gpu_limits
from ecorl.errors import ConfigError
from ecorl.policy.calibration.stages import SHAPE_KEYS, measured_work
from ecorl.records import ModelShape, Stage, StageWork

FIGURES = FigureTable("costmodel")
H100 = "h100_sxm"
MEASURED = repository() / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3" / "gpu_stages.json"

OTHER_PROMPTS = ({"chat": 50.0, "gpqa": 150.0}, {"chat": 250.0, "gpqa": 400.0})
"""Mean prompts that the workloads may have had instead, tokens."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    del options  # it takes seconds
    points = decode_points()
    fits, errors, left_out, host_bound = [], [], [], []
    other: list[list[PointError]] = [[] for _ in OTHER_PROMPTS]
    for gpu in dict.fromkeys(point.gpu for point in points):
        limits = gpu_limits(load_profile(gpu))
        own = [p for p in points if p.gpu == gpu and not p.host_bound]
        paced = [p for p in points if p.gpu == gpu and p.host_bound]
        fit = fit_decoding(own, limits)
        fits.append(fit)
        errors += point_errors(own, limits, fit.parameters)
        host_bound += point_errors(paced, limits, fit.parameters)
        left_out += left_out_errors(own, limits)
        for found, prompts in zip(other, OTHER_PROMPTS, strict=True):
            refitted = fit_decoding(own, limits, prompts).parameters
            found += point_errors(own, limits, refitted, prompts)
    for fit in fits:
        print_fit(fit)
    print_errors("fitted points", errors)
    print_errors("points where the host set the pace, not fitted", host_bound)
    stages = measured_stages(MEASURED, load_profile(H100))
    print_stages(stages)
    config: dict[str, object] = {
        "source": SOURCE,
        "assumed_prompt_tokens": ASSUMED_PROMPT_TOKENS,
        "fits": [asdict(fit) for fit in fits],
        "errors": [asdict(error) for error in errors],
        "host_bound": [asdict(error) for error in host_bound],
        "other_prompts": [
            {"prompts": prompts, "j_error_median": quantile(found, "energy")}
            for found, prompts in zip(other, OTHER_PROMPTS, strict=True)
        ],
        "measured": [asdict(stage) for stage in stages],
    }
    return config, figures_of(errors, left_out, host_bound, stages)


def figures_of(
    errors: Sequence[PointError],
    left_out: Sequence[PointError],
    host_bound: Sequence[PointError],
    stages: Sequence[MeasuredStage],
) -> list[Figure]:
    """The errors as figures.

    Args:
        errors: at the fitted points.
        left_out: at the points of each model, of a fit to the others.
        host_bound: where the host set the pace.
        stages: what was measured here, apart from the published points.
    """
    passes = dense(stages)
    bare = {s.work.n_sequences: s.error + 1.0 for s in stages if s not in passes}
    values = {
        "decode_rate_error_median": quantile(errors, "rate"),
        "decode_j_error_median": quantile(errors, "energy"),
        "decode_j_error_p90": quantile(errors, "energy", 0.9),
        "decode_rate_error_left_out": quantile(left_out, "rate"),
        "decode_j_error_left_out": quantile(left_out, "energy"),
        "decode_j_error_host_bound": float(np.median([error.energy for error in host_bound])),
        "dense_j_error_median": float(np.median([abs(stage.error) for stage in passes])),
        "dense_inside_interval_share": float(np.mean([stage.inside for stage in passes])),
        "decode_j_over_bare_loop": float(np.median(list(bare.values()))),
    }
    spreads = {"decode_j_over_bare_loop": {f"b{n}": ratio for n, ratio in bare.items()}}
    words = {"n": len(errors), "n_paced": len(host_bound), "n_dense": len(passes)}
    return [
        FIGURES.figure(f"costmodel.{name}", value, spreads.get(name), words=words)
        for name, value in values.items()
    ]


def quantile(errors: Sequence[PointError], what: str, share: float = 0.5) -> float:
    """A quantile of the absolute errors."""
    return float(np.quantile([abs(getattr(error, what)) for error in errors], share))


def print_fit(fit: DecodeFit) -> None:
    """The parameters of a GPU, each with its spread, its bounds and what was expected of it."""
    print(f"{fit.gpu}: {fit.n_points} points; spread: one curve left out at a time")
    print(f"  {'parameter':<12} {'value':>9}   {'spread':<21} {'bounds':<21} expected")
    allowed = bounds(fit.limits)
    for name, value in asdict(fit.parameters).items():
        spread, limits = (
            f"{low:.3g} to {high:.3g}" for low, high in (fit.spread[name], allowed[name])
        )
        print(f"  {name:<12} {value:9.3g}   {spread:<21} {limits:<21} {PARAMETERS[name].why}")


def print_errors(title: str, errors: Sequence[PointError]) -> None:
    """The error at every point, a line each."""
    print(f"{title:<46} batch tokens/s  J/token")
    for error in errors:
        p = error.point
        where = f"{p.gpu} {p.model} {p.workload} x{p.n_shards}"
        print(f"  {where:<40} {p.batch:9.1f} {error.rate:+8.1%} {error.energy:+8.1%}")


def print_stages(stages: Sequence[MeasuredStage]) -> None:
    """Each stage that was measured here, beside the model's value and interval."""
    print("measured on an H100, mJ/token       measured   modelled   interval")
    for s in stages:
        where = f"{s.work.stage} of {s.work.n_sequences} x {s.work.max_length}"
        low, high = 1e3 * s.low_j, 1e3 * s.high_j
        print(f"  {where:<32} {1e3 * s.measured_j:9.3g} {1e3 * s.modelled_j:10.3g}   "
              f"{low:.3g} to {high:.3g}")  # fmt: skip


# ---------------------------------------------------------------- measured here


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """Energy of one stage, measured and by the cost model.

    Attributes:
        work: rows, tokens and model of the stage.
        measured_j: energy a token, J; of generation a new token, else a token of a row.
        modelled_j: the same by the profile.
        low_j, high_j: the same with the profile's figures at the ends of their intervals.
    """

    work: StageWork
    measured_j: float
    modelled_j: float
    low_j: float
    high_j: float

    @property
    def error(self) -> float:
        """Modelled over measured, less 1."""
        return self.modelled_j / self.measured_j - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the modelled interval."""
        return self.low_j <= self.measured_j <= self.high_j


def measured_stages(path: Path, profile: DeviceProfile) -> list[MeasuredStage]:
    """Read a result of `benchmarks.gpu_stages` and model each of its stages.

    Args:
        path: the result, JSON.
        profile: of the GPU that it was measured on.

    Raises:
        ConfigError: when it cannot be read.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
        sizes = result["config"]["model"]
        model = ModelShape(*(int(sizes[key]) for key in SHAPE_KEYS))
        values = {figure["id"]: figure["value"] for figure in result["figures"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("results", str(path), f"a result of gpu_stages ({error})") from error
    works = [(work, values[id]) for id in values if (work := measured_work(id, model)) is not None]
    return [_modelled(work, value, profile) for work, value in works if value is not None]


def dense(stages: Sequence[MeasuredStage]) -> list[MeasuredStage]:
    """Those whose passes take whole rows: scoring and training."""
    return [stage for stage in stages if stage.work.stage is not Stage.GENERATION]


def _modelled(work: StageWork, measured_j: float, profile: DeviceProfile) -> MeasuredStage:
    n_tokens = work.n_output_tokens if work.stage is Stage.GENERATION else work.n_tokens
    found = []
    for each in (profile, cheapest(profile), dearest(profile)):
        cost = stage_cost(work, each)
        if cost.energy_j is None:
            raise ConfigError("profile", profile.name, f"one by which {work.stage} is priced")
        found.append(cost.energy_j / n_tokens)
    return MeasuredStage(work, measured_j, *found)


if __name__ == "__main__":
    sys.exit(run_benchmark("costmodel", measure))
