"""A calibration from the stages that were measured on a GPU, in place of the roofline's level.

Each stage's cost is the model's, scaled to what was measured of it at the nearest batch: the change
with length and batch stays modelled, the level is the GPU's own. So plans and policies can go by a
GPU of the user's without a whole run on it.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.devices import DeviceProfile, load_profile, stage_cost, titled_profile
from ecorl.errors import ConfigError
from ecorl.policy.calibration.calibration import Calibration, Reach
from ecorl.policy.calibration.fit import FIXED_MIX, Lengths
from ecorl.policy.calibration.queue import NO_OTHER_JOBS
from ecorl.records import NO_ABILITIES, Algorithm, ModelShape, Provenance, Stage, StageWork, weakest
from ecorl.scheduler.tables import COLUMN, CostTable, Setting, length_grid, roofline_table
from ecorl.sim.scenario import Limits
from ecorl.sim.tasks import SHARES, nominal_length

_DENSE = re.compile(r"gpu_stages\.(reward|reference|actor_train)\.b(\d+)x(\d+)\.j_per_token")
_DECODE = re.compile(r"gpu_stages\.generation\.b(\d+)\.j_per_token")
SHAPE_KEYS = ("n_layers", "hidden_size", "intermediate_size", "n_heads", "n_kv_heads", "head_dim",
          "vocab_size", "n_params", "n_params_active")  # fmt: skip
"""Sizes of the model in a result of `benchmarks.gpu_stages`, in the order of `ModelShape`."""

PROMPT_TOKENS, NEW_TOKENS = 256, 256
"""Tokens of a prompt and of its completion in the generation of `benchmarks.gpu_stages`."""

CARD = "u55c"
"""Second device of the calibration; its costs are those of its own model."""

USUAL_ROWS = 128
"""Completions of a batch where a calibration is read from a result and nothing else is told."""

_SHORTEST, _LONGEST = 0.5, 4.0
"""Lengths of the table over the completion that was measured. Invented: a line does not hold for
ever."""

_STAGES = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE, Stage.ACTOR_TRAIN)


@dataclass(frozen=True, slots=True)
class MeasuredLevel:
    """What was measured of a stage, over what the model says of the same work.

    Attributes:
        workload: name of what was measured.
        n_rows: its rows.
        prompt, completion: mean tokens of a row's two parts.
        time, energy: measured over modelled.
        spread: standard deviation of the energy of its windows over their mean; None below two.
        n_windows: how many there were.
    """

    workload: str
    n_rows: int
    prompt: float
    completion: float
    time: float
    energy: float
    spread: float | None
    n_windows: int


def load_calibration(path: Path) -> Calibration:
    """Read a calibration that was saved, or make one of a result of `benchmarks.gpu_stages`.

    Args:
        path: what `Calibration.save` wrote, or a result (``.json``).

    Raises:
        ConfigError: when it cannot be read, or a value in it is not acceptable.
    """
    if path.suffix == ".json":
        return stages_calibration(path, USUAL_ROWS)
    return Calibration.load(path)


def stages_calibration(path: Path, n_rows: int) -> Calibration:
    """Make a calibration of one GPU from a result of `benchmarks.gpu_stages`.

    Args:
        path: the result, JSON.
        n_rows: completions of a batch.

    Raises:
        ConfigError: when it cannot be read, or is of a GPU whose profile is not known.
    """
    result = _read(path)
    config = result["config"]
    gpu = titled_profile(str(config["gpu"]))
    if gpu is None:
        raise ConfigError("results", str(config["gpu"]), "a GPU with a profile", path)
    model = ModelShape(*(int(config["model"][key]) for key in SHAPE_KEYS))
    levels = _levels(result, model, gpu, n_rows)
    rollout = levels[Stage.GENERATION]
    prompt, new = rollout.prompt, rollout.completion
    setting = Setting(
        algorithm=Algorithm.GRPO,
        models={s: with_scalar_head(model) if s is Stage.REWARD else model for s in _STAGES},
        n_rows=n_rows, prompt_length=prompt, gpu=gpu, n_gpus=1, card=load_profile(CARD), n_cards=1,
    )  # fmt: skip
    table = roofline_table(setting, length_grid(_SHORTEST * new, _LONGEST * new, 8))
    idle_w = _figure(result, "gpu_stages.idle_before_w")
    return Calibration(
        run_id=f"{Path(path).parent.name}-{str(result['commit'])[:7]}",
        table=_scaled(table, levels, idle_w),
        algorithm=Algorithm.GRPO,
        with_reference=True,
        n_rows=n_rows,
        prompt_length=prompt,
        max_length=_LONGEST * new,
        gpu=gpu.name,
        n_gpus=1,
        card=CARD,
        n_cards=1,
        lengths=Lengths(tuple(float(s) for s in SHARES), FIXED_MIX, new / nominal_length(), 0.0,
                        0.97, 0.0),
        others=NO_OTHER_JOBS,
        slow=1.0,
        abilities=NO_ABILITIES,
        limits=Limits(),
        counts={f"{stage}_s": level.n_windows for stage, level in levels.items()},
        spreads={
            f"{stage}_s": level.spread
            for stage, level in levels.items()
            if level.spread is not None
        },
        reach=Reach(1, rollout.n_rows, rollout.n_rows, prompt, prompt, new, new,
                    {"all": f"{config['model']['size']}, random weights"}),
    )  # fmt: skip


def measured_work(id: str, model: ModelShape) -> StageWork | None:
    """Return the work that a figure of `benchmarks.gpu_stages` is of; None for other figures.

    Args:
        id: of the figure; energies a token stand for their workload.
        model: shape of the decoder that was measured.
    """
    if found := _DENSE.fullmatch(id):
        stage, rows, length = Stage(found[1]), int(found[2]), int(found[3])
        shape = with_scalar_head(model) if stage is Stage.REWARD else model
        return StageWork(stage, rows, rows * length, rows * length // 2, length, shape)
    if found := _DECODE.fullmatch(id):
        rows = int(found[1])
        length = PROMPT_TOKENS + NEW_TOKENS
        return StageWork(Stage.GENERATION, rows, rows * length, rows * NEW_TOKENS, length, model)
    return None


def with_scalar_head(model: ModelShape) -> ModelShape:
    """The decoder with one score a row in place of the vocabulary's head.

    Args:
        model: with the vocabulary's.
    """
    head = model.hidden_size * (model.vocab_size - 1)
    return replace(model, n_params_active=model.n_params_active - head)


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text("utf-8"))
        if result["benchmark"] != "gpu_stages":
            raise ValueError(f"it is of {result['benchmark']}")
        _ = [result[key] for key in ("figures", "commit")], result["config"]["model"]["size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("results", str(path), f"a result of gpu_stages ({error})") from error
    return dict(result)


def _figure(result: Mapping[str, Any], id: str) -> float | None:
    found = [f["value"] for f in result["figures"] if f["id"] == id and f["value"] is not None]
    return float(found[0]) if found else None


def _levels(
    result: Mapping[str, Any], model: ModelShape, gpu: DeviceProfile, n_rows: int
) -> dict[Stage, MeasuredLevel]:
    """Find what was measured of each stage at the batch that is nearest."""
    found: dict[Stage, tuple[float, MeasuredLevel]] = {}
    for id in (f["id"] for f in result["figures"]):
        work = measured_work(id, model)
        if work is None:
            continue
        name = id.removeprefix("gpu_stages.").removesuffix(".j_per_token")
        energy_j, tokens_per_s = (
            _figure(result, f"gpu_stages.{name}.{unit}") for unit in ("j_per_token", "tokens_per_s")
        )
        cost = stage_cost(work, gpu)
        if energy_j is None or tokens_per_s is None or not cost.time_s or not cost.energy_j:
            continue
        n_tokens = work.n_output_tokens if work.stage is Stage.GENERATION else work.n_tokens
        windows = result["config"]["workloads"].get(name, {})
        per_call = [
            e / c
            for e, c in zip(windows.get("energy_j", ()), windows.get("calls", ()), strict=True)
        ]
        level = MeasuredLevel(
            workload=name,
            n_rows=work.n_sequences,
            prompt=(work.n_tokens - work.n_output_tokens) / work.n_sequences,
            completion=work.n_output_tokens / work.n_sequences,
            time=n_tokens / tokens_per_s / cost.time_s,
            energy=energy_j * n_tokens / cost.energy_j,
            spread=_spread(per_call),
            n_windows=len(per_call),
        )
        off = abs(math.log(work.n_sequences / n_rows))
        if work.stage not in found or off < found[work.stage][0]:
            found[work.stage] = off, level
    lacking = [str(stage) for stage in _STAGES if stage not in found]
    if lacking:
        raise ConfigError("results", ", ".join(lacking), "a result that has measured all stages")
    return {stage: level for stage, (_, level) in found.items()}


def _spread(values: list[float]) -> float | None:
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None


def _scaled(
    table: CostTable, levels: Mapping[Stage, MeasuredLevel], idle_w: float | None
) -> CostTable:
    values = np.array(table.values)
    for stage, level in levels.items():
        names = ("generation_short", "generation_long")
        for name in names if stage is Stage.GENERATION else (str(stage),):
            values[:, COLUMN[f"{name}_s"]] *= level.time
            values[:, COLUMN[f"{name}_j"]] *= level.energy
    told = "; ".join(
        f"{stage} {level.time:.2f} of the modelled time and {level.energy:.2f} of the energy "
        f"({level.workload})"
        for stage, level in levels.items()
    )
    return replace(
        table,
        values=values,
        gpu_idle_w=table.gpu_idle_w if idle_w is None else idle_w,
        provenance=weakest(Provenance.MEASURED, table.provenance),
        notes=(
            f"levels of the stages measured on the GPU: {told}",
            "their change with length and batch, and the second device, are modelled",
            *table.notes,
        ),
    )
