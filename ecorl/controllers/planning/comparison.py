"""Controllers along a recorded grid, beside the static ones and what nobody could do better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import Gear, GearChoice
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lp import ClairvoyantBound, lp_bound
from ecorl.controllers.horizon.receding import STOCHASTIC
from ecorl.controllers.planning.baselines import raced, saving, static_trainings
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Controller
from ecorl.controllers.replay.knowledge import Foresight, Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, Watch, play
from ecorl.controllers.rules.reactive import high_gear
from ecorl.controllers.step import action_of
from ecorl.errors import ConfigError, MissingToolError

DAY_S = 86400.0

HISTORY_DAYS = 60.0
"""Days of a recording before the first start, where it has as many. Invented: what the default
controller learns a grid's level from."""

Tell = Callable[[int], None]
"""Is told how many more trainings have been played."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedGrid:
    """What controllers are played along.

    Attributes:
        series: the intensities, g/kWh, without a missing value between starts and deadlines.
        foresight: forecasts that the controllers are told; None: they know the past alone.
        spot: price of a worker, in any currency an hour; None: unknown.
    """

    series: Series
    foresight: Foresight | None = None
    spot: Series | None = None


@dataclass(frozen=True, slots=True)
class StaticCase:
    """One start, with what controllers are held against.

    Attributes:
        problem: what has to be met.
        high: all workers from the start on in the fastest gear that is not of low precision; None
            where the recording ends before it is done.
        low: the same in FP8; None without that gear.
        raced: full speed in the fastest gear.
        bound: the least that anybody could emit; None where it was not computed.
    """

    problem: TrainingProblem
    high: PlayedTraining | None
    low: PlayedTraining | None
    raced: PlayedTraining
    bound: ClairvoyantBound | None


@dataclass(frozen=True, slots=True)
class EpochAction:
    """What was done in one epoch.

    Attributes:
        start_s: begin of the epoch, s since 1970.
        action: width and gear.
    """

    start_s: float
    action: TrainingAction


@dataclass(frozen=True, slots=True)
class ControllerScore:
    """What a controller came to: means over the starts. None is missing.

    Attributes:
        name: of the controller.
        carbon_g: emitted, gCO2e.
        saving_high: saved of what the static fastest gear of full precision emits, as a fraction.
        saving_low: the same of static FP8.
        regret: cost beyond the bound, as a share of the bound, all starts together.
        captured: share of what the bound saves of full speed at once that was saved as well.
        deficit: tokens that the budget lacked at the deadline, of all starts the most.
        done_days: when the last token was trained, days after the start; None where some are
            missing.
        low_share: share of the tokens in low precision.
        n_pauses: how often training stood still.
        n_width_changes, n_gear_changes: changes between two epochs.
        n_shielded: number of epochs in which the budget decided.
    """

    name: str
    carbon_g: float
    saving_high: float | None
    saving_low: float | None
    regret: float | None
    captured: float | None
    deficit: float
    done_days: float | None
    low_share: float
    n_pauses: float
    n_width_changes: float
    n_gear_changes: float
    n_shielded: float


@dataclass(frozen=True, slots=True)
class PlayedController:
    """One controller at all starts.

    Attributes:
        name: of the controller.
        played: in the order of the starts.
    """

    name: str
    played: tuple[PlayedTraining, ...]


@dataclass(frozen=True, slots=True)
class PlayedComparison:
    """Controllers at some starts along a recording.

    Attributes:
        cases: the starts.
        controllers: in the order in which they were named.
        shown: name of the controller whose epochs at the first start are kept.
        epochs: those.
        no_bound: why there is no bound; None where there is.
    """

    cases: tuple[StaticCase, ...]
    controllers: tuple[PlayedController, ...]
    shown: str
    epochs: tuple[EpochAction, ...]
    no_bound: str | None

    @property
    def bound_g(self) -> float | None:
        """The bound's emissions, gCO2e, mean over the starts; None without it."""
        bounds = [case.bound for case in self.cases if case.bound is not None]
        if len(bounds) < len(self.cases):
            return None
        return float(np.mean([bound.carbon_g for bound in bounds]))

    @property
    def static(self) -> tuple[PlayedController, ...]:
        """The static trainings that were played at all starts."""
        found = []
        gear = high_gear(self.cases[0].problem)
        for name, plays in (
            (f"static {gear}", [case.high for case in self.cases]),
            (f"static {Gear.FP8}", [case.low for case in self.cases]),
        ):
            played = tuple(one for one in plays if one is not None)
            if len(played) == len(plays):
                found.append(PlayedController(name, played))
        return tuple(found)

    def score(self, controller: PlayedController) -> ControllerScore:
        """What a controller came to.

        Args:
            controller: one of `controllers` or of `static`.
        """
        runs, cases = controller.played, self.cases
        emitted = sum(run.carbon_g for run in runs)
        cost = sum(run.cost_g for run in runs)
        high, low = ([getattr(case, name) for case in cases] for name in ("high", "low"))
        bounds = [case.bound.cost_g for case in cases if case.bound is not None]
        bound = sum(bounds) if len(bounds) == len(cases) else None
        races = sum(case.raced.cost_g for case in cases)
        # Where racing is as good as anything, there is nothing to capture.
        room = None if bound is None or races - bound <= 1e-9 * races else races - bound
        tokens = sum(case.problem.tokens for case in cases)
        in_low = sum(n for run in runs for gear, n in run.tokens_by_gear.items() if gear.is_low)
        return ControllerScore(
            name=controller.name,
            carbon_g=emitted / len(runs),
            saving_high=saving(emitted, _sum(high)),
            saving_low=saving(emitted, _sum(low)),
            regret=cost / bound - 1.0 if bound else None,
            captured=None if room is None else (races - cost) / room,
            deficit=max(run.deficit for run in runs),
            done_days=_done_days(cases, runs),
            low_share=min(1.0, in_low / tokens),
            n_pauses=float(np.mean([run.n_pauses for run in runs])),
            n_width_changes=float(np.mean([run.n_width_changes for run in runs])),
            n_gear_changes=float(np.mean([run.n_gear_changes for run in runs])),
            n_shielded=float(np.mean([run.n_shielded for run in runs])),
        )


