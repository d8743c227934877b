"""A graph of delays and distances, and its worst cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_EPSILON = 1e-9


class Edge(NamedTuple):
    """`to` waits for `start`: in the same iteration, or `distance` iterations later."""

    start: str
    to: str
    distance: int


class Cycle(NamedTuple):
    """A recurrence: its nodes in order, the sum of their delays, and its iterations."""

    nodes: tuple[str, ...]
    delay: float
    distance: int

    @property
    def per_iteration(self) -> float:
        """Delay of an iteration; infinite where a value would wait for itself."""
        return self.delay / self.distance if self.distance else float("inf")


@dataclass(slots=True)
class DelayGraph:
    """Nodes with a delay each, and what waits for what."""

    delays: dict[str, float] = field(default_factory=dict)
    edges: set[Edge] = field(default_factory=set)

    def connect(self, start: str, to: str, distance: int = 0) -> None:
        """Let a node wait for another."""
        self.edges.add(Edge(start, to, distance))

    def worst_cycle(self) -> Cycle | None:
        """The cycle with the most delay an iteration; None where there is no cycle."""
        following: dict[str, list[str]] = {node: [] for node in self.delays}
        for edge in sorted(self.edges):
            following[edge.start].append(edge.to)
        number = {
            node: i for i, part in enumerate(_strong_parts(following)) for node in part
        }  # fmt: skip
        within: dict[int, list[Edge]] = {}
        for edge in sorted(self.edges):
            if number[edge.start] == number[edge.to]:
                within.setdefault(number[edge.start], []).append(edge)
        worst: Cycle | None = None
        for edges in within.values():
            worst = self._improved(edges, worst)
        return worst

    def depth(self, period: float) -> int:
        """Cycles of an iteration where each node starts as soon as it can.

        Nodes follow one another within a cycle as long as they fit into it; one that takes longer
        than a cycle begins and ends at a register.
        """
        waits: dict[str, list[str]] = {node: [] for node in self.delays}
        missing = dict.fromkeys(self.delays, 0)
        for start, to, distance in sorted(self.edges):
            if distance == 0:
                waits[start].append(to)
                missing[to] += 1
        ready = [node for node, n in missing.items() if n == 0]
        begins = dict.fromkeys(self.delays, 0.0)
        last = 0.0
        while ready:
            node = ready.pop()
            delay, start = self.delays[node], begins[node]
            cycle = (start + _EPSILON) // period
            if delay > period - _EPSILON:
                first = cycle if start - cycle * period < _EPSILON else cycle + 1
                ends = (first + -(-(delay - _EPSILON) // period)) * period
            elif start + delay > (cycle + 1) * period + _EPSILON:
                ends = (cycle + 1) * period + delay
            else:
                ends = start + delay
            last = max(last, ends)
            for to in waits[node]:
                begins[to] = max(begins[to], ends)
                missing[to] -= 1
                if missing[to] == 0:
                    ready.append(to)
        return max(1, int(-(-(last - _EPSILON) // period)))

    def _improved(self, edges: list[Edge], worst: Cycle | None) -> Cycle | None:
        """The worst cycle of a strong part, or the one that is known where none is worse."""
        while True:
            bound = -1.0 if worst is None else worst.per_iteration
            found = self._cycle_above(edges, bound)
            if found is None:
                return worst
            worst = found
            if worst.distance == 0:
                return worst

    def _cycle_above(self, edges: list[Edge], bound: float) -> Cycle | None:
        """A cycle with more delay an iteration than `bound`: longest paths that never settle."""
        reach = dict.fromkeys((node for edge in edges for node in edge[:2]), 0.0)
        before: dict[str, Edge] = {}
        for _ in range(len(reach) + 1):
            is_settled = True
            for edge in edges:
                far = reach[edge.start] + self.delays[edge.start] - bound * edge.distance
                if far > reach[edge.to] + _EPSILON:
                    reach[edge.to], before[edge.to] = far, edge
                    is_settled = False
            if is_settled:
                return None
            found = self._cycle_of(before)
            if found is not None and found.per_iteration > bound + _EPSILON:
                return found
        return None

    def _cycle_of(self, before: dict[str, Edge]) -> Cycle | None:
        """A cycle among the edges by which the longest paths came."""
        seen: dict[str, int] = {}
        for number, first in enumerate(before):
            node = first
            while node in before and node not in seen:
                seen[node] = number
                node = before[node].start
            if seen.get(node) == number and node in before:
                edges, last = [before[node]], before[node].start
                while last != node:
                    edges.append(before[last])
                    last = before[last].start
                edges.reverse()
                return Cycle(
                    tuple(edge.start for edge in edges),
                    sum(self.delays[edge.start] for edge in edges),
                    sum(edge.distance for edge in edges),
                )
        return None


def _strong_parts(following: dict[str, list[str]]) -> Iterable[list[str]]:
    """Strongly connected parts, as Tarjan finds them, without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    is_open: set[str] = set()
    for root in following:
        if root in order:
            continue
        path = [(root, iter(following[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        is_open.add(root)
        while path:
            node, more = path[-1]
            for to in more:
                if to not in order:
                    order[to] = low[to] = len(order)
                    stack.append(to)
                    is_open.add(to)
                    path.append((to, iter(following[to])))
                    break
                if to in is_open:
                    low[node] = min(low[node], order[to])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    part = []
                    while True:
                        last = stack.pop()
                        is_open.discard(last)
                        part.append(last)
                        if last == node:
                            break
                    yield part
