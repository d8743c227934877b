"""Conversions at the edge. Inside ecorl everything is SI: W, J, s, bytes, tokens.

Names carry the unit (``power_w``, ``energy_j``, ``interval_s``); a driver converts once, here.
"""

from __future__ import annotations

JOULES_PER_KWH = 3_600_000.0


def watts_from_milliwatts(power_mw: float) -> float:
    """Power in W from mW (NVML's unit)."""
    return power_mw / 1_000.0


def joules_from_millijoules(energy_mj: float) -> float:
    """Energy in J from mJ (NVML's energy counter)."""
    return energy_mj / 1_000.0


def joules_from_microjoules(energy_uj: float) -> float:
    """Energy in J from uJ (RAPL's ``energy_uj``)."""
    return energy_uj / 1_000_000.0


def hertz_from_megahertz(clock_mhz: float) -> float:
    """Clock in Hz from MHz (NVML's unit)."""
    return clock_mhz * 1_000_000.0


def kwh_from_joules(energy_j: float) -> float:
    """Energy in kWh from J."""
    return energy_j / JOULES_PER_KWH


def carbon_g(energy_j: float, pue: float, intensity_g_per_kwh: float) -> float:
    """Operational emissions in gCO2e: IT energy times PUE times grid intensity.

    Args:
        energy_j: energy of the IT equipment, J.
        pue: power usage effectiveness, at least 1.
        intensity_g_per_kwh: grid carbon intensity, gCO2e/kWh.
    """
    return kwh_from_joules(energy_j) * pue * intensity_g_per_kwh
