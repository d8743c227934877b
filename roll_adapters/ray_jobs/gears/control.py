"""Chooses the gear of a job's training stage and has all of its processes shift alike.

The choice falls where the framework's steps are driven. The processes that train are actors of
Ray: they are told the gear between two training stages, all of them before any goes on.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.config.trainer import GearsConfig
from ecorl.control import AS_IT_IS, Gear, TrainingStage
from ecorl.records import FaultEvent, FaultKind
from ecorl.runtime.protocol import RecordWriter
from ecorl.trainer.gears import faults
from ecorl.trainer.gears.formats import GearSupport
from ecorl.trainer.gears.gearbox import Barred, Gearbox
from roll_adapters.ray_jobs.gears import worker
from roll_adapters.ray_jobs.gears.orders import GearOrder, Prepared, StepEnd, StepReport

logger = logging.getLogger(__name__)

_ANSWER_S = 600.0
"""Longest wait for the processes that train to shift or to tell of a step, s. Invented: they are
idle between two training stages, and import torchao before the first."""


class JobGears:
    """The gears of one job.

    Args:
        config: the run's ``[gears]``, on.
        low_share: largest share of the tokens in low precision, 0 to 1.
        actors: handles of the processes that train the policy.
        prepare: makes an actor ready, in its process: ``(actor, GearOrder) -> Prepared``.
        record: the run's record.
        memory: what the run knew of its gears when it was interrupted; empty without that.
    """

    def __init__(
        self,
        config: GearsConfig,
        low_share: float,
        actors: Sequence[Any],
        prepare: Callable[[Any, GearOrder], Prepared],
        record: RecordWriter,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._config, self._low_share = config, low_share
        self._actors, self._prepare, self._record = tuple(actors), prepare, record
        self._memory = dict(memory or {})
        self._box: Gearbox | None = None
        self._is_on = True
        self._told: Gear | None = None
        self._last: Gear | None = None
        self._was_redone = False
        self._asks_report = False
        self.n_optimizer_steps: int | None = None

    # ------------------------------------------------------------ a step

    def stage(self, steps_left: int | None) -> TrainingStage:
        """What the control path is told of the training stage.

        Args:
            steps_left: steps that training has before it; None: unknown.
        """
        if not self._is_on or self._box is None:
            return AS_IT_IS
        left = _at_least_one(steps_left)
        return self._box.stage(left, self._last, is_redone=self._was_redone)

    @property
    def label(self) -> str | None:
        """The name of the gear in the record; None: as the framework has it."""
        if not self._is_on or self._box is None or self._told is None:
            return None
        return self._box.label(self._told)

    def make_ready(self, number: int) -> None:
        """Have the processes make their gears ready, once.

        Args:
            number: 1-based number of the step, for the record.
        """
        if self._box is not None or not self._is_on:
            return
        order = GearOrder(self._config.allowed, self._config.simulate_fp8)
        found: list[Prepared] = self._ask(self._prepare, order)
        why_not = next((one.why_not for one in found if one.why_not is not None), None)
        if why_not is not None:
            self._is_on = False
            detail = f"the training stage stays as the framework has it: {why_not}"
            self._warn(FaultEvent(number, FaultKind.GEAR_BARRED, faults.WHERE, detail))
            return
        simulated = tuple(dict.fromkeys(gear for one in found for gear in one.simulated))
        support = GearSupport(order.gears, simulated)
        self._box = Gearbox(self._config, support, self._low_share)
        if self._memory:
            self._box.recall(self._memory)
        self.n_optimizer_steps = found[0].n_steps
        if any(gear.is_low for gear in order.gears) and self._config.optimizer != "own":
            # Noise is not measured here: gamma has nothing to follow from.
            logger.warning(
                "gears: %s steps as it would without gears: gradient noise is not measured here",
                found[0].optimizer,
            )

    def begin_step(self, wanted: Gear | None, number: int, steps_left: int | None) -> None:
        """Begin a step, in the gear that was chosen if the limits let it.

        Args:
            wanted: the choice; None: the gear stays.
            number: 1-based number of the step.
            steps_left: steps that training has before it, with this one; None: unknown.
        """
        if not self._is_on or self._box is None:
            return
        gear = self._box.shift(wanted, _at_least_one(steps_left))
        every = self._config.measure_every
        is_due = bool(every) and (number - 1) % every == 0
        due = self._box.measured_gears() if is_due else ()
        self._asks_report = bool(due) or self._box.may_overflow(gear)
        if gear is self._told and not due:
            return
        found = set(self._ask(worker.shift, gear, self._box.safe, due))
        if found != {gear}:
            raise RuntimeError(f"asked for {gear}, the processes are in {sorted(found)}")
        self._told = gear

    def end_step(self, number: int, n_tokens: float) -> None:
        """Take over what became of a step.

        Args:
            number: 1-based number of the step.
            n_tokens: that it trained on.
        """
        if not self._is_on or self._box is None or self._told is None:
            return
        self._last, self._was_redone = self._told, False
        self._box.count(self._told, n_tokens)
        if not self._asks_report:
            return
        reports: list[StepReport] = self._ask(worker.take_report)
        self._take_over_overflows(number, n_tokens, reports)
        self._take_over_mismatch(number, reports)

    def memory(self) -> dict[str, Any] | None:
        """What a resumed run has to know, in values that JSON can hold; None: nothing."""
        if self._box is None:
            return self._memory or None
        return self._box.memory()

    # ------------------------------------------------------------ inside

    def _ask(self, call: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function in each process that trains, and wait for all.

        Raises:
            RuntimeError: when one does not answer; the gears are given up then.
        """
        refs = [actor.__ray_call__.remote(call, *args) for actor in self._actors]
        try:
            found: list[Any] = ray.get(refs, timeout=_ANSWER_S)
        except RayError as error:
            self._is_on = False
            told = str(error).strip().splitlines()[-1:]
            raise RuntimeError(f"gears: a training process does not shift ({told})") from error
        return found

    def _take_over_overflows(
        self, number: int, n_tokens: float, reports: Sequence[StepReport]
    ) -> None:
        box, gear = self._box, self._told
        assert box is not None
        assert gear is not None
        if not box.may_overflow(gear):
            return  # asked for its measurements alone
        ends, label = agreed([report.ends for report in reports]), box.label(gear)
        self._was_redone = StepEnd.REDONE in ends
        is_retired = False
        # One by one: steps of a stage are in a row only where none between them went well.
        for end in ends:
            if end is StepEnd.WELL:
                box.went_well(gear)
            else:
                is_retired = box.overflowed(gear) or is_retired
        if n_redone := ends.count(StepEnd.REDONE):
            # The stage's tokens by step are not told here; its steps are of about as many each.
            box.count_redone(gear, n_tokens * n_redone / len(ends))
            self._record.fault(faults.redone(number, label, box.safe, n_redone, len(ends)))
        if n_skipped := ends.count(StepEnd.SKIPPED):
            self._record.fault(faults.skipped(number, label, n_skipped, len(ends)))
        if is_retired:
            self._warn(faults.retired(number, label, self._config.max_overflows))

    def _take_over_mismatch(self, number: int, reports: Sequence[StepReport]) -> None:
        box = self._box
        assert box is not None
        for gear in dict.fromkeys(gear for report in reports for gear in report.mismatch):
            found = mean([report.mismatch.get(gear) for report in reports])
            was_barred = box.barred(gear)
            box.note_mismatch(gear, found)
            told = faults.told_mismatch(found)
            self._record.metric(number, f"probability_mismatch_{gear}", told)
            is_new = box.barred(gear) is Barred.MISMATCH and was_barred is None
            if is_new and found is not None:
                limit = self._config.mismatch_limit
                self._warn(faults.barred(number, box.label(gear), found, limit))
        spent_s = max(report.measured_s for report in reports)
        if spent_s:
            self._record.metric(number, "gear_measurement_s", spent_s)

    def _warn(self, fault: FaultEvent) -> None:
        """Record that a gear may not be chosen, and log it."""
        self._record.fault(fault)
        logger.warning("gears: %s", fault.detail)


def agreed(ends: Sequence[Sequence[StepEnd]]) -> list[StepEnd]:
    """What became of each optimizer step of a stage, as the processes tell it together.

    They agree on what is finite. One that tells of fewer steps says nothing against the others.

    Args:
        ends: of each process.
    """
    steps = itertools.zip_longest(*ends, fillvalue=StepEnd.WELL)
    return [next((end for end in step if end is not StepEnd.WELL), StepEnd.WELL) for step in steps]


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known, or None.

    Args:
        values: of each process.
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _at_least_one(steps_left: int | None) -> int:
    """Steps left for the limits: unknown, they hold for what was done, with the next step."""
    return 1 if steps_left is None else max(1, steps_left)
