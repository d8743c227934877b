"""Gears and widths of the training stage in a report; a missing figure is None."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ecorl.control import SIMULATED, Gear
from ecorl.records import Provenance, Stage


class ShareLimit(StrEnum):
    """The setting that bounds the share of tokens in low precision."""

    SHARE = "carbon.control.low_share"
    NOISE = "gears.noise_budget"


def is_simulated(gear: str | None) -> bool:
    """Whether a gear of the record was simulated.

    Args:
        gear: its name in the record; None: as the framework has it.
    """
    return gear is not None and gear.endswith(SIMULATED)


def is_low(gear: str | None) -> bool:
    """Whether a cap on the share of tokens in low precision counts a gear of the record.

    Args:
        gear: its name in the record; None: as the framework has it.
    """
    format_ = (gear or "").removesuffix(SIMULATED)
    return format_ in list(Gear) and Gear(format_).is_low


@dataclass(frozen=True, slots=True)
class GearRow:
    """Optimizer steps in one gear and width whose figures share provenances.

    A step that was redone counts whole, its attempt in vain included, to the gear in which it was
    computed in the end; ``j_per_token`` and ``tokens_per_s`` are over the other steps alone.

    Attributes:
        stage: whose steps they are: the actor's or the critic's.
        gear: its name in the record; None: as the framework has it.
        simulated: whether it was rounded like its format on units of another one.
        width: workers; None where nobody counted them.
        time_provenance: of ``time_s`` and ``tokens_per_s``.
        energy_provenance: of ``energy_j`` and ``j_per_token``; None where no step has an energy.
        n_executions: of which the steps consist: micro-batches.
        n_tokens: tokens that passed through the model; 0 where nobody counted them.
        token_share: of all tokens of the stage, 0 to 1; None where nobody counted them.
        n_redone: steps that were redone in this gear after an overflow in another one.
        time_s: over the ``n_timed`` steps that have one, s.
        energy_j: over the ``n_with_energy`` steps that have one, J.
    """

    stage: Stage
    gear: str | None
    simulated: bool
    width: int | None
    time_provenance: Provenance
    energy_provenance: Provenance | None
    n_steps: int
    n_executions: int
    n_tokens: int
    token_share: float | None
    n_redone: int
    n_timed: int
    time_s: float | None
    n_with_energy: int
    energy_j: float | None
    j_per_token: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class GearShifts:
    """Shifts from one gear to another between two steps, and what the first step after them took.

    Attributes:
        n: how many.
        n_timed: those whose first step is timed by a clock and was not redone.
        median_extra_s, most_extra_s: time of that step beyond the median of the gear's other
            steps, s, measured; below 0 it was faster. None without one.
    """

    n: int
    n_timed: int
    median_extra_s: float | None
    most_extra_s: float | None


@dataclass(frozen=True, slots=True)
class WidthChanges:
    """Changes of the number of workers between two steps.

    Attributes:
        n: how many.
        n_timed: those of which the record tells what they took; together ``total_s``, the median
            of them ``median_s``, the longest ``most_s``, s, measured.
        told: what the record notes about each of them.
    """

    n: int
    n_timed: int
    total_s: float | None
    median_s: float | None
    most_s: float | None
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LowPrecision:
    """The share of the tokens in low precision, and what bounds it.

    Attributes:
        share: of all tokens that were trained on, 0 to 1; None where nobody counted them.
        limit: the largest share allowed in the end, 0 to 1; None where no config tells.
        binds: which setting that follows from; None where nothing bounds it.
        low_share: ``carbon.control.low_share``; None without a config.
        noise_budget: ``gears.noise_budget``; None: there is none.
        noise_ratio: the newest gradient noise ratio that the budget is held against; None: it was
            not measured.
    """

    share: float | None
    limit: float | None
    binds: ShareLimit | None
    low_share: float | None
    noise_budget: float | None
    noise_ratio: float | None


@dataclass(frozen=True, slots=True)
class GearAccuracy:
    """The newest measurements of how a gear is off from another one and from the rollout.

    Attributes:
        gear: the numeric format, simulated or not.
        noise_ratio: standard deviation of the gradient over that in ``reference``, of
            ``noise_iteration``.
        mismatch: mean ratio of token probabilities between trainer and rollout, of
            ``mismatch_iteration``.
        mismatch_limit: ``gears.mismatch_limit``; None without a config.
        reference: the gear that noise is held against; None without a config.
    """

    gear: str
    noise_ratio: float | None
    noise_iteration: int | None
    mismatch: float | None
    mismatch_iteration: int | None
    mismatch_limit: float | None
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class GearMeasurements:
    """What measuring noise and mismatch took; nothing was trained in them.

    Attributes:
        n: how many; ``n_inside`` of them were within the time of a step that trained, whose figures
            they are a part of, and have no energy of their own.
        time_s: of all of them, s, measured.
        energy_j: of the ``n_with_energy`` that have one, J.
        energy_provenance: the weakest of them; None without one.
    """

    n: int
    time_s: float | None
    n_with_energy: int
    energy_j: float | None
    energy_provenance: Provenance | None
    n_inside: int


@dataclass(frozen=True, slots=True)
class OldLogProbs:
    """Forward passes for old log-probabilities, which compute in no gear and train on nothing.

    Attributes:
        n: how many.
        time_s: over those that have one, s; None without any. It is ``time_provenance``.
        energy_j: of the ``n_with_energy`` that have one, J; None without any.
        energy_provenance: the weakest of them; None without one.
    """

    n: int
    time_s: float | None
    time_provenance: Provenance
    n_with_energy: int
    energy_j: float | None
    energy_provenance: Provenance | None


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Whether the run trained what it had to, and in time.

    Attributes:
        n_steps_done, n_steps_planned: of the run; None where no plan is known.
        deadline_unix_s: by which training had to be over, s since 1970; None without one.
        ended_unix_s: when training was over; None where the record does not tell.
        is_kept: whether all steps were done by the deadline; None: not known, or no deadline.
    """

    n_steps_done: int
    n_steps_planned: int | None
    deadline_unix_s: float | None
    ended_unix_s: float | None
    is_kept: bool | None


