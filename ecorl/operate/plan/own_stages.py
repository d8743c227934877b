"""What a user's own stages take: from the record of a run, a calibration, or flags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ecorl.errors import ConfigError, RunError
from ecorl.ledger import LedgerReader
from ecorl.operate.levers.step import LONGEST_OVER_MEAN, PricedStep
from ecorl.policy.calibration.calibration import Calibration
from ecorl.records import Action, Provenance, Stage, StageResult, weakest
from ecorl.report.energy.causes import cause_of
from ecorl.report.energy.model import Cause
from ecorl.scheduler.iteration_costs import at_ratio
from ecorl.scheduler.tables import COLUMN


class OwnStages(Protocol):
    """What a user knows of the stages of a step."""

    @property
    def told(self) -> str:
        """What is known and where it comes from, in words."""
        ...

    def applied(self, step: PricedStep) -> PricedStep:
        """Return a priced step with this in place of the model's figures.

        Args:
            step: as the model has priced it.

        Raises:
            ConfigError: for figures that cannot be.
        """
        ...


@dataclass(frozen=True, slots=True)
class MeasuredStages:
    """What each stage takes where the framework computes, as it was measured.

    Attributes:
        time_s: time of a step's executions by stage, s; a stage that is not in it was not measured.
        energy_j: their energy, J; a stage whose energy is not known is not in it.
        source: where they come from, in words.
        provenance: of the energies; None where none is known.
        is_own_step: whether the planned step itself was measured, so that totals count too. Else
            only the sizes of the stages among each other do.
    """

    time_s: Mapping[Stage, float]
    energy_j: Mapping[Stage, float]
    source: str
    provenance: Provenance | None
    is_own_step: bool = False

    @property
    def told(self) -> str:
        """See `OwnStages`."""
        lacking = [str(stage) for stage in self.time_s if stage not in self.energy_j]
        if not self.energy_j:
            return f"time alone of {self.source}, at the power that the model has"
        but = f", that of {', '.join(lacking)} at the model's power" if lacking else ""
        return f"time and energy of {self.source}, energy {self.provenance}{but}"

    def applied(self, step: PricedStep) -> PricedStep:
        """See `OwnStages`.

        Where the energy was not measured it changes with the time: the modelled power, for longer.
        A stage that was not measured keeps its size beside those that were, as the model has it.
        """
        draws = {draw.stage: draw for draw in step.draws}
        times = {stage: t for stage, t in self.time_s.items() if stage in draws}
        if not times:
            names = ", ".join(map(str, draws))
            raise ConfigError("stages", self.source, f"a source that has measured one of {names}")
        mean = sum(times.values()) / sum(float(draws[stage].time_s) for stage in times)
        if self.is_own_step:
            mean = 1.0
        time_s, energy_j = {}, {}
        for stage, draw in draws.items():
            time_s[stage] = times.get(stage, mean * draw.time_s)
            known = self.energy_j.get(stage) if stage in times else None
            energy_j[stage] = known or draw.energy_j * time_s[stage] / draw.time_s
        found = step.with_figures(time_s, energy_j)
        return found if self.is_own_step else found.scaled_to(step.time_s, step.energy_j)


@dataclass(frozen=True, slots=True)
class ToldShares:
    """Shares of stages in a step's time and energy alike, as a person has told them.

    Attributes:
        shares: by stage.
    """

    shares: Mapping[Stage, float]

    @property
    def told(self) -> str:
        """See `OwnStages`."""
        return "time and energy as told with --share"

    def applied(self, step: PricedStep) -> PricedStep:
        """See `OwnStages`."""
        return step.with_shares(self.shares, self.shares)


def stages_of_calibration(fitted: Calibration, length: float) -> MeasuredStages:
    """Read what the stages of a calibrated run take on its GPUs.

    Args:
        fitted: the calibration.
        length: mean completion, tokens.
    """
    row = fitted.table.at(length)

    def figure(stage: Stage, unit: str) -> float:
        if stage is not Stage.GENERATION:
            return float(row[COLUMN[f"{stage}_{unit}"]])
        short, long = (row[COLUMN[f"generation_{end}_{unit}"]] for end in ("short", "long"))
        return float(at_ratio(short, long, LONGEST_OVER_MEAN))

    time, energy = {}, {}
    for stage in Stage:
        time_s, energy_j = figure(stage, "s"), figure(stage, "j")
        if time_s > 0.0 and energy_j > 0.0:  # a table has 0 for a stage that there is not
            time[stage], energy[stage] = time_s, energy_j
    source = f"the calibration of {fitted.run_id}"
    return MeasuredStages(time, energy, source, fitted.provenance, is_own_step=True)


def stages_of_run(folder: Path) -> MeasuredStages:
    """Read what the stages took in a run where its framework computes, means over iterations.

    A stage that ran elsewhere in some iterations counts by its mean over the others. The first
    iteration is left out, since its stages are slower than the rest, and so are evaluations.

    Args:
        folder: of the run.

    Raises:
        RunError: when nothing of it can be used.
        LedgerError: when the record cannot be read.
    """
    with LedgerReader(folder) as reader:
        results = [
            row.result
            for row in reader.executions()
            if not row.superseded
            and row.result.action is Action.GPU
            and row.result.fault is None
            and cause_of(row.result) is not Cause.EVALUATION
        ]
    first = min((result.iteration for result in results), default=0)
    times, joules = _Sums(), _Sums()
    provenances: set[Provenance] = set()
    for result in results:
        if result.iteration == first or result.time_s is None:
            continue
        times.add(result, result.time_s)
        if result.energy is not None and result.energy.energy_j is not None:
            joules.add(result, result.energy.energy_j)
            provenances.add(result.energy.provenance)
    time_s, energy_j = times.means(), joules.means_where_whole(times)
    if not time_s:
        raise RunError(f"{folder}: no stage of the run ran twice where its framework computes")
    provenance = weakest(*provenances) if energy_j else None
    return MeasuredStages(time_s, energy_j, f"run {folder}", provenance)


class _Sums:
    """Sums of a figure by stage and iteration, of all models of the stage."""

    def __init__(self) -> None:
        self._found: dict[Stage, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._counts: dict[tuple[Stage, int], int] = defaultdict(int)

    def add(self, result: StageResult, value: float) -> None:
        """Add the figure of an execution."""
        self._found[result.stage][result.iteration] += value
        self._counts[result.stage, result.iteration] += 1

    def means(self) -> dict[Stage, float]:
        """Means over the iterations; a stage without a figure above 0 is not in it."""
        found = {stage: sum(of.values()) / len(of) for stage, of in self._found.items()}
        return {stage: mean for stage, mean in found.items() if mean > 0.0}

    def means_where_whole(self, others: _Sums) -> dict[Stage, float]:
        """Means over the iterations of which all executions have the figure.

        Args:
            others: sums of a figure that every execution has.
        """
        whole = _Sums()
        for (stage, iteration), n in self._counts.items():
            if n == others._counts[stage, iteration]:
                whole._found[stage][iteration] = self._found[stage][iteration]
        return whole.means()


def told_shares(texts: Iterable[str]) -> ToldShares | None:
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
    return ToldShares(found) if found else None
