"""The rule on short pipelines that are filled again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from hls_kernels.lint.elaboration.syntax import Variable
from hls_kernels.lint.elaboration.trace import Access, ElaborationTrace, Event, Scope, Transfer
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

SHORT = 256  # turns
_STAGES = 20  # of a pipeline
_MEMORY_STAGES = 64  # before the first word of a burst comes
_SHARE = 0.1  # of a process's time that refills may take
_FEW = 4096  # turns in all that are not worth it
_BUSY = 0.75  # of the slowest process's time: a process that is faster hides its refills


@dataclass(slots=True)
class _Time:
    """Cycles of a scope, and of them those in which each of its pipelines is filled."""

    cycles: float = 0.0
    refills: dict[Scope, float] = field(default_factory=dict)

    def add(self, other: _Time) -> None:
        self.cycles += other.cycles
        for scope, cycles in other.refills.items():
            self.refills[scope] = self.refills.get(scope, 0.0) + cycles


def refill(design: Design) -> Iterator[Finding]:
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
    for trace in design.traces:
        regions = [s for s in trace.top.within() if s.is_region and not _is_in_region(s)]
        groups = [region.children for region in regions] or [[trace.top]]
        for group in groups:
            times = [(process, _time(trace, process)) for process in group]
            for process, time in times:
                is_busy = time.cycles >= _BUSY * _slowest(process, times)
                for loop, cycles in time.refills.items():
                    is_long = cycles >= _SHARE * time.cycles
                    if is_long and _is_reported(trace, loop, process, is_busy):
                        share = f"{cycles / time.cycles:.0%}"
                        what = f"refills of this pipeline are {share} of its process"
                        yield found(loop.at, "refill", what)


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
    for scope in process.within():
        inner = [around for around in scope.around() if around.is_in(process)]
        words = prod(around.turns.average for around in inner if around.turns is not None)
        for event in scope.events:
            if isinstance(event, Transfer) and event.stream is not None:
                root = event.stream.root
                moved[root] = moved.get(root, 0.0) + words
                if any(around.arm is not None for around in inner):
                    conditional.add(root)
    return {root: words for root, words in moved.items() if root not in conditional and words}


def _is_in_region(scope: Scope) -> bool:
    return any(around.is_region for around in scope.around() if around is not scope)


def _is_reported(trace: ElaborationTrace, loop: Scope, process: Scope, is_busy: bool) -> bool:
    turns = loop.turns
    if turns is None or turns.trips is not None or turns.average >= SHORT:
        return False
    around = [s for s in loop.around() if s is not loop and s.is_in(process)]
    outer = [s for s in around if s.turns is not None and s.turns.trips is None]
    if not outer:
        return False
    entered = [s.turns for s in around if s.turns is not None]
    if turns.average * prod(entry.average for entry in entered) < _FEW:
        return False
    events = [event for scope in loop.within() for event in scope.events]
    accesses = [event for event in events if isinstance(event, Access)]
    beyond = [access for access in accesses if access.place.root in trace.masters]
    is_elsewhere = any(trace.is_received(read.place.indices[0], outer[-1]) for read in beyond)
    if beyond:
        return not is_elsewhere
    return is_busy and any(isinstance(event, Transfer) for event in events)


def _is_beyond(trace: ElaborationTrace, event: Event) -> bool:
    return isinstance(event, Access) and event.place.root in trace.masters


def _time(trace: ElaborationTrace, scope: Scope) -> _Time:
    """How long a scope takes, by the averages of its loops."""
    turns = scope.turns
    if turns is not None and turns.is_unrolled:
        return _Time()
    if scope.interval is not None:
        stages = _stages(trace, scope)
        rounds = 1 if turns is None else max(turns.average // turns.copies, 1)
        cycles = stages + rounds * scope.interval
        return _Time(cycles, {scope: stages})
    inner = _inside(trace, scope)
    rounds = 1 if turns is None else max(turns.average // turns.copies, 1)
    scaled = {loop: cycles * rounds for loop, cycles in inner.refills.items()}
    return _Time(inner.cycles * rounds, scaled)


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


def _stages(trace: ElaborationTrace, scope: Scope) -> int:
    events = (event for inner in scope.within() for event in inner.events)
    return _MEMORY_STAGES if any(_is_beyond(trace, event) for event in events) else _STAGES
