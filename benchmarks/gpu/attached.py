"""The same loop with ecorl around it and without, in turns on one GPU.

With ecorl it is `ecorl.measure` with its defaults and NVML: a process that samples, a stage
execution, figures and a record for each step, and a wait for the GPU at both ends of a step. Both
arms read the loss after each step, as trainers do that log it, so that the plain loop waits too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.gpu.sensing.tracer import Order, Tracer
from benchmarks.gpu.sensing.traces import counted_energy
from ecorl.bench.rounds import balanced_order
from ecorl.config import Config, NvmlSourceConfig, TelemetryConfig
from ecorl.loop import measure

PLAIN, ATTACHED = "plain", "attached"

COUNTER_S = 0.02
"""Interval at which the counter is read in both arms, by a process beside them, s."""


class Scalar(Protocol):
    """What a step returns: a value that can be read, which waits for the GPU."""

    def item(self) -> float:
        """Wait for the value and return it."""
        ...


Step = Callable[[], Scalar]


@dataclass(frozen=True, slots=True)
class TimedLoop:
    """A loop that is measured.

    Attributes:
        name: of its figures.
        step: one step of it.
        n_tokens: tokens of a step.
        n_steps: steps of a block.
    """

    name: str
    step: Step
    n_tokens: int
    n_steps: int


@dataclass(frozen=True, slots=True)
class LoopTime:
    """One block of steps.

    Attributes:
        wall_s: from the first step to the end of the last, s.
        cpu_s: CPU time of this process over it, all threads, s.
        energy_j: that the GPU drew over it, by its counter; None where it could not be told.
    """

    wall_s: float
    cpu_s: float
    energy_j: float | None


def blocks(loop: TimedLoop, uuid: str, folder: Path, n_pairs: int) -> dict[str, list[LoopTime]]:
    """Run blocks of both arms in turns (ABBA).

    Args:
        loop: what is run.
        uuid: of the GPU.
        folder: for the records of the attached blocks.
        n_pairs: blocks of each arm; an even number cancels a steady drift.
    """
    spans: dict[str, list[tuple[float, float, float]]] = {PLAIN: [], ATTACHED: []}
    for arm in (PLAIN, ATTACHED):  # what is done once belongs to no block
        _block(loop, arm, folder / f"{loop.name}-warm")
    with Tracer(Order(uuid, (), COUNTER_S)) as tracer:
        time.sleep(0.3)  # the counter has changed before the first block begins
        for number, order in enumerate(balanced_order((PLAIN, ATTACHED), n_pairs)):
            for arm in order:
                spans[arm].append(_block(loop, arm, folder / f"{loop.name}-{number}"))
        time.sleep(0.3)
    (points,) = tracer.trace.points.values()
    return {
        arm: [
            LoopTime(end_s - start_s, cpu_s, counted_energy(points, start_s, end_s))
            for start_s, end_s, cpu_s in found
        ]
        for arm, found in spans.items()
    }


def _block(loop: TimedLoop, arm: str, run_dir: Path) -> tuple[float, float, float]:
    """Begin, end and CPU time of one block, s."""
    if arm == PLAIN:
        return _timed(loop, lambda loss: None)
    config = Config(name="overhead", telemetry=TelemetryConfig(gpu=NvmlSourceConfig()))
    with measure(config, run_dir=run_dir, overwrite=True) as run:
        return _timed(loop, lambda loss: run.step(n_tokens=loop.n_tokens, loss=loss))


def _timed(loop: TimedLoop, after: Callable[[float], object]) -> tuple[float, float, float]:
    # The first step is not timed: an attached loop has opened its record and its sampler just now.
    after(loop.step().item())
    start_s, cpu_s = time.monotonic(), time.process_time()
    for _ in range(loop.n_steps):
        after(loop.step().item())
    return start_s, time.monotonic(), time.process_time() - cpu_s


def ratios(
    found: Mapping[str, Sequence[LoopTime]], of: Callable[[LoopTime], float | None]
) -> list[float]:
    """Attached over plain, round by round; a round without both is left out.

    Args:
        found: blocks by arm.
        of: the figure of a block.
    """
    pairs = [(of(a), of(p)) for a, p in zip(found[ATTACHED], found[PLAIN], strict=True)]
    return [a / p for a, p in pairs if a is not None and p]
