"""What four sources print of carbon; it lies in ``carbon.toml`` and ``control_claims.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi, sin
from typing import Any

from benchmarks.studies.papers.claims import Claim, claim_of, read_file
from ecorl.units import carbon_g

_FOUND = read_file("carbon.toml")
_CONTROL = read_file("control_claims.toml")

SOURCES: Mapping[str, str] = {
    "blog": "Carbon-Aware Model Training (a blog post)",
    "paper": "EcoRL-Sched, sections 4.4 and 5.3",
    "gear": "CarbonGearRL",
    "carl": "Eco-Orchestrator with CARL",
}
"""Whose claims they are, in the order of the tables."""

BLOG: Mapping[str, float] = _FOUND["blog"]
PAPER: Mapping[str, Any] = _FOUND["paper"]
GEAR: Mapping[str, Any] = _CONTROL["gear"]
"""Figures of a source that others are derived from."""

ACT: Mapping[str, Any] = _FOUND["act"]
"""Constants of ACT, which the paper names as its method."""

UTC_OFFSET_H: Mapping[str, float] = _FOUND["utc_offset_h"]
"""Local standard time less UTC by grid, h."""


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


_OUTSIDE = {**_FOUND["outside"], **_CONTROL["beside"]}
_FUNCTIONS = {"carbon_g": carbon_g, "saved_kg": saved_kg, "pi": pi, "sin": sin}


def _claim(entry: Mapping[str, Any]) -> Claim:
    source = entry["source"]
    printed = {**_FOUND, **_CONTROL}[source]
    return claim_of(entry, {**_OUTSIDE, **_FUNCTIONS, **printed}, {})


CLAIMS = tuple(_claim(entry) for entry in (*_FOUND["claims"], *_CONTROL["claims"]))