@dataclass(frozen=True, slots=True)
class FixedStage:
    """The training stage as it ran, against all of it in its first gear and width.

    Attributes:
        gear, width: of the first step; None: as the framework has it, or nobody counted.
        n_steps: steps in them that could give ``j_per_token``: not the first of an attempt.
        j_per_token: over those steps, J/token; None where they are too few.
        drew_j: of all steps that have an energy, J; None without any.
        would_j: ``j_per_token`` times the tokens of these steps, J.
        measuring_j: what measuring the gears drew beside them, J; 0 where nothing was measured,
            None where that is unknown.
        n_left_out: steps without an energy or tokens, which are in neither figure.
        n_changes: changes of the width, whose energy is in no figure; ``n_changes_timed`` of them
            are known to have taken ``changes_s``, s, measured.
        at_most: whether something is missing from what was drawn, so that no more was saved.
        provenance: modelled, or weaker where an energy is; None without one.
    """

    gear: str | None
    width: int | None
    n_steps: int
    j_per_token: float | None
    drew_j: float | None
    would_j: float | None
    measuring_j: float | None
    n_left_out: int
    n_changes: int
    n_changes_timed: int
    changes_s: float | None
    at_most: bool
    provenance: Provenance | None

    @property
    def saved_j(self) -> float | None:
        """What shifting saved, J; below 0 it cost more. None where it is unknown."""
        if self.would_j is None or self.drew_j is None or self.measuring_j is None:
            return None
        return self.would_j - self.drew_j - self.measuring_j


@dataclass(frozen=True, slots=True)
class PriceTable:
    """The table of the config by which gears and widths were chosen between.

    Attributes:
        path: ``carbon.control.table``.
        provenance: of its figures; None where it cannot be read any more.
        source: where they come from, in its own words.
        problem: why it cannot be read; None where it can.
    """

    path: str
    provenance: Provenance | None
    source: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class ChoiceCount:
    """How often the training stage was told to run in a gear and width; None: as they are."""

    gear: str | None
    width: int | None
    n: int


@dataclass(frozen=True, slots=True)
class StageBand:
    """A time in which the training stage ran in one gear and width, or was paused.

    Attributes:
        start_s, end_s: wall clock since the run began, s.
        gear: None: as the framework has it.
        width: 0: paused; None: nobody counted.
        n_steps: optimizer steps in it; 0 in a pause.
    """

    start_s: float
    end_s: float
    gear: str | None
    width: int | None
    n_steps: int = 0

    @property
    def is_pause(self) -> bool:
        """Whether nothing was trained by choice."""
        return self.width == 0


@dataclass(frozen=True, slots=True)
class StageCourse:
    """The intensity over the run, and what the training stage ran in meanwhile.

    Attributes:
        intensities: wall clock since the run began, s, and the intensity that decisions went by
            from then on, g/kWh; None: unknown.
        provenance: of the intensities; None where none is known.
        bands: in the order of time.
    """

    intensities: tuple[tuple[float, float | None], ...]
    provenance: Provenance | None
    bands: tuple[StageBand, ...]


@dataclass(frozen=True, slots=True)
class TrainingStageFacts:
    """Gears and widths of a run's training stage.

    Attributes:
        rows: by stage, gear, width and provenances.
        low: None where no gear of low precision could be chosen and none was run.
        accuracy: by gear.
        n_redone: steps that overflowed in a low gear and were computed anew.
        stopped: gears that were retired or barred, one sentence each, with the reason.
        measurements: None where nothing was measured.
        old_log_probs: None where nothing passed forward for them beside the steps.
        table: None where no table of the config priced gears and widths.
        choices: those that name a gear or a width, the most frequent first.
        fixed: None where all steps were made in one gear and on one number of workers.
    """

    rows: tuple[GearRow, ...]
    shifts: GearShifts
    widths: WidthChanges
    low: LowPrecision | None
    accuracy: tuple[GearAccuracy, ...]
    n_redone: int
    stopped: tuple[str, ...]
    measurements: GearMeasurements | None
    old_log_probs: OldLogProbs | None
    budget: TokenBudget
    table: PriceTable | None
    choices: tuple[ChoiceCount, ...]
    course: StageCourse
    fixed: FixedStage | None = None

    @property
    def simulated(self) -> tuple[str, ...]:
        """Names of the gears that were simulated, each once."""
        found = dict.fromkeys(row.gear for row in self.rows if row.simulated)
        return tuple(gear for gear in found if gear is not None)

    def token_shares(self) -> dict[str, float]:
        """Share of the tokens that were trained on by gear, 0 to 1; empty where unknown."""
        stage = next((row.stage for row in self.rows), None)
        found: dict[str, float] = {}
        for row in self.rows:
            if row.stage is stage and row.token_share is not None:
                name = row.gear or "the framework's own"
                found[name] = found.get(name, 0.0) + row.token_share
        return found
