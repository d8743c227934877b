"""The result of a benchmark: its runs' figures with where they were taken, as JSON, and joined.

Results of two devices, drivers or configs are refused, and so is the same arm and seed twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ecorl.bench.tokens_per_joule.arms import BASELINE
from ecorl.bench.tokens_per_joule.plan import Stand, stand_from
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.quality import QualityTarget, common_target
from ecorl.bench.tokens_per_joule.running.folder import KIND, idle_from
from ecorl.bench.tokens_per_joule.running.idle import IdleReading
from ecorl.bench.tokens_per_joule.running.known_truth import KnownTruth
from ecorl.errors import DataError

FORMAT = 1
"""Raised with every change of the file that an earlier reader could not read."""


@dataclass(frozen=True, slots=True)
class ArmEntry:
    """An arm in a result; see `ecorl.bench.tokens_per_joule.arms.BenchArm`."""

    name: str
    placement: str
    extra: str
    why: str


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All that a benchmark found.

    Attributes:
        stand: where and with what it ran.
        commits: of the sources of all results that were joined.
        plan: what was run, plain data.
        arms: in the order in which they are shown, those that were not run among them.
        runs: an arm and seed each; without figures where a run failed.
        supervised: trainings of the same policy on reference answers.
        idle: what the idle machine drew.
        known_truth: a run whose energy is known; None where there was none.
        targets: the held-out reward and correctness that arms are to reach.
    """

    stand: Stand
    commits: tuple[str, ...]
    plan: Mapping[str, Any]
    arms: tuple[ArmEntry, ...]
    runs: tuple[RunFigures, ...]
    supervised: tuple[RunFigures, ...] = ()
    idle: tuple[IdleReading, ...] = ()
    known_truth: KnownTruth | None = None
    targets: tuple[QualityTarget, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of all runs, in order."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def baseline(self) -> str:
        """The arm that others are held against: GPU only, or the first where that was not run."""
        names = [arm.name for arm in self.arms if not arm.why]
        return BASELINE if BASELINE in names or not names else names[0]

    def of(self, arm: str) -> list[RunFigures]:
        """The runs of an arm that have figures, in the order of seeds."""
        return [run for run in self.runs if run.arm == arm and not run.missing]

    def target(self, measure: str) -> QualityTarget | None:
        """The quality that arms are to reach, ``reward`` or ``correct``."""
        return next((t for t in self.targets if t.measure == measure), None)


def targets_of(
    runs: Sequence[RunFigures], reward: float | None, correct: float | None
) -> tuple[QualityTarget, ...]:
    """The targets that are asked for, else the highest that all runs reach.

    Args:
        runs: of all arms.
        reward: held-out reward that is asked for.
        correct: share of right answers that is asked for, 0 to 1.
    """
    known = [run for run in runs if not run.missing]
    return tuple(
        common_target(known, name) if value is None else QualityTarget(name, value, "as asked for")
        for name, value in (("reward", reward), ("correct", correct))
    )


# ---------------------------------------------------------------- JSON

_RUNS: TypeAdapter[tuple[RunFigures, ...]] = TypeAdapter(tuple[RunFigures, ...])
_ARMS: TypeAdapter[tuple[ArmEntry, ...]] = TypeAdapter(tuple[ArmEntry, ...])
_TARGETS: TypeAdapter[tuple[QualityTarget, ...]] = TypeAdapter(tuple[QualityTarget, ...])


def result_json(result: BenchResult) -> str:
    """Write a result as JSON text; missing figures are null."""
    data = {
        "benchmark": KIND,
        "format": FORMAT,
        "stand": asdict(result.stand),
        "commits": list(result.commits),
        "plan": dict(result.plan),
        "arms": _ARMS.dump_python(result.arms, mode="json"),
        "targets": _TARGETS.dump_python(result.targets, mode="json"),
        "idle": [asdict(reading) for reading in result.idle],
        "known_truth": None if result.known_truth is None else asdict(result.known_truth),
        "runs": _run_data(result.runs),
        "supervised": _run_data(result.supervised),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


_DERIVED = (
    "tokens_per_j", "tokens_per_j_with_card", "j_per_sample", "j_per_sample_with_card",
    "samples_per_s", "samples_per_s_with_card", "bubble", "bubble_with_card", "idle_share",
    "carbon_g_with_card",
)  # fmt: skip


def _run_data(runs: tuple[RunFigures, ...]) -> list[dict[str, Any]]:
    """Plain data of runs, with what follows from their figures."""
    plain = _RUNS.dump_python(runs, mode="json")
    return [{**data, "derived": _derived(run)} for run, data in zip(runs, plain, strict=True)]


def _without_derived(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in run.items() if key != "derived"} for run in runs]


def _derived(run: RunFigures) -> dict[str, float | None]:
    """What follows from a run's figures, for whoever reads the file without this package."""
    return {name: getattr(run, name) for name in _DERIVED}


def read_result(path: Path) -> BenchResult:
    """Read a result.

    Args:
        path: the JSON file.

    Raises:
        DataError: when it cannot be read or is something else.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("benchmark") != KIND:
        raise DataError(f"{path}: is no result of ecorl bench tokens-per-joule")
    if data.get("format") != FORMAT:
        raise DataError(f"{path}: has format {data.get('format')}, this program reads {FORMAT}")
    try:
        told = data["known_truth"]
        return BenchResult(
            stand=stand_from(data["stand"]),
            commits=tuple(data["commits"]),
            plan=data["plan"],
            arms=_ARMS.validate_python(data["arms"]),
            runs=_RUNS.validate_python(_without_derived(data["runs"])),
            supervised=_RUNS.validate_python(_without_derived(data["supervised"])),
            idle=tuple(idle_from(one) for one in data["idle"]),
            known_truth=None if told is None else KnownTruth(**told),
            targets=_TARGETS.validate_python(data["targets"]),
        )
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        line = str(error).splitlines()[0]
        raise DataError(f"{path}: is damaged ({line})") from error


def joined(results: Sequence[BenchResult], names: Sequence[str]) -> BenchResult:
    """Join the results of one device, driver and config, of several sessions or seeds.

    Targets that were not asked for are found anew over all runs.

    Args:
        results: one at least.
        names: what to call each, for the errors.

    Raises:
        DataError: when two are of another device, driver or config, or hold the same run.
    """
    first = results[0]
    for other, name in zip(results[1:], names[1:], strict=True):
        found = first.stand.differences(other.stand)
        if found:
            told = " and of ".join(found)
            raise DataError(f"{name}: is of {told}, and cannot be joined with {names[0]}")
        if other.stand.unit is None:
            told = "which machine it is of is not known (no /etc/machine-id)"
            raise DataError(f"{name}: {told}, and it cannot be joined with {names[0]}")
    kept = _each_once([result.runs for result in results], names)
    arms = {arm.name: arm for result in results for arm in result.arms if arm.why}
    arms |= {arm.name: arm for result in reversed(results) for arm in result.arms if not arm.why}
    return replace(
        first,
        commits=tuple(dict.fromkeys(c for result in results for c in result.commits)),
        arms=tuple(arms[name] for name in dict.fromkeys(a.name for r in results for a in r.arms)),
        runs=kept,
        supervised=_each_once([result.supervised for result in results], names),
        idle=tuple(reading for result in results for reading in result.idle),
        known_truth=_worse([result.known_truth for result in results]),
        targets=targets_of(kept, first.plan.get("reward"), first.plan.get("correct")),
    )


def _each_once(
    found: Sequence[tuple[RunFigures, ...]], names: Sequence[str]
) -> tuple[RunFigures, ...]:
    """The runs of several results; of a run without figures that of another result, if any.

    Raises:
        DataError: when two have figures of the same run.
    """
    kept: dict[tuple[str, int], RunFigures] = {}
    owner: dict[tuple[str, int], str] = {}
    for runs, name in zip(found, names, strict=True):
        for run in runs:
            key = run.arm, run.seed
            if run.missing:
                kept.setdefault(key, run)
                continue
            if key in owner:
                raise DataError(
                    f"{name}: holds {run.arm} with seed {run.seed}, as {owner[key]} does"
                )
            kept[key], owner[key] = run, name
    return tuple(kept.values())


def _worse(found: Sequence[KnownTruth | None]) -> KnownTruth | None:
    known = [one for one in found if one is not None and one.error is not None]
    return max(known, key=lambda one: one.error or 0.0, default=next(iter(found), None))
