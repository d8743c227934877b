"""`LedgerReader`: read-only access to a finished, live or killed run, on all its machines."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import rows as tables
from ecorl.ledger.file_reader import FileReader
from ecorl.ledger.nodes import COURSE, ENDS, NODE, Frame, offset_by_wall_clock

_R = TypeVar("_R")
_BY_TIME = attrgetter("attempt", "t_s")
"""Order of rows that several machines wrote; the clocks of two attempts may have nothing to do with
each other."""


@dataclass(slots=True)
class _Part:
    """One file of the run, and how its rows fit into it.

    Attributes:
        row: what table ``node`` says of it; None for the head's own file.
        checked: whether its content was read once without meeting damage.
    """

    file: FileReader
    frame: Frame
    row: tables.NodeRow | None = None
    checked: bool = False


class LedgerReader:
    """Typed rows of one run: those of the head's ledger and of each machine's, put together.

    All times are in the head's clock, and a device goes by its machine's name and its own
    (``node/gpu0``) where its file names a machine. Each file shows the instant of opening (or of
    the last `refresh`). A machine's record that is missing or damaged never makes the run
    unreadable: `lost_nodes` names it.

    Args:
        path: the head's ledger, or the run folder that holds it.

    Raises:
        RunError: when there is no such file.
        LedgerError: when the head's is damaged, no ledger, or of another version. Any accessor may
            raise it too, when it meets a damaged page of that file.
    """

    def __init__(self, path: Path) -> None:
        head = FileReader(path)
        self.path = head.path
        self._parts: list[_Part] = []
        self._lost: dict[tuple[int, str], tables.NodeRow] = {}
        try:
            self._parts.append(_Part(head, Frame(head.run().meta.get(NODE)), checked=True))
            self._open_nodes()
        except LedgerError:
            self.close()
            head.close()
            raise

    @property
    def _head(self) -> FileReader:
        return self._parts[0].file

    def _open_nodes(self) -> None:
        """Open the files that table ``node`` names and that are not open yet."""
        attempts = {a.attempt: a for a in self._head.attempts()}
        known = {(p.row.attempt, p.row.node): p for p in self._parts if p.row is not None}
        for row in self._head.nodes():
            key = (row.attempt, row.node)
            if row.lost is not None:
                self._lost[key] = row
            if row.file is None:
                continue
            try:
                part = known.get(key)
                if part is None:
                    part = _Part(self._open(row), Frame(row.node), row)
                    self._parts.append(part)
                part.row = row
                part.frame = self._frame(part.file, row, attempts)
            except (LedgerError, RunError) as error:
                self._lose(row, str(error))

    def _open(self, row: tables.NodeRow) -> FileReader:
        file = PurePosixPath(row.file or "")
        if file.is_absolute() or ".." in file.parts:
            raise RunError(f"{row.file!a}: no file of the run folder")
        path = self.path.parent / file
        if not path.is_file():
            raise RunError(f"{path}: there is no such file")
        return FileReader(path)

    def _frame(
        self, file: FileReader, row: tables.NodeRow, attempts: dict[int, tables.AttemptRow]
    ) -> Frame:
        named = file.run().meta.get(NODE)
        if named != row.node:
            raise LedgerError(f"{file.path}: names {named!a} as its machine, not {row.node}")
        own = {a.attempt: a for a in file.attempts()}
        if row.attempt not in own or row.attempt not in attempts:
            raise LedgerError(f"{file.path}: does not hold attempt {row.attempt} of the run")
        offset_s = row.offset_s
        if offset_s is None:
            offset_s = offset_by_wall_clock(own[row.attempt], attempts[row.attempt])
        return Frame(row.node, offset_s, tuple(attempts.values()), short=self._parts[0].frame.short)

    def _lose(self, row: tables.NodeRow, why: str) -> None:
        """Leave a machine's record out from here on, and say why."""
        self._note(row, why)
        for part in [p for p in self._parts if p.row is not None and p.row == row]:
            self._parts.remove(part)
            part.file.close()

    def _note(self, row: tables.NodeRow, why: str) -> None:
        self._lost[row.attempt, row.node] = row if row.lost else replace(row, lost=why)

    def refresh(self) -> None:
        """See what was written since; until then all accessors show one and the same instant.

        Raises:
            LedgerError: when the head's file cannot be read.
        """
        self._head.refresh()
        for part in self._parts[1:]:
            self._from(part, lambda p: p.file.refresh(), None)
        self._lost.clear()
        self._open_nodes()

    def close(self) -> None:
        """Release the files; safe to call twice."""
        for part in self._parts:
            part.file.close()

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ putting together

    def _from(self, part: _Part, read: Callable[[_Part], _R], otherwise: _R) -> _R:
        """Read from one file; damage in a machine's file loses that machine's record alone."""
        if part.row is None:
            return read(part)
        try:
            if not part.checked:
                part.file.check()
                part.checked = True
            return read(part)
        except LedgerError as error:
            self._lose(part.row, str(error))
            return otherwise

    def _merged(
        self, read: Callable[[_Part], list[_R]], order: Callable[[_R], Any] = _BY_TIME
    ) -> list[_R]:
        """Rows of all files: of one file as it holds them, of several in order."""
        nothing: list[_R] = []
        found = [self._from(part, read, nothing) for part in list(self._parts)]
        rows = [row for own in found for row in own]
        return rows if sum(map(bool, found)) < 2 else sorted(rows, key=order)

    def _framed(
        self, read: Callable[[FileReader], list[_R]], order: Callable[[_R], Any] = _BY_TIME
    ) -> list[_R]:
        """The same with each file's rows put into the frame of the run."""
        return self._merged(lambda p: [p.frame.put(row) for row in read(p.file)], order)

    def short_ids(self) -> LedgerReader:
        """The same run with devices by their bare names, where all are of one machine.

        Returns:
            A view of this reader, which is closed with it; this reader itself where devices of
            several machines would go by one name, or may have: a lost record's are not known.
        """
        ids = {i for row in self.executions() for i in row.result.device_ids}
        ids.update(row.device_id for row in self.devices())
        ids.update(self.read_device_ids())
        names = {device_id.rpartition("/")[0] for device_id in ids}
        names |= {row.node for row in self.lost_nodes()}
        if len(names) != 1 or names == {""}:
            return self
        view = copy.copy(self)
        view._parts = [replace(part, frame=replace(part.frame, short=True)) for part in self._parts]
        view._lost = dict(self._lost)
        return view

    # ------------------------------------------------------------ the run

    def run(self) -> tables.RunRow:
        """The run's id, config and facts."""
        return self._head.run()

    def attempts(self) -> list[tables.AttemptRow]:
        """Starts and resumes, in order."""
        return self._head.attempts()

    def events(self) -> list[tables.EventRow]:
        """What was noted about the course of the run, in order.

        How the run stands is the head's to say: of the starts and ends that the other machines
        noted for themselves, `node_spans` tells.
        """

        def read(part: _Part) -> list[tables.EventRow]:
            rows = part.file.events()
            is_head = part.row is None
            return [part.frame.put(r) for r in rows if is_head or r.kind not in COURSE]

        return self._merged(read)

    def checkpoints(self) -> list[tables.CheckpointRow]:
        """Checkpoints, in order."""
        return self._framed(FileReader.checkpoints)

    def last_times(self) -> dict[int, float]:
        """Monotonic time of the last record of each attempt on any machine, s.

        Attempts without any are left out. The end of an attempt that was killed: nothing later is
        known of it.
        """
        found: dict[int, float] = {}
        nothing: dict[int, float] = {}
        for part in list(self._parts):
            for attempt, t_s in self._from(part, lambda p: p.file.last_times(), nothing).items():
                head_s = t_s - part.frame.offset_s
                found[attempt] = max(head_s, found.get(attempt, head_s))
        return dict(sorted(found.items()))

    def intensities(self) -> list[tables.IntensityRow]:
        """What was known of the grid's intensity, in order; the head alone asks for it."""
        return self._head.intensities()

    def choices(self) -> list[tables.GearChoiceRow]:
        """Decisions about the training stage, in order; the head alone takes them."""
        return self._head.choices()

    def pues(self) -> list[tables.PueRow]:
        """The power usage effectiveness over time, in order, as the head knew it."""
        return self._head.pues()

    # ------------------------------------------------------------ machines

    def nodes(self) -> list[tables.NodeRow]:
        """The machines of each attempt, as the head recorded them."""
        return self._head.nodes()

    def lost_nodes(self) -> list[tables.NodeRow]:
        """The machines whose record is missing, damaged or not whole; ``lost`` says why.

        What is left of such a record is among the rows all the same, where it can be read.
        """
        for part in list(self._parts):
            self._from(part, lambda _: None, None)
        return [self._lost[key] for key in sorted(self._lost)]

    def node_spans(self) -> list[tables.NodeSpan]:
        """The time for which each file tells of its machine's devices, by attempt."""
        return self._merged(_spans, attrgetter("attempt"))

    # ------------------------------------------------------------ stages

    def executions(self) -> list[tables.ExecutionRow]:
        """Stage executions in the order in which they were recorded, superseded ones included.

        Of several machines in the order in which they ended.
        """
        return self._framed(FileReader.executions, lambda row: (row.attempt, row.result.t_end_s))

    def placements(self) -> list[tables.PlacementRow]:
        """Decisions in order."""
        return self._framed(FileReader.placements)

    def barriers(self) -> list[tables.BarrierRow]:
        """Waits at the completion barrier, in order."""
        return self._framed(FileReader.barriers)

    def faults(self) -> list[tables.FaultRow]:
        """Faults in order."""
        return self._framed(FileReader.faults)

    def metrics(self, name: str | None = None) -> list[tables.MetricRow]:
        """Scalars of the trainer in order, of one name or of all."""
        return self._framed(lambda file: file.metrics(name), attrgetter("attempt"))

    def evaluations(self) -> list[tables.EvaluationRow]:
        """Evaluations in order; a later one of the same name and phase replaces an earlier."""
        return self._framed(FileReader.evaluations)

    def edi(self) -> list[tables.EdiRow]:
        """The newest EDI matrix of each attempt."""
        rows = self._framed(FileReader.edi)
        return list({row.attempt: row for row in rows}.values())

    # ------------------------------------------------------------ power

    def devices(self) -> list[tables.DeviceRow]:
        """Devices of each attempt."""
        return self._framed(FileReader.devices, attrgetter("attempt", "device_id"))

    def read_device_ids(self) -> list[str]:
        """Devices of which there are power readings."""
        rows = self._merged(
            lambda p: [p.frame.device(i) for i in p.file.read_device_ids()], lambda i: i
        )
        return sorted(set(rows))

    def power_seconds(self, device_id: str | None = None) -> Iterator[tables.PowerSecond]:
        """Roll-ups by attempt, series and time; of one device or of all.

        Also what a killed run did not come to roll up, as far as the raw ring goes back, and the
        hold of the newest reading, up to the last record of the attempt.
        """
        last_times = self.last_times()
        parts = [self._seconds(part, device_id, last_times) for part in list(self._parts)]
        yield from heapq.merge(*parts, key=attrgetter("attempt"))

    def _seconds(
        self, part: _Part, device_id: str | None, last_times: dict[int, float]
    ) -> Iterator[tables.PowerSecond]:
        frame = part.frame
        try:
            for stored in self._stored_ids(part, device_id):
                yield from part.file.power_seconds(
                    stored,
                    last_times={a: t_s + frame.offset_s for a, t_s in last_times.items()},
                    offset_s=frame.offset_seconds,
                    named=frame.device,
                )
        except LedgerError as error:
            if part.row is None:
                raise
            # All else of the file was checked before its first use, and stays.
            self._note(part.row, str(error))

    def _stored_ids(self, part: _Part, device_id: str | None) -> list[str | None]:
        """What a file calls a device; [None], which asks for all, where none is asked for."""
        if device_id is None:
            return [None]
        return [i for i in part.file.read_device_ids() if part.frame.device(i) == device_id]

    def raw_samples(self, device_id: str | None = None) -> list[tables.RawSampleRow]:
        """The last raw readings, oldest first; of one device or of all."""
        return self._merged(
            lambda p: [
                p.frame.put(r)
                for stored in self._stored_ids(p, device_id)
                for r in p.file.raw_samples(stored)
            ]
        )

    def sample_errors(self) -> list[tables.SampleErrorRow]:
        """Errors behind missing readings, counted per attempt and series."""
        order = attrgetter("attempt", "device_id", "error")
        return self._framed(FileReader.sample_errors, order)


def _spans(part: _Part) -> list[tables.NodeSpan]:
    """The spans of one file, one an attempt, with the devices of the machine that wrote it."""
    frame, file = part.frame, part.file
    own = [e for e in file.executions() if e.result.node in (None, frame.node)]
    told = [(e.attempt, device_id) for e in own for device_id in e.result.device_ids]
    told += [(d.attempt, d.device_id) for d in file.devices()]
    # The head's own events tell of the run, not of the machine.
    ends = [] if part.row is None else [e.t_s for e in file.events() if e.kind in ENDS]
    spans = []
    for a in file.attempts():
        ids = {device_id for attempt, device_id in told if attempt == a.attempt}
        ids.update(file.read_device_ids(a.attempt))
        spans.append(
            tables.NodeSpan(
                attempt=a.attempt,
                node=frame.node,
                start_t_s=a.monotonic_anchor_s - frame.offset_s,
                end_t_s=max(ends) - frame.offset_s if ends else None,
                device_ids=tuple(sorted(frame.device(i) for i in ids if frame.is_own(i))),
            )
        )
    return spans
