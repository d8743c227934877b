"""Printed figures of CarbonGearRL and Eco-Orchestrator recomputed from those printed beside them.

Nothing of ecorl is in it: each value is what its own source's other figures give.
"""

from __future__ import annotations

from benchmarks.studies.papers.carbon_printed import BESIDE, CARL, GEAR

MODELS = ("13b", "70b")
"""The models of CarbonGearRL's Table 1."""


def control_derived() -> dict[str, float]:
    """What follows from the printed inputs, by claim; claims that nothing follows for are absent.

    Shares and ratios have the unit 1; the units of the others are those of the claims.
    """
    found = _carl() | _overheads()
    for model in MODELS:
        found |= _of_model(model)
    return found


def _of_model(model: str) -> dict[str, float]:
    """From a model's rows of CarbonGearRL's Table 1."""
    static, spot, gear = (GEAR[f"{name}_t"][model] for name in ("static", "spot", "gear"))
    rates = [GEAR[f"{name}_tokens_per_s"][model] for name in ("static", "spot", "gear")]
    hours = GEAR["tokens"][model] / rates[0] / 3600.0
    kwh = GEAR["n_gpus"] * BESIDE["gpu_w"] * BESIDE["node_overhead"] * hours / 1e3
    return {
        f"gear_cut_{model}": 1.0 - gear / static,
        f"gear_spot_{model}": 1.0 - gear / spot,
        f"gear_spot_static_{model}": 1.0 - spot / static,
        f"gear_throughput_{model}": max(abs(rates[2] / rate - 1.0) for rate in rates[:2]),
        f"gear_intensity_{model}": static * 1e6 / kwh,
    }


def _overheads() -> dict[str, float]:
    """From CarbonGearRL's section 4, and Eq. 11."""
    g = GEAR
    batch_s = g["shift_s"] / g["shift_batches"]
    return {
        "gear_nccl": g["nccl_s"] / g["epoch_s"],
        "gear_shift": g["gear_tokens_per_s"]["70b"] * batch_s,
        "gear_step": g["temperature"],
    }


def _carl() -> dict[str, float]:
    """From Eco-Orchestrator's table of metrics."""
    (pue, pue_after), (cue, cue_after) = CARL["pue"], CARL["cue_kg_per_kwh"]
    kwh, kwh_after = CARL["job_kwh"]
    of_energy = kwh_after / kwh
    overhead, overhead_after = kwh * (pue - 1.0), kwh_after * (pue_after - 1.0)
    return {
        "carl_cut": 1.0 - of_energy * cue_after / cue,
        "carl_timing": 1.0 - (cue_after / pue_after) / (cue / pue),
        "carl_facility": 1.0 - of_energy * pue_after / pue,
        "carl_energy": 1.0 - of_energy,
        "carl_power": 1.0 - of_energy / (1.0 + CARL["delays"][1]),
        "carl_delay": max(CARL["delays"]),
        "carl_pue": 1.0 - pue_after / pue,
        "carl_pue_fixed": 1.0 + overhead / kwh_after,
        "carl_overhead": 1.0 - overhead_after / overhead,
        "carl_cue": 1.0 - cue_after / cue,
        "carl_cars": BESIDE["search_lb"] / BESIDE["car_lb"],
    }