def compared(
    grid: RecordedGrid,
    problems: Sequence[TrainingProblem],
    names: Sequence[str],
    seed: int = 0,
    tell: Tell | None = None,
) -> PlayedComparison:
    """Play controllers from some starts on.

    Args:
        grid: along which they are played.
        problems: one a start, at least one.
        names: of the catalogue, at least one.
        seed: of controllers that draw at random.
        tell: is told what has been played.

    Raises:
        ConfigError: for an unknown controller, and a recording that does not reach from start to
            deadline.
    """
    for name in names:
        build(name, problems[0], seed=seed)
    cases, no_bound = [], None
    for problem in problems:
        case, reason = _case(problem, grid.series)
        cases.append(case)
        no_bound = no_bound or reason
        if tell is not None:
            tell(1)
    shown = STOCHASTIC if STOCHASTIC in names else names[-1]
    epochs: list[EpochAction] = []

    def watch(now_s: float, found: GearChoice, progress: Progress) -> None:
        epochs.append(EpochAction(now_s, action_of(found)))

    controllers = []
    for name in names:
        plays = []
        for number, problem in enumerate(problems):
            controller = build(name, problem, seed=seed)
            is_watched = name == shown and number == 0
            plays.append(_played(grid, controller, problem, watch if is_watched else None))
            if tell is not None:
                tell(1)
        controllers.append(PlayedController(name, tuple(plays)))
    return PlayedComparison(tuple(cases), tuple(controllers), shown, tuple(epochs), no_bound)


def _played(
    grid: RecordedGrid, controller: Controller, problem: TrainingProblem, watch: Watch | None
) -> PlayedTraining:
    """One controller from one start on."""
    knowledge = Knowledge(grid.series, foresight=grid.foresight)
    return play(controller, problem, knowledge, spot=grid.spot, watch=watch)


def start_times(
    series: Series, length_s: float, start_s: float | None, every_days: float | None
) -> list[float]:
    """When trainings begin along a recording, each at the begin of an interval.

    Args:
        series: the recording.
        length_s: from start to deadline, s.
        start_s: of the first training, s since 1970; None: after `HISTORY_DAYS`, or as late as the
            recording allows.
        every_days: from one start to the next; None: there is one start.

    Raises:
        ConfigError: when the recording is shorter than a training, or does not hold the start.
    """
    latest_s = series.end_s - length_s
    if latest_s < series.start_s - 1e-6:
        held = (series.end_s - series.start_s) / DAY_S
        allowed = f"at most {held:.4g} days, as long as the recording is"
        raise ConfigError("carbon.control.deadline", f"{length_s / DAY_S:.4g} days on", allowed)
    if start_s is not None and not series.start_s <= start_s <= latest_s + 1e-6:
        allowed = (
            f"a time from {_day(series.start_s)} to {_day(latest_s)} UTC, from which on "
            f"{length_s / DAY_S:.4g} days are recorded"
        )
        raise ConfigError("--start", _day(start_s), allowed)
    first_s = min(series.start_s + HISTORY_DAYS * DAY_S, latest_s) if start_s is None else start_s
    wanted = [first_s]
    if every_days is not None:
        n = int((latest_s - first_s) / (every_days * DAY_S) + 1e-9)
        wanted = [first_s + number * every_days * DAY_S for number in range(n + 1)]
    steps = [np.floor((one - series.start_s) / series.step_s + 1e-9) for one in wanted]
    return [series.start_s + float(step) * series.step_s for step in steps]


def _case(problem: TrainingProblem, series: Series) -> tuple[StaticCase, str | None]:
    """A start with its bound, or why there is none."""
    race = raced(problem, series)
    bound, reason = None, None
    try:
        bound = lp_bound(problem, series)
    except MissingToolError as error:
        reason = str(error)
    high, low = static_trainings(problem, series)
    return StaticCase(problem, high, low, race, bound), reason


def _sum(plays: Sequence[PlayedTraining | None]) -> float | None:
    found = [one.carbon_g for one in plays if one is not None]
    return sum(found) if len(found) == len(plays) else None


def _done_days(cases: Sequence[StaticCase], runs: Sequence[PlayedTraining]) -> float | None:
    ends_s = [run.done_s for run in runs]
    days = [
        (end_s - case.problem.start_s) / DAY_S
        for end_s, case in zip(ends_s, cases, strict=True)
        if end_s is not None
    ]
    return float(np.mean(days)) if len(days) == len(ends_s) else None


def _day(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M")
