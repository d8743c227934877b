"""One card at work: a plan's starts one after the other, transfers beside them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ecorl.drivers.xrt_card import KernelRun, OpenCard, RunState
from ecorl.engines.fpga.card.image import WORD, Bytes, Words
from ecorl.engines.fpga.card.memory import SLOTTED, CardMemory
from ecorl.engines.fpga.card.plan import UNWRITTEN, At, Plan, Start
from ecorl.engines.fpga.card.tokens import MARK, ROW_FIELDS
from ecorl.engines.fpga.card.weights import Weights, upload
from ecorl.engines.fpga.interfaces import KernelInterface
from ecorl.errors import DriverError

Transfer = Callable[[], None]

_LONG = ("gemm_int8", "mha_int8")
"""Kernels that transfers pass beside; the others may end before a transfer does."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Results of a group: ``values [n_outputs, width] int32`` and ``marks [n_outputs] int32``.

    A mark other than 0 says that the result rests on a number which did not fit, or that the card
    never wrote it.
    """

    values: Words
    marks: Words


@dataclass(slots=True)
class TransferTimes:
    """Seconds of transfers, and those of them that a running kernel covered whole.

    A transfer that ended after its kernel counts as not covered, although a part of it was: what
    is said to be hidden was hidden.
    """

    total_s: float = 0.0
    hidden_s: float = 0.0


class CardRunner:
    """Runs plans on one opened card. Used from one thread.

    Args:
        card: the card, with the bitstream loaded.
        interfaces: of its kernels.
        start_s: patience with one start of a kernel, s.
    """

    def __init__(
        self, card: OpenCard, interfaces: Sequence[KernelInterface], start_s: float
    ) -> None:
        self._card, self._start_s = card, start_s
        by_name = {interface.kernel: interface for interface in interfaces}
        self._memory = CardMemory(card, by_name)
        self._runs: dict[str, KernelRun] = {}
        self._tops = {name: interface.top for name, interface in by_name.items()}
        self._indices = {
            name: {a.name: a.index for a in interface.arguments}
            for name, interface in by_name.items()
        }
        self._pending: deque[Transfer] = deque()
        self._running: KernelRun | None = None
        self.times = TransferTimes()

    def load(self, weights: Weights) -> str:
        """Bring weights onto the card; returns their SHA-256 as read back from it.

        Raises:
            DriverError: when that fails.
        """
        sizes = weights.model.placed.sizes
        return upload(weights, {name: self._memory.exact(name, n) for name, n in sizes.items()})

    def later(self, transfer: Transfer) -> None:
        """Do transfers beside one of the next kernels. They must not raise."""
        self._pending.append(transfer)

    def catch_up(self) -> None:
        """Do the transfers that no kernel has covered."""
        while self._pending:
            self._pending.popleft()()

    def send(self, plan: Plan, slot: int) -> None:
        """Bring a group's inputs onto the card.

        Raises:
            DriverError: when a transfer fails or there is no room.
        """
        # Only what has slots: another group may be at work in all other buffers.
        for name in SLOTTED & plan.sizes.keys():
            self._memory.reserve(name, plan.sizes[name], slot)
        for name, data in plan.inputs.items():
            if len(data):
                self._write(name, data, slot)
        if plan.result == "values":
            # What the card does not write is known for what it is.
            size = plan.sizes["values"]
            fresh = np.full(size // 4, UNWRITTEN, np.int32).view(np.uint8)
            self._write("values", fresh, slot)

    def run(self, plan: Plan, slot: int) -> None:
        """All starts of a plan whose inputs were sent.

        Raises:
            DriverTimeout: when a kernel did not end in time; it may still be running.
            DriverError: when a kernel failed.
        """
        try:
            for name in plan.sizes.keys() - SLOTTED:
                self._memory.reserve(name, plan.sizes[name])
            for start in plan.before:
                self._start(start, slot)
            self._pending.appendleft(lambda: self._spread_marks(plan, slot))
            for start in (*plan.attend, *plan.after):
                self._start(start, slot)
        except DriverError:
            self._pending.clear()  # made for this group's slots: beside another one they do harm
            raise

    def _spread_marks(self, plan: Plan, slot: int) -> None:
        records = self._records(plan, slot)
        spread = plan.layout.spread_marks(records[:, MARK])
        if not np.array_equal(spread, records[:, MARK]):
            records[:, MARK] = spread
            self._write("rows", records.reshape(-1).view(np.uint8), slot)

    def receive(self, plan: Plan, slot: int) -> GroupResult:
        """A finished group's results.

        Raises:
            DriverError: when a transfer fails.
        """
        if plan.result == "outputs":
            outputs = self._read("outputs", plan.sizes["outputs"], slot).reshape(-1, 4)
            own = outputs[plan.output_at]
            return GroupResult(own[:, 1:2], own[:, 2] | (own[:, 1] == UNWRITTEN))
        first = plan.layout.first_wanted
        values = self._read("values", plan.sizes["values"], slot)
        values = values.reshape(plan.layout.n_rows - first, -1)[plan.output_at]
        marks = self._records(plan, slot)[plan.layout.output_rows, MARK]
        return GroupResult(values, marks | (values[:, 0] == UNWRITTEN))

    def _start(self, start: Start, slot: int) -> None:
        run = self._runs.get(start.kernel)
        if run is None:
            run = self._runs[start.kernel] = self._card.run_of(self._tops[start.kernel])
        indices = self._indices[start.kernel]
        for name, value in start.arguments.items():
            given = self._memory.at(value, slot) if isinstance(value, At) else value
            run.set(indices[name], given)
        run.start()
        self._running = run
        try:
            if self._pending and start.kernel in _LONG:
                self._pending.popleft()()
            run.wait(time.monotonic() + self._start_s)
        finally:
            self._running = None

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the block as a transfer, and as hidden when a kernel outlasts it."""
        start_s = time.perf_counter()
        yield
        taken_s = time.perf_counter() - start_s
        self.times.total_s += taken_s
        if self._running is not None and self._running.state() is RunState.RUNNING:
            self.times.hidden_s += taken_s

    def _records(self, plan: Plan, slot: int) -> Words:
        rows = self._read("rows", plan.layout.n_rows * WORD, slot)
        return rows.reshape(-1, ROW_FIELDS)

    def _write(self, name: str, data: Bytes, slot: int) -> None:
        with self._timed():
            part = self._memory.at(At(name), slot).part(0, len(data))
            part.host[:] = data
            part.upload()

    def _read(self, name: str, n_bytes: int, slot: int) -> Words:
        with self._timed():
            part = self._memory.at(At(name), slot).part(0, n_bytes)
            return part.download().view(np.int32).copy()
