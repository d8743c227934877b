"""The energy of a run as figures for a trainer's own log, which its users look at anyway.

| key | figure |
|---|---|
| ``energy/<stage>_j`` | J of the stage's executions |
| ``energy/<stage>_j_per_token`` | J per output token of them |
| ``energy/total_j`` | J that the metered devices drew in the run so far |
| ``energy/idle_j`` | J of that beside all executions |
| ``energy/up_to_step`` | the energies of the stages are whole up to this step |
| ``energy/provenance`` | weakest provenance of the energies, as a number of `PROVENANCES` |
| ``carbon/g`` | gCO2e of ``energy/total_j`` so far, by the average intensity and the PUE |
| ``carbon/unknown_j`` | J of which ``carbon/g`` lacks the emissions, where there are any |
| ``carbon/intensity_g_per_kwh`` | the grid's average intensity now, g/kWh |
| ``power/gpu_w`` | W that the GPU path's devices draw now, smoothed |
| ``device/<stage>`` | where the stage was placed last, as a number of `ACTIONS` |

The figures of a stage are those of the executions that were settled since the last log: an
execution is settled when the power readings behind its end are in, a second later where a counter
is slow to read, so that the last ones before a log count in a later one. ``energy/up_to_step`` says
how far the logs so far are whole. A trainer's log of the whole training waits until they are
(`await_settled`). Of several models of a stage each has its own, ``energy/reward.math_j``;
the trainer's evaluations have ``energy/evaluation_j``.
A figure that is missing has no key.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from ecorl.records import EVALUATION, EVALUATION_ROLE, Action, Provenance
from ecorl.runtime.energy.stage_energy import PATIENCE_S
from ecorl.runtime.handles import RoleTotals, RunTotals

PROVENANCES = tuple(Provenance)
"""The provenance that each number of ``energy/provenance`` stands for, the strongest first."""

ACTIONS = tuple(Action)
"""The action that each number of ``device/<stage>`` stands for."""

LEGEND = (
    "energy in the trainer's log: device/<stage> is "
    + ", ".join(f"{i} {action}" for i, action in enumerate(ACTIONS))
    + "; energy/provenance is "
    + ", ".join(f"{i} {provenance}" for i, provenance in enumerate(PROVENANCES))
)
"""What the numbers of both keys stand for, in one line."""

_ASK_AGAIN_S = 0.05

_NOTHING = RoleTotals(0.0, 0, 0, 0, None)


class _Totals(Protocol):
    """The part of a runtime that `await_settled` asks."""

    def totals(self) -> RunTotals:
        """Energy of the run so far."""


def await_settled(runtime: _Totals, patience_s: float = PATIENCE_S) -> None:
    """Wait until all executions that have ended are in a run's totals, before its last log.

    Args:
        runtime: of the run.
        patience_s: longest wait, s. What still waits then is missing from the log.
    """
    limit_s = time.monotonic() + patience_s
    while runtime.totals().n_waiting and time.monotonic() < limit_s:
        time.sleep(_ASK_AGAIN_S)


def log_figures(before: RunTotals, now: RunTotals) -> dict[str, float]:
    """Make the figures of the time between two states of a run.

    Args:
        before: the run when it was logged last.
        now: the run as it is.

    Returns:
        Finite figures by key; a missing one has no key.
    """
    figures: dict[str, float] = {}
    for role, sums in now.roles.items():
        more = _since(before.roles.get(role, _NOTHING), sums)
        if more.n_executions == more.n_missing:
            continue  # nothing was settled, or nothing that has an energy
        name = EVALUATION if role == EVALUATION_ROLE else role.replace(":", ".")
        if not more.n_missing:
            figures[f"energy/{name}_j"] = more.energy_j
        if more.n_output_tokens > 0:
            figures[f"energy/{name}_j_per_token"] = more.energy_j / more.n_output_tokens
    known = {"energy/total_j": now.drawn_j, "energy/idle_j": now.beside_j}
    known["power/gpu_w"] = now.gpu_power_w
    known |= {"carbon/g": now.carbon_g, "carbon/intensity_g_per_kwh": now.g_per_kwh}
    known["carbon/unknown_j"] = now.unknown_j or None
    figures |= {key: value for key, value in known.items() if value is not None}
    figures = {key: value for key, value in figures.items() if math.isfinite(value)}
    if now.up_to_step is not None and any(key.startswith("energy/") for key in figures):
        figures["energy/up_to_step"] = float(now.up_to_step)
    if figures and now.provenance is not None:
        figures["energy/provenance"] = float(PROVENANCES.index(now.provenance))
    for role, action in now.placed.items():
        figures[f"device/{role.replace(':', '.')}"] = float(ACTIONS.index(action))
    return figures


def _since(before: RoleTotals, now: RoleTotals) -> RoleTotals:
    """The part of a role's sums that has come in since an earlier state."""
    return RoleTotals(
        energy_j=now.energy_j - before.energy_j,
        n_output_tokens=now.n_output_tokens - before.n_output_tokens,
        n_executions=now.n_executions - before.n_executions,
        n_missing=now.n_missing - before.n_missing,
        provenance=now.provenance,
    )
