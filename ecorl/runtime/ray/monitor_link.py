"""`RemoteMonitor`: the scheduler's view of a machine's monitor."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from ecorl.engines.lanes.threaded import error_of
from ecorl.ledger import DeviceRecord
from ecorl.records import DeviceKind, Role, StageResult
from ecorl.runtime.handles import Span
from ecorl.runtime.monitor import NodeEnergy, NodePower
from ecorl.runtime.ray.monitor import ExecutionKey, MonitorNews, key_of

POLL_S = 0.2
"""How often the scheduler asks a monitor for news, s."""

PATIENCE_S = 5.0
"""Longest wait for a monitor's answer, s. Invented: it answers in milliseconds, or is gone."""

START_S = 60.0
"""Longest wait for a monitor to start, to end, or to read a file, s. Invented: it starts a process
for sampling and ends it."""

_CONFIRM_S = 1.0
"""Longest wait for a monitor to take over an execution, s; it takes a millisecond."""

_PINGS = 8
"""Round trips from which a clock's offset is taken: the shortest counts."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """An execution that was sent to a monitor and is not settled yet."""

    result: StageResult
    spans: Sequence[Span]


class RemoteMonitor:
    """The scheduler's view of a monitor on some machine; see `ecorl.runtime.monitor.Monitor`.

    A thread asks for news. Executions that are under way or not settled yet are sent again to a
    monitor that was started anew; what its devices drew meanwhile is missing.

    Args:
        node: name of the machine.
        actor: the monitor's handle.
        on_settled: called with each execution once it has its energy.
        on_fault: called with device, error and time when readings go missing or come back.
        on_lost: called with one sentence when the monitor is out of reach, or was started anew.
        others: ids of devices on it that are neither cards nor of the GPU path.
    """

    def __init__(
        self,
        node: str,
        actor: Any,
        on_settled: Callable[[StageResult], None],
        on_fault: Callable[[str, str | None, float], None],
        on_lost: Callable[[str], None],
        others: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.node, self._actor, self.ahead_s = node, actor, 0.0
        self._others = others
        self._on_settled, self._on_fault, self._on_lost = on_settled, on_fault, on_lost
        self._lock = threading.Lock()
        self._sent: dict[int, _Sent] = {}
        self._held: dict[int, Sequence[Span]] = {}
        self._power, self._drawn = NodePower(), NodeEnergy()
        self._life, self._n_taken = "", 0
        self._newest: Any = None
        self._known: set[ExecutionKey] = set()
        self._is_lost = self._has_hole = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._ask, name=f"ecorl-monitor-{node}", daemon=True)

    def start(self, *, must_answer: bool = True) -> None:
        """Start the monitor, or meet one that runs, and take over what it has recorded.

        Args:
            must_answer: False where the run goes on without it: it is met when it is back.

        Raises:
            UserError: when a recording or an option is not acceptable.
            RayError: when it is out of reach.
        """
        try:
            fault = ray.get(self._actor.start.remote(), timeout=START_S)
            if fault is not None:
                raise error_of(fault)
            self._meet()
        except RayError as error:
            if must_answer:
                raise
            self._lose(_line(error))
        self._thread.start()

    def measure_clock(self) -> tuple[float, float]:
        """Measure how far the machine's clock is ahead of this one's.

        Returns:
            The offset, s, and its error, s.

        Raises:
            RayError: when it is out of reach.
        """
        best = (0.0, float("inf"))
        for _ in range(_PINGS):
            sent_s = time.monotonic()
            there_s = ray.get(self._actor.clock.remote(), timeout=PATIENCE_S)
            here_s = time.monotonic()
            half_s = 0.5 * (here_s - sent_s)
            if half_s < best[1]:
                best = (there_s - (sent_s + half_s), half_s)
        self.ahead_s = best[0]
        return best

    # ------------------------------------------------------------ Monitor

    def power(self) -> NodePower:
        """What the machine's devices drew when the monitor was asked last."""
        return self._power

    def drawn(self) -> NodeEnergy:
        """What they have drawn so far."""
        return self._drawn

    def gpu_path_ids(self) -> tuple[str, ...]:
        """Ids of the machine's metered devices of the GPU path."""
        own = [d for d in self._power.devices if d.kind is not DeviceKind.FPGA]
        return tuple(d.device_id for d in own if d.device_id not in self._others)

    def device(self, record: DeviceRecord) -> None:
        """Record a device whose power is not read."""
        self._actor.device.remote(record)

    def hold(self, serial: int, spans: Sequence[Span], role: Role | None = None) -> None:
        """Note which devices an execution has held so far."""
        with self._lock:
            self._held[serial] = list(spans)
        self._actor.hold.remote(serial, list(spans), role)

    def add(self, serial: int, result: StageResult, spans: Sequence[Span]) -> None:
        """Account a finished execution."""
        with self._lock:
            self._held.pop(serial, None)
            if key_of(result) in self._known:  # told once more, after a start anew
                return
            self._sent[serial] = _Sent(result, list(spans))
        self._newest = self._actor.add.remote(serial, result, list(spans))

    def confirm(self) -> None:
        """Wait until the monitor has what was added last, so that no kill of this process loses it.

        Not for long, and not for a monitor that is out of reach.
        """
        if self._newest is not None and not self._is_lost:
            ray.wait([self._newest], timeout=_CONFIRM_S)
            self._newest = None

    def drop(self, serial: int) -> None:
        """Note that an execution will never be accounted."""
        with self._lock:
            self._held.pop(serial, None)
        self._actor.drop.remote(serial)

    def settle(self) -> None:
        """Tell the monitor that all executions so far are noted."""
        self._actor.settle.remote()

    # ------------------------------------------------------------ end

    def finish(self) -> str | None:
        """Let the monitor account what is left and close its ledger.

        Returns:
            Why it did not, or None.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2 * PATIENCE_S)
        try:
            self._ask_once()  # one that was started anew has to get back what it lost
            call = self._actor.finish.remote(self._life, self._n_taken)
            self._take(ray.get(call, timeout=START_S))
        except RayError as error:
            self._lose(_line(error))
            return _line(error)
        return None

    def fetch(self, path: Path) -> bytes | None:
        """Read a file of the machine; None when it is not there or the machine is gone.

        Args:
            path: a ledger.
        """
        # One that has not answered before is not waited for long.
        patience_s = PATIENCE_S if self._is_lost else START_S
        try:
            content: bytes | None = ray.get(self._actor.fetch.remote(path), timeout=patience_s)
        except RayError:
            return None
        return content

    def remove(self, path: Path) -> None:
        """Remove a file of the machine that was fetched.

        Args:
            path: a ledger.
        """
        with contextlib.suppress(RayError):
            ray.get(self._actor.remove.remote(path), timeout=PATIENCE_S)

    # ------------------------------------------------------------ the thread

    def _ask(self) -> None:
        while not self._stopping.wait(POLL_S):
            try:
                self._ask_once()
            except RayError as error:
                self._lose(_line(error))

    def _ask_once(self) -> None:
        if not self._life:
            self._meet()
            return
        call = self._actor.news.remote(self._life, self._n_taken)
        news: MonitorNews = ray.get(call, timeout=PATIENCE_S)
        if news.life != self._life:
            # Ray may start it anew between two questions, so that none of them fails.
            self._lose("it was started anew")
            self._life, self._n_taken = news.life, 0
            self._send_again()
        self._is_lost = False
        self._take(news)

    def _meet(self) -> None:
        """Take over what a monitor has recorded in this attempt, for a scheduler that is new."""
        news, recorded = ray.get(self._actor.adopt.remote(), timeout=START_S)
        self._life, self._is_lost = news.life, False
        self._known = {key_of(result) for result in recorded}
        for result in recorded:
            self._on_settled(result)
        self._n_taken = news.n_told - len(news.settled)
        self._take(news)

    def _take(self, news: MonitorNews) -> None:
        self._power, self._drawn = news.power, news.drawn
        if self._has_hole:
            self._drawn = NodeEnergy(provenance=news.drawn.provenance)
        n_new = news.n_told - self._n_taken
        for serial, result in news.settled[len(news.settled) - n_new :]:
            with self._lock:
                self._sent.pop(serial, None)
            self._on_settled(result)
        self._n_taken = news.n_told
        for device_id, error, t_s in news.faults:
            self._on_fault(device_id, error, t_s)

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            # Old readings decide nothing, and the sum has a hole from here on.
            self._power, self._has_hole = NodePower(), True
            self._on_lost(why)

    def _send_again(self) -> None:
        """Tell a monitor that was started anew what is under way and what is not settled."""
        with self._lock:
            held, sent = dict(self._held), dict(self._sent)
        for serial, spans in held.items():
            self._actor.hold.remote(serial, spans)
        for serial, one in sent.items():
            self._actor.add.remote(serial, one.result, one.spans)


def _line(error: RayError) -> str:
    """An error of Ray in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason'}"
