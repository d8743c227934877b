"""The actors of an elastic training: how they are made, asked, waited for, and ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ecorl.errors import MissingToolError, RunError, UserError

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError
except ImportError as error:
    raise MissingToolError(
        "elastic width needs Ray, which is not installed: pip install 'ecorl[ray]'"
    ) from error

from ecorl.trainer.elastic.groups import GroupSpec, MeetingPlace
from ecorl.trainer.elastic.member import Member
from ecorl.trainer.elastic.records import ElasticOptions, MemberOptions, Patience, StepAnswer
from ecorl.trainer.elastic.task import ElasticTask

_TRAIN, _SIDE, _MEET = "train", "side", "meet"

_THREADS = {_TRAIN: 1, _SIDE: 2, _MEET: 4}
"""One thread trains. Those that meet may each wait for a group that nobody wants any more, until
its time-out, so that pings have threads of their own; how many there are is invented."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What Ray colours its messages with."""

_LOOK_S = 0.05
"""How long one turn of waiting for answers takes at most, s; invented."""

_CALM_PING_S = 1.0
"""How often members are pinged at most while none has failed, s; invented."""

_CALM = 6
"""How many times ``ping_s`` a member may leave a ping unanswered while no other has failed;
invented: it may be the only one, and with it all steps since the last checkpoint are lost."""


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
        errors: what the user's own functions raised, by the name of the member.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    errors: dict[str, RayTaskError] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether every member has answered, and none of them with a failure."""
        return not (self.failures or self.lost or self.errors)

    def raise_error(self) -> None:
        """Raise what the user's own functions raised, if they did."""
        for error in self.errors.values():
            raise_cause(error)


def look_for_silent(members: Iterable[MemberHandle], ping_s: float) -> Gathered:
    """Ping members; those who do not answer are ended.

    Args:
        members: who is pinged.
        ping_s: how long their answers are waited for, s.

    Returns:
        Who answered, and who is lost.
    """
    pings = {member.beside("ping"): member for member in members}
    result, left = Gathered(), list(pings)
    if left:
        ray.wait(left, num_returns=len(left), timeout=ping_s)
    for ping, member in pings.items():
        try:
            result.answers[member.name] = ray.get(ping, timeout=0)
        except GetTimeoutError:
            result.lost[member.name] = f"it answered no ping in {ping_s:g} s"
        except RayError as error:
            result.lost[member.name] = reason_of(error)
        if member.name in result.lost:
            member.end()
    return result


def raise_cause(error: RayTaskError) -> None:
    """Raise an error of an actor: a `UserError` as its own one line, another with Ray's text."""
    if isinstance(error.cause, UserError):
        raise error.cause from error
    raise error


