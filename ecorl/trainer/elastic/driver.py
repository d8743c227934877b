"""Has the members compute steps, and sees to it that a step counts for all of them or for none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import ray

from ecorl.control import Gear
from ecorl.errors import RunError
from ecorl.trainer.elastic.checkpoints import TrainingCheckpoint
from ecorl.trainer.elastic.crew import (
    Gathered,
    Gathering,
    MemberHandle,
    Staff,
    look_for_silent,
    names_of,
    reason_of,
)
from ecorl.trainer.elastic.records import (
    ElasticFault,
    StepDone,
    StepOrder,
    TrainingLog,
    WidthChange,
)
from ecorl.trainer.elastic.switch import Switch
from ecorl.trainer.elastic.task import split_rows

_TRIES = 5
"""How often one step is computed before it is given up; invented."""

_MEETINGS = 3
"""How often survivors try to make a group before the first goes on alone; invented."""

_TIMED_OUT = re.compile(r"tim(ed |e-?)out", re.IGNORECASE)
"""What torch's back-ends say of a collective that took too long."""

_FOLLOWS = re.compile("was aborted|was given up|has no group")
"""What a member says when another has failed before it: it tells nothing of the cause."""


class CrewDriver:
    """Drives the members of a training through its steps.

    Args:
        staff: the actors.
        log: what has happened.

    Attributes:
        members: who trains now, by rank.
    """

    def __init__(self, staff: Staff, log: TrainingLog) -> None:
        self.members: list[MemberHandle] = []
        self._staff, self._log = staff, log
        self._patience = staff.options.patience

    def begin(self, members: Sequence[MemberHandle], saved: TrainingCheckpoint | None) -> bool:
        """Give members that have loaded and met one state, and train with them.

        Args:
            members: by rank.
            saved: the state; None for that of the first member, which has trained nothing.

        Returns:
            Whether they have it, or the first of them alone, which the others may join later. If
            not, all that are left are to be let go.
        """
        n_done, first = saved.n_done if saved else 0, members[0]
        if saved is not None:
            restored = self._gather({first.call("restore", saved.payload): first}, members)
            restored.raise_error()
            if not restored.is_whole:
                self._lose(restored, members)
                return False
        if len(members) > 1:
            shared = self._share(members, n_done, members[1:])
            if not shared.is_whole:
                self._lose(shared, members)
                self._staff.give_up_group(members)
                if first.name in shared.lost:
                    return False
                self._staff.release(members[1:], as_spares=False)
                members = members[:1]
        self.members = list(members)
        self._log.roll_back(n_done)
        return True

    def change(self, switch: Switch) -> bool:
        """Carry out a change of width that is ready.

        Args:
            switch: the change.

        Returns:
            Whether it took place. If not, training goes on with those who are left, and the change
            with the joiners that are left.
        """
        start_s, before = time.monotonic(), self.members
        members, joiners = switch.members, switch.joiners
        if joiners:
            shared = self._share(members, self._log.n_done, joiners)
            if not shared.is_whole:
                self._staff.give_up_group(members)
                self._recover(shared, members)
                lost = [one for one in joiners if one.name in shared.lost]
                switch.share_failed(self.members, lost)
                return False
        leavers = [one for one in before if one not in members]
        self._staff.release(leavers, as_spares=self._staff.options.keeps_spares)
        self.members = members
        now_s = time.monotonic()
        prepared_s, stood_s = switch.ready_s - switch.asked_s, now_s - start_s
        self._log.change(
            WidthChange(self._log.n_done, len(before), len(members), prepared_s, stood_s)
        )
        return True

    def step(
        self, rows: Sequence[int], gear: Gear | None, meanwhile: Callable[[], None]
    ) -> StepDone | None:
        """Have the next step computed, and commit it if every member has answered.

        Args:
            rows: of the step.
            gear: numeric format; None: as it is.
            meanwhile: called now and then while the members compute.

        Returns:
            The step; None when it was not committed, and has to be computed again.

        Raises:
            RunError: when it fails again and again.
        """
        start_s, step, members = time.monotonic(), self._log.n_done, self.members
        whole = StepOrder(step, step, (), 0, len(rows), names_of(members), gear)
        calls = {}
        for member, part in zip(members, split_rows(len(rows), len(members)), strict=True):
            own = tuple(rows[i] for i in part)
            calls[member.call("compute", replace(whole, rows=own, first=part.start))] = member
        gathered = self._gather(calls, members, meanwhile)
        gathered.raise_error()
        if not gathered.is_whole:
            self._redo(gathered)
            return None
        now_s = time.monotonic()
        loss = gathered.answers[members[0].name].loss
        done = StepDone(step, loss, len(members), tuple(rows), now_s, now_s - start_s)
        self._log.commit(done if self._staff.options.logs_rows else replace(done, rows=()))
        return done

    def snapshot(self) -> object | None:
        """Have a member write its state down.

        A member that falls silent over it is lost, and the reference then tells so.

        Returns:
            The reference, once it has; None when no member is left.

        Raises:
            Exception: what the task's own functions raise in the last update.
        """
        n_done = self._log.n_done
        # Apart: what is raised there is the user's, while a state that cannot be had is a fault.
        settled = self._gather(
            {one.call("settle", n_done): one for one in self.members}, self.members
        )
        settled.raise_error()
        self._lose(settled, self.members)
        if not self.members:
            return None
        first = self.members[0]
        snapshot: object = first.call("snapshot", n_done)
        # Waited for: the next step's call must come after it. Whoever writes it fetches it.
        waiting = Gathering({snapshot: first}, (first.name,), self._patience, fetches=False)
        self._lose(waiting.run(), [first])
        return snapshot

    def rescue(self, patience_s: float) -> object | None:
        """Have a member write its state down in spite of an error.

        Args:
            patience_s: how long it is waited for, s.

        Returns:
            The reference; None when there is no member left, or it was not done in time.
        """
        self._lose(look_for_silent(self.members, self._patience.ping_s), self.members)
        if not self.members:
            return None
        snapshot = self.members[0].call("snapshot", self._log.n_done)
        ready, _ = ray.wait([snapshot], timeout=patience_s, fetch_local=False)
        return snapshot if ready else None

    def release(self) -> None:
        """Let all members go."""
        self._staff.release(self.members, as_spares=False)
        self.members = []

    # ------------------------------------------------------------ when something went wrong

    def _redo(self, gathered: Gathered) -> None:
        """Make ready to compute the step again with those who are left."""
        failures = [*gathered.lost.values(), *gathered.failures.values()]
        failure = min(failures, key=lambda one: bool(_FOLLOWS.search(one)))
        self._staff.give_up_group(self.members)
        # All of them live: one was slower than the others by more than a collective may take.
        is_slow = not gathered.lost and any(map(_TIMED_OUT.search, failures))
        is_failure = not (is_slow and self._staff.allow_longer())
        if not is_failure:
            failure += f"; from now on a collective may take {self._staff.timeout_s:g} s"
        self._recover(gathered, self.members)
        if self._log.redo(is_failure) >= _TRIES:
            raise RunError(
                f"step {self._log.n_done} has failed {_TRIES} times; the last time: {failure}"
            )
        kind = ElasticFault.STEP_REDONE if self.members else ElasticFault.ALL_LOST
        self._log.tell(kind, f"step {self._log.n_done}", failure)

    def _recover(self, gathered: Gathered, asked: Iterable[MemberHandle]) -> None:
        """Leave out those who are lost, and give the others a group."""
        self._lose(gathered, asked)
        for _ in range(_MEETINGS):
            if not self.members or self._staff.has_group(self.members):
                return
            calls = self._staff.meet(self.members)
            met = self._gather(calls, self.members, is_hasty=True)
            met.raise_error()
            if met.is_whole:
                self._staff.met(self.members)
                return
            for failure in met.failures.values():
                self._log.tell(ElasticFault.GROUP_FAILED, f"width {self.width}", failure)
            self._lose(met, self.members)
            # Who fell silent at the meeting is why it failed for the others.
            self._lose(look_for_silent(self.members, self._patience.ping_s), self.members)
        # They live and do not reach each other: one of them can always go on.
        if self.members and not self._staff.has_group(self.members):
            self._staff.release(self.members[1:], as_spares=False)
            self.members = self.members[:1]

    @property
    def width(self) -> int:
        """Members now."""
        return len(self.members)

    def _lose(self, gathered: Gathered, asked: Iterable[MemberHandle]) -> None:
        """End those who are lost, and tell."""
        for one in list(asked):
            if one.name in gathered.lost:
                is_member = one in self.members
                kind = ElasticFault.MEMBER_LOST if is_member else ElasticFault.JOINER_LOST
                self._log.tell(kind, one.name, gathered.lost[one.name])
                self.members = [other for other in self.members if other is not one]
                self._staff.lose(one)

    def _share(
        self, members: Sequence[MemberHandle], n_done: int, joiners: Sequence[MemberHandle]
    ) -> Gathered:
        """Pass the first member's state on to those who join."""
        names = names_of(members)
        calls = {
            one.call("share", names, None if one in joiners else n_done): one for one in members
        }
        waiting = Gathering(
            calls,
            names,
            self._patience,
            joiners=names_of(joiners),
            joiner_s=self._staff.timeout_s + self._patience.ping_s,
        )
        shared = waiting.run()
        for one in joiners:
            # Whoever has no room for the state, say, is no reason to end the training.
            if one.name in shared.errors:
                shared.lost[one.name] = reason_of(shared.errors.pop(one.name))
        shared.raise_error()
        for failure in shared.failures.values():
            self._log.tell(ElasticFault.GROUP_FAILED, f"width {len(members)}", failure)
        return shared

    def _gather(
        self,
        calls: dict[object, MemberHandle],
        members: Sequence[MemberHandle],
        meanwhile: Callable[[], None] = lambda: None,
        is_hasty: bool = False,
    ) -> Gathered:
        """Wait for answers."""
        names = names_of(members)
        return Gathering(calls, names, self._patience, meanwhile, is_hasty).run()
