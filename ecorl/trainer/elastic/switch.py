"""Gets the next width ready while training goes on at the present one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ecorl.trainer.elastic.crew import MemberHandle, Staff, reason_of
from ecorl.trainer.elastic.records import ElasticFault

_MEETINGS = 3
"""How often a group is tried to be made, and the state to be passed on in it, before the joiners
are let go; invented."""

Tell = Callable[[ElasticFault, str, str], None]
"""Takes a fault, who it is about, and one line."""


class Switch:
    """One change of width, up to the moment in which it can take place.

    Joiners load and warm up; then they meet those who stay, in a group beside the one in use. It
    never waits: `poll` looks what has happened. Joiners that are lost are left out, and the change
    takes place with the others.

    Args:
        goal: members after the change.
        crew: members now, by rank; those beyond the goal leave.
        staff: the actors.
        rows: what joiners warm up with.
        tell: takes faults.

    Attributes:
        goal: members after the change.
        kept: members who stay.
        is_ready: whether the change can take place.
        is_over: whether nothing comes of it.
        error: what a joiner's own functions raised, if they did.
        asked_s: when it was asked for, s on the monotonic clock.
        ready_s: when it was ready, on the same clock.
    """

    def __init__(
        self, goal: int, crew: Sequence[MemberHandle], staff: Staff, rows: Sequence[int], tell: Tell
    ) -> None:
        self.goal, self.kept = goal, list(crew[:goal])
        self.is_ready = self.is_over = False
        self.error: RayTaskError | None = None
        self.asked_s = self.ready_s = time.monotonic()
        self._staff, self._rows, self._tell = staff, tuple(rows), tell
        self._joiners: list[MemberHandle] = []
        self._loading: dict[Any, MemberHandle] = {}
        self._meeting: dict[Any, MemberHandle] = {}
        self._n_meetings = self._n_shares = 0
        self._limit_s = 0.0
        self._hire()

    @property
    def members(self) -> list[MemberHandle]:
        """Members after the change, by rank: those who stay come first."""
        return [*self.kept, *self._joiners]

    @property
    def joiners(self) -> list[MemberHandle]:
        """Members who have to be given the state."""
        return list(self._joiners)

    def poll(self) -> None:
        """Look what has happened, and do what is next."""
        if self.is_ready or self.is_over:
            return
        if self._loading:
            self._look_at_loading()
        if not self._loading and not self._meeting:
            self._meet()
        elif self._meeting:
            self._look_at_meeting()

    def regroup(self, crew: Sequence[MemberHandle], lost: Sequence[MemberHandle] = ()) -> None:
        """Go on with other members: some have been lost.

        Args:
            crew: members now.
            lost: joiners that have been lost.
        """
        self._joiners = [one for one in self._joiners if one not in lost]
        self.kept = list(crew[: self.goal])
        self.is_ready = False
        self._meeting = {}
        self._hire()

    def share_failed(self, crew: Sequence[MemberHandle], lost: Sequence[MemberHandle]) -> None:
        """Go on after the joiners could not be given the state, unless it has failed too often.

        Args:
            crew: members now.
            lost: joiners that have been lost.
        """
        self._n_shares += 1
        if self._n_shares < _MEETINGS:
            self.regroup(crew, lost)
            return
        self._joiners = [one for one in self._joiners if one not in lost]
        self.cancel()

    def cancel(self) -> None:
        """Let the joiners go."""
        loading = list(self._loading.values())
        self._staff.release(loading, as_spares=False)
        ready = [one for one in self._joiners if one not in loading]
        self._staff.release(ready, as_spares=self._staff.options.keeps_spares)
        self._joiners, self._loading, self._meeting = [], {}, {}
        self.is_ready, self.is_over = False, True

    def _hire(self) -> None:
        """Get as many joiners as are missing."""
        missing = self.goal - len(self.kept) - len(self._joiners)
        if missing > 0:
            hired = self._staff.hire(missing, self._rows)
            self._joiners.extend(hired)
            self._loading |= {ref: one for one, ref in hired.items() if ref is not None}
            self._limit_s = time.monotonic() + self._staff.options.patience.join_s

    def _look_at_loading(self) -> None:
        """Take those who have loaded; let go those who are lost or late."""
        ready, _ = ray.wait(list(self._loading), num_returns=len(self._loading), timeout=0)
        has_one = False
        for ref in ready:
            member = self._loading.pop(ref)
            try:
                ray.get(ref)
                has_one = True
            except RayTaskError as error:
                self.error = error
                self._lose(member, reason_of(error))
            except RayError as error:
                self._lose(member, reason_of(error))
        patience, now_s = self._staff.options.patience, time.monotonic()
        if has_one and not self.kept:
            # It could train, and nobody does.
            self._limit_s = min(self._limit_s, now_s + patience.begin_s)
        if self._loading and now_s > self._limit_s:
            late, self._loading = list(self._loading.values()), {}
            for member in late:
                waited_s = now_s - self.asked_s
                self._lose(member, f"it was not placed or had not loaded after {waited_s:.0f} s")

    def _meet(self) -> None:
        """Make the new group, unless there is one."""
        if not self._joiners and len(self.kept) != self.goal:
            self.is_over = True  # nobody has joined
        elif not self.members or self._staff.has_group(self.members):
            self._be_ready()
        else:
            self._n_meetings += 1
            self._meeting = self._staff.meet(self.members)

    def _look_at_meeting(self) -> None:
        """See whether all have met; if one is lost or failed, try again without it."""
        ready, _ = ray.wait(list(self._meeting), num_returns=len(self._meeting), timeout=0)
        failure = None
        for ref in ready:
            member = self._meeting.pop(ref)
            try:
                failure = ray.get(ref) or failure
            except RayError as error:
                failure = reason_of(error)
                # One who stays is missed in its next step; here there is nothing to do about it.
                if member in self._joiners:
                    self._lose(member, failure)
        if failure is not None:
            self._tell(ElasticFault.GROUP_FAILED, f"width {self.goal}", failure)
            silent, self._meeting = list(self._meeting.values()), {}
            if self._n_meetings >= _MEETINGS:
                self._give_up_meeting(silent)
        elif not self._meeting:
            self._staff.met(self.members)
            self._be_ready()

    def _give_up_meeting(self, silent: Sequence[MemberHandle]) -> None:
        """Let the joiners go that could not be met; where nobody trains, one of them begins.

        Args:
            silent: who has not answered, and may never do.
        """
        able = [one for one in self._joiners if one not in silent]
        if self.kept or not able:
            self.cancel()
            return
        others = [one for one in self._joiners if one is not able[0]]
        self._staff.release(others, as_spares=False)
        self._joiners = able[:1]
        self._be_ready()

    def _be_ready(self) -> None:
        self.is_ready, self.ready_s = True, time.monotonic()

    def _lose(self, member: MemberHandle, reason: str) -> None:
        """Let a joiner go that is of no use."""
        self._tell(ElasticFault.JOINER_LOST, member.name, reason)
        self._joiners = [one for one in self._joiners if one is not member]
        self._staff.lose(member)
