"""The cost model of GPUs, fitted to published measurements of decoding, and how far off it is."""

from benchmarks.studies.costmodel.fit import (
    PARAMETERS,
    DecodeFit,
    PointError,
    Prior,
    bounds,
    fit_decoding,
    left_out_errors,
    point_errors,
)
from benchmarks.studies.costmodel.measured import MeasuredStage, dense, measured_stages

__all__ = [
    "PARAMETERS",
    "DecodeFit",
    "MeasuredStage",
    "PointError",
    "Prior",
    "bounds",
    "dense",
    "fit_decoding",
    "left_out_errors",
    "measured_stages",
    "point_errors",
]
