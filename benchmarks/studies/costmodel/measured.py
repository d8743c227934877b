"""Stages that this project measured on a GPU, beside what the cost model says of them.

No published point tells what scoring and training take, so that the shares of the peak which they
reach are assumed, with an interval. What `benchmarks.gpu_stages` measured stands beside them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecorl.devices import DeviceProfile, cheapest, dearest, stage_cost
from ecorl.errors import ConfigError
from ecorl.policy.calibration.stages import SHAPE_KEYS, measured_work
from ecorl.records import ModelShape, Stage, StageWork


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """Energy of one stage, measured and by the cost model.

    Attributes:
        work: rows, tokens and model of the stage.
        measured_j: energy a token, J; of generation a new token, else a token of a row.
        modelled_j: the same by the profile.
        low_j, high_j: the same with the profile's figures at the ends of their intervals.
    """

    work: StageWork
    measured_j: float
    modelled_j: float
    low_j: float
    high_j: float

    @property
    def error(self) -> float:
        """Modelled over measured, less 1."""
        return self.modelled_j / self.measured_j - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the modelled interval."""
        return self.low_j <= self.measured_j <= self.high_j


def measured_stages(path: Path, profile: DeviceProfile) -> list[MeasuredStage]:
    """Read a result of `benchmarks.gpu_stages` and model each of its stages.

    Args:
        path: the result, JSON.
        profile: of the GPU that it was measured on.

    Raises:
        ConfigError: when it cannot be read.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
        sizes = result["config"]["model"]
        model = ModelShape(*(int(sizes[key]) for key in SHAPE_KEYS))
        values = {figure["id"]: figure["value"] for figure in result["figures"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("results", str(path), f"a result of gpu_stages ({error})") from error
    works = [(work, values[id]) for id in values if (work := measured_work(id, model)) is not None]
    return [_modelled(work, value, profile) for work, value in works if value is not None]


def dense(stages: Sequence[MeasuredStage]) -> list[MeasuredStage]:
    """Those whose passes take whole rows: scoring and training."""
    return [stage for stage in stages if stage.work.stage is not Stage.GENERATION]


def _modelled(work: StageWork, measured_j: float, profile: DeviceProfile) -> MeasuredStage:
    n_tokens = work.n_output_tokens if work.stage is Stage.GENERATION else work.n_tokens
    found = []
    for each in (profile, cheapest(profile), dearest(profile)):
        cost = stage_cost(work, each)
        if cost.energy_j is None:
            raise ConfigError("profile", profile.name, f"one by which {work.stage} is priced")
        found.append(cost.energy_j / n_tokens)
    return MeasuredStage(work, measured_j, *found)
