"""TRL's GRPO on the GPU: the same bits with ecorl attached, what that costs, and joules by stage.

1. Two short runs from one seed, plain and attached, under deterministic settings: equal logs and
   weights, bit for bit?
2. One attached run whose energy counter is read with each power reading: joules by stage.
3. Plain and attached blocks in turns: what ecorl's defaults cost a step, in time and energy. The
   counter is read by a process beside both.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.attached import ATTACHED, PLAIN, in_turns
from benchmarks.gpu.loads.grpo import (
    BLOCK_STEPS,
    FULL,
    WARM_UP,
    GrpoTraining,
    Run,
    attached_config,
    free,
)
from benchmarks.gpu.run.setting import Measured, Setting, attempt, reason
from benchmarks.gpu.sensing.meter import EnergyMeter, power_figure, window_facts
from benchmarks.gpu.sensing.traces import counted_energy
from benchmarks.harness.figures import Figure
from benchmarks.harness.table import FigureTable
from ecorl.bench.tokens_per_joule.reading.quality import WindowEnergy, window_energy
from ecorl.files import write_whole
from ecorl.ledger import LedgerReader
from ecorl.records import Stage
from ecorl.report import build_report, read_config
from ecorl.report.energy.model import Cause, StageRow
from ecorl.report.energy.stages import stage_rows
from ecorl.report.energy.windows import step_windows
from ecorl.report.render.page import render_html
from roll_adapters.trl.inputs.quiet import quiet

BENCHMARK = "gpu_training"
PAGE = "gpu_training.html"

EQUAL_STEPS = 3
"""Steps of the runs whose bits are compared."""

MAX_PAIRS, REHEARSED_PAIRS = 8, 1
"""Most blocks of each arm."""

IDLE_S, REHEARSED_IDLE_S = 2.5, 0.4
COUNTER_S = 0.05
"""Interval at which the counter is read in both arms, s: half of its refresh on an H100, where a
reading takes some milliseconds of a processor."""

NO_TIME = "no time left"

STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)
BESIDE = "beside"
"""What the GPU drew beside the executions of stages: waits, logs, the framework's own work."""

FIGURES = FigureTable(BENCHMARK)
OF_PART, OF_STAGE = "gpu_training.{part}.", "gpu_training.{stage}."
"""How the rows of stages and of what lies beside them begin, and those of stages alone."""

EQUAL = "gpu_training.equal_bits"
WHOLE = tuple(
    f"gpu_training.{name}" for name in ("step_energy_j", "step_time_s", "power_w", "tokens_per_j")
)
"""Rows of whole steps."""

COST = tuple(
    f"gpu_training.{name}"
    for name in ("plain_step_s", "attached_step_s", "extra_step_s", "step_ratio", "plain_step_j",
                 "attached_step_j", "energy_ratio")
)  # fmt: skip
"""Rows of what attaching costs."""

without_equal = partial(FIGURES.all_missing, [EQUAL])
without_cost = partial(FIGURES.all_missing, COST)
"""Make a section's figures without values, of the reason."""


def without_stages(why: str) -> list[Figure]:
    """Make the figures of stages and of whole steps without values.

    Args:
        why: the reason.
    """
    figures = []
    for part in (*STAGES, BESIDE):
        figures += FIGURES.all_missing(FIGURES.rows(OF_PART), why, part=part)
    for stage in STAGES:
        figures += FIGURES.all_missing(FIGURES.rows(OF_STAGE), why, stage=stage)
    return figures + FIGURES.all_missing(WHOLE, why)


def measure(setting: Setting) -> Measured:
    """Measure the training.

    Args:
        setting: of the part.
    """
    # Read when CUDA starts: without it products of matrices may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with tempfile.TemporaryDirectory(prefix="ecorl-gpu-training-") as name, quiet():
        runs = GrpoTraining(setting, Path(name), FULL, torch.bfloat16)
        trainer = runs.trainer(1)
        with EnergyMeter(setting.synchronize) as meter:
            idle = meter.idle(REHEARSED_IDLE_S if setting.is_rehearsal else IDLE_S)
            gpu = meter.device
        del trainer
        free(setting)
        config: dict[str, object] = {
            "gpu": gpu.name,
            "training": runs.size.facts(),
            "warm_up_steps": WARM_UP,
            "idle": window_facts([idle]),
        }
        figures = [power_figure(FIGURES, "gpu_training.idle_w", idle)]
        for what, section, without in (
            ("plain and attached from one seed", equal_bits, without_equal),
            ("joules by stage", stage_energies, without_stages),
            ("what attaching costs", partial(attaching_cost, uuid=gpu.uuid), without_cost),
        ):
            setting.tell(what)
            facts, found = _guarded(section, without, runs)
            config |= facts
            figures += found
    return config, figures


def _guarded(
    section: Callable[[GrpoTraining], Measured],
    without: Callable[[str], list[Figure]],
    runs: GrpoTraining,
) -> Measured:
    """A section's result; where it fails its figures are missing, and the others go on."""
    result, error = attempt(lambda: section(runs))
    if result is not None:
        return result
    why = "no result" if error is None else reason(error)
    del error  # it holds what the section held
    free(runs.setting)
    return {}, without(why)


