"""What a user's own stages take: from the record of a run, a calibration, or flags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import ConfigError, RunError
from ecorl.ledger import LedgerReader
from ecorl.operate.levers.step import LONGEST_OVER_MEAN, Step
from ecorl.policy.calibration.calibration import Calibration
from ecorl.records import Action, Provenance, Stage, weakest
from ecorl.scheduler.iteration_costs import at_ratio
from ecorl.scheduler.tables import COLUMN


@dataclass(frozen=True, slots=True)
class StageShares:
    """What each stage of a user's step takes where the framework computes.

    Attributes:
        time: share of the time by stage; with `is_absolute` the time itself, s.
        energy: share of the energy by stage, or the energy, J; empty where some of it is unknown.
        source: where they come from, in words.
        provenance: of the energy; None where there is none, or the user has told it.
        n_iterations: iterations behind them; 0 where the user has told them.
        is_absolute: whether the figures are times and energies of the job's own step, not shares.
    """

    time: Mapping[Stage, float]
    energy: Mapping[Stage, float]
    source: str
    provenance: Provenance | None = None
    n_iterations: int = 0
    is_absolute: bool = False

    def applied(self, step: Step) -> Step:
        """Return a priced step with these figures in place of the model's.

        Stages that the step does not have are left out.

        Args:
            step: as the model has priced it.

        Raises:
            ConfigError: for shares that cannot be.
        """
        known = {draw.stage for draw in step.draws}
        time = {stage: value for stage, value in self.time.items() if stage in known}
        energy = {stage: value for stage, value in self.energy.items() if stage in known}
        if self.is_absolute:
            return step.with_figures(time, energy)
        if self.n_iterations:
            time, energy = _whole(time), _whole(energy)
        return step.with_shares(energy or time, time or energy)


def _whole(shares: Mapping[Stage, float]) -> dict[Stage, float]:
    """Scale shares of a run to 1, where it has had further stages."""
    total = sum(shares.values())
    return {stage: value / total for stage, value in shares.items()} if total > 0.0 else {}


def shares_of_calibration(fitted: Calibration, length: float) -> StageShares:
    """Read what the stages of a calibrated run take on its GPUs.

    Args:
        fitted: the calibration.
        length: mean completion, tokens.
    """
    row = fitted.table.at(length)
    time, energy = {}, {}
    for stage in Stage:
        if stage is Stage.GENERATION:
            short, long = (row[COLUMN[f"generation_{end}_s"]] for end in ("short", "long"))
            time_s = at_ratio(short, long, LONGEST_OVER_MEAN)
            short, long = (row[COLUMN[f"generation_{end}_j"]] for end in ("short", "long"))
            energy_j = at_ratio(short, long, LONGEST_OVER_MEAN)
        else:
            time_s, energy_j = row[COLUMN[f"{stage}_s"]], row[COLUMN[f"{stage}_j"]]
        if time_s > 0.0 and energy_j > 0.0:
            time[stage], energy[stage] = float(time_s), float(energy_j)
    return StageShares(
        time, energy, f"calibration of run {fitted.run_id}", fitted.provenance, is_absolute=True
    )


def shares_of_run(folder: Path) -> StageShares:
    """Read the shares of the stages that ran where the framework computes.

    A stage that ran elsewhere in some iterations counts by its mean over the others. The first
    iteration is left out: its stages are slower than the rest.

    Args:
        folder: of the run.

    Raises:
        RunError: when nothing of it can be used.
        LedgerError: when the record cannot be read.
    """
    times: dict[Stage, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    joules: dict[Stage, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    provenances: set[Provenance] = set()
    unknown = False
    with LedgerReader(folder) as reader:
        rows = [row for row in reader.executions() if not row.superseded]
    first = min((row.result.iteration for row in rows), default=0)
    for row in rows:
        result = row.result
        if result.action is not Action.GPU or result.iteration == first or result.fault is not None:
            continue
        if result.time_s is None:
            continue
        times[result.stage][result.iteration] += result.time_s
        if result.energy is None or result.energy.energy_j is None:
            unknown = True
        else:
            joules[result.stage][result.iteration] += result.energy.energy_j
            provenances.add(result.energy.provenance)
    if not times:
        raise RunError(f"{folder}: no stage of the run ran twice where its framework computes")
    return StageShares(
        time=_shares(times),
        energy={} if unknown else _shares(joules),
        source=f"run {folder}",
        provenance=None if unknown or not provenances else weakest(*provenances),
        n_iterations=max(len(of) for of in times.values()),
    )


def _shares(found: Mapping[Stage, Mapping[int, float]]) -> dict[Stage, float]:
    means = {stage: sum(of.values()) / len(of) for stage, of in found.items()}
    total = sum(means.values())
    return {stage: value / total for stage, value in means.items()} if total > 0.0 else {}


def shares_of_texts(texts: Iterable[str]) -> StageShares | None:
    """Read shares that a person typed, as in ``generation=0.7``; None where there are none.

    Args:
        texts: one a stage; they stand for time and energy alike.

    Raises:
        ConfigError: for what is no share of a stage, or one that is given twice.
    """
    found: dict[Stage, float] = {}
    names = [str(stage) for stage in Stage]
    for text in texts:
        name, _, value = text.partition("=")
        try:
            stage, share = Stage(name.strip()), float(value)
        except ValueError as error:
            allowed = f"STAGE=SHARE with a share of 0 to 1 and a stage of {', '.join(names)}"
            raise ConfigError("--share", text, allowed) from error
        if stage in found or not 0.0 <= share <= 1.0:
            raise ConfigError("--share", text, "a share of 0 to 1, each stage once")
        found[stage] = share
    return StageShares(found, found, "as told") if found else None
