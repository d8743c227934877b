"""Several feeds in a row: the first whose value is fresh and can be believed counts.

A value that is not used is told with its reason. When no feed has one the intensity is unknown:
never 0, and never a value that somebody made up.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np

from ecorl.carbon.feeds.protocol import Feed, FeedInfo
from ecorl.carbon.plausibility import doubt_by_itself, doubt_of, explains_zero, zeros_that_count
from ecorl.errors import FeedError, FeedRefused, FeedSilent
from ecorl.grid import Gas, Intensity, MarginalIntensity, Scope
from ecorl.kinds import Provenance

logger = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Intensity)

AHEAD_S = 900.0
"""How far an interval's begin may lie ahead of this machine's clock, s. Invented: a quarter of an
hour forgives a clock that is wrong by minutes, and no provider's interval is shorter than the
error that it would hide."""

REMEMBERED_S = 28 * 86400.0
"""For how long accepted values are remembered, s: what a grid usually does shows in weeks, and no
provider is asked for more."""

REMEMBERED_DAYS = 365
"""The same in days of the grid, which are shorter where time is played faster: there, four weeks of
the clock would be millions of intervals."""


class Unused(StrEnum):
    """Why a feed's value was not used, beside the doubts of `Doubt` and the errors of feeds."""

    STALE = "stale"  # its interval ended too long ago
    AHEAD = "ahead"  # its interval begins in the future
    BACKWARDS = "backwards"  # its interval is earlier than one that the feed gave before
    RESTING = "resting"  # the source asked to be left alone for a while
    DIRTIER = "dirtier"  # it is of an earlier time than values in doubt, which are all lower


@dataclass(frozen=True, slots=True)
class Refusal:
    """A feed that was passed over.

    Attributes:
        feed: its name.
        reason: an `Unused`, a `Doubt`, or the class name of a `FeedError`.
        detail: one line about it.
    """

    feed: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class FeedAnswer(Generic[Kind]):
    """What a chain answered.

    Attributes:
        asked_s: when it was asked, s since 1970.
        value: the intensity that counts; None: unknown.
        refusals: the feeds before it that were passed over, or all of them.
    """

    asked_s: float
    value: Kind | None
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class _Doubted:
    """What a feed said and what is not believed.

    Attributes:
        feed: its name.
        at_s: a time that it is about, s since 1970.
        g_per_kwh: the intensity, in the unit of `gas`.
        scope: which emissions it counts; None where the feed has given no value yet.
        gas: what the grams are of; None likewise.
    """

    feed: str
    at_s: float
    g_per_kwh: float
    scope: Scope | None
    gas: Gas | None

    @property
    def may_be(self) -> bool:
        """Whether it may be a grid's; what is negative is none's, nor a 0 over the life cycle."""
        return self.g_per_kwh > 0 or (self.g_per_kwh == 0 and self.scope is Scope.DIRECT)


@dataclass(slots=True)
class _Memory(Generic[Kind]):
    """What is known of a feed.

    Attributes:
        accepted: its values so far, in the order of time.
        newest: the one that it gave last and that was believed; None before the first.
        zeros: those that it gave in a row last, of which too few are known to count.
        doubted: what it said last, where that was not believed; None since a value was.
        rests_until_s: before then it is not asked, s since 1970.
    """

    accepted: deque[Kind] = field(default_factory=deque)
    newest: Kind | None = None
    zeros: list[Kind] = field(default_factory=list)
    doubted: _Doubted | None = None
    rests_until_s: float = 0.0

    def recall(self, told: Sequence[Kind]) -> None:
        """Remember the values of a feed's last weeks, without what no grid emits.

        Args:
            told: in the order of time.
        """
        counting = _zeros_that_count(told)
        for number, value in enumerate(told):
            is_open = value.g_per_kwh == 0 and explains_zero(value.scope, value.mix) is not False
            self.zeros = [*self.zeros, value] if is_open and number not in counting else []
            if doubt_by_itself(value.g_per_kwh, number in counting) is None:
                self.accepted.append(value)


