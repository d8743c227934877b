"""What each iteration of a loop waits for: its values, conditions and arrays as one graph."""

from __future__ import annotations

import math

from hls_kernels.lint.recurrences.delays import Operators
from hls_kernels.lint.recurrences.graph import DelayGraph
from hls_kernels.lint.recurrences.loops import Conditions
from hls_kernels.lint.recurrences.memory import Access, Memory

_NO_HARDWARE = ("llvm.lifetime", "llvm.assume", "llvm.experimental")


def graph_of(memory: Memory, operators: Operators) -> DelayGraph:
    """The graph of a loop: instructions with their delays, distances in iterations.

    A value that is carried is a phi of the header. All other phis are choices by the conditions of
    the branches before them; stores and accesses of FIFOs wait for the conditions on which they
    run, and the next iteration for the one on which the loop goes on.
    """
    loop = memory.loop
    conditions = Conditions(loop)
    own = {i.key: i for i in loop.instructions() if not i.called.startswith(_NO_HARDWARE)}
    names = {i.name: key for key, i in own.items() if i.name}
    graph = DelayGraph()
    touched: dict[str, list[Access]] = {}
    for access in memory.accesses:
        touched.setdefault(access.instruction.key, []).append(access)

    carried = {key for key, i in own.items() if i.opcode == "phi" and i.block == loop.header}
    for key, one in own.items():
        waits_for = list(one.operands)
        delay = 0.0
        if key in carried:
            for value, label in zip(one.operands, one.labels, strict=True):
                if label in loop.latches and value in names:
                    graph.connect(names[value], key, 1)
            waits_for = []
        elif one.opcode == "phi":
            asked = conditions.of_join(one.block)
            waits_for += asked
            delay = operators.choice(len(set(one.operands)), len(asked))
        elif key in touched:
            delay = sum(_latency(memory, access, operators) for access in touched[key])
            if one.called.startswith("ecorl_fifo"):
                delay += operators.of("fifo")
        else:
            delay = operators.delay(one)
        if one.called.startswith("ecorl_fifo") or any(a.is_write for a in touched.get(key, [])):
            waits_for += conditions.of_block(one.block)
        if one.opcode in ("br", "switch") and loop.leaves(one):
            for begun in carried:
                graph.connect(key, begun, 1)
        graph.delays[key] = delay
        for value in waits_for:
            if value in names:
                graph.connect(names[value], key)
    _connect_arrays(graph, memory)
    return graph


def _connect_arrays(graph: DelayGraph, memory: Memory) -> None:
    """Reads wait for writes: of this iteration that come before them, and of earlier ones.

    A node for what an array holds stands between, one for each write and one for each iteration
    before, so that a bank with many accesses makes few edges.
    """
    held: dict[str, str] = {}
    for access in memory.accesses:
        key, root = access.instruction.key, access.root
        if access.is_write:
            after = f"{root} after {key}"
            graph.delays[after] = 0.0
            graph.connect(key, after)
            if root in held:
                graph.connect(held[root], after)
            held[root] = after
        elif root in held:
            graph.connect(held[root], key)
    for access in memory.accesses:
        distance = memory.distance(access.root)
        if not access.is_write and distance is not None and access.root in held:
            graph.connect(held[access.root], access.instruction.key, distance)


def _latency(memory: Memory, access: Access, operators: Operators) -> float:
    kind = memory.kind(access.root)
    if kind == "value":
        return 0.0
    if kind in ("ram", "port"):
        return operators.latency(f"{kind}_{'write' if access.is_write else 'read'}")
    n = memory.places(access.root)
    return operators.choice(2 if access.is_write else n, math.ceil(math.log2(n)) if n > 1 else 1)
