"""Decides at the boundary of two steps whether the training stage runs, waits or stops.

    tick   what is known of the grid -> a pure decision -> ledger (where it is a new one)

The decision is `ecorl.controllers.waiting`'s; here is what it goes by, and what becomes of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ecorl.config import Config
from ecorl.control import AS_IT_IS, Command, Gear, GearChoice, TrainingStage, Why
from ecorl.controllers.protocol import Seen
from ecorl.controllers.waiting import NAME, Waiting, decide, paused_spans
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError
from ecorl.grid import AverageIntensity
from ecorl.ledger import Ledger, LedgerReader
from ecorl.records import EventKind, FaultKind
from ecorl.runtime.control.grid_watch import GridWatch, Tell
from ecorl.runtime.control.planned import PlannedRun
from ecorl.runtime.control.step_record import PowerReadings, Ran, StepRecord
from ecorl.runtime.handles import RunTotals
from ecorl.telemetry.beside.codecarbon import Beside, CodeCarbonProcess


@dataclass(frozen=True, slots=True)
class CarbonSoFar:
    """Emissions of a run up to now.

    Attributes:
        carbon_g: of the energy for which the intensity was known, gCO2e; None where none was.
        unknown_j: energy whose emissions are missing, J.
    """

    carbon_g: float | None = None
    unknown_j: float = 0.0


class CarbonMeter:
    """Adds up emissions as the energy of a run grows; each part at the intensity of its time.

    Args:
        before: what earlier attempts of the run have emitted.
        drawn_j: what they have drawn, J; None where that is not known.
    """

    def __init__(self, before: CarbonSoFar | None = None, drawn_j: float | None = 0.0) -> None:
        self._before = self._so_far = before or CarbonSoFar()
        self._began_j = drawn_j or 0.0
        self._drawn_j = drawn_j

    def add(self, drawn_j: float | None, grams_per_joule: float | None) -> CarbonSoFar:
        """Take over what the machines have drawn until now.

        Args:
            drawn_j: since the run began, J; None where readings are missing.
            grams_per_joule: of what was drawn since the last call, gCO2e/J; None: unknown.
        """
        if drawn_j is None:
            return CarbonSoFar(None, self._so_far.unknown_j)
        more_j, self._drawn_j = drawn_j - (self._drawn_j or 0.0), drawn_j
        now = self._so_far
        added_j = drawn_j - more_j - self._began_j
        if more_j < 0 < added_j:
            # A counter does not count its device alone: what it added in this attempt is scaled.
            now = self._scaled((added_j + more_j) / added_j)
        elif grams_per_joule is None:
            now = CarbonSoFar(now.carbon_g, now.unknown_j + more_j)
        else:
            now = CarbonSoFar((now.carbon_g or 0.0) + more_j * grams_per_joule, now.unknown_j)
        self._so_far = now
        return now

    def _scaled(self, share: float) -> CarbonSoFar:
        """Scale what this attempt has added to the emissions of earlier ones."""
        now, before = self._so_far, self._before
        grams = before.carbon_g
        if now.carbon_g is not None:
            grams = (grams or 0.0) + (now.carbon_g - (grams or 0.0)) * share
        unknown_j = before.unknown_j + (now.unknown_j - before.unknown_j) * share
        return CarbonSoFar(grams, unknown_j)


logger = logging.getLogger(__name__)

WIDTH_CHANGE = "width_change_s"
"""The ledger's metric, at the first step after a change of the width, of the time that the change
took: from the end of the step before it to the end of that step, less a usual step's, s."""

WARNS_AT = 0.8
"""Share of the budget at which it is told."""


def governs(config: Config) -> bool:
    """Whether the control path ever asks for anything but to go on.

    Args:
        config: the run's.
    """
    c = config.carbon
    is_decided = c.waits or c.control.controller is not None
    return is_decided or config.accounting.budget_g is not None


def check_budget(config: Config) -> None:
    """Refuse a budget that ends the training where the framework cannot be asked to end it.

    Args:
        config: the run's, under a framework that saves and ends by its own rules alone.

    Raises:
        ConfigError: when the config asks for it.
    """
    if config.accounting.over_budget == "stop":
        allowed = "'warn': this framework is not asked to save and stop"
        raise ConfigError("accounting.over_budget", "stop", allowed)


