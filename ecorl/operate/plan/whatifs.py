"""A grid of what-ifs: the same question for many jobs, from a file that lists values by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ecorl.config import read_toml
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.operate.levers.choice import LeverLimits
from ecorl.operate.levers.study import lever_study
from ecorl.operate.plan.job import PlannedJob, checked_value, job_keys
from ecorl.sim.scenario import Scenario

MOST = 2_000
"""Jobs that one file may ask for: some minutes of work."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One job of a grid and what is worth changing in it. None is missing, `why` says why.

    Attributes:
        values: what the file lists, by key.
        algorithm: of the trainer.
        time_s, energy_j, tokens_per_joule: of a step on the GPUs alone.
        offload_saved_share: what the best placement on the second devices saves of the energy.
        levers_saved_share: what all levers save.
        why: why figures are missing; empty otherwise.
    """

    values: Mapping[str, Any]
    algorithm: str
    time_s: float | None = None
    energy_j: float | None = None
    tokens_per_joule: float | None = None
    offload_saved_share: float | None = None
    levers_saved_share: float | None = None
    why: str = ""


def what_if_grid(path: Path, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read a grid; every key of a job may hold a value or a list of values.

    Args:
        path: the TOML file.
        given: values of options, which go before the file's; None where one was not given.

    Returns:
        The keys of each job, in the order of the file, the last key changing fastest.

    Raises:
        ConfigError: for a file that cannot be read, an unknown key, a wrong value, or too many
            jobs.
    """
    data, keys = read_toml(path, "--what-ifs"), job_keys()
    lists: dict[str, list[Any]] = {}
    for key, value in data.items():
        if key not in keys:
            raise ConfigError(key, value, f"one of {keys}", path)
        values = value if isinstance(value, list) else [value]
        if not values:
            raise ConfigError(key, value, "one value or more", path)
        lists[key] = [checked_value(key, one, path) for one in values]
    lists |= {key: [value] for key, value in given.items() if value is not None}
    n = 1
    for values in lists.values():
        n *= len(values)
    if n > MOST:
        raise ConfigError("--what-ifs", f"{n:,} jobs", f"{MOST:,} at most", path)
    return [dict(zip(lists, row, strict=True)) for row in product(*lists.values())]


def what_ifs(grid: list[dict[str, Any]], limits: LeverLimits) -> Iterator[WhatIf]:
    """Answer for each job of a grid, one row an algorithm.

    Args:
        grid: from `what_if_grid`.
        limits: what may be done to a step.

    Raises:
        ConfigError: for a value that no job can have.
    """
    for values in grid:
        job = PlannedJob(**values)
        try:
            rows = [_row(values, names, one, job.length, limits)
                    for names, one in job.scenarios(1).items()]  # fmt: skip
        except (ConfigError, PhysicalBoundError) as error:
            rows = [WhatIf(values, job.algorithm or "", why=str(error))]
        yield from rows


def _row(
    values: Mapping[str, Any], names: str, scenario: Scenario, length: float, limits: LeverLimits
) -> WhatIf:
    setting = scenario.setting
    study = lever_study(setting, length, limits=limits)
    step = study.step
    return WhatIf(
        values,
        names,
        step.time_s,
        step.energy_j,
        step.n_tokens / step.energy_j,
        study.devices[0].saved_share if study.devices else None,
        study.together.value,
        "; ".join(scenario.table.notes),
    )
