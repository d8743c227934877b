"""Loops of a function, and which conditions decide on what in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from hls_kernels.lint.recurrences.ir import Function, Instruction


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: its blocks in an order in which each comes behind those that lead to it.

    Attributes:
        name: metadata of its branch back.
        header: the block that is entered.
        blocks: all of them, the header first.
        latches: the blocks from which it begins again.
    """

    function: Function
    name: str
    header: str
    blocks: tuple[str, ...]
    latches: tuple[str, ...]

    def instructions(self) -> Iterator[Instruction]:
        """All of its instructions, block by block."""
        for block in self.blocks:
            yield from self.function.blocks[block]

    def inner(self, block: str) -> list[str]:
        """The blocks of an iteration that may follow one."""
        return [b for b in self.function.successors(block) if b in self.blocks and b != self.header]

    def leaves(self, own: Instruction) -> bool:
        """Whether a branch may leave the loop."""
        return any(label not in self.blocks for label in own.labels)


def loops_of(function: Function) -> list[Loop]:
    """All loops whose branch back has metadata."""
    before: dict[str, list[str]] = {block: [] for block in function.blocks}
    for block in function.blocks:
        for to in function.successors(block):
            before[to].append(block)
    latches: dict[tuple[str, str], list[str]] = {}
    for block, body in function.blocks.items():
        if body and body[-1].loop:
            for to in function.successors(block):
                if _is_behind(before, block, to):
                    latches.setdefault((body[-1].loop, to), []).append(block)
    return [
        Loop(function, name, header, _ordered(function, header, ends, before), tuple(ends))
        for (name, header), ends in latches.items()
    ]


def _is_behind(before: dict[str, list[str]], block: str, header: str) -> bool:
    """Whether every way to a block leads through a header."""
    return next(iter(before)) not in _reaching(before, [block], header)


def _reaching(before: dict[str, list[str]], ends: list[str], header: str) -> set[str]:
    """The blocks that reach `ends` without the header, and the header."""
    found, todo = {header}, list(ends)
    while todo:
        block = todo.pop()
        if block not in found:
            found.add(block)
            todo += before[block]
    return found


def _ordered(
    function: Function, header: str, ends: list[str], before: dict[str, list[str]]
) -> tuple[str, ...]:
    """The blocks of a loop behind those that lead to them."""
    own = _reaching(before, ends, header)
    waits = {block: sum(b in own for b in before[block]) for block in own}
    ready, order = [header], []
    while ready:
        block = ready.pop()
        order.append(block)
        for to in function.successors(block):
            if to in own and to != header:
                waits[to] -= 1
                if waits[to] == 0:
                    ready.append(to)
    return tuple(order)


class Conditions:
    """Which branches of a loop decide whether a block runs, and which of its ways were taken."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        inner = {block: loop.inner(block) for block in loop.blocks}
        self._before: dict[str, list[str]] = {block: [] for block in loop.blocks}
        for block, following in inner.items():
            for to in following:
                self._before[to].append(block)
        self._dominators: dict[str, set[str]] = {}
        for block in loop.blocks:
            ways = [self._dominators[b] for b in self._before[block]]
            self._dominators[block] = {block} | (set.intersection(*ways) if ways else set())
        after: dict[str, set[str]] = {}
        for block in reversed(loop.blocks):
            ways = [after[b] for b in inner[block]]
            after[block] = {block} | (set.intersection(*ways) if ways else set())
        self._deciding: dict[str, set[str]] = {block: set() for block in loop.blocks}
        for block, following in inner.items():
            for to in following:
                for later in after[to] - (after[block] - {block}):
                    self._deciding[later].add(block)

    @cache  # noqa: B019 - it lives as long as the loop is looked at
    def of_block(self, block: str) -> list[str]:
        """Conditions on which a block runs."""
        return self._asked(self._deciding_on(block))

    @cache  # noqa: B019
    def of_join(self, block: str) -> list[str]:
        """Conditions that say by which way a block was reached.

        What branches and meets again before the block's own ways part says nothing of them.
        """
        first = max(self._dominators[block] - {block}, key=lambda b: len(self._dominators[b]))
        found: set[str] = set()
        for way in self._before[block]:
            is_parting = len(self._loop.inner(way)) > 1
            found |= self._deciding_on(way) | ({way} if is_parting else set())
        return self._asked({one for one in found if first in self._dominators[one]})

    def _deciding_on(self, block: str) -> set[str]:
        """Blocks whose branches decide whether a block runs."""
        found: set[str] = set()
        todo = list(self._deciding[block])
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += self._deciding[one]
        return found

    def _asked(self, blocks: set[str]) -> list[str]:
        ends = (self._loop.function.blocks[block][-1] for block in sorted(blocks))
        return sorted(
            {end.operands[0] for end in ends if end.operands and not self._is_exit_only(end)}
        )

    def _is_exit_only(self, end: Instruction) -> bool:
        """Whether a branch does nothing but leave the loop or not."""
        return len({label for label in end.labels if not self._is_out(label)}) < 2

    def _is_out(self, label: str) -> bool:
        return label not in self._loop.blocks
