"""The actors of an elastic training: how they are made, asked, waited for, and ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ecorl.errors import MissingToolError, RunError, UserError

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise MissingToolError(
        "elastic width needs Ray, which is not installed: pip install 'ecorl[ray]'"
    ) from error

from ecorl.trainer.elastic.groups import GroupSpec, MeetingPlace
from ecorl.trainer.elastic.member import Member
from ecorl.trainer.elastic.records import ElasticOptions, MemberOptions, Patience, StepAnswer
from ecorl.trainer.elastic.task import ElasticTask

logger = logging.getLogger(__name__)

_TRAIN, _SIDE, _MEET = "train", "side", "meet"

_THREADS = {_TRAIN: 1, _SIDE: 2, _MEET: 4}
"""One thread trains. Those that meet may each wait for a group that nobody wants any more, until
its time-out, so that pings have threads of their own; how many there are is invented."""

_LOOK_S = 0.05
"""How long one turn of waiting for answers takes at most, s; invented."""


class TrainerActor(Member):
    """A member of an elastic training, as an actor of Ray."""

    def __init__(self, name: str, task: ElasticTask, options: MemberOptions) -> None:
        super().__init__(name, task, options, ray.util.get_node_ip_address())


@dataclass(frozen=True, slots=True, eq=False)
class MemberHandle:
    """An actor, from the driver's side.

    Attributes:
        name: of the member.
        actor: Ray's handle.
        meeting: where its groups are made.
    """

    name: str
    actor: Any
    meeting: MeetingPlace

    def call(self, method: str, *args: Any) -> Any:
        """Call a method in the thread that trains; returns a reference to the answer."""
        return getattr(self.actor, method).options(concurrency_group=_TRAIN).remote(*args)

    def beside(self, method: str, *args: Any) -> Any:
        """Call a method beside the training; returns a reference to the answer."""
        return getattr(self.actor, method).options(concurrency_group=_SIDE).remote(*args)

    def meet(self, spec: GroupSpec) -> Any:
        """Ask it to join a group, beside all else; returns a reference to the answer."""
        return self.actor.join.options(concurrency_group=_MEET).remote(spec)

    def give_up(self, members: Sequence[str]) -> None:
        """Tell it to give up a group of these; one made later stays, if this arrives after it."""
        self.beside("abort", members, self.meeting.n_groups)

    def end(self) -> None:
        """End the actor for good; one that has ended already is no error."""
        if ray.is_initialized():
            ray.kill(self.actor)


@dataclass(slots=True)
class Gathered:
    """What came of a call to several members.

    Attributes:
        answers: by the member's name, failures included.
        failures: why a collective failed, by the name of those who said so.
        lost: why a member counts as lost, by name.
        error: what the user's own functions raised in one of them.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    error: RayTaskError | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every member has answered, and none of them with a failure."""
        return not (self.failures or self.lost or self.error)

    def raise_error(self) -> None:
        """Raise what the user's own functions raised, if they did."""
        if self.error is not None:
            raise_cause(self.error)


def raise_cause(error: RayTaskError) -> None:
    """Raise an error of an actor: a `UserError` as its own one line, another with Ray's text."""
    if isinstance(error.cause, UserError):
        raise error.cause from error
    raise error


class Gathering:
    """Waits until each of several members has answered, or is lost.

    Once one of them is lost or has failed, the others are told to give up the group, and pinged:
    a member that answers pings is waited for, one that does not is ended.

    Args:
        calls: reference of each call, and who was called.
        members: names of the group in which they work together.
        patience: how long is waited.
        meanwhile: called now and then.
        is_hasty: whether the others are not waited for once one of them is lost or has failed.
    """

    def __init__(
        self,
        calls: Mapping[Any, MemberHandle],
        members: Sequence[str],
        patience: Patience,
        meanwhile: Callable[[], None] = lambda: None,
        is_hasty: bool = False,
    ) -> None:
        self._pending, self._members = dict(calls), tuple(members)
        self._patience, self._meanwhile, self._is_hasty = patience, meanwhile, is_hasty
        self._result = Gathered()
        self._trouble_s: float | None = None
        self._pings: dict[str, tuple[Any, float]] = {}

    def run(self) -> Gathered:
        """Wait; returns what came of it."""
        while self._pending:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=_LOOK_S)
            for ref in ready:
                self._take(ref, self._pending.pop(ref))
            if not self._result.is_whole:
                if self._is_hasty:
                    break
                self._look_after()
            self._meanwhile()
        return self._result

    def _take(self, ref: Any, member: MemberHandle) -> None:
        """Take one member's answer."""
        try:
            answer = ray.get(ref)
        except RayTaskError as error:
            self._result.error = self._result.error or error
            return
        except RayError as error:
            self._lose(member, first_line(error))
            return
        self._result.answers[member.name] = answer
        failure = answer.failure if isinstance(answer, StepAnswer) else answer
        if isinstance(failure, str):
            self._result.failures[member.name] = failure

    def _look_after(self) -> None:
        """See to those who have not answered, after another has failed."""
        now_s = time.monotonic()
        if self._trouble_s is None:
            self._trouble_s = now_s
            for member in self._pending.values():
                member.give_up(self._members)
        for ref, member in list(self._pending.items()):
            if now_s - self._trouble_s > self._patience.step_s:
                reason = f"no answer in {self._patience.step_s:g} s after another had failed"
            elif not self._answers_pings(member, now_s):
                reason = f"it answered no ping in {self._patience.ping_s:g} s"
            else:
                continue
            del self._pending[ref]
            self._lose(member, reason)

    def _answers_pings(self, member: MemberHandle, now_s: float) -> bool:
        """Whether a member has answered its last ping, or has time left to."""
        ping, sent_s = self._pings.get(member.name, (None, 0.0))
        if ping is None or ray.wait([ping], timeout=0)[0]:
            # A dead member's ping is an error, and so is its call, which tells of it.
            self._pings[member.name] = (member.beside("ping"), now_s)
            return True
        return now_s - sent_s <= self._patience.ping_s

    def _lose(self, member: MemberHandle, reason: str) -> None:
        member.end()  # it must never write into anything again
        self._result.lost[member.name] = reason