class Governor:
    """The control path of one run; thread-safe.

    Args:
        config: the run's.
        ledger: the head's record.
        tell: records a fault.
        before: what earlier attempts of the run have drawn and emitted.
        wall: the wall clock, s since 1970.

    Raises:
        ConfigError: for a feed or a PUE file that cannot be used.
        MissingToolError: when a feed's package is missing.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        tell: Tell,
        before: RunTotals | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._ledger, self._wall = config, ledger, wall
        self._waited_s, memory, self._change_s = _earlier(ledger)
        name = config.carbon.control.controller
        # What another controller remembered is of no use.
        self._remembered = memory.get(name or "", {})
        self._tell = tell
        self._begin(_began_s(ledger, wall()))
        earlier = before or RunTotals(drawn_j=0.0)
        self._so_far = CarbonSoFar(earlier.carbon_g, earlier.unknown_j)
        self._meter = CarbonMeter(self._so_far, earlier.drawn_j)
        self._rule = waiting_rule(config)
        self._steps, timed = StepRecord(), self._remembered
        self._steps.recall(timed.get("steps") if isinstance(timed, Mapping) else None)
        self._powers = PowerReadings()
        self._governs = governs(config)
        a = config.accounting
        self._beside = CodeCarbonProcess(a.country) if a.beside and a.country else None
        self._lock = threading.Lock()
        self._last: GearChoice | None = None
        self._ticked_s: float | None = None
        self._has_begun = False
        self._warned = 0.0
        self._failed = False

    def _begin(self, began_s: float) -> None:
        """Make what goes by when the run began: replayed time, and a deadline after that."""
        config = self._config
        self._began_s = began_s
        self._watch = GridWatch(config, self._ledger.control, self._tell, began_s, self._wall)
        self._planned: PlannedRun | None = None
        if config.carbon.control.controller is not None:
            self._planned = PlannedRun(config, began_s, self._remembered, self._change_s)

    def start(self) -> None:
        """Begin to ask the feeds, and start the other instrument if there is one."""
        # Engines were loaded meanwhile, and an attempt begins behind that: the next one goes by the
        # record.
        self._ledger.flush()
        began_s = _began_s(self._ledger, self._began_s)
        if began_s != self._began_s:
            self._watch.close()
            self._begin(began_s)
        self._watch.start()
        if self._beside is not None:
            self._beside.start()

    def close(self) -> None:
        """Ask the feeds no more, and record what the other instrument found; safe to call twice."""
        self._watch.close()
        beside, self._beside = self._beside, None
        if beside is None:
            return
        found = beside.stop()
        if isinstance(found, Beside):
            self._ledger.event(EventKind.BESIDE, found.to_json())
        else:
            self._tell(FaultKind.BESIDE_FAILED, "codecarbon", found)

    @property
    def g_per_kwh(self) -> float | None:
        """The average intensity now, g/kWh; None: unknown."""
        value = self._watch.heard(AverageIntensity).value
        return None if value is None else value.g_per_kwh

    def emitted(self, drawn_j: float | None) -> CarbonSoFar:
        """Take over what the machines have drawn, and tell what that emitted.

        Each part counts at the intensity that holds when it is taken over: it is the report that
        integrates over time.

        Args:
            drawn_j: since the run began, J; None where readings are missing.
        """
        with self._lock:
            self._powers.read(time.monotonic(), drawn_j)
            self._so_far = self._meter.add(drawn_j, self._watch.grams_per_joule())
            self._watch_budget()
            return self._so_far

    def tick(
        self,
        steps_left: int | None = None,
        *,
        is_stopping: bool = False,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Decide what the training stage is to do now.

        Args:
            steps_left: steps that training has before it; None: unknown.
            is_stopping: whether training was asked to stop, by a signal for instance.
            stage: what the training stage did in the last step, and what it can be told to do.
        """
        now_s = self._wall()
        if not self._governs:
            return ungoverned(now_s)
        # Whatever goes wrong in here, training must neither fail nor wait for it.
        with EngineBoundary() as boundary:
            return self._decided(now_s, steps_left, is_stopping=is_stopping, stage=stage)
        detail = f"{type(boundary.error).__name__}: {boundary.error}"
        if not self._failed:
            self._failed = True
            self._tell(FaultKind.CONTROL_FAILED, "control path", detail)
            logger.warning("nothing is waited for any more: %s", detail)
        choice = replace(ungoverned(now_s), why=Why.UNKNOWN, reason=f"no decision ({detail})")
        self._act(self._kept(choice, steps_left, stage))
        return self._last or choice

    def _kept(self, choice: GearChoice, steps_left: int | None, stage: TrainingStage) -> GearChoice:
        """A choice in place of one that failed: gear and width of the last, or the deadline's."""
        last = self._last
        kept = (None, None) if last is None else (last.gear, last.width or None)
        pressed: tuple[Gear | None, int | None] = (None, None)
        if self._planned is not None:
            with EngineBoundary():
                pressed = self._planned.pressed(choice.decided_s, self._steps, steps_left, stage)
        gear, width = pressed[0] or kept[0], pressed[1] or kept[1]
        why = choice.why if gear is None and width is None else Why.KEPT
        return replace(choice, why=why, gear=gear, width=width)

    def _decided(
        self, now_s: float, steps_left: int | None, *, is_stopping: bool, stage: TrainingStage
    ) -> GearChoice:
        with self._lock:
            self._count_time(time.monotonic(), stage)
            heard = self._watch.heard()
            left_s = None
            if steps_left is not None and self._steps.step_s is not None:
                left_s = steps_left * self._steps.step_s
            seen = Seen(
                intensity=heard.value,
                forecast=self._watch.forecast,
                waited_s=self._waited_s,
                has_begun=self._has_begun,
                left_s=left_s,
                is_asking=self._watch.is_asking,
                is_stopping=is_stopping,
                is_over_budget=self._share_of_budget() >= 1.0,
            )
            choice = decide(self._rule, now_s, seen)
            if self._planned is not None and choice.why is Why.UNGOVERNED:
                past, day_s = self._watch.past
                choice = self._planned.decide(
                    now_s, replace(seen, past=past), self._steps, steps_left, day_s, stage
                )
            self._act(choice)
            return choice

    def _count_time(self, steady_s: float, stage: TrainingStage) -> None:
        """Add what passed since the last tick to what was waited, or to what steps take and draw.

        A step that was computed in two gears is a step's time, and neither gear's.
        """
        if self._ticked_s is not None and self._last is not None:
            passed_s = steady_s - self._ticked_s
            ran = None if stage.is_redone else Ran.of(stage)
            if self._last.command is Command.PAUSE:
                self._waited_s += passed_s
                ran = None
            else:
                self._steps.note_time(ran, passed_s)
            powers_w = self._powers.ended(self._ticked_s, steady_s, ran)
            if ran is not None:
                for power_w in powers_w:
                    self._steps.note_power(ran, power_w)
        self._ticked_s = steady_s

    def _act(self, choice: GearChoice) -> None:
        """Record a decision that is another one than before."""
        last, self._last = self._last, choice
        self._has_begun = self._has_begun or choice.command is Command.RUN
        if last is None or _facts(last) != _facts(choice):
            memory: Mapping[str, object] | None = None
            if self._planned is not None:
                memory = {**self._planned.memory, "steps": self._steps.memory()}
            self._ledger.control.choice(choice, memory)

    # ------------------------------------------------------------ the budget

    def _share_of_budget(self) -> float:
        budget_g, emitted_g = self._config.accounting.budget_g, self._so_far.carbon_g
        return 0.0 if budget_g is None or emitted_g is None else emitted_g / budget_g

    def _watch_budget(self) -> None:
        """Tell once that most of the budget is used up, and once that all of it is."""
        used, budget_g = self._share_of_budget(), self._config.accounting.budget_g
        reached = max((limit for limit in (WARNS_AT, 1.0) if used >= limit), default=0.0)
        if budget_g is None or reached <= self._warned:
            return
        self._warned = reached
        told = f"{100 * used:.0f} % of accounting.budget_g = {budget_g:g} gCO2e are emitted"
        self._ledger.event(EventKind.CARBON_BUDGET, told)
        logger.warning("%s", told)