class Gathering:
    """Waits until each of several members has answered, or is lost.

    All are pinged: a member that answers pings is waited for, one that does not is ended. Once one
    of them is lost or has failed, the others are told to give up the group.

    Args:
        calls: reference of each call, and who was called.
        members: names of the group in which they work together.
        patience: how long is waited.
        meanwhile: called now and then.
        is_hasty: whether the others are not waited for once one of them is lost or has failed.
        joiners: names of those without whom the others can go on: they are not waited for as long.
        joiner_s: for how long, once all others have answered, s.
        fetches: whether answers are fetched; else a member's error counts as its answer.
    """

    def __init__(
        self,
        calls: Mapping[Any, MemberHandle],
        members: Sequence[str],
        patience: Patience,
        meanwhile: Callable[[], None] = lambda: None,
        is_hasty: bool = False,
        joiners: Collection[str] = (),
        joiner_s: float = 0.0,
        fetches: bool = True,
    ) -> None:
        self._pending, self._members = dict(calls), tuple(members)
        self._patience, self._meanwhile, self._is_hasty = patience, meanwhile, is_hasty
        self._joiners, self._joiner_s = frozenset(joiners), joiner_s
        self._fetches = fetches
        self._result = Gathered()
        self._begun_s = time.monotonic()
        self._trouble_s: float | None = None
        self._joiners_alone_s: float | None = None
        self._pings: dict[str, tuple[Any, float]] = {}

    def run(self) -> Gathered:
        """Wait; returns what came of it."""
        while self._pending:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=_LOOK_S)
            for ref in ready:
                self._take(ref, self._pending.pop(ref))
            if self._is_hasty and not self._result.is_whole:
                break
            self._look_after()
            self._meanwhile()
        return self._result

    def _take(self, ref: Any, member: MemberHandle) -> None:
        """Take one member's answer."""
        try:
            answer = ray.get(ref) if self._fetches else None
        except RayTaskError as error:
            self._result.errors[member.name] = error
            return
        except RayError as error:
            self._lose(member, reason_of(error))
            return
        self._result.answers[member.name] = answer
        failure = answer.failure if isinstance(answer, StepAnswer) else answer
        if isinstance(failure, str):
            self._result.failures[member.name] = failure

    def _look_after(self) -> None:
        """See to those who have not answered."""
        now_s = time.monotonic()
        if self._trouble_s is None and not self._result.is_whole:
            self._trouble_s = now_s
            for member in self._pending.values():
                member.give_up(self._members)
        if self._joiners_alone_s is None and self._joiners.issuperset(
            member.name for member in self._pending.values()
        ):
            self._joiners_alone_s = now_s
        for ref, member in list(self._pending.items()):
            reason = self._what_is_wrong(member, now_s)
            if reason is not None:
                del self._pending[ref]
                self._lose(member, reason)

    def _what_is_wrong(self, member: MemberHandle, now_s: float) -> str | None:
        """Why a member is not waited for any longer; None while it is."""
        patience = self._patience
        since_s, limit_s, what = self._trouble_s, patience.step_s, "another had failed"
        if member.name in self._joiners and since_s is not None:
            limit_s = patience.ping_s
        elif member.name in self._joiners:
            since_s, limit_s = self._joiners_alone_s, self._joiner_s
            what = "all others had answered"
        if since_s is not None and now_s - since_s > limit_s:
            return f"no answer in {limit_s:g} s after {what}"
        ping_s = patience.ping_s * (_CALM if self._trouble_s is None else 1)
        if not self._answers_pings(member, now_s, ping_s):
            return f"it answered no ping in {ping_s:g} s"
        return None

    def _answers_pings(self, member: MemberHandle, now_s: float, ping_s: float) -> bool:
        """Whether a member has answered its last ping, or has time left to."""
        ping, sent_s = self._pings.get(member.name, (None, self._begun_s))
        # A dead member's ping is an error, and so is its call, which tells of it.
        is_answered = ping is None or bool(ray.wait([ping], timeout=0)[0])
        every_s = _CALM_PING_S if self._trouble_s is None else 0.0
        if is_answered and now_s - sent_s >= every_s:
            self._pings[member.name] = (member.beside("ping"), now_s)
        return is_answered or now_s - sent_s <= ping_s

    def _lose(self, member: MemberHandle, reason: str) -> None:
        member.end()  # it must never write into anything again
        self._result.lost[member.name] = reason


class Staff:
    """All actors of a training, and which process groups they have.

    Args:
        task: what is trained.
        options: how.

    Attributes:
        options: how.
        timeout_s: after this time without its peers a collective of the next group fails, s.
    """

    def __init__(self, task: ElasticTask, options: ElasticOptions) -> None:
        self.options = options
        self.timeout_s = options.member.groups.timeout_s
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
        spec = self.meeting.spec(names_of(members), self.timeout_s)
        return {member.meet(spec): member for member in members}

    def allow_longer(self) -> bool:
        """Double the time-out of the groups to come; returns whether it is not too long already."""
        if self.timeout_s >= self.options.patience.step_s:
            return False
        self.timeout_s = min(2 * self.timeout_s, self.options.patience.step_s)
        return True

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
        raise RunError(f"a member of the training is lost: {reason_of(error)}") from error


def names_of(members: Sequence[MemberHandle]) -> tuple[str, ...]:
    """Names of members, by rank."""
    return tuple(member.name for member in members)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for a record."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: RayError) -> str:
    """One line that tells why a call of an actor failed, for a record."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        cause: BaseException = error.cause
        kind = "" if isinstance(cause, UserError) else f"{type(cause).__name__}: "
        return f"{kind}{first_line(cause)}"
    lines = _COLOUR.sub("", str(error)).strip().splitlines() or [type(error).__name__]
    # Ray's own first line names the call; what went wrong in it is the last of the traceback.
    has_traceback = any("Traceback" in line for line in lines)
    return lines[-1].strip() if has_traceback else lines[0]
