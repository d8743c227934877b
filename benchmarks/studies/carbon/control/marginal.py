"""An estimate of a grid's marginal intensity, made from its mix alone: the fuels that followed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.studies.carbon.control.scenario import filled
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import FACTORS
from ecorl.carbon.traces.trace import GridTrace
from ecorl.grid import Fuel

_DISPATCHABLE = (Fuel.HYDRO, Fuel.OIL, Fuel.GAS, Fuel.COAL, Fuel.OTHER)
"""Fuels of plants that are run up and down as load asks for it."""

_LEAST_MW = 1e-3
"""Below this a fuel did not move: recordings have whole megawatts, and what is left of a fuel's
share times the total is their rounding."""


def marginal_series(trace: GridTrace) -> Series | None:
    """What one more kilowatt-hour might have emitted, estimated from a recording's mix.

    Hydro, oil, gas, coal and other fuels can follow load. From one interval to the next each of
    them moved by some megawatts, and all together went up or down. Those that moved in that
    direction followed load; the estimate is the mean of their emission factors, weighted by how
    far each moved. Fuels that moved against it did not follow load, and do not count. Where the
    sum stood still or a value is missing, the estimate before holds on; intervals before the first
    estimate have that one, so that the first interval has the second's.

    The figures are modelled. They are an estimate, and no marginal intensity of anybody's: what
    providers publish (WattTime), and what a regression of changes of emissions on changes of load
    finds (Hawkes 2010; Siler-Evans et al. 2012), differ from it. Curtailment of sun and wind, at
    which the margin would be theirs, is not in such recordings, and neither are imports. The
    factors are those of the life cycle, though one more kilowatt-hour builds no plant.

    It is good enough to try a controller on, which is all that it is for: it jumps from hour to
    hour, as marginal intensities do and perhaps more, and its course is another one than the
    average's. What is saved along it is no estimate of what is saved along a grid's real margin.

    Args:
        trace: a recording with its mix and its generation.

    Returns:
        Estimates over the intervals of the recording, g/kWh in the unit of `trace.gas`, none
        missing, each within the factors of the fuels that can follow load. None where the recording
        has no mix or no generation, or where none of these fuels ever followed.
    """
    if trace.mix is None or trace.generation_mw is None:
        return None
    fuels = [fuel for fuel in _DISPATCHABLE if fuel in trace.mix]
    if not fuels:
        return None
    power_mw = np.array([trace.mix[fuel] for fuel in fuels]) * trace.generation_mw.values
    moved_mw = np.diff(power_mw, axis=1)
    moved_mw[np.abs(moved_mw) < _LEAST_MW] = 0.0
    together_mw = moved_mw.sum(axis=0)
    together_mw[np.abs(together_mw) < _LEAST_MW] = 0.0
    # A missing value compares as false, so that nobody followed from it or to it.
    followed_mw = np.where(moved_mw * np.sign(together_mw) > 0.0, np.abs(moved_mw), 0.0)
    all_mw = followed_mw.sum(axis=0)
    is_known = all_mw > 0.0
    if not is_known.any():
        return None
    factors = np.array([FACTORS[fuel] for fuel in fuels])
    g_per_kwh = np.full(len(trace.series.values), np.nan)
    g_per_kwh[1:][is_known] = factors @ followed_mw[:, is_known] / all_mw[is_known]
    return filled(replace(trace.series, values=g_per_kwh))
