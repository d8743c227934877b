"""Rank 0's side of a training in several processes: it decides and records for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ecorl.engines.protocol import ScoreBatch
from ecorl.errors import EngineError
from ecorl.records import Placement, Role, StageWork
from ecorl.runtime.handles import Iteration, Landed, Span, StageRun
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.training import TrainingSide, this_node

_KEPT = 1024
"""Stages and iterations that rank 0 remembers. Invented: many more than a step has."""

_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """One process's part of an execution: what it did, and when it held which devices."""

    node: str
    work: StageWork
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What each process has to know of a run that rank 0 has started.

    Attributes:
        engines: checkpoint folder of each role that has an engine.
        machines: names of the trainer's machines in device ids, by their host names.
        is_governed: whether the control path ever asks for anything but to go on.
    """

    engines: Mapping[Role, Path]
    machines: Mapping[str, str]
    is_governed: bool = False


class HeadProcess:
    """Rank 0's side: the runtime that decides, and its handles by the numbers of all processes."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._iterations: dict[int, Iteration] = {}
        self._runs: dict[int, StageRun] = {}
        self._n_rows: dict[int, list[int]] = {}

    def start(self, training: TrainingSide) -> RunFacts:
        """Start the runtime; what all processes have to know of it."""
        self.runtime.start()
        found = {role: self.runtime.checkpoint(role) for role in training.frozen}
        hosts = [this_node(), *training.machines]
        return RunFacts(
            {role: folder for role, folder in found.items() if folder is not None},
            {host: self.runtime.machine_name(host) for host in hosts},
            self.runtime.is_governed,
        )

    def begin_iteration(self, handle: Iteration) -> None:
        """Open an iteration under the processes' own number."""
        own = self.runtime.begin_iteration(handle.number, handle.batch)
        _keep_newest(self._iterations, handle.serial, own)

    def start_stage(
        self, number: int, iteration: Iteration, work: StageWork, *, may_offload: bool
    ) -> Placement:
        """Decide on the work of all processes."""
        run = self.runtime.on_stage_start(
            self._iterations[iteration.serial], work, may_offload=may_offload, starts_now=False
        )
        _keep_newest(self._runs, number, run)
        return run.placement

    def submit(self, number: int, parts: Sequence[tuple[ScoreBatch | None, str]]) -> bool:
        """Send the rows of all processes; whether they were sent."""

        def whole() -> ScoreBatch:
            batches = []
            for rank, (batch, error) in enumerate(parts):
                if batch is None:
                    raise EngineError(f"rank {rank}: {error}")
                batches.append(batch)
            return joined(batches)

        sent = self.runtime.submit(self._runs[number], whole)
        if sent:
            _keep_newest(self._n_rows, number, [len(b) for b, _ in parts if b is not None])
        return sent

    def land(self, number: int) -> list[Landed]:
        """Wait for the rows of all processes, and part them again."""
        return parted(self.runtime.land(self._runs[number]), self._n_rows.pop(number))

    def forget(self, number: int) -> None:
        """Give up a stage."""
        run = self._runs.pop(number, None)
        if run is not None:
            self.runtime.forget(run)

    def account(self, told: Sequence[Mapping[int, ProcessPart]]) -> None:
        """Record the executions of all processes, one a stage and machine.

        Args:
            told: by process, its parts.
        """
        together: dict[tuple[int, str], list[ProcessPart]] = defaultdict(list)
        for parts in told:
            for key, part in parts.items():
                together[key, part.node].append(part)
        for (number, node), own in sorted(together.items(), key=_by_time):
            run = self._runs.get(abs(number))
            if run is None:
                continue
            work = sum_of([part.work for part in own])
            spans = [span for part in own for span in part.spans]
            # The repetition is an execution of its own: a number that no other has.
            serial = run.stage.serial if number > 0 else repetition_of(run.stage.serial)
            self.runtime.account(replace(run.stage, serial=serial, work=work), spans, node)


def _by_time(item: tuple[object, Sequence[ProcessPart]]) -> float:
    return min((s.t_end_s for part in item[1] for s in part.spans), default=0.0)


def _keep_newest(kept: dict[int, _Kept], number: int, value: _Kept) -> None:
    """Add to a dict of bounded size; the oldest entries make room."""
    kept[number] = value
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]


def sum_of(works: Sequence[StageWork]) -> StageWork:
    """The work of all processes together.

    Args:
        works: their parts of one stage, at least one.
    """
    return replace(
        works[0],
        n_sequences=sum(w.n_sequences for w in works),
        n_tokens=sum(w.n_tokens for w in works),
        n_output_tokens=sum(w.n_output_tokens for w in works),
        max_length=max(w.max_length for w in works),
    )


def joined(batches: Sequence[ScoreBatch]) -> ScoreBatch:
    """Put batches of several processes behind one another.

    The rows of each process stay together in the exact engine's forward passes, where all have
    equally many: its answers are then those of each process's own pass.

    Args:
        batches: at least one.
    """
    first = batches[0]
    alike = {len(b) for b in batches} == {len(first)}
    return ScoreBatch(
        sample_ids=tuple(i for b in batches for i in b.sample_ids),
        token_ids=tuple(row for b in batches for row in b.token_ids),
        n_completion=tuple(n for b in batches for n in b.n_completion),
        temperature=first.temperature,
        micro_batch=first.micro_batch or (len(first) if alike and len(first) else None),
        token_budget=max((b.token_budget for b in batches if b.token_budget), default=None),
        reads_last=first.reads_last,
    )


def parted(landed: Landed, n_rows: Sequence[int]) -> list[Landed]:
    """Part the rows of a joined batch again.

    What packing made of them all is told to the first process alone, so that it counts once.

    Args:
        landed: of the whole batch.
        n_rows: rows of each process.
    """
    parts: list[Landed] = []
    begin = 0
    for n in n_rows:
        values = {i - begin: v for i, v in landed.values.items() if begin <= i < begin + n}
        bad = tuple(i - begin for i in landed.bad_rows if begin <= i < begin + n)
        parts.append(Landed(values, bad, None if parts else landed.packing))
        begin += n
    return parts


def repetition_of(serial: int) -> int:
    """Number of the exact path's own execution for rows of a stage: one that no other has.

    Args:
        serial: of the stage, above 0.
    """
    return -serial
