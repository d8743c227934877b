"""Readings of the Energy Density Index, Eq. 4: joules per output token of one execution."""

from __future__ import annotations

import math

from ecorl.records import EdiReading, StageResult, weakest


def edi(
    mean_power_w: float | None, time_s: float | None, n_output_tokens: int | None
) -> float | None:
    """EDI in J per output token, Eq. 4; None when a part is missing.

    A negative or non-finite power or time counts as missing, and so do no output tokens: a stage
    without output has no energy per token.

    Args:
        mean_power_w: mean power over the stage, W.
        time_s: time of the stage, s.
        n_output_tokens: completion tokens that the stage worked on.
    """
    if mean_power_w is None or time_s is None:
        return None
    return edi_from_energy(
        mean_power_w * time_s if min(mean_power_w, time_s) >= 0 else None, n_output_tokens
    )


def edi_from_energy(energy_j: float | None, n_output_tokens: int | None) -> float | None:
    """Compute EDI in J per output token from the energy itself; None when a part is missing.

    Args:
        energy_j: energy of the stage, J.
        n_output_tokens: completion tokens that the stage worked on.
    """
    if energy_j is None or n_output_tokens is None or n_output_tokens <= 0:
        return None
    if not math.isfinite(energy_j) or energy_j < 0:
        return None
    return energy_j / n_output_tokens


def edi_reading(result: StageResult, batch: int | None = None) -> EdiReading:
    """Make the reading of one stage execution on one device.

    Its EDI is None when a part is missing. Its provenance is the weaker of energy and time, and
    that of the time where the energy is not known. Its variant is the numeric format of a training
    step.

    Args:
        result: the execution, with its energy where that is known.
        batch: 0-based number of its rollout batch; None where that is not known.
    """
    energy = result.energy
    energy_j = None if energy is None else energy.energy_j
    provenance = result.time_provenance
    return EdiReading(
        stage=result.stage,
        device=result.device,
        energy_j=energy_j,
        n_output_tokens=result.n_output_tokens,
        edi_j_per_token=edi_from_energy(energy_j, result.n_output_tokens),
        provenance=provenance
        if energy is None or energy_j is None
        else weakest(energy.provenance, provenance),
        time_s=result.time_s,
        role_name=result.role_name,
        variant=result.gear or "",
        n_sequences=result.n_sequences,
        batch=batch,
    )
