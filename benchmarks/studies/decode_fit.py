"""Fits the eight parameters of a GPU's passes to published points of decoding.

The fit minimises the relative errors of rate and energy of all points of a GPU, robustly (a point
that is far off counts by its distance, not by its square). What the points say little of is held
near what is known of GPUs: each parameter has an expected value and a width, which count as much as
one point would, and bounds that physics or a data sheet sets. How well the points determine it is
told by leaving out one curve (model, workload, shards) at a time: points of a curve err together,
so that leaving out single points would tell too little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from benchmarks.studies.published import ASSUMED_PROMPT_TOKENS, DecodePoint, published_shape
from ecorl.devices.gpu_pass import GpuLimits, PassParameters, decoding_pass, pass_cost

Floats = npt.NDArray[np.float64]

_ROBUST_SCALE = 0.1
"""Relative error beyond which a point counts by its distance."""

_WEIGHT = 0.1
"""Relative error of a point that counts as much as a parameter one width off its expectation."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of a parameter beforehand.

    Attributes:
        value: the expected one; for ``busy_w`` a share of the board's limit.
        width: factor, as a logarithm, by which it may well differ.
        high: bound above, or None; the bound below is three widths under the expected value.
        why: where both come from.
    """

    value: float
    width: float
    high: float | None
    why: str


PARAMETERS: Mapping[str, Prior] = {
    "pass_s": Prior(1e-3, 1.0, None, "a step of a server that decodes, without its model"),
    "layer_s": Prior(3e-5, 1.0, None, "starts of a layer's kernels out of a recorded graph"),
    "row_s": Prior(3e-5, 0.7, None, "sampling a token and keeping account of its row"),
    "mbu_decode": Prior(0.85, 0.15, 0.95, "copies reach 85 to 95 % of the bandwidth"),
    "mfu_decode": Prior(0.6, 0.3, 0.9, "large products reach 50 to 80 % of the peak"),
    "busy_w": Prior(0.4, 0.3, 0.7, "share of the limit at full clock with little to do"),
    "j_per_byte": Prior(6e-11, 0.5, None, "about 4 pJ a bit in HBM, as much again on chip"),
    "j_per_op": Prior(8e-13, 0.4, None, "the limit's power at half of the peak"),
}


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """The parameters of one GPU and how well the points determine them.

    Attributes:
        gpu: name of the profile.
        limits: what its data sheet allows.
        parameters: the fitted ones.
        spread: lowest and highest value of each with one curve left out.
        n_points: points that were fitted.
    """

    gpu: str
    limits: GpuLimits
    parameters: PassParameters
    spread: Mapping[str, tuple[float, float]]
    n_points: int


@dataclass(frozen=True, slots=True)
class PointError:
    """How far a model is off at one point.

    Attributes:
        point: the published one.
        rate: modelled over published tokens a second, less 1.
        energy: modelled over published joules a token, less 1.
    """

    point: DecodePoint
    rate: float
    energy: float


def fit_decoding(
    points: Sequence[DecodePoint],
    limits: GpuLimits,
    prompts: Mapping[str, float] = ASSUMED_PROMPT_TOKENS,
) -> DecodeFit:
    """Fit the parameters of one GPU.

    Args:
        points: of this GPU alone.
        limits: of the GPU.
        prompts: mean prompt of each workload, tokens; `ASSUMED_PROMPT_TOKENS` by default.

    Raises:
        ValueError: without points, or for points of several GPUs.
    """
    gpus = {point.gpu for point in points}
    if len(gpus) != 1:
        raise ValueError(f"points of one GPU are wanted, not of {sorted(gpus)}")
    parameters = _fit(points, limits, prompts)
    curves = sorted({point.curve for point in points})
    without = [
        _fit([p for p in points if p.curve != curve], limits, prompts)
        for curve in curves
        if len(curves) > 1
    ]
    spread = {}
    for f in fields(PassParameters):
        values = [getattr(p, f.name) for p in (parameters, *without)]
        spread[f.name] = min(values), max(values)
    return DecodeFit(gpus.pop(), limits, parameters, spread, len(points))


def bounds(limits: GpuLimits) -> dict[str, tuple[float, float]]:
    """Lowest and highest value that the fit may give each parameter.

    Args:
        limits: of the GPU.
    """
    ends = np.exp(_expected(limits)[2:]).T
    names = (f.name for f in fields(PassParameters))
    return {name: (float(low), float(high)) for name, (low, high) in zip(names, ends, strict=True)}


def point_errors(
    points: Sequence[DecodePoint],
    limits: GpuLimits,
    parameters: PassParameters,
    prompts: Mapping[str, float] = ASSUMED_PROMPT_TOKENS,
) -> list[PointError]:
    """Compare modelled rates and energies with published ones.

    Args:
        points: of one GPU.
        limits: of the GPU.
        parameters: of the GPU.
        prompts: as in `fit_decoding`.
    """
    errors = []
    for point in points:
        # One step in steady state: rows stand anywhere in their answers, half-way on average.
        prompt = prompts[point.workload]
        context, share = prompt + point.output_tokens / 2.0, prompt / point.output_tokens
        work = decoding_pass(published_shape(point.model), point.batch, context, share)
        cost = pass_cost(work, limits, parameters, point.n_shards)
        rate = point.batch / cost.time_s / point.tokens_per_s
        energy = cost.energy_j / point.batch / point.j_per_token
        errors.append(PointError(point, rate - 1.0, energy - 1.0))
    return errors


def left_out_errors(points: Sequence[DecodePoint], limits: GpuLimits) -> list[PointError]:
    """Errors at the points of each model, of parameters that were fitted without that model.

    Args:
        points: of one GPU.
        limits: of the GPU.
    """
    errors = []
    for model in dict.fromkeys(point.model for point in points):
        others = [point for point in points if point.model != model]
        parameters = _fit(others, limits, ASSUMED_PROMPT_TOKENS)
        own = [point for point in points if point.model == model]
        errors += point_errors(own, limits, parameters)
    return errors


def _fit(
    points: Sequence[DecodePoint], limits: GpuLimits, prompts: Mapping[str, float]
) -> PassParameters:
    from scipy.optimize import least_squares  # an extra's

    expected, width, low, high = _expected(limits)

    def residuals(logs: Floats) -> Floats:
        parameters = PassParameters(*map(float, np.exp(logs)))
        errors = point_errors(points, limits, parameters, prompts)
        off = np.array([(e.rate, e.energy) for e in errors]).ravel()
        return np.concatenate([np.log1p(off), _WEIGHT * (logs - expected) / width])

    found = least_squares(
        residuals, expected, bounds=(low, high), loss="soft_l1", f_scale=_ROBUST_SCALE
    )
    return PassParameters(*map(float, np.exp(found.x)))


def _expected(limits: GpuLimits) -> tuple[Floats, Floats, Floats, Floats]:
    """Logarithms of expected values, widths and bounds, in the order of the parameters."""
    rows = []
    for f in fields(PassParameters):
        known = PARAMETERS[f.name]
        unit = limits.power_w if f.name == "busy_w" else 1.0
        value = np.log(known.value * unit)
        high = np.log(known.high * unit) if known.high else value + 3.0 * known.width
        rows.append((value, known.width, value - 3.0 * known.width, high))
    expected, width, low, high = np.array(rows).T
    return expected, width, low, high
