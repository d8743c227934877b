"""The cost model of GPUs, fitted to published measurements of decoding, and how far off it is."""

from ecorl.bench.costmodel.fit import (
    PARAMETERS,
    DecodeFit,
    Expectation,
    PointError,
    fit_decoding,
    left_out_errors,
    point_errors,
)

__all__ = [
    "PARAMETERS",
    "DecodeFit",
    "Expectation",
    "PointError",
    "fit_decoding",
    "left_out_errors",
    "point_errors",
]
