"""Runs plans on one card: kernel starts one after the other, transfers during them.

The card's buffers are allocated when first needed, then reused for every group. A group's inputs
and results have two slots: while the card computes one group, the next one's inputs go into the
other slot, and the last one's results come from there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecorl.drivers.xrt.card import CardBuffer, KernelRun, OpenCard, RunState
from ecorl.engines.fpga.card.image import WORD, Bytes, Weights, Words, upload
from ecorl.engines.fpga.card.plan import (
    MARK,
    N_OUTPUTS,
    ROW_FIELDS,
    TOKEN,
    UNWRITTEN,
    At,
    KernelPlan,
    KernelStart,
)
from ecorl.engines.fpga.kernels.banks import PORTS, SLOTTED
from ecorl.engines.fpga.kernels.interfaces import KernelInterface
from ecorl.errors import DriverError

_MOST_PARTS = 8192
_SMALLEST = 4096


class CardMemory:
    """Named buffers of a card.

    Args:
        card: the card.
        interfaces: its kernels by name.
    """

    def __init__(self, card: OpenCard, interfaces: Mapping[str, KernelInterface]) -> None:
        self._card, self._interfaces = card, interfaces
        self._buffers: dict[tuple[str, int], CardBuffer] = {}
        self._parts: dict[tuple[str, int, int], CardBuffer] = {}

    def reserve(self, name: str, n_bytes: int, slot: int = 0) -> CardBuffer:
        """Reserve a buffer of at least `n_bytes`; its content is lost when it must grow.

        Args:
            name: of the buffer.
            n_bytes: needed.
            slot: which copy of a slotted buffer.

        Raises:
            DriverError: when the bank has no headroom, or the bitstream no bank for it.
        """
        key = (name, slot if name in SLOTTED else 0)
        known = self._buffers.get(key)
        if known is not None and known.n_bytes >= n_bytes:
            return known
        size = max(n_bytes, _SMALLEST)
        # Doubled, so that batches that grow slowly do not allocate each time.
        doubled = size if known is None else max(size, 2 * known.n_bytes)
        known = None  # the old one must be freed first, or the bank may have no headroom
        try:
            return self._replace(key, doubled)
        except DriverError:
            if doubled == size:
                raise
        return self._replace(key, size)

    def exact(self, name: str, n_bytes: int) -> CardBuffer:
        """Reserve a buffer of exactly `n_bytes`, for weights.

        Args:
            name: of the buffer.
            n_bytes: needed.

        Raises:
            DriverError: as `reserve`.
        """
        known = self._buffers.get((name, 0))
        if known is None or known.n_bytes != n_bytes:
            known = None
            known = self._replace((name, 0), n_bytes)
        return known

    def at(self, place: At, slot: int) -> CardBuffer:
        """The buffer from a place to its end.

        Args:
            place: buffer and offset.
            slot: which copy of a slotted buffer.

        Raises:
            KeyError: when the buffer was not reserved.
            DriverError: when the place is beyond it.
        """
        slot = slot if place.buffer in SLOTTED else 0
        whole = self._buffers[place.buffer, slot]
        if place.offset == 0:
            return whole
        key = (place.buffer, slot, place.offset)
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            part = self._parts[key] = whole.part(place.offset, whole.n_bytes - place.offset)
        return part

    def _replace(self, key: tuple[str, int], n_bytes: int) -> CardBuffer:
        self._buffers.pop(key, None)
        self._parts = {k: part for k, part in self._parts.items() if k[:2] != key}
        buffer = self._card.allocate(n_bytes, *(self._port(*port) for port in PORTS[key[0]]))
        self._buffers[key] = buffer
        return buffer

    def _port(self, kernel: str, argument: str) -> tuple[str, int]:
        interface = self._interfaces[kernel]
        index = next(a.index for a in interface.arguments if a.name == argument)
        return interface.top, index


Transfer = Callable[[], bool]
"""Tries a transfer; returns whether it is done, or must be tried again during a later start."""

_LONG = ("gemm_int8", "mha_int8")
"""Kernels that run long enough for a transfer meanwhile; the others may end before it does."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Results of a group: ``values [n_outputs, width] int32`` and ``marks [n_outputs] int32``.

    A mark other than 0 means that the result depends on a number beyond its format.
    """

    values: Words
    marks: Words


@dataclass(slots=True)
class CardTimes:
    """Seconds of all transfers, of those hidden behind a running kernel, and of the plans' runs.

    A transfer that ended after its kernel does not count as hidden, although a part of it was.
    """

    total_s: float = 0.0
    hidden_s: float = 0.0
    run_s: float = 0.0


class CardRunner:
    """Runs plans on one opened card. Used from one thread.

    Args:
        card: the card, with the bitstream loaded.
        interfaces: of its kernels.
        start_s: longest time of one kernel start, s.
        ended: when set, no more kernels are started.
    """

    def __init__(
        self,
        card: OpenCard,
        interfaces: Sequence[KernelInterface],
        start_s: float,
        ended: threading.Event,
    ) -> None:
        self._card, self._start_s, self._ended = card, start_s, ended
        by_name = {interface.kernel: interface for interface in interfaces}
        self._memory = CardMemory(card, by_name)
        self._runs: dict[str, KernelRun] = {}
        self._tops = {name: interface.top for name, interface in by_name.items()}
        self._indices = {
            name: {a.name: a.index for a in interface.arguments}
            for name, interface in by_name.items()
        }
        self._beside: deque[Transfer] = deque()
        self._running: KernelRun | None = None
        self.times = CardTimes()

    def load(self, weights: Weights) -> str:
        """Upload weights to the card.

        Returns:
            Their SHA-256 as read back from the card.

        Raises:
            DriverError: when a transfer fails, or the card holds other bytes than were sent.
        """
        sizes = weights.model.placed.sizes
        return upload(weights, {name: self._memory.exact(name, n) for name, n in sizes.items()})

    def send(self, plan: KernelPlan, slot: int) -> None:
        """Upload a group's inputs.

        Args:
            plan: of the group.
            slot: copy of the slotted buffers that they go to.

        Raises:
            DriverError: when a transfer fails, or a bank has no headroom.
        """
        # Only slotted buffers: the card may still compute another group in all others.
        for name in SLOTTED & plan.sizes.keys():
            self._memory.reserve(name, plan.sizes[name], slot)
        for name, data in plan.inputs.items():
            if len(data):
                self._write(name, data, slot)
        if plan.result == "values":
            # So that a reward which the card did not write is recognised.
            size = plan.sizes["values"]
            fresh = np.full(size // 4, UNWRITTEN, np.int32).view(np.uint8)
            self._write("values", fresh, slot)

    def run(self, plan: KernelPlan, slot: int, beside: Sequence[Transfer] = ()) -> None:
        """Run all starts of a plan whose inputs were sent.

        Args:
            plan: the group.
            slot: where its inputs are.
            beside: transfers of other groups, done while its kernels run. They must not raise;
                those that are not done when a kernel fails are dropped.

        Raises:
            DriverTimeout: when a kernel did not end in time; it may still be running.
            DriverError: when a kernel failed.
        """
        self._beside.extend(beside)
        try:
            self._run_all(plan, slot)
            for transfer in self._beside:
                transfer()
        finally:
            self._beside.clear()  # they use the slot that this group leaves free, not the next one

    def _run_all(self, plan: KernelPlan, slot: int) -> None:
        start_s = time.perf_counter()
        try:
            for name in plan.sizes.keys() - SLOTTED:
                self._memory.reserve(name, plan.sizes[name])
            for start in plan.before:
                self._start(start, slot)
            self._beside.appendleft(lambda: self._spread_marks(plan, slot))
            for start in (*plan.attend, *plan.after):
                self._start(start, slot)
        finally:
            self.times.run_s += time.perf_counter() - start_s

    def _spread_marks(self, plan: KernelPlan, slot: int) -> bool:
        records = self._records(plan, slot)
        spread = plan.layout.spread_marks(records[:, MARK])
        if not np.array_equal(spread, records[:, MARK]):
            records[:, MARK] = spread
            self._write("rows", records.reshape(-1).view(np.uint8), slot)
        return True

    def receive(self, plan: KernelPlan, slot: int) -> GroupResult:
        """Download a finished group's results.

        Args:
            plan: of the group.
            slot: copy of the slotted buffers that it used.

        Raises:
            DriverError: when a transfer fails, or the card has not written them all.
        """
        if plan.result == "outputs":
            outputs = self._read("outputs", plan.sizes["outputs"], slot).reshape(-1, 4)
            own = outputs[plan.output_at]
            sent = plan.inputs["outputs"].view(np.int32).reshape(-1, 4)[plan.output_at]
            if not np.array_equal(own[:, 0], sent[:, 0]):
                raise DriverError("the card holds other targets than were sent")
            _check_written(own[:, 2] != UNWRITTEN)
            return GroupResult(own[:, 1:2], own[:, 2])
        first = plan.layout.first_wanted
        values = self._read("values", plan.sizes["values"], slot)
        values = values.reshape(plan.layout.n_rows - first, -1)[plan.output_at]
        marks = self._records(plan, slot)[plan.layout.output_rows, MARK]
        _check_written((values[:, 0] != UNWRITTEN) | (marks != 0))
        return GroupResult(values, marks)

    def _start(self, start: KernelStart, slot: int) -> None:
        if self._ended.is_set():
            raise DriverError("the card is being closed")
        run = self._runs.get(start.kernel)
        if run is None:
            run = self._runs[start.kernel] = self._card.run_of(self._tops[start.kernel])
        indices = self._indices[start.kernel]
        for name, value in start.arguments.items():
            given = self._memory.at(value, slot) if isinstance(value, At) else value
            run.set(indices[name], given)
        run.start()
        self._running, deadline_s = run, time.monotonic() + self._start_s
        try:
            if self._beside and start.kernel in _LONG and self._beside[0]():
                self._beside.popleft()
        finally:
            try:
                run.wait(deadline_s)  # also after a fault: no kernel may run on into the next group
            finally:
                self._running = None

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Time the block as a transfer; it was hidden when a kernel still runs at its end."""
        start_s = time.perf_counter()
        yield
        taken_s = time.perf_counter() - start_s
        self.times.total_s += taken_s
        with contextlib.suppress(DriverError):  # a fault of the kernel, which its wait raises
            if self._running is not None and self._running.state() is RunState.RUNNING:
                self.times.hidden_s += taken_s

    def _records(self, plan: KernelPlan, slot: int) -> Words:
        n_rows = plan.layout.n_rows
        records = self._read("rows", n_rows * WORD, slot).reshape(-1, ROW_FIELDS)
        sent = plan.layout.records[:n_rows, TOKEN : N_OUTPUTS + 1]
        if not np.array_equal(records[:, TOKEN : N_OUTPUTS + 1], sent):
            raise DriverError("the card holds records of other tokens than were sent")
        return records

    def _write(self, name: str, data: Bytes, slot: int) -> None:
        with self._timed():
            part = self._memory.at(At(name), slot).part(0, len(data))
            part.host[:] = data
            part.upload()

    def _read(self, name: str, n_bytes: int, slot: int) -> Words:
        with self._timed():
            part = self._memory.at(At(name), slot).part(0, n_bytes)
            part.host.view(np.int32)[:] = (
                UNWRITTEN  # so that the host's copy cannot pass for the card's
            )
            return part.download().view(np.int32).copy()


def _check_written(written: npt.NDArray[np.bool_]) -> None:
    n_missing = len(written) - np.count_nonzero(written)
    if n_missing:
        raise DriverError(f"the card has not written {n_missing} of {len(written)} results")
