"""A graph of delays and distances, and its worst cycle."""

from __future__ import annotations

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
        edges = _on_cycles(sorted(self.edges))
        worst, bound = None, -1.0
        while (found := self._cycle_above(edges, bound)) is not None:
            worst, bound = found, found.per_iteration
            if found.distance == 0:
                break
        return worst

    def depth(self, period: float) -> int:
        """Cycles of an iteration where each node starts as soon as it can.

        Nodes follow one another within a cycle as long as they fit into it; one that takes longer
        than a cycle begins and ends at a register.
        """
        waits: dict[str, list[str]] = {node: [] for node in self.delays}
        missing = dict.fromkeys(self.delays, 0)
        for edge in sorted(self.edges):
            if edge.distance == 0:
                waits[edge.start].append(edge.to)
                missing[edge.to] += 1
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
                edges = [before[node]]
                while edges[-1].start != node:
                    edges.append(before[edges[-1].start])
                edges.reverse()
                nodes = tuple(edge.start for edge in edges)
                delay = sum(self.delays[node] for node in nodes)
                return Cycle(nodes, delay, sum(edge.distance for edge in edges))
        return None


def _on_cycles(edges: list[Edge]) -> list[Edge]:
    """Edges without those that begin where none ends, or end where none begins."""
    while True:
        starts, ends = {edge.start for edge in edges}, {edge.to for edge in edges}
        kept = [edge for edge in edges if edge.start in ends and edge.to in starts]
        if len(kept) == len(edges):
            return edges
        edges = kept
