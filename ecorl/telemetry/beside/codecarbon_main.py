"""``python -m ecorl.telemetry.beside.codecarbon_main FD PARENT_PID``: CodeCarbon in a process.

It measures its machine from its start until its standard input ends, and writes what it found as
one line of JSON to FD: ``{"version", "duration_s", "energy_j", "parts_j", "carbon_g"}``, or
``{"error"}``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ecorl.child_process import die_with_parent
from ecorl.units import JOULES_PER_KWH

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
             OSError, ImportError)  # fmt: skip
"""What a foreign package may raise, which the parent then hears of in words. Anything else ends
this process, and the parent hears of its exit code."""


def measure(country: str, wait: Any) -> dict[str, object]:
    """Have CodeCarbon measure this machine.

    Args:
        country: code of three letters, by whose mix it computes emissions.
        wait: returns when it is to end.

    Returns:
        What it found; an ``error`` in one line where it found nothing.
    """
    try:
        from codecarbon import OfflineEmissionsTracker
    except ImportError as error:
        return {"error": f"codecarbon cannot be imported ({error})"}
    tracker = OfflineEmissionsTracker(
        country_iso_code=country,
        tracking_mode="machine",
        save_to_file=False,
        allow_multiple_runs=True,
        log_level="critical",
    )
    tracker.start()
    wait()
    tracker.stop()
    found = getattr(tracker, "final_emissions_data", None)
    if found is None:
        return {"error": f"codecarbon found nothing; does it know the country {country}?"}
    parts = {"cpu": found.cpu_energy, "gpu": found.gpu_energy, "ram": found.ram_energy}
    return {
        "version": str(found.codecarbon_version),
        "duration_s": float(found.duration),
        "energy_j": float(found.energy_consumed) * JOULES_PER_KWH,
        "parts_j": {name: float(kwh) * JOULES_PER_KWH for name, kwh in parts.items()},
        "carbon_g": float(found.emissions) * 1000.0,
    }


def main() -> None:
    """Measure until the parent closes the pipe, then tell it."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    country = sys.stdin.readline().strip()
    try:
        told = measure(country, sys.stdin.read)
    except _FAILURES as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(fd, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