def waiting_rule(config: Config) -> Waiting:
    """What a config has the training stage wait for.

    Args:
        config: the run's.
    """
    c = config.carbon
    return Waiting(
        threshold_g_per_kwh=c.threshold_g_per_kwh,
        max_wait_s=c.max_wait_s,
        recheck_s=c.recheck_s,
        percentile=c.threshold_percentile,
        horizon_s=c.horizon_s,
        deadline_s=None if c.soft_deadline is None else c.soft_deadline.timestamp(),
        at_steps=c.pause == "steps",
        stops_over_budget=config.accounting.over_budget == "stop",
    )


def ungoverned(now_s: float) -> GearChoice:
    """The choice of a run in which nothing is waited for.

    Args:
        now_s: time, s since 1970.
    """
    told = "nothing is waited for"
    return GearChoice(now_s, Command.RUN, Why.UNGOVERNED, NAME, told, look_again_s=now_s)


def unheard(now_s: float) -> GearChoice:
    """The choice where the scheduler does not answer: nothing is waited for.

    Args:
        now_s: time, s since 1970.
    """
    told = "the scheduler does not answer, and nobody waits for it"
    return GearChoice(now_s, Command.RUN, Why.UNKNOWN, NAME, told, look_again_s=now_s)


def _facts(c: GearChoice) -> tuple[object, ...]:
    """What makes a decision another one: not its time, nor the seconds in its reason."""
    return c.command, c.why, c.g_per_kwh, c.feed, c.threshold_g_per_kwh, c.width, c.gear


def _began_s(ledger: Ledger, otherwise_s: float) -> float:
    """When the run's first attempt began by the record, s since 1970."""
    with LedgerReader(ledger.path) as reader:
        attempts = reader.attempts()
    return attempts[0].unix_anchor_s if attempts else otherwise_s


def _earlier(ledger: Ledger) -> tuple[float, dict[str, Mapping[str, object]], float | None]:
    """What is known of earlier attempts.

    How long the run stood still, s; what each controller knew; and what the newest change of the
    width has cost, s, None without one.
    """
    with LedgerReader(ledger.path) as reader:
        choices = reader.choices()
        changes_s = [row.value for row in reader.metrics(WIDTH_CHANGE) if row.value is not None]
        spans = paused_spans(choices, reader.last_times())
    memory = {row.choice.controller: row.memory for row in choices if row.memory}
    waited_s = sum(end_s - start_s for own in spans.values() for start_s, end_s in own)
    return waited_s, memory, max(0.0, changes_s[-1]) if changes_s else None
