"""The process that the user starts: it starts the training processes and changes their number.

    Wanted -> a group of that number stands by while training goes on -> StandbyReady -> Left -> Go

It imports neither torch nor a framework. A group that fails while it stands by costs the training
nothing; where it fails after the training has left for it, training goes on with as many processes
as before, from the checkpoint that was left.

What it loads it shares with the training: processor time, and on GPUs the memory, which has to hold
the models of both meanwhile. Where the training itself runs out of memory beside it, the group is
given up, its number of processes is not tried again, and the training starts again from its newest
checkpoint: the steps since are made twice. It does so too where the Ray cluster of the run's own is
lost, whose loss would end rank 0: another cluster is started for it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ecorl.engines.lanes import threaded as lanes
from ecorl.errors import ConfigError, EcorlError, TrainingError
from ecorl.ledger import LEDGER_FILE
from ecorl.runtime.ray.local_cluster import LocalCluster
from roll_adapters.trl.launch.group import ProcessFault, TrainingGroup, start_group
from roll_adapters.trl.launch.messages import (
    Begin,
    Begun,
    Dropped,
    Ended,
    FilesPrepared,
    Go,
    Left,
    Message,
    StandbyReady,
    Stayed,
    Wanted,
    wait_for,
)

logger = logging.getLogger(__name__)

WORKER = "roll_adapters.trl.launch.worker"
"""Module that each training process runs."""

MOST_CLUSTERS = 5
"""Clusters that are started in place of a lost one, at most. Invented: one that is lost more often
would have the same steps made again and again."""

_LOOK_S = 0.2
"""Time between two looks at the processes, s; what they tell is heard at once. Invented."""


@dataclass(frozen=True, slots=True)
class _Failures:
    """How a number of processes has failed.

    Attributes:
        count: how often in a row.
        not_before_s: when it may be tried again, on the machine's steady clock, s.
        reason: why it failed last.
    """

    count: int
    not_before_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SupervisorPatience:
    """How long the supervisor waits; all are invented.

    Attributes:
        ready_s: for a group to get ready, s: minutes of loading a large model, and some.
        retry_s: before it tries a number of processes again that failed, s; doubled each time.
        longest_retry_s: that time at most, s.
        end_s: for processes to end once their work is done, s.
        tell_s: for processes to tell why they failed, s.
    """

    ready_s: float = 900.0
    retry_s: float = 60.0
    longest_retry_s: float = 3600.0
    end_s: float = 20.0
    tell_s: float = 1.0


class Supervisor:
    """Runs one training in groups of processes.

    Args:
        begin: what the first group is to do: start or resume.
        module: that each process runs; None: `WORKER`.
        patience: how long it waits for what.
        cluster: that the processes join by variables of their environment; it is up, and ended by
            the caller. None where they need none.
    """

    def __init__(
        self,
        begin: Begin,
        module: str | None = None,
        patience: SupervisorPatience | None = None,
        cluster: LocalCluster | None = None,
    ) -> None:
        self._begin, self._module = begin, module or WORKER
        self._cluster, self._n_lost = cluster, 0
        self._patience = patience or SupervisorPatience()
        self._training: TrainingGroup | None = None
        self._standby: TrainingGroup | None = None
        self._gone: list[tuple[TrainingGroup, float]] = []
        self._wish: Wanted | None = None
        self._way_back: tuple[int, Left] | None = None
        self._failures: dict[int, _Failures] = {}
        self._signal: int | None = None

    def run(self, width: int) -> bool:
        """Train until the run is complete or stopped.

        No training process outlives this call, nor anything that one has started in its session;
        but for one that the kernel cannot end, within a driver's call for instance.

        Args:
            width: number of processes to begin with.

        Returns:
            True when the run finished, False when it was stopped and saved.

        Raises:
            EcorlError: what ended the training.
            KeyboardInterrupt: it was broken off from the keyboard.
        """
        with self._listening():
            try:
                self._training = self._started(width, self._begin)
                while True:
                    ending = self._turn(self._training)
                    if ending is not None:
                        break
                self._training.close(self._patience.end_s)
                if ending.how == "broken":
                    raise KeyboardInterrupt
                return ending.how == "complete"
            finally:
                gone = [group for group, _ in self._gone]
                for group in (self._training, self._standby, *gone):
                    if group is not None:
                        group.kill()

    def _turn(self, training: TrainingGroup) -> Ended | None:
        """Hear what there is to hear, and act on it; how the run ended, once it has."""
        groups = [g for g in (training, self._standby) if g is not None]
        wait_for([c for g in groups for c in g.channels], _LOOK_S)
        # Looked at first: what a process told before it ended is still heard.
        is_lost, lacks_cluster = training.has_fault(), self._lacks_cluster()
        ending = self._hear(training)
        if ending is None and lacks_cluster:
            self._on_another_cluster()
        elif ending is None and is_lost and self._training is training:
            ending = self._lost(training)
        if ending is not None:
            return ending
        if self._training is not training:
            return self._handed_over()
        self._tend_standby()
        self._begin_standby()
        self._let_go()
        return None

    # ------------------------------------------------------------ the group that trains

    def _hear(self, training: TrainingGroup) -> Ended | None:
        """Act on all that the group has told; how the run ended, if it told that."""
        for message in training.receive():
            if isinstance(message, Ended):
                return message
            if isinstance(message, Left) and self._signal is not None:
                return Ended("stopped")  # it is saved, and was asked to stop meanwhile
            self._heard(training, message)
        return None

    def _heard(self, training: TrainingGroup, message: Message) -> None:
        if isinstance(message, FilesPrepared):
            training.tell_others(message)
        elif isinstance(message, StandbyReady):
            self._is_ready(training)
        elif isinstance(message, Wanted):
            self._wished(training, message)
        elif isinstance(message, Stayed):
            self._drop_standby("the training could not be saved for it", tells=False)
        elif isinstance(message, Begun):
            self._way_back = training.go = None
            self._failures.pop(training.width, None)
        elif isinstance(message, Left):
            self._left(training, message)

    def _left(self, training: TrainingGroup, left: Left) -> None:
        """Hand the run over to the group that stands by, or begin one of as many as before."""
        self._gone.append((training, time.monotonic() + self._patience.end_s))
        self._wish = None
        standby, self._standby = self._standby, None
        if standby is not None and standby.width == left.width and not standby.has_fault():
            self._way_back = (training.width, left)
            self._hand_over(standby, Go(left))
            return
        if standby is not None:
            self._note_failure(left.width, standby.fault(self._patience.tell_s).text)
            standby.kill()
        self._go_back(training.width, left)

    def _go_back(self, width: int, left: Left) -> None:
        """Begin with as many processes as before, since those that were wanted have failed."""
        failures = self._failures.get(left.width)
        reason = "nobody stands by" if failures is None else failures.reason
        logger.warning("%d training processes: %s; going on with %d", left.width, reason, width)
        self._way_back = None
        group = self._started(width, Begin("by", self._begin.run_dir, self._begin.config))
        self._hand_over(group, Go(left, Dropped(left.width, reason)))

    def _hand_over(self, group: TrainingGroup, go: Go) -> None:
        group.go, self._training = go, group
        if group.is_ready:
            group.send(go)

    def _handed_over(self) -> Ended | None:
        """Stop the run after all, where a signal came while one group handed it to another.

        It has reached neither of them; the run is saved, and no step was made since.
        """
        if self._signal is None or self._training is None:
            return None  # the other group's turn comes next
        self._training.kill()
        return Ended("stopped")

    def _is_ready(self, group: TrainingGroup) -> None:
        group.is_ready = True
        if group.go is not None:
            group.send(group.go)

    def _lost(self, training: TrainingGroup) -> Ended | None:
        """Go back to the group's predecessor where it has made no step yet; else end the run.

        What rank 0 tells while the cause is looked for goes before the fault of another process.
        """
        fault = training.fault(self._patience.tell_s)
        ending = self._hear(training)
        if ending is not None or self._training is not training:
            return ending
        if self._lacks_cluster():  # which may well be the cause
            self._on_another_cluster()
            return None
        training.kill()
        if self._signal is not None and training.go is not None:
            return Ended("stopped")  # it made no step: all is in the checkpoint that was left
        if self._signal is not None and fault.failed is None:
            raise KeyboardInterrupt
        if self._way_back is None:
            self._start_again(training, fault)
            return None
        width, left = self._way_back
        self._note_failure(left.width, fault.text)
        self._go_back(width, left)
        return None

    def _start_again(self, training: TrainingGroup, fault: ProcessFault) -> None:
        """Start the training again where it ran out of memory beside a group that stood by.

        It goes on from its newest checkpoint. That group's number of processes is never tried
        again, so that this happens once for each.

        Raises:
            EcorlError: what ended the training, where it was anything else.
        """
        standby = self._standby
        is_memory = fault.failed is not None and fault.failed.is_out_of_memory
        if standby is None or not is_memory or self._signal is not None:
            raise _error_of(fault)
        reason = "the training ran out of memory while they loaded beside it"
        logger.warning("%d training processes: %s; it starts again", standby.width, reason)
        self._drop_standby(reason, tells=False)
        self._failures[standby.width] = _Failures(1, math.inf, reason)
        self._wish = None
        begin = Begin("resume", self._begin.run_dir, self._begin.config)
        self._training = self._started(training.width, begin)
        self._tell_training(Dropped(standby.width, reason))

    # ------------------------------------------------------------ the cluster of the run's own

    @property
    def _variables(self) -> dict[str, str]:
        """Of the processes' environment, beside those of this process."""
        return {} if self._cluster is None else self._cluster.variables

    def _lacks_cluster(self) -> bool:
        """Whether the cluster is lost, and the training is to go on: it was not asked to stop."""
        return self._cluster is not None and self._signal is None and self._cluster.is_lost()

    def _on_another_cluster(self) -> None:
        """Start the training again on another cluster, from its newest checkpoint.

        All processes end first: one that holds the run's record would keep it from the others.

        Raises:
            TrainingError: no other cluster starts, or too many were lost.
        """
        cluster, training = self._cluster, self._training
        if cluster is None or training is None:
            return
        # A signal that comes while the cluster starts finds no process to tell, and ends the run.
        standby, self._training, self._standby, self._wish = self._standby, None, None, None
        gone, self._gone, self._way_back = [group for group, _ in self._gone], [], None
        for group in (training, standby, *gone):
            if group is not None:
                group.kill()
        self._n_lost += 1
        if self._n_lost > MOST_CLUSTERS:
            raise TrainingError(f"the run's own Ray cluster was lost {self._n_lost} times")
        what = "the run's own Ray cluster was lost"
        logger.warning("%s; training goes on from its newest checkpoint on another one", what)
        try:
            cluster.renew()
        except ConfigError as error:
            raise TrainingError(f"{what}, and no other one starts ({error.allowed})") from error
        begun = (Path(self._begin.run_dir) / LEDGER_FILE).is_file()
        how = "resume" if begun else self._begin.how
        words = what if self._n_lost == 1 else f"{what} ({self._n_lost} times so far)"
        begin = Begin(how, self._begin.run_dir, self._begin.config, words)
        self._training = self._started(training.width, begin)

    # ------------------------------------------------------------ the group that stands by

    def _wished(self, training: TrainingGroup, wish: Wanted) -> None:
        self._wish = wish
        standby = self._standby
        if standby is not None and standby.width != wish.width:
            standby.kill()
            self._standby = standby = None
        if wish.width == training.width:
            self._wish = None
        if standby is not None:
            standby.serial = wish.serial
            if standby.is_ready:
                training.send(StandbyReady(wish.serial))

    def _begin_standby(self) -> None:
        """Start the group that was asked for, unless its number failed a short time ago."""
        wish = self._wish
        if wish is None or self._standby is not None or self._signal is not None:
            return
        failures = self._failures.get(wish.width)
        if failures is not None and time.monotonic() < failures.not_before_s:
            return
        try:
            begin = Begin("by", self._begin.run_dir, self._begin.config)
            self._standby = start_group(self._module, wish.width, begin, self._variables)
        except OSError as error:
            reason = f"the system refuses another process ({error})"
            self._note_failure(wish.width, reason)
            self._tell_training(Dropped(wish.width, reason))
            return
        self._standby.serial = wish.serial

    def _tend_standby(self) -> None:
        standby, training = self._standby, self._training
        if standby is None or training is None:
            return
        for message in standby.receive():
            if isinstance(message, StandbyReady):
                standby.is_ready = True
                training.send(StandbyReady(standby.serial))
        late = time.monotonic() - standby.started_s > self._patience.ready_s
        if standby.has_fault():
            self._drop_standby(standby.fault(self._patience.tell_s).text)
        elif late and not standby.is_ready:
            self._drop_standby(f"they were not ready after {self._patience.ready_s:g} s")

    def _drop_standby(self, reason: str, *, tells: bool = True) -> None:
        standby, self._standby = self._standby, None
        if standby is None:
            return
        standby.kill()
        self._note_failure(standby.width, reason)
        if tells:
            self._tell_training(Dropped(standby.width, reason))

    def _tell_training(self, dropped: Dropped) -> None:
        if self._training is not None:
            self._training.send(dropped)

    def _note_failure(self, width: int, reason: str) -> None:
        """Note why a number of processes failed, and when it may be tried again."""
        before, p = self._failures.get(width), self._patience
        count = 0 if before is None else before.count
        wait_s = min(p.retry_s * 2.0 ** min(count, 60), p.longest_retry_s)
        self._failures[width] = _Failures(count + 1, time.monotonic() + wait_s, reason)

    # ------------------------------------------------------------ processes and signals

    def _started(self, width: int, begin: Begin) -> TrainingGroup:
        try:
            return start_group(self._module, width, begin, self._variables)
        except OSError as error:
            raise TrainingError(
                f"{width} training processes cannot be started ({error})"
            ) from error

    def _let_go(self) -> None:
        """Give groups that have left the run time to end, and end those that do not."""
        now_s, gone, self._gone = time.monotonic(), self._gone, []
        for group, end_s in gone:
            if group.is_over() or now_s > end_s:
                group.kill()  # once: what the kernel cannot end then must not hold up the others
            else:
                self._gone.append((group, end_s))

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Pass the first SIGINT or SIGTERM on to rank 0, which saves and stops after its step.

        The second one finds the handlers of before, which end this process; its children end with
        it.
        """
        previous: dict[int, Any] = {}

        def restore() -> None:
            for one, handler in previous.items():
                signal.signal(one, handler)

        def pass_on(number: int, frame: FrameType | None) -> None:
            self._signal = number
            restore()
            if self._training is None:
                raise KeyboardInterrupt
            self._training.signal(number)

        for which in (signal.SIGINT, signal.SIGTERM):
            previous[which] = signal.signal(which, pass_on)
        try:
            yield
        finally:
            restore()


def _error_of(fault: ProcessFault) -> EcorlError:
    """The error that ends a run whose group cannot train on."""
    failed = fault.failed
    if failed is None:
        return TrainingError(fault.text)
    if failed.trace:
        sys.stderr.write(failed.trace)
        return TrainingError(f"{failed.kind}: {fault.text}")
    return lanes.error_of(lanes.Fault(failed.kind, failed.text, {}))
