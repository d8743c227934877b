"""`ElasticTrainer`: trains a task of the user's own over a number of actors that changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import torch

from ecorl.control import Gear
from ecorl.errors import ConfigError, DataError, RunError
from ecorl.trainer.elastic.checkpoints import CheckpointFolder, Saver, TrainingCheckpoint
from ecorl.trainer.elastic.crew import MemberHandle, Staff, fetch, has_cluster, raise_cause
from ecorl.trainer.elastic.driver import CrewDriver
from ecorl.trainer.elastic.records import (
    ElasticFault,
    ElasticOptions,
    StepDone,
    TrainingLog,
    TrainingResult,
    WidthChange,
)
from ecorl.trainer.elastic.state import from_bytes
from ecorl.trainer.elastic.steering import Bearing, Steering, WidthController, WidthWishes
from ecorl.trainer.elastic.switch import Switch
from ecorl.trainer.elastic.task import ElasticTask

_TRIES = 5
"""How often is tried to begin with new actors before the training is given up; invented."""

_JOINS = 3
"""Changes of width in a row that may come to nothing before the wish rests; invented."""

_REST_S = 300.0
"""How long it rests, s; invented: what kept joiners from coming is seldom over in seconds."""

_LOOK_S = 0.01
"""How often is looked whether joiners are ready where training waits for them, s; invented."""

_PAUSE_LOOK_S = 0.2
"""How often the controller is asked in a pause and while actors come up, s; invented."""

_CLOSE_S = 60.0
"""How long a state that is being written is waited for before the actors end, s; invented."""

_SAVE_AGAIN_S = 30.0
"""How often a pause tries again to write a state that could not be written, s; invented."""


class ElasticTrainer:
    """Trains a task over actors of the Ray cluster that this process has joined.

    It goes on from the newest checkpoint in its folder, if there is one. It is used from one
    thread, but for `set_width` and `stop`.

    Args:
        task: what is trained; it is pickled.
        folder: where its checkpoints lie, on this machine; no other training uses it.
        width: members at first.
        control: who decides on width and gear at each boundary; None: `set_width` does.
        options: how it goes about its work.

    Raises:
        ConfigError: for a width that cannot be, and where no Ray cluster was joined.
        OSError: when the folder cannot be made or read.
    """

    def __init__(
        self,
        task: ElasticTask,
        folder: Path,
        *,
        width: int = 1,
        control: WidthController | None = None,
        options: ElasticOptions | None = None,
    ) -> None:
        self._options = options or ElasticOptions()
        if not has_cluster():
            raise ConfigError("Ray cluster", None, "one that this process has joined: ray.init()")
        self._task = task
        self._wishes = WidthWishes(width, self._options.max_width)
        self._folder = CheckpointFolder(folder)
        self._log = TrainingLog(self._folder.n_done())
        self._saver = Saver(self._folder, self._options.patience.step_s, self._log.tell)
        self._staff = Staff(task, self._options)
        self._crew = CrewDriver(self._staff, self._log)
        self._steering = None
        if control is not None:
            self._steering = Steering(control, width, self._options, self._log.tell)
        self._switch: Switch | None = None
        self._gear: Gear | None = None
        self._n_failed_joins, self._rests_until_s = 0, 0.0
        self._rescued = -1

    def __enter__(self) -> ElasticTrainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self._rescue()
        finally:
            self.close()

    # ------------------------------------------------------------ what a user calls

    @property
    def width(self) -> int:
        """Members now; 0 before training and in a pause that has let all actors go."""
        return self._crew.width

    @property
    def n_done(self) -> int:
        """Committed steps, those in the folder's newest checkpoint included."""
        return self._log.n_done

    def set_width(self, width: int, at_step: int | None = None) -> None:
        """Ask for a width; training goes on, and changes it once the joiners are ready.

        With a controller its next choice takes the place of this one. Of two widths for one step
        the later wish holds.

        Args:
            width: members; 0 pauses: training saves, and waits until it is asked for more.
            at_step: the first step at that width, so that a history of widths can be trained
                again; training waits at that step until the joiners are ready. Without it what was
                asked for later steps is forgotten. In a pause no step passes, so that only a width
                for no step, or for one that is reached, ends it.

        Raises:
            ConfigError: for a width that cannot be, and for a step after a pause that was asked
                for.
        """
        self._rests_until_s = 0.0
        self._wishes.ask(width, at_step)

    def stop(self) -> None:
        """Ask `train` to save and return at the next boundary of two steps.

        While no training is under way the next one is asked, which returns at once. It is safe in
        a signal's handler.
        """
        self._wishes.stop()

    def train(
        self, n_steps: int, on_step: Callable[[StepDone], None] | None = None
    ) -> TrainingResult:
        """Train until this many steps are done in all, those in a checkpoint included.

        Args:
            n_steps: steps.
            on_step: called with each committed step. After a return to a checkpoint it is called
                again for the steps after it.

        Returns:
            What has been done since this trainer was made.

        Raises:
            RunError: when no actor can be had, one step fails again and again, or all checkpoints
                are damaged. Also when the last state cannot be written: the members stay, so that
                this can be called again, or `weights`.
            OSError: when the newest checkpoint cannot be read.
            Exception: what the task's own functions raise. Whatever is raised, the steps that are
                done are saved before, if a member still can.
        """
        if self._steering is not None and not self.width:
            self._recall(self._steering)
        is_saved = False
        while not is_saved:
            try:
                self._run(n_steps, on_step)
                is_saved = self._save()
            except BaseException:
                self._rescue()
                raise
            if not is_saved and self.width:
                raise RunError(
                    f"the state after {self.n_done} steps is on no disk: {self._saver.failure}; "
                    "until this trainer is closed its members have it, so that train() can write "
                    "it yet"
                )
        self._wishes.stop(False)
        return self._log.result(n_steps)

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's weights and buffers after the last committed step, on the CPU.

        Where no member is left they are those of the newest checkpoint.

        Raises:
            RunError: when there is no member and no checkpoint that is whole.
        """
        payload: bytes
        snapshot = self._crew.snapshot() if self.width else None
        if snapshot is not None:
            payload = fetch(snapshot)
        else:
            saved, _ = self._folder.newest()
            if saved is None:
                raise RunError("nothing has been trained yet, so that there are no weights")
            payload = saved.payload
        model: dict[str, torch.Tensor] = from_bytes(payload, torch.device("cpu"))["model"]
        return model

    def digests(self) -> list[str]:
        """SHA-256 of each member's weights and buffers, which are all the same."""
        return [fetch(one.call("digest", self.n_done)) for one in self._crew.members]

    def close(self) -> None:
        """Write what is being written, unless that takes more than a minute, and end all actors.

        Raises:
            Exception: what the task's own functions raised where a state was written down.
        """
        try:
            self._let_saver_rest()
        finally:
            self._crew.members, self._switch = [], None
            self._staff.end()
            # Whoever it still waited for has been ended, and will not be waited for any longer.
            self._saver.close()

    def _let_saver_rest(self) -> bool:
        """Wait for the state that is being written, but not for ever; returns whether it is."""
        end_s = time.monotonic() + _CLOSE_S
        while self._saver.is_busy and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        return not self._saver.is_busy

    # ------------------------------------------------------------ parts of the loop

    def _recall(self, steering: Steering) -> None:
        """Tell the controller where the training was saved, before it decides for the first time.

        What it decides while there is no member yet would else be for a training that begins.
        """
        saved = self._newest()
        if saved is not None:
            self._log.roll_back(saved.n_done)
            steering.recall(saved.control)

    def _newest(self) -> TrainingCheckpoint | None:
        """The newest checkpoint that is whole; the others are told."""
        saved, damaged = self._folder.newest()
        for one in damaged:
            self._log.tell(ElasticFault.CHECKPOINT_DAMAGED, one.name, one.reason)
        return saved

    def _memory(self) -> Mapping[str, object] | None:
        """What the controller remembers, for a checkpoint."""
        return None if self._steering is None else self._steering.memory()

    def _run(self, n_steps: int, on_step: Callable[[StepDone], None] | None) -> None:
        """Train until the steps are done or a stop is asked for."""
        while True:
            self._hear(n_steps)
            # Without members it is not known what is done: all may be lost.
            if self._wishes.stops or (self.width and self._log.n_done >= n_steps):
                break
            if self._wishes.width == 0:
                self._pause(n_steps)
            elif not self.width:
                self._begin(n_steps)
            else:
                self._change_width()
                self._save_if_due()
                done = self._step() if self.width else None
                if done is not None and on_step is not None:
                    on_step(done)

    def _hear(self, n_steps: int) -> None:
        """Take over what the controller decides, and what was booked for this step."""
        if not self._saver.is_busy:
            self._saver.settle()
        # Without a step left there is nothing to decide, but the end of a pause.
        if self._steering is not None and (self.n_done < n_steps or not self._wishes.width):
            pace_s = self._log.pace_s(self.width)
            n_left = n_steps - self.n_done
            bearing = Bearing(time.time(), self.n_done, n_left, pace_s, self.width)
            heading = self._steering.hear(bearing)
            self._gear = heading.gear
            if heading.width != self._wishes.width:
                self._wishes.ask(heading.width)
            if heading.stops:
                self._wishes.stop()
        self._wishes.take_due(self.n_done)

    def _step(self) -> StepDone | None:
        """Have a step computed; None when it has to be computed again."""
        before = self._crew.members
        poll = self._switch.poll if self._switch is not None else lambda: None
        done = self._crew.step(self._rows(), self._gear, poll)
        self._tell_switch(before)
        return done

    def _tell_switch(self, before: Sequence[MemberHandle]) -> None:
        """Let a change of width that is under way go on with those who are left, if some are."""
        if self._switch is not None and self._crew.members != before:
            if self.width:
                self._switch.regroup(self._crew.members)
            else:
                self._drop_switch()

    def _rows(self) -> tuple[int, ...]:
        """The rows of the next step."""
        rows = tuple(self._task.rows(self.n_done))
        if not rows:
            raise DataError(f"rows({self.n_done}) returned no rows: a step has to have some")
        return rows

    def _begin(self, n_steps: int) -> None:
        """Get actors where there are none, and give them the newest state; less may be wanted."""
        for _ in range(_TRIES):
            goal = self._wishes.width
            if goal == 0:
                return
            saved, n_done = self._newest(), self.n_done
            if saved is None:
                self._staff.dismiss_spares()  # they are beyond the first step
            switch = self._new_switch(goal)
            if not self._wait_for_actors(switch, n_steps):
                switch.cancel()
                return
            if switch.is_ready and self._crew.begin(switch.members, saved):
                if self._steering is not None and self.n_done != n_done:
                    # The steps after the checkpoint count no more, and so do their tokens.
                    self._steering.recall({} if saved is None else saved.control)
                now_s = time.monotonic()
                prepared_s, stood_s = switch.ready_s - switch.asked_s, now_s - switch.asked_s
                self._log.change(WidthChange(self.n_done, 0, self.width, prepared_s, stood_s))
                return
            switch.cancel()
            if switch.error is not None:
                raise_cause(switch.error)
        last = self._log.result(0).faults[-1].message
        raise RunError(f"no trainer actors came up in {_TRIES} tries; the last time: {last}")

    def _wait_for_actors(self, switch: Switch, n_steps: int) -> bool:
        """Wait until the first actors are ready, or lost; returns whether they are still wanted."""
        next_s = time.monotonic() + _PAUSE_LOOK_S
        while not (switch.is_ready or switch.is_over):
            switch.poll()
            if time.monotonic() > next_s:
                self._hear(n_steps)
                next_s = time.monotonic() + _PAUSE_LOOK_S
            if self._wishes.stops or self._wishes.width < switch.goal:
                return False
            time.sleep(_LOOK_S)
        return True

    def _new_switch(self, goal: int) -> Switch:
        """Begin to get a width ready."""
        rows = self._rows()
        share = rows[: -(-len(rows) // goal)]
        return Switch(goal, self._crew.members, self._staff, share, self._log.tell)

    def _change_width(self) -> None:
        """Move a change of width forward, and carry it out when it is ready and wanted."""
        while self._move_switch() and self._wishes.is_waited_for and not self._wishes.stops:
            time.sleep(_LOOK_S)

    def _move_switch(self) -> bool:
        """Do what can be done for a change of width now; returns whether it is still to come."""
        goal = self._wishes.goal(self.width)
        if self._switch is not None and self._switch.goal != goal:
            self._drop_switch()
        if self._switch is None:
            is_resting = time.monotonic() < self._rests_until_s  # no joiners are asked for
            if goal in (self.width, 0) or is_resting:
                self._wishes.is_met()
                return False
            self._switch = self._new_switch(goal)
        self._switch.poll()
        if self._switch.is_over:
            self._note_failed_join(self._switch)
        elif self._switch.is_ready and goal == self._wishes.width:
            if self._crew.change(self._switch):
                self._switch, self._n_failed_joins = None, 0
                self._wishes.is_met()
                return False
            if not self.width:
                self._drop_switch()
                return False
        return True

    def _drop_switch(self) -> None:
        """Let go of a change that is not wanted any more."""
        if self._switch is not None:
            self._switch.cancel()
        self._switch = None

    def _note_failed_join(self, switch: Switch) -> None:
        """Count a change that came to nothing; after some the wish rests."""
        self._switch = None
        self._n_failed_joins += 1
        if self._n_failed_joins >= _JOINS:
            self._n_failed_joins, self._rests_until_s = 0, time.monotonic() + _REST_S
            what = f"{_JOINS} tries came to nothing, the next is made in {_REST_S:g} s"
            self._log.tell(ElasticFault.WIDTH_GIVEN_UP, f"width {switch.goal}", what)

    def _pause(self, n_steps: int) -> None:
        """Save, let the actors go, and wait until the training is to go on."""
        start_s, step, before = time.monotonic(), self.n_done, self.width
        self._drop_switch()
        save_s, is_saved = start_s, False
        while self._wishes.width == 0 and not self._wishes.stops:
            if self.width and not is_saved and time.monotonic() >= save_s:
                is_saved, save_s = self._save(), time.monotonic() + _SAVE_AGAIN_S
                # Actors whose state could not be saved are all that there is of it.
                if is_saved and not self._options.keeps_actors:
                    self._crew.release()
            self._wishes.wait(_PAUSE_LOOK_S)
            self._hear(n_steps)
        if before:
            self._log.change(WidthChange(step, before, 0, 0.0, time.monotonic() - start_s))

    def _save_if_due(self) -> None:
        """Have the state written beside the training, every so many steps."""
        every = self._options.checkpoint_every
        is_due = every and self.n_done and self.n_done % every == 0
        if is_due and self.width and self._saver.n_saved != self.n_done and not self._saver.is_busy:
            before, snapshot = self._crew.members, self._crew.snapshot()
            if snapshot is not None:
                self._saver.save(self.n_done, snapshot, self._memory())
            self._tell_switch(before)

    def _save(self) -> bool:
        """Have the state written now; returns whether it is on the disk."""
        if self._saver.settle() and self._saver.n_saved == self.n_done:
            return True
        snapshot = self._crew.snapshot() if self.width else None
        if snapshot is None:
            # Without members only what is on the disk is done.
            self._log.roll_back(self._folder.n_done())
            return self._wishes.stops
        self._saver.save(self.n_done, snapshot, self._memory())
        return self._saver.settle()

    def _rescue(self) -> None:
        """Have the state written after an error, where there is a member that still can."""
        if self.n_done in (0, self._rescued) or not (self.width and has_cluster()):
            return
        self._rescued = self.n_done
        try:
            if not self._let_saver_rest():
                return
            if self._saver.settle() and self._saver.n_saved == self.n_done:
                return
            snapshot = self._crew.rescue(_CLOSE_S)
            if snapshot is not None:
                self._saver.save(self.n_done, snapshot, self._memory())
                self._saver.settle()
        except Exception as error:  # noqa: BLE001 - it must not take the place of the first one
            self._log.tell(ElasticFault.CHECKPOINT_FAILED, f"step {self.n_done}", repr(error))