class FeedChain(Generic[Kind]):
    """Asks feeds of one kind in their order, until one has a value that counts.

    Args:
        feeds: of one kind: average or marginal.
        stale_after_s: for how long after its interval's end a value still counts, s.
    """

    def __init__(self, feeds: Sequence[Feed[Kind]], stale_after_s: float) -> None:
        self.feeds = tuple(feeds)
        self._by_name = {feed.info.name: feed for feed in feeds}
        self._stale_after_s = stale_after_s
        self._memories: dict[str, _Memory[Kind]] = {name: _Memory() for name in self._by_name}
        if len(self._memories) < len(self.feeds):
            raise ValueError("two feeds of one name")

    def recall(self, now_s: float) -> None:
        """Have each feed tell its last weeks, so that its first value can be judged.

        A feed that does not answer is judged by its own values as they come.

        Args:
            now_s: time, s since 1970.
        """
        for feed in self.feeds:
            try:
                told = feed.history(now_s - _remembered_s(feed.info), now_s)
            except FeedError as error:
                logger.info("%s told no history: %s", feed.info.name, error)
                continue
            if _is_judged(feed, told):
                self._memories[feed.info.name].recall(told)
            else:
                self._memories[feed.info.name].accepted.extend(told)

    def ask(self, now_s: float) -> FeedAnswer[Kind]:
        """Ask the feeds; takes as long as they do.

        When none of them has a new value, the first counts of those that they gave before and that
        are still fresh: one question without an answer makes no known value unknown. But no value
        of an earlier time counts that is above all that is in doubt: what is not believed of an
        hour makes it unknown at most, never dirtier than each reading of it.

        Args:
            now_s: time, s since 1970.
        """
        refusals: list[Refusal] = []
        doubted: list[_Doubted] = []
        for feed in self.feeds:
            found = self._from(feed, now_s)
            if not isinstance(found, Refusal):
                if not _is_dirtier(found, [d for d in doubted if d.may_be]):
                    return FeedAnswer(now_s, found, tuple(refusals))
                detail = f"{found.g_per_kwh:g} {found.gas}, of an earlier time than lower values"
                found = Refusal(found.feed, Unused.DIRTIER, f"{detail} that are in doubt")
            refusals.append(found)
            memory = self._memories[feed.info.name]
            doubted += [] if memory.doubted is None else [memory.doubted]
        before = (self._memories[feed.info.name].newest for feed in self.feeds)
        fresh = (v for v in before if v is not None and self.still_counts(v, now_s))
        for value in fresh:
            # A dead source makes nothing of another feed unknown.
            if not _is_dirtier(value, [d for d in doubted if d.may_be or d.feed == value.feed]):
                return FeedAnswer(now_s, value, tuple(refusals))
        return FeedAnswer(now_s, None, tuple(refusals))

    def feed(self, name: str) -> Feed[Kind]:
        """The feed of a name.

        Args:
            name: of the feed.

        Raises:
            KeyError: when the chain has none of that name.
        """
        return self._by_name[name]

    def past(self, name: str) -> tuple[Kind, ...]:
        """What a feed told so far, in the order of time; on the thread that asks the chain.

        Args:
            name: of the feed.
        """
        return tuple(self._memories[name].accepted)

    def still_counts(self, value: Kind, now_s: float) -> bool:
        """Whether a value that was accepted before is still fresh enough.

        Args:
            value: of an earlier answer.
            now_s: time, s since 1970.
        """
        return now_s <= value.end_s + self._stale_after_s

    def _from(self, feed: Feed[Kind], now_s: float) -> Kind | Refusal:
        name, memory = feed.info.name, self._memories[feed.info.name]
        if now_s < memory.rests_until_s:
            left_s = memory.rests_until_s - now_s
            return Refusal(name, Unused.RESTING, f"it asked to be left alone for {left_s:.0f} s")
        try:
            value = feed.read(now_s)
        except FeedError as error:
            if isinstance(error, FeedRefused) and error.retry_after_s is not None:
                memory.rests_until_s = now_s + error.retry_after_s
            if isinstance(error, FeedSilent) and error.doubted_g_per_kwh is not None:
                last = memory.accepted[-1] if memory.accepted else None
                scope, gas = (last.scope, last.gas) if last is not None else (None, None)
                memory.doubted = _Doubted(name, now_s, error.doubted_g_per_kwh, scope, gas)
            return Refusal(name, type(error).__name__, str(error))
        refusal = self._out_of_time(value, memory, now_s)
        if refusal is None and _is_judged(feed, (value,)):
            refusal = self._doubted(value, memory)
            if refusal is not None:
                middle_s, g_per_kwh = (value.start_s + value.end_s) / 2, value.g_per_kwh
                memory.doubted = _Doubted(name, middle_s, g_per_kwh, value.scope, value.gas)
        return refusal or self._accept(value, memory, _remembered_s(feed.info))

    def _out_of_time(self, value: Kind, memory: _Memory[Kind], now_s: float) -> Refusal | None:
        """Why the time of a value's interval does not count, or None."""
        if value.start_s > now_s + AHEAD_S:
            ahead_s = value.start_s - now_s
            return Refusal(value.feed, Unused.AHEAD, f"its interval begins in {ahead_s:.0f} s")
        if not self.still_counts(value, now_s):
            old_s = now_s - value.end_s
            return Refusal(value.feed, Unused.STALE, f"its interval ended {old_s:.0f} s ago")
        newest = memory.accepted[-1] if memory.accepted else None
        if newest is not None and value.start_s < newest.start_s:
            back_s = newest.start_s - value.start_s
            detail = f"its interval is {back_s:.0f} s before one that it gave earlier"
            return Refusal(value.feed, Unused.BACKWARDS, detail)
        return None

    def _doubted(self, value: Kind, memory: _Memory[Kind]) -> Refusal | None:
        """Why a value cannot be believed, or None."""
        before = [v for v in memory.accepted if v.start_s < value.start_s]
        times_s = np.array([v.start_s for v in before], np.float64)
        values = [v.g_per_kwh for v in before]
        explained = explains_zero(value.scope, value.mix)
        is_open = value.g_per_kwh == 0 and explained is not False
        row = [v for v in memory.zeros if v.start_s < value.start_s]
        memory.zeros = [*row, value] if is_open else []
        told = [*before, *memory.zeros]
        may_be_zero = is_open and len(told) - 1 in _zeros_that_count(told)
        doubt = doubt_of(
            value.start_s, value.g_per_kwh, times_s, np.array(values, np.float64), value.scope,
            may_be_zero=may_be_zero,
            # The plant that follows the load changes at once; a 0 has been judged by then.
            is_explained=explained is True or may_be_zero or isinstance(value, MarginalIntensity),
        )  # fmt: skip
        told_of = f"{value.g_per_kwh:g} {value.gas}"
        return None if doubt is None else Refusal(value.feed, doubt, told_of)

    def _accept(self, value: Kind, memory: _Memory[Kind], remembered_s: float) -> Kind:
        accepted = memory.accepted
        # A provider may correct what it said of the interval under way.
        if accepted and accepted[-1].start_s == value.start_s:
            accepted.pop()
        # Zeros that were open count with the ones behind them, or not at all.
        accepted.extend(v for v in memory.zeros if v is not value)
        memory.zeros = []
        accepted.append(value)
        memory.newest, memory.doubted = value, None
        while accepted[0].start_s < value.start_s - remembered_s:
            accepted.popleft()
        return value


