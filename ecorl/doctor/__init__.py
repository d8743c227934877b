"""Finds what this machine can do with ecorl, with a reason for each thing that it cannot.

`examine` never raises on a bare machine and imports nothing heavy: package versions come from
their metadata. Drivers are opened, read once and closed. No network is asked.
"""

from ecorl.doctor.examination import VECTOR_FLAGS, examine
from ecorl.doctor.findings import (
    Capability,
    CardFindings,
    FeedFindings,
    Findings,
    GpuFindings,
    HostFindings,
    render,
    to_json,
)

__all__ = [
    "VECTOR_FLAGS",
    "Capability",
    "CardFindings",
    "FeedFindings",
    "Findings",
    "GpuFindings",
    "HostFindings",
    "examine",
    "render",
    "to_json",
]
