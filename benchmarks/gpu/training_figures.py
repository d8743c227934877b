"""Figures of the training part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.gpu.figures import figure
from benchmarks.gpu.loads.training_runs import ATTACHED, BENCHMARK, BLOCK_STEPS, PLAIN, Run
from benchmarks.harness.figures import Figure, missing
from ecorl.bench.rounds import round_ratios
from ecorl.bench.tokens_per_joule.reading.quality import WindowEnergy
from ecorl.records import Provenance, Stage
from ecorl.report.energy.model import Cause, StageRow
from ecorl.report.energy.stages import stage_rows

STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
BESIDE = "beside"
"""What the GPU drew beside the executions of stages: waits, logs, the framework's own work."""

COST_UNITS = {
    "plain_step_s": "s", "attached_step_s": "s", "extra_step_s": "s", "step_ratio": "1",
    "plain_step_j": "J", "attached_step_j": "J", "energy_ratio": "1",
}  # fmt: skip
STAGE_UNITS = {"energy_j": "J", "time_s": "s", "power_w": "W", "energy_share": "1"}
TOKEN_UNITS = {"n_tokens": "token", "tokens_per_j": "token/J"}
WHOLE_UNITS = {"step_energy_j": "J", "step_time_s": "s", "power_w": "W", "tokens_per_j": "token/J"}


def stage_units() -> dict[str, str]:
    """Units of the figures of stages and of whole steps, by the figure's name."""
    found = {f"{s}.{k}": u for s in (*STAGES, BESIDE) for k, u in STAGE_UNITS.items()}
    found |= {f"{s}.{k}": u for s in STAGES for k, u in TOKEN_UNITS.items()}
    return found | WHOLE_UNITS


def lacking(units: Mapping[str, str], why: str) -> list[Figure]:
    """Make figures that could not be measured.

    Args:
        units: by the figure's name.
        why: the reason.
    """
    return [missing(f"{BENCHMARK}.{name}", unit, why) for name, unit in units.items()]


def stage_figures(drawn: WindowEnergy) -> list[Figure]:
    """Figures of each stage, of what lies beside the stages, and of whole steps.

    Args:
        drawn: energy of the measured steps.
    """
    machine = drawn.machine
    rows = {row.stage: row for row in stage_rows(drawn.evidence.executions)}
    if machine is None or machine.at_least or not set(STAGES) <= set(rows):
        why = "; ".join(drawn.spent.gaps) or "the record lacks a stage or the energy of the GPU"
        return lacking(stage_units(), why)
    n_steps = len({row.result.iteration for row in drawn.evidence.executions})
    n_new, whole_j = rows[Stage.GENERATION].n_output_tokens, machine.energy_j
    staged = {str(cause) for cause in (Cause.GENERATION, Cause.SCORING, Cause.TRAINING)}
    beside_j = sum(j for cause, j in machine.by_cause.items() if cause not in staged)
    beside_s = drawn.time_s - sum(rows[stage].time_s or 0.0 for stage in STAGES)
    found = [f for stage in STAGES for f in _of_stage(rows[stage], whole_j, n_steps, n_new)]
    how = "drawn between the executions of stages"
    found += _parts(BESIDE, beside_j, beside_s, whole_j, n_steps, how)
    per_step: dict[str, float | None] = {
        "step_energy_j": whole_j / n_steps,
        "step_time_s": drawn.time_s / n_steps,
        "power_w": whole_j / drawn.time_s,
        "tokens_per_j": n_new / whole_j if whole_j else None,
    }
    note = f"{n_steps} attached steps, all energy of the GPU; tokens are those generated"
    return found + [_measured(name, per_step[name], u, note) for name, u in WHOLE_UNITS.items()]


def _of_stage(row: StageRow, whole_j: float, n_steps: int, n_new: int) -> list[Figure]:
    name, energy_j = str(row.stage), row.energy_j
    if energy_j is None or row.time_s is None or row.n_with_energy < row.n_calls:
        units = {f"{name}.{key}": unit for key, unit in (STAGE_UNITS | TOKEN_UNITS).items()}
        return lacking(units, "the energy of an execution is not known")
    calls = f"{row.n_calls} executions, {row.n_interpolated} of them between two readings"
    found = _parts(name, energy_j, row.time_s, whole_j, n_steps, calls)
    n_tokens = row.n_tokens / n_steps
    return [
        *found,
        _measured(f"{name}.n_tokens", n_tokens, "token", "computed by the stage in a step"),
        _measured(f"{name}.tokens_per_j", n_new / energy_j if energy_j else None, "token/J",
                  "tokens that generation gave, over the energy of this stage"),
    ]  # fmt: skip


def _parts(
    name: str, energy_j: float, time_s: float, whole_j: float, n_steps: int, how: str
) -> list[Figure]:
    values: dict[str, float | None] = {
        "energy_j": energy_j / n_steps,
        "time_s": time_s / n_steps,
        "power_w": energy_j / time_s if time_s > 0 else None,
        "energy_share": energy_j / whole_j if whole_j else None,
    }
    note = f"a step, mean of {n_steps}; {how}"
    return [_measured(f"{name}.{key}", values[key], STAGE_UNITS[key], note) for key in values]


def _measured(name: str, value: float | None, unit: str, note: str) -> Figure:
    id = f"{BENCHMARK}.{name}"
    if value is None:
        return missing(id, unit, "no time or energy was read")
    return Figure(id, value, unit, Provenance.MEASURED, note=note)


def cost_figures(
    blocks: Mapping[str, Sequence[Run]], energies: Mapping[str, Sequence[float | None]]
) -> list[Figure]:
    """Time and energy of a step in both arms, and their ratios.

    Args:
        blocks: by arm, in pairs.
        energies: of the blocks, J; None where it is not known.
    """
    steps = {arm: [s for run in found for s in run.step_s] for arm, found in blocks.items()}
    joules = {arm: [None if j is None else j / BLOCK_STEPS for j in found]
              for arm, found in energies.items()}  # fmt: skip
    extra_s = [a - p for a, p in zip(steps[ATTACHED], steps[PLAIN], strict=True)]
    ratios: list[float | None] = [
        a / p if a is not None and p else None
        for a, p in zip(joules[ATTACHED], joules[PLAIN], strict=True)
    ]
    values: dict[str, Sequence[float | None]] = {
        "plain_step_s": steps[PLAIN],
        "attached_step_s": steps[ATTACHED],
        "extra_step_s": extra_s,
        "step_ratio": round_ratios(steps[ATTACHED], steps[PLAIN]),
        "plain_step_j": joules[PLAIN],
        "attached_step_j": joules[ATTACHED],
        "energy_ratio": ratios,
    }
    pairs = (
        f"pairs of blocks of {BLOCK_STEPS} steps in turns: {len(blocks[PLAIN])}; a process beside "
        "both arms reads the counter all along"
    )
    notes = {
        "extra_step_s": f"attached less plain, the same step of a pair; {pairs}",
        "step_ratio": f"attached over plain, the same step of a pair; {pairs}",
        "energy_ratio": f"attached over plain, block by block; {pairs}",
    }
    return [
        figure(f"{BENCHMARK}.{name}", values[name], unit, notes.get(name, f"a step; {pairs}"))
        for name, unit in COST_UNITS.items()
    ]
