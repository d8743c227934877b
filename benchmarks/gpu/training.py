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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.figures import power_figure, window_facts
from benchmarks.gpu.loads.grpo import FULL, GrpoTraining, free, logged
from benchmarks.gpu.loads.training_runs import (
    ATTACHED,
    BENCHMARK,
    BLOCK_STEPS,
    PLAIN,
    WARM_UP,
    Run,
    Runs,
    attached_config,
)
from benchmarks.gpu.run.attempts import attempt, reason
from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.meter import EnergyMeter
from benchmarks.gpu.sensing.tracer import COUNTER, Order, Tracer
from benchmarks.gpu.sensing.traces import TracePoint, counted_energy
from benchmarks.gpu.training_figures import (
    COST_UNITS,
    cost_figures,
    lacking,
    stage_figures,
    stage_units,
)
from benchmarks.harness.figures import Figure, missing
from ecorl.bench.rounds import balanced_order
from ecorl.bench.tokens_per_joule.reading.quality import WindowEnergy, window_energy
from ecorl.files import write_whole
from ecorl.ledger import LedgerReader
from ecorl.records import Provenance
from ecorl.report import build_report, read_config
from ecorl.report.energy.windows import step_windows
from ecorl.report.render.page import render_html
from roll_adapters.trl.inputs.quiet import quiet

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


def measure(setting: Setting) -> Measured:
    """Measure the training.

    Args:
        setting: of the part.
    """
    # Read when CUDA starts: without it products of matrices may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with tempfile.TemporaryDirectory(prefix="ecorl-gpu-training-") as name, quiet():
        folder = Path(name)
        runs = Runs(GrpoTraining(setting, folder / "policy", FULL, torch.bfloat16), folder, setting)
        idle, uuid, config = _idle(runs)
        figures = [idle]
        for what, section, units in (
            ("plain and attached from one seed", equal_bits, {"equal_bits": "1"}),
            ("joules by stage", stage_energies, stage_units()),
            ("what attaching costs", partial(attaching_cost, uuid=uuid), COST_UNITS),
        ):
            setting.tell(what)
            facts, found = _guarded(section, units, runs)
            config |= facts
            figures += found
    return config, figures


def _guarded(section: Callable[[Runs], Measured], units: Mapping[str, str], runs: Runs) -> Measured:
    """A section's result; where it fails its figures are missing, and the others go on."""
    result, error = attempt(lambda: section(runs))
    if result is not None:
        return result
    why = "no result" if error is None else reason(error)
    del error  # it holds what the section held
    free(runs.setting)
    return {}, lacking(units, why)


def _idle(runs: Runs) -> tuple[Figure, str, dict[str, object]]:
    """Power with the models loaded and nothing running, the GPU's UUID, and the first settings."""
    setting = runs.setting
    trainer = runs.training.trainer(1)
    with EnergyMeter(setting.synchronize) as meter:
        window = meter.idle(REHEARSED_IDLE_S if setting.is_rehearsal else IDLE_S)
        uuid = meter.device.uuid
        config: dict[str, object] = {
            "gpu": meter.device.name,
            "training": runs.training.size.facts(),
            "warm_up_steps": WARM_UP,
            "idle": window_facts([window]),
        }
    del trainer
    free(setting)
    note = "policy, reference and reward model are loaded, nothing runs"
    return power_figure(f"{BENCHMARK}.idle_w", window, note), uuid, config


# ---------------------------------------------------------------- equal bits


def equal_bits(runs: Runs) -> Measured:
    """Train plain and attached from one seed, and compare all that is logged and all weights.

    Args:
        runs: trains.
    """
    id = f"{BENCHMARK}.equal_bits"
    plain, unfixed = _first_plain(runs)
    again: Run | None = None
    with _deterministic(warn_only=unfixed is not None):
        other = runs.run(EQUAL_STEPS, attached_config(), "equal-attached", weights=True)
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
        return {"equal_bits": facts}, [missing(id, "1", why)]
    note = (
        f"1: logs and weights after {EQUAL_STEPS} steps are equal to the last bit, 0: they differ"
    )
    found = Figure(id, float(is_equal), "1", Provenance.MEASURED, note=note)
    return {"equal_bits": facts}, [found]


def _first_plain(runs: Runs) -> tuple[Run, str | None]:
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


def stage_energies(runs: Runs) -> Measured:
    """Train an attached block, read the joules of its stages from its record, and keep its report.

    Args:
        runs: trains.
    """
    # At each edge of a short stage the counter is interpolated between its two readings around it.
    config = attached_config(interval_s=0.05, counter_interval_s=0.0)
    if not runs.has_room(1):
        return {}, lacking(stage_units(), NO_TIME)
    run = runs.block(config, "stages")
    run_dir = runs.folder / "stages"
    with LedgerReader(run_dir) as reader:
        known = read_config(reader.run(), run_dir)
        write_whole(runs.setting.folder / PAGE, render_html(build_report(reader, known)))
        reader = reader.short_ids()
        drawn = window_energy(reader, step_windows(reader, WARM_UP), None)
    facts = {"steps": BLOCK_STEPS, "step_s": run.step_s, **_record_facts(drawn)}
    return {"stages": facts}, stage_figures(drawn)


def _record_facts(drawn: WindowEnergy) -> dict[str, object]:
    return {
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


# ---------------------------------------------------------------- what attaching costs


def attaching_cost(runs: Runs, uuid: str) -> Measured:
    """Train plain and attached blocks in turns, as many as there is time for.

    Args:
        runs: trains.
        uuid: of the GPU.
    """
    n_pairs = REHEARSED_PAIRS if runs.setting.is_rehearsal else MAX_PAIRS
    blocks: dict[str, list[Run]] = {PLAIN: [], ATTACHED: []}
    configs = {PLAIN: None, ATTACHED: attached_config()}
    with Tracer(Order(uuid, (), COUNTER_S)) as tracer:
        time.sleep(0.3)  # the counter has changed before the first block begins
        for number, order in enumerate(balanced_order((PLAIN, ATTACHED), n_pairs)):
            if not runs.has_room(2):
                break
            for arm in order:
                blocks[arm].append(runs.block(configs[arm], f"{arm}-{number}"))
        time.sleep(0.3)
    if not blocks[PLAIN]:
        return {}, lacking(COST_UNITS, NO_TIME)
    points = tracer.trace.points.get(COUNTER, [])
    energies = {arm: [_energy_j(points, run) for run in found] for arm, found in blocks.items()}
    facts = {
        "pairs": len(blocks[PLAIN]),
        "steps_of_a_block": BLOCK_STEPS,
        "order": "ABBA",
        **{arm: _block_facts(blocks[arm], energies[arm]) for arm in blocks},
        "same_rewards": len({str([row["reward"] for row in run.rows])
                             for found in blocks.values() for run in found}) == 1,
    }  # fmt: skip
    return {"attaching": facts}, cost_figures(blocks, energies)


def _energy_j(points: Sequence[TracePoint], run: Run) -> float | None:
    return counted_energy(points, *run.span_s)


def _block_facts(found: Sequence[Run], energies: Sequence[float | None]) -> dict[str, object]:
    return {
        "spans_s": [list(run.span_s) for run in found],
        "energy_j": list(energies),
        "step_s": [run.step_s for run in found],
        "rewards": [logged(run.rows, "reward") for run in found],
        "losses": [logged(run.rows, "loss") for run in found],
        "wall_s": [run.wall_s for run in found],
    }