def _is_judged(feed: Feed[Kind], values: Sequence[Kind]) -> bool:
    """Whether values are still to be judged.

    What the user has stated is no reading of a grid, and a recording was judged when it was read,
    by what came after, too.
    """
    is_recorded = bool(values) and values[0].provenance is Provenance.REPLAYED
    return not (feed.info.is_stated or is_recorded)


def _is_dirtier(value: Intensity, doubted: Iterable[_Doubted]) -> bool:
    """Whether a value is of an earlier time than others of its kind, all of which are lower."""
    later = [
        d.g_per_kwh
        for d in doubted
        if d.at_s >= value.end_s
        and math.isfinite(d.g_per_kwh)
        and d.scope in (None, value.scope)
        and d.gas in (None, value.gas)
    ]
    return bool(later) and value.g_per_kwh > max(later)


def _zeros_that_count(told: Sequence[Intensity]) -> set[int]:
    """Numbers of the zeros that are a grid's, of what a feed told, in the order of time."""
    return zeros_that_count(
        np.array([v.start_s for v in told], np.float64),
        np.array([v.g_per_kwh for v in told], np.float64),
        [explains_zero(v.scope, v.mix) for v in told],
    )


def _remembered_s(info: FeedInfo) -> float:
    """For how long accepted values of a feed are remembered, s."""
    return min(REMEMBERED_S, REMEMBERED_DAYS * info.day_s)
