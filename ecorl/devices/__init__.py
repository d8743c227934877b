"""Device profiles as data with provenance per figure, the cost model, and the physical bound.

profile = load_profile("u55c")
cost = stage_cost(work, profile)         # roofline: time, energy, which term binds
check_execution(profile, work, time_s, energy_j, provenance)     # refuses what cannot be true
"""

from __future__ import annotations

from ecorl.devices.guard import (
    BoundCheck,
    bound_memory_bytes_per_s,
    bound_ops_per_s,
    card_peak_ops,
    check_execution,
    check_throughput,
)
from ecorl.devices.host import DeviceFigure
from ecorl.devices.profile import (
    DeviceProfile,
    MissingFigure,
    cheapest,
    chosen_profile,
    dearest,
    load_profile,
    names_of_kind,
    profile_names,
    titled_profile,
)
from ecorl.devices.roofline import (
    Bound,
    Calibration,
    StageCost,
    missing_gpu_figures,
    parameter_bytes,
    peak_ops_per_s,
    stage_cost,
)

__all__ = [
    "Bound",
    "BoundCheck",
    "Calibration",
    "DeviceFigure",
    "DeviceProfile",
    "MissingFigure",
    "StageCost",
    "bound_memory_bytes_per_s",
    "bound_ops_per_s",
    "card_peak_ops",
    "cheapest",
    "check_execution",
    "check_throughput",
    "chosen_profile",
    "dearest",
    "load_profile",
    "missing_gpu_figures",
    "names_of_kind",
    "parameter_bytes",
    "peak_ops_per_s",
    "profile_names",
    "stage_cost",
    "titled_profile",
]
