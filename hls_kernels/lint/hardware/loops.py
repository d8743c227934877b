"""Rules on loops: values that copies hand to each other, wide scalars, bursts, refills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from hls_kernels.lint.compiling import interval_of
from hls_kernels.lint.elaboration.syntax import Return, Variable
from hls_kernels.lint.elaboration.trace import (
    Access,
    Arithmetic,
    Assignment,
    ElaborationTrace,
    Report,
    Scope,
    Turns,
)
from hls_kernels.lint.elaboration.values import Number, Symbol, place_of, plus
from hls_kernels.lint.kernels import reached

_MOST_COMPARISONS = 32
_DIVIDING = "quotient"
_WIDE = 48  # bits of a factor; products below it are of few DSPs


@dataclass(frozen=True, slots=True)
class _Chain:
    """An assignment that copies of one or more loops make to the same place, one after another."""

    assignment: Assignment
    loops: tuple[Turns, ...]  # all between the assignment and where the place's storage begins
    lanes: frozenset[Symbol | None]  # of those whose copies write the same place
    copies: int  # of the assignment in one turn of the loops that are left
    outermost: Scope  # of the copied loops

    def conditions(self) -> list[Number]:
        """The conditions around the assignment in the copied loops."""
        scopes = self.assignment.scope.until(self.outermost)
        return [scope.arm[2] for scope in scopes if scope.arm is not None]

    def asked(self) -> set[Symbol]:
        """What the conditions are computed from."""
        return {symbol for number in self.conditions() for symbol in number.symbols()}

    def is_conditional(self) -> bool:
        """Whether run time decides if a copy assigns."""
        return not all(number.is_fixed() for number in self.conditions())


def carried(trace: ElaborationTrace) -> Report:
    """Unrolled copies do not carry one scalar from turn to turn of a loop.

    A maximum, a sum or an or-ed mark that 16 copies update one after the other is a chain of 16
    operations, and the next turn of the loop waits for its end: Vitis HLS reports II of 6 to 8 in
    place of 1. It balances no chain whose end is carried, and none of comparisons at all. Each copy
    carries a value of its own, and a balanced tree brings them together after the loop. Adding what
    is constant after unrolling is no chain.
    """
    for chain in _chains(trace):
        interval = _interval(chain)
        if interval is not None and chain.copies > interval and _waits(trace, chain):
            does = f"{chain.copies} copies update {chain.assignment.place} one after the other"
            yield chain.outermost.at, f"{does}, and turns wait for it"


def long_comparisons(trace: ElaborationTrace) -> Report:
    """No scalar is chosen by more than 32 unrolled comparisons one after the other.

    The highest bit that is set, found by a comparison for each bit, is a chain as long as the
    number; halvings find it with six comparisons.
    """
    for chain in _chains(trace):
        is_long = chain.copies > _MOST_COMPARISONS and chain.is_conditional()
        if is_long and chain.lanes & chain.asked():
            what = f"{chain.copies} comparisons one after the other choose"
            yield chain.outermost.at, f"{what} {chain.assignment.place}"


def _chains(trace: ElaborationTrace) -> Iterator[_Chain]:
    for made in (made for of_root in trace.assignments.values() for made in of_root):
        home = trace.home(made.place.root, made.scope)
        loops = [(s, s.turns) for s in made.scope.until(home) if s.turns is not None]
        used = {symbol for index in made.place.indices for symbol in index.symbols()}
        copied = [(s, t) for s, t in loops if t.copies > 1 and t.lane not in used]
        if copied and not made.is_first:
            lanes = frozenset(turns.lane for _, turns in copied)
            copies = prod(turns.copies for _, turns in copied)
            yield _Chain(made, tuple(turns for _, turns in loops), lanes, copies, copied[-1][0])


def _interval(chain: _Chain) -> int | None:
    """The cycles between turns of the innermost loop that carries the value; None without one."""
    for turns in chain.loops:
        interval = interval_of(turns.loop.body.pragmas)
        is_repeated = interval is not None or (turns.copies > 1 and turns.trips is None)
        if is_repeated and not turns.is_unrolled:
            return interval or 1
    return None


def _waits(trace: ElaborationTrace, chain: _Chain) -> bool:
    """Whether the new value rests on the old one, in more than a constant that is added."""
    assignment = chain.assignment
    place, value = assignment.place, assignment.value
    if isinstance(value, Number):
        added = plus(value, place.number(), -1)
        if added.is_fixed() and not chain.is_conditional():
            return False
    rests = value.symbols() if isinstance(value, Number) else set()

    def through(symbol: Symbol) -> set[Symbol]:
        """What a variable rests on whose storage begins within the copied loops."""
        cell = place_of(symbol).cell if symbol.key[0] == "cell" else None
        made = [] if cell is None else trace.assigned(cell, chain.outermost)
        inner = (a for a in made if trace.home(a.place.root, a.scope).is_in(chain.outermost))
        return {s for a in inner if isinstance(a.value, Number) for s in a.value.symbols()}

    symbols = reached(rests | chain.asked(), through)
    read = [place_of(symbol) for symbol in symbols if symbol.key[0] == "cell"]
    return any(one.root is place.root and one.path == place.path for one in read)


def wide_scalar(trace: ElaborationTrace) -> Report:
    """Scalars have the width that they need, and one function divides.

    A division of int64_t is a divider of 64 bits: 68 cycles and thousands of LUTs each time that it
    is written, and a remainder is another one. Vitis HLS makes no multiplication of a division by a
    constant. So only the template ``quotient<N, D>`` divides, which states the widths; divisions by
    a power of two are shifts and stand anywhere. A product of two numbers of 64 bits takes 16 DSPs.
    The highest bit is found by halvings, not by a comparison for each bit.
    """
    for event in trace.top.all_events():
        if isinstance(event, Arithmetic):
            yield from _arithmetic_findings(event)


def _arithmetic_findings(event: Arithmetic) -> Report:
    left, right = event.left, event.right
    known = [number.exact for number in (left, right) if number.exact is not None]
    if event.operator == "*":
        if min(left.bits, right.bits) > _WIDE and not known:
            yield event.at, f"a product of {left.bits} by {right.bits} bits"
        return
    is_shift = right.exact is not None and right.exact > 0 and right.exact.bit_count() == 1
    calls = [(s, s.function) for s in event.scope.around() if s.function is not None]
    if is_shift or len(known) == 2 or calls[0][1].name == _DIVIDING:
        return
    # helpers of one expression stand where they are called
    at = event.at
    for scope, function in calls[:-1]:
        statements = function.body.statements
        if len(statements) != 1 or not isinstance(statements[0], Return):
            break
        at = scope.at
    name = "division" if event.operator == "/" else "remainder"
    yield at, f"a {name} of {event.type.bits} bits that is not {_DIVIDING}<N, D>"


def burst(trace: ElaborationTrace) -> Report:
    """A pipelined loop reads or writes a port of m_axi at consecutive words, in each turn.

    Vitis HLS infers a burst where the index is a base that the loop leaves alone plus the loop's
    counter, or a variable that grows by 1 in each turn, and no condition stands around the access.
    Any other access is a transfer of one word, which waits for the memory each time: some 64 cycles
    in place of 1. A word whose place is itself read in that turn may be anywhere, and passes.
    """
    for access in trace.masters_accesses(trace.top):
        loop = access.scope.pipeline()
        if loop is None or loop.turns is None:
            continue
        fault = _fault(trace, access, loop, loop.turns)
        if fault is not None and not trace.is_received(access.place.indices[0], loop):
            yield access.at, f"{access.place.root.name} is accessed {fault}: no burst"


def _fault(trace: ElaborationTrace, access: Access, loop: Scope, turns: Turns) -> str | None:
    """What is wrong with an access, or None."""
    arms = (scope.arm for scope in access.scope.until(loop) if scope.arm is not None)
    if any(condition.exact is None for _, _, condition in arms):
        return "under a condition"
    index = access.place.indices[0]
    strides = dict(index.terms)
    inner = [own for _, own in access.scope.loops() if own.lane in strides]
    words = prod(own.copies for own in inner)
    stride = 0 if turns.counter is None else strides.get(turns.counter, 0)
    unrolled = {turns.counter, *(own.lane for own in inner)}
    rest = frozenset(term for term in index.terms if term[0] not in unrolled)
    base = Number(rest, index.constant)
    if stride == 0:
        base, stride = _counted(trace, base, loop)
    if any(_varies(trace, symbol, loop) for symbol in base.symbols()):
        return "at an index that is no base plus the loop's counter"
    if stride != words:
        return f"at every {stride}th word" if stride else "at the same word in each turn"
    return None


def _counted(trace: ElaborationTrace, index: Number, loop: Scope) -> tuple[Number, int]:
    """An index without the variable in it that each turn raises, and by how much it does."""
    for symbol, factor in index.terms:
        if symbol.key[0] != "cell":
            continue
        place = place_of(symbol)
        raised = trace.assigned(place.cell, loop)
        if len(raised) != 1 or any(s.arm is not None for s in raised[0].scope.until(loop)):
            continue
        value = raised[0].value
        step = plus(value, place.number(), -1).exact if isinstance(value, Number) else None
        if step is not None:
            rest = frozenset(term for term in index.terms if term[0] != symbol)
            return Number(rest, index.constant), factor * step
    return index, 0


def _varies(trace: ElaborationTrace, symbol: Symbol, loop: Scope) -> bool:
    """Whether a symbol changes from turn to turn of a loop."""
    if symbol.key[0] == "cell":
        return bool(trace.assigned(place_of(symbol).cell, loop))
    is_of_scope = symbol.key[0] in ("turn", "lane", "new", "path", "read")
    return is_of_scope and symbol.key[1] in {scope.number for scope in loop.within()}


_SHORT = 256  # turns
_STAGES = 20  # of a pipeline
_MEMORY_STAGES = 64  # before the first word of a burst comes
_SHARE = 0.1  # of a process's time that refills may take
_FEW = 4096  # turns in all that are not worth it
_BUSY = 0.75  # of the slowest process's time: a process that is faster hides its refills


@dataclass(slots=True)
class _Time:
    """Cycles of a scope, and of them those in which each of its pipelines is filled."""

    cycles: float = 0.0
    refills: Counter[Scope] = field(default_factory=Counter)

    def add(self, other: _Time) -> None:
        self.cycles += other.cycles
        self.refills.update(other.refills)


def refill(trace: ElaborationTrace) -> Report:
    """A pipeline that is short does not start anew for each turn of a loop around it.

    Vitis HLS flattens only perfect nests of constant bounds; in any other one the pipeline of the
    inner loop runs empty and fills again at each entry, 20 cycles, or 64 where it is a burst.
    finn-hlslib writes such nests as one loop that counts its own position. The rule counts cycles
    by the averages of LOOP_TRIPCOUNT and reports a pipelined loop

    - of fewer than 256 turns on average, on run-time bounds, within a loop on run-time bounds,
    - that turns 4,096 times or more in all,
    - that moves data: it reads or writes a stream or memory beyond the chip,
    - whose refills take a tenth or more of the time of its process in the dataflow region; without
      a region the whole kernel is one,
    - in a process of at least three quarters of the slowest one's time: a faster one hides its
      refills. Where averages disagree on the words of a stream between two processes, the other
      one's time is brought to as many words. Bursts are reported in any process, since short ones
      take the memory's time from all others.

    A burst from a place that is itself read, as that of a page in a page table, passes: its next
    one is elsewhere, and no loop makes one burst of both.
    """
    regions = [scope for scope in trace.top.within() if scope.is_region]
    outer = [s for s in regions if not any(s.is_in(other) for other in regions if other is not s)]
    groups = [region.children for region in outer] or [[trace.top]]
    for group in groups:
        times = [(process, _time(trace, process)) for process in group]
        for process, time in times:
            is_busy = time.cycles >= _BUSY * _slowest(process, times)
            for loop, cycles in time.refills.items():
                is_long = cycles >= _SHARE * time.cycles
                if is_long and _is_reported(trace, loop, process, is_busy):
                    share = f"{cycles / time.cycles:.0%}"
                    yield loop.at, f"refills of this pipeline are {share} of its process"


def _slowest(process: Scope, times: list[tuple[Scope, _Time]]) -> float:
    """The time of the slowest process for the words that a process moves."""
    own = _moved(process)
    slowest = 0.0
    for other, time in times:
        words = _moved(other)
        shared = [own[s] / words[s] for s in own.keys() & words.keys()] if other != process else []
        slowest = max(slowest, time.cycles * min(shared, default=1.0))
    return slowest


def _moved(process: Scope) -> dict[Variable, float]:
    """The words of each stream that a process moves in any case, by the averages of its loops."""
    moved: dict[Variable, float] = {}
    conditional = set()
    for event in process.transfers():
        if event.stream is not None:
            root = event.stream.root
            inner = [around for around in event.scope.around() if around.is_in(process)]
            words = prod(around.turns.average for around in inner if around.turns is not None)
            moved[root] = moved.get(root, 0.0) + words
            if any(around.arm is not None for around in inner):
                conditional.add(root)
    return {root: words for root, words in moved.items() if root not in conditional and words}


def _is_reported(trace: ElaborationTrace, loop: Scope, process: Scope, is_busy: bool) -> bool:
    turns = loop.turns
    if turns is None or turns.trips is not None or turns.average >= _SHORT:
        return False
    around = [(s, own) for s, own in loop.loops() if s.is_in(process)]
    outer = [s for s, own in around if own.trips is None and s is not loop]
    if not outer or prod(own.average for _, own in around) < _FEW:
        return False
    beyond = trace.masters_accesses(loop)
    if beyond:
        return not any(trace.is_received(one.place.indices[0], outer[-1]) for one in beyond)
    return is_busy and any(True for _ in loop.transfers())


def _time(trace: ElaborationTrace, scope: Scope) -> _Time:
    """How long a scope takes, by the averages of its loops."""
    turns = scope.turns
    if turns is not None and turns.is_unrolled:
        return _Time()
    rounds = 1 if turns is None else max(turns.average // turns.copies, 1)
    if scope.interval is not None:
        stages = _MEMORY_STAGES if trace.masters_accesses(scope) else _STAGES
        return _Time(stages + rounds * scope.interval, Counter({scope: stages}))
    inner = _inside(trace, scope)
    scaled = {loop: cycles * rounds for loop, cycles in inner.refills.items()}
    return _Time(inner.cycles * rounds, Counter(scaled))


def _inside(trace: ElaborationTrace, scope: Scope) -> _Time:
    """The time of all that stands in a scope: one after the other, or side by side in a region."""
    total = _Time()
    arms: dict[int, _Time] = {}
    for child in scope.children:
        time = _time(trace, child)
        if child.arm is not None:  # the longest arm of a branch counts
            number = child.arm[0]
            arms[number] = max(arms.get(number, _Time()), time, key=lambda t: t.cycles)
        elif scope.is_region:
            total = max(total, time, key=lambda t: t.cycles)
        else:
            total.add(time)
    for time in arms.values():
        total.add(time)
    return total