# ---------------------------------------------------------------- equal bits


def equal_bits(runs: GrpoTraining) -> Measured:
    """Train plain and attached from one seed, and compare all that is logged and all weights.

    Args:
        runs: trains.
    """
    plain, unfixed = _first_plain(runs)
    again: Run | None = None
    with _deterministic(warn_only=unfixed is not None):
        other = runs.run(EQUAL_STEPS, attached_config(BENCHMARK), "equal-attached", weights=True)
        is_equal = _same(plain, other)
        if not is_equal and runs.setting.has_room(1.2 * other.wall_s + runs.closing_s):
            again = runs.run(EQUAL_STEPS, None, "equal", weights=True)
    facts: dict[str, object] = {
        "steps": EQUAL_STEPS,
        "without_fixed_order": unfixed,
        PLAIN: _exact(plain),
        ATTACHED: _exact(other),
        "weights_that_differ": _n_unlike(plain, other),
        "n_weights": len(plain.weights),
        "plain_again": None if again is None else _exact(again),
        "plain_again_weights_that_differ": None if again is None else _n_unlike(plain, again),
    }
    if not is_equal and (again is None or not _same(plain, again)):
        why = "plain and attached differ, and so do two plain runs: the sums have no fixed order"
        if again is None:
            why = f"plain and attached differ; {NO_TIME} to tell whether two plain runs do"
        return {"equal_bits": facts}, without_equal(why)
    figure = FIGURES.figure(EQUAL, float(is_equal), n_steps=EQUAL_STEPS)
    return {"equal_bits": facts}, [figure]


def _first_plain(runs: GrpoTraining) -> tuple[Run, str | None]:
    """A plain run, and what PyTorch has no fixed order for, where it says so."""
    try:
        with _deterministic(warn_only=False):
            return runs.run(EQUAL_STEPS, None, "equal", weights=True), None
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        unfixed = str(error).splitlines()[0]
    free(runs.setting)
    with _deterministic(warn_only=True):
        return runs.run(EQUAL_STEPS, None, "equal", weights=True), unfixed


@contextmanager
def _deterministic(*, warn_only: bool) -> Iterator[None]:
    """Let sums be added in a fixed order; attention does so only where nothing else is allowed."""
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    # It takes a kernel more for each new tensor, and no step reads one that is not filled.
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(False)


def _exact(run: Run) -> list[dict[str, str]]:
    return [{key: value.hex() for key, value in row.items()} for row in run.rows]


def _n_unlike(one: Run, other: Run) -> int:
    pairs = zip(one.weights, other.weights, strict=True)
    return sum(not torch.equal(mine, theirs) for mine, theirs in pairs)


def _same(one: Run, other: Run) -> bool:
    return len(one.rows) > 0 and _exact(one) == _exact(other) and _n_unlike(one, other) == 0


# ---------------------------------------------------------------- joules by stage


def stage_energies(runs: GrpoTraining) -> Measured:
    """Train an attached block, read the joules of its stages from its record, and keep its report.

    Args:
        runs: trains.
    """
    # At each edge of a short stage the counter is interpolated between its two readings around it.
    config = attached_config(BENCHMARK, interval_s=0.05, counter_interval_s=0.0)
    if not runs.has_room(1):
        return {}, without_stages(NO_TIME)
    run = runs.block(config, "stages")
    run_dir = runs.folder / "stages"
    with LedgerReader(run_dir) as reader:
        known = read_config(reader.run(), run_dir)
        write_whole(runs.setting.folder / PAGE, render_html(build_report(reader, known)))
        reader = reader.short_ids()
        drawn = window_energy(reader, step_windows(reader, WARM_UP), None)
    facts = {
        "steps": BLOCK_STEPS,
        "step_s": run.step_s,
        "spans_s": list(drawn.evidence.spans.values()),
        "energy_j": None if drawn.machine is None else drawn.machine.energy_j,
        "by_cause_j": None if drawn.machine is None else drawn.machine.by_cause,
        "gaps": drawn.spent.gaps,
        # Stage, step, begin and end in monotonic s, J, and how they were found.
        "executions": [
            [str(r.role), r.iteration, r.t_start_s, r.t_end_s,
             None if r.energy is None else r.energy.energy_j,
             None if r.energy is None else str(r.energy.method)]
            for r in (row.result for row in drawn.evidence.executions)
        ],
    }  # fmt: skip
    return {"stages": facts}, stage_figures(drawn)