class Staff:
    """All actors of a training, and which process groups they have.

    Args:
        task: what is trained.
        options: how.
    """

    def __init__(self, task: ElasticTask, options: ElasticOptions) -> None:
        self.options = options
        self.meeting = MeetingPlace(ray.util.get_node_ip_address())
        self._task = ray.put(task)
        self._n_hired = 0
        self._spares: list[MemberHandle] = []
        self._alive: dict[str, MemberHandle] = {}
        self._groups: set[tuple[str, ...]] = set()

    def hire(self, n: int, rows: Sequence[int]) -> dict[MemberHandle, Any]:
        """Get members: spare ones first, then new ones, which load.

        Args:
            n: how many.
            rows: what the new ones warm up with.

        Returns:
            The members in a fixed order, each with the reference of its loading; None for a spare.
        """
        spares, self._spares = self._spares[:n], self._spares[n:]
        hired: dict[MemberHandle, Any] = dict.fromkeys(spares)
        for _ in range(n - len(spares)):
            member = self._make()
            hired[member] = member.call("load", tuple(rows))
        return hired

    def _make(self) -> MemberHandle:
        """Start one actor."""
        place = self.options.place
        self._n_hired += 1
        name = f"member-{self._n_hired}"
        made = ray.remote(
            num_cpus=place.num_cpus,
            num_gpus=place.num_gpus,
            resources=dict(place.resources) or None,
            scheduling_strategy="SPREAD" if place.is_spread else "DEFAULT",
            concurrency_groups=_THREADS,
            # Who dies has lost its state: another one joins and is given it.
            max_restarts=0,
        )(TrainerActor)
        actor = made.remote(name, self._task, self.options.member)
        member = MemberHandle(name, actor, self.meeting)
        self._alive[name] = member
        return member

    def dismiss_spares(self) -> None:
        """End those who wait: their state is of no use."""
        for member in self._spares:
            self.lose(member)

    def release(self, members: Iterable[MemberHandle], as_spares: bool) -> None:
        """Let members go: they wait as spares, or end."""
        for member in members:
            if as_spares and member.name in self._alive:
                self._spares.append(member)
            else:
                self.lose(member)

    def lose(self, member: MemberHandle) -> None:
        """End a member, and give up all groups that it was in."""
        member.end()
        self._alive.pop(member.name, None)
        self._spares = [one for one in self._spares if one is not member]
        gone = {names for names in self._groups if member.name in names}
        self._groups -= gone
        for name in {name for names in gone for name in names} & set(self._alive):
            self._alive[name].beside("forget", member.name)

    def has_group(self, members: Sequence[MemberHandle]) -> bool:
        """Whether these members need no new group: they have one, or it is one member alone."""
        return len(members) == 1 or names_of(members) in self._groups

    def meet(self, members: Sequence[MemberHandle]) -> dict[Any, MemberHandle]:
        """Ask members to make a group; returns the references of the calls."""
        spec = self.meeting.spec(names_of(members))
        return {member.meet(spec): member for member in members}

    def met(self, members: Sequence[MemberHandle]) -> None:
        """Note that members have a group."""
        if len(members) > 1:
            self._groups.add(names_of(members))

    def give_up_group(self, members: Sequence[MemberHandle]) -> None:
        """Never use the group of these members again."""
        self._groups.discard(names_of(members))
        for member in members:
            if member.name in self._alive:
                member.give_up(names_of(members))

    def end(self) -> None:
        """End all actors."""
        for member in list(self._alive.values()):
            member.end()
        self._alive.clear()
        self._spares.clear()
        self._groups.clear()


def has_cluster() -> bool:
    """Whether this process has joined a Ray cluster."""
    return bool(ray.is_initialized())


def fetch(reference: Any) -> Any:
    """Wait for one member's answer.

    Raises:
        RunError: when the member is lost.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise_cause(error)
    except RayError as error:
        raise RunError(f"a member of the training is lost: {first_line(error)}") from error


def names_of(members: Sequence[MemberHandle]) -> tuple[str, ...]:
    """Names of members, by rank."""
    return tuple(member.name for member in members)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for a record."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
