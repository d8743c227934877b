"""Printed figures of carbon recomputed from what stands printed beside them.

Nothing of ecorl is in it: each value is what its own source's other figures give.
"""

from __future__ import annotations

import math

from benchmarks.studies.papers.carbon_printed import BLOG, CAR_G_PER_KM, PAPER
from ecorl.units import carbon_g

_WATT_SECONDS_PER_KWH = 3.6e6
_MM2_PER_CM2 = 100.0

FALL_H = 9.0
"""From the mock day's peak at 18:00 to its trough at 03:00, h."""


def derived() -> dict[str, float]:
    """What follows from the printed inputs, by claim; claims that nothing follows for are absent.

    Shares and ratios have the unit 1; the units of the others are those of the claims.
    """
    return _mock_day() | _example() | _memory() | _reductions() | _embodied()


def hours_of_run(speedup: float = 1.0) -> float:
    """How long the paper's run of 70 B takes on its cluster, h.

    Its emissions of 342 kg over intensity, PUE and the printed power of all GPUs.

    Args:
        speedup: over the baseline.
    """
    kwh = PAPER["before_kg"] * 1e3 / (PAPER["g_per_kwh"] * PAPER["pue"])
    return float(kwh * 1e3 / (PAPER["n_gpus"] * PAPER["gpu_w"]) / speedup)


def saved_kg(g_per_kwh: float, pue: float) -> float:
    """What the paper's run of 70 B saves at another intensity and PUE, kg.

    Args:
        g_per_kwh: the grid's intensity, g/kWh.
        pue: power usage effectiveness.
    """
    printed = PAPER["before_kg"] - PAPER["after_kg"]
    return float(printed * g_per_kwh * pue / (PAPER["g_per_kwh"] * PAPER["pue"]))


def _mock_day() -> dict[str, float]:
    peak, low = BLOG["peak_g_per_kwh"], BLOG["low_g_per_kwh"]
    middle = (peak + low) / 2.0
    steepest_in_10_min = (peak - low) / 2.0 * math.sin(math.pi / FALL_H / 12.0) * 2.0
    return {
        "daily_swing": peak / low,
        "average_reduction": 1.0 - low / middle,
        "average_reduction_bound": 1.0 - low / peak,
        "ten_minutes": steepest_in_10_min,
    }


def _example() -> dict[str, float]:
    """The blog's example run, from its intensities, its energy and its kilograms."""
    b = BLOG
    by_intensity = 1.0 - b["run_g_per_kwh"] / b["first_g_per_kwh"]
    saved = b["baseline_kg"] - b["optimised_kg"]
    return {
        "example_reduction": by_intensity,
        "example_saved": b["energy_kwh"] * (b["first_g_per_kwh"] - b["run_g_per_kwh"]) / 1e3,
        "json_reduction": saved / b["baseline_kg"],
        "json_reduction_by_intensity": by_intensity,
        "json_saved": saved,
        "json_optimised": b["energy_kwh"] * b["run_g_per_kwh"] / 1e3,
        "json_baseline": b["energy_kwh"] * b["first_g_per_kwh"] / 1e3,
        "energy": b["power_w"] * b["time_s"] / _WATT_SECONDS_PER_KWH,
        "epoch_energy": b["epochs"] * b["energy_kwh"],
        "accuracy_json": b["baseline_accuracy"] - b["optimised_accuracy"],
    }


def _memory() -> dict[str, float]:
    """Memory with accumulation, if one share of it goes with the micro-batch."""
    halved = 1.0 - BLOG["optimised_mb"] / BLOG["baseline_mb"]
    share = halved / (1.0 - 1.0 / 4.0)
    return {
        "memory_output": halved,
        "memory_json": halved,
        **{f"memory_{n}": share * (1.0 - 1.0 / n) for n in (2, 4, 8)},
    }


def _reductions() -> dict[str, float]:
    """The paper's operational emissions."""
    p = PAPER
    at_full_power_j = p["gpu_hours_405b"] * 3600.0 * p["gpu_w"]
    low_g, low_pue = p["swept_g_per_kwh"][0], p["swept_pue"][0]
    least_benefit = p["runs"] / p["embodied_kg"][1]
    saved_70b = p["before_kg"] - p["after_kg"]
    return {
        "cut_70b": 1.0 - p["after_kg"] / p["before_kg"],
        "cut_abstract": p["energy_cut"],
        "saved_70b": saved_70b,
        "saved_405b": carbon_g(at_full_power_j, p["pue"], p["g_per_kwh"]) / 1e3,
        "car": p["saved_405b_kg"] * 1e3 / CAR_G_PER_KM,
        "invariant_level": _share_at(p["swept_g_per_kwh"][1]),
        "embodied_share": 1.0 / (saved_70b * least_benefit),
        "net_benefit": saved_70b * least_benefit,
        "net_benefit_swept": saved_kg(low_g, low_pue) * least_benefit,
    }


def _share_at(g_per_kwh: float) -> float:
    """The saved share of CO2e at an intensity that never changes."""
    before, after = (carbon_g(j, PAPER["pue"], g_per_kwh) for j in (1.0, 1.0 - PAPER["energy_cut"]))
    return 1.0 - after / before


def _embodied() -> dict[str, float]:
    """The paper's embodied emissions."""
    p = PAPER
    low_kg, high_kg = p["embodied_kg"]
    dies_kg = p["kg_per_cm2"] * p["n_dies"] * p["die_mm2"] / _MM2_PER_CM2
    return {
        "amortised_low": low_kg / p["runs"],
        "amortised_high": high_kg / p["runs"],
        "embodied": dies_kg,
        "embodied_per_card": dies_kg * p["n_cards"],
        "embodied_scaled": p["kintex_kg"] * p["n_cards"],
    }