def stage_figures(drawn: WindowEnergy) -> list[Figure]:
    """Figures of each stage, of what lies beside the stages, and of whole steps.

    Args:
        drawn: energy of the measured steps.
    """
    machine = drawn.machine
    rows = {row.stage: row for row in stage_rows(drawn.evidence.executions)}
    if machine is None or machine.at_least or not set(STAGES) <= set(rows):
        why = "; ".join(drawn.spent.gaps) or "the record lacks a stage or the energy of the GPU"
        return without_stages(why)
    n_steps = len({row.result.iteration for row in drawn.evidence.executions})
    n_new, whole_j = rows[Stage.GENERATION].n_output_tokens, machine.energy_j
    staged = {str(cause) for cause in (Cause.GENERATION, Cause.SCORING, Cause.TRAINING)}
    beside_j = sum(j for cause, j in machine.by_cause.items() if cause not in staged)
    beside_s = drawn.time_s - sum(rows[stage].time_s or 0.0 for stage in STAGES)
    found = [f for stage in STAGES for f in _of_stage(rows[stage], whole_j, n_steps, n_new)]
    how = "drawn between the executions of stages"
    found += _part(BESIDE, beside_j, beside_s, whole_j, n_steps, how)
    per_step = (
        whole_j / n_steps,
        drawn.time_s / n_steps,
        whole_j / drawn.time_s,
        n_new / whole_j if whole_j else None,
    )
    return found + [
        FIGURES.figure(key, value, n_steps=n_steps)
        for key, value in zip(WHOLE, per_step, strict=True)
    ]


def _of_stage(row: StageRow, whole_j: float, n_steps: int, n_new: int) -> list[Figure]:
    name, energy_j = str(row.stage), row.energy_j
    if energy_j is None or row.time_s is None or row.n_with_energy < row.n_calls:
        keys, why = [OF_PART, OF_STAGE], "the energy of an execution is not known"
        rows = [row for key in keys for row in FIGURES.rows(key)]
        return FIGURES.all_missing(rows, why, part=name, stage=name)
    calls = f"{row.n_calls} executions, {row.n_interpolated} of them between two readings"
    return [
        *_part(name, energy_j, row.time_s, whole_j, n_steps, calls),
        FIGURES.figure(OF_STAGE + "n_tokens", row.n_tokens / n_steps, stage=name),
        FIGURES.figure(
            OF_STAGE + "tokens_per_j", n_new / energy_j if energy_j else None, stage=name
        ),
    ]


def _part(
    name: str, energy_j: float, time_s: float, whole_j: float, n_steps: int, how: str
) -> list[Figure]:
    values: dict[str, float | None] = {
        "energy_j": energy_j / n_steps,
        "time_s": time_s / n_steps,
        "power_w": energy_j / time_s if time_s > 0 else None,
        "energy_share": energy_j / whole_j if whole_j else None,
    }
    words = {"part": name, "n_steps": n_steps, "how": how}
    return [FIGURES.figure(OF_PART + kind, value, words=words) for kind, value in values.items()]


# ---------------------------------------------------------------- what attaching costs


def attaching_cost(runs: GrpoTraining, uuid: str) -> Measured:
    """Train plain and attached blocks in turns, as many as there is time for.

    Args:
        runs: trains.
        uuid: of the GPU.
    """
    configs = {PLAIN: None, ATTACHED: attached_config(BENCHMARK)}
    blocks, points = in_turns(
        lambda arm, number: runs.block(configs[arm], f"{arm}-{number}"), uuid,
        REHEARSED_PAIRS if runs.setting.is_rehearsal else MAX_PAIRS, COUNTER_S,
        lambda: runs.has_room(2),
    )  # fmt: skip
    if not blocks[PLAIN]:
        return {}, without_cost(NO_TIME)
    energies = {
        arm: [counted_energy(points, *run.span_s) for run in found] for arm, found in blocks.items()
    }
    facts = {
        "pairs": len(blocks[PLAIN]),
        "steps_of_a_block": BLOCK_STEPS,
        "order": "ABBA",
        **{arm: _block_facts(blocks[arm], energies[arm]) for arm in blocks},
        "same_rewards": len({str([row["reward"] for row in run.rows])
                             for found in blocks.values() for run in found}) == 1,
    }  # fmt: skip
    return {"attaching": facts}, cost_figures(blocks, energies)


def _block_facts(found: Sequence[Run], energies: Sequence[float | None]) -> dict[str, object]:
    return {
        "spans_s": [list(run.span_s) for run in found],
        "energy_j": list(energies),
        "step_s": [run.step_s for run in found],
        "rewards": [run.logged("reward") for run in found],
        "losses": [run.logged("loss") for run in found],
        "wall_s": [run.wall_s for run in found],
    }


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
    plain_s, attached_s, plain_j, attached_j = (
        steps[PLAIN],
        steps[ATTACHED],
        joules[PLAIN],
        joules[ATTACHED],
    )
    words = {"n_block": BLOCK_STEPS, "n_pairs": len(blocks[PLAIN])}
    extra_s = [a - p for a, p in zip(attached_s, plain_s, strict=True)]
    return [
        FIGURES.median("gpu_training.plain_step_s", plain_s, words=words),
        FIGURES.median("gpu_training.attached_step_s", attached_s, words=words),
        FIGURES.median("gpu_training.extra_step_s", extra_s, words=words),
        FIGURES.ratio("gpu_training.step_ratio", attached_s, plain_s, words=words),
        FIGURES.median("gpu_training.plain_step_j", plain_j, words=words),
        FIGURES.median("gpu_training.attached_step_j", attached_j, words=words),
        FIGURES.ratio("gpu_training.energy_ratio", attached_j, plain_j, words=words),
    ]
