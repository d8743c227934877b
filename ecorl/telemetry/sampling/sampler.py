"""Power sampling for a run: one process that reads, one thread that receives.

Whatever happens to the process or to a driver, the run goes on: readings turn missing (None with
the name of the fault, never 0), time still advances (`Sampler.watermark_s`), and the process is
started again a bounded number of times.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ecorl.errors import DataError, EcorlError, UserError
from ecorl.records import FOREIGN_COUNTER, PowerSample, Provenance, SmoothedPower
from ecorl.telemetry.history import PowerHistory
from ecorl.telemetry.sampling.filters import CounterFill, Smoother
from ecorl.telemetry.sampling.messages import SamplerProcess, SourceReport, decode
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.registry import build
from ecorl.telemetry.sources.specs import SAMPLER_LOST, DeviceInfo, SourceSpec

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Restarts of the sampling process in a row before its devices are left missing; invented."""

STABLE_AFTER_S = 300.0
"""A process that lived this long starts the count of restarts anew; invented."""

RESTART_PAUSE_S = 0.5
"""Pause before the first restart, doubled for each further one; invented."""

SILENT = "DriverTimeout"
"""Fault name of readings that are missing because the source does not answer."""

SLOWEST_COUNTER_S = 1.3
"""Readings of a counter that is slow to read are no further apart than this and two polling
intervals, s: one a second, at the first poll behind it, each poll late by half an interval."""

_TICK_S = 0.25


class Sampler:
    """Reads power sources for the length of a run.

    Args:
        specs: the sources.
        tau_s: time constant of the smoothed power, s.
        stale_after_s: age at which smoothed power is missing and a silent source counts as
            failed, s. The failure limit is at least 2.5 polling intervals.
        sink: called with each batch of samples, in the receiving thread. An `EcorlError` or
            `OSError` from it is logged and the sink is not called again.
        on_fault: called with device, error name and time when a fault of a device starts or
            changes, and with None as the name when it ends. A source that did not open is named
            by its type.

    Attributes:
        reports: one a spec: the source chosen, and why the others were not.
    """

    def __init__(
        self,
        specs: Sequence[SourceSpec],
        *,
        tau_s: float = 1.0,
        stale_after_s: float = 2.0,
        sink: Callable[[tuple[PowerSample, ...]], None] | None = None,
        on_fault: Callable[[str, str | None, float], None] | None = None,
    ) -> None:
        self._specs = list(specs)
        self._tau_s, self._stale_after_s = tau_s, stale_after_s
        self._sink, self._on_fault = sink, on_fault
        longest_s = max((spec.interval_s for spec in specs), default=0.1)
        self.history = PowerHistory(hold_s=max(stale_after_s, 2.5 * longest_s))
        self._lock = threading.Lock()
        self._smoothers: dict[str, Smoother] = {}
        self._faults: dict[str, str] = {}
        self._logged: set[str] = {"sampler"}
        self.reports: tuple[SourceReport, ...] = ()
        self.devices: tuple[DeviceInfo, ...] = ()
        self._reasons: dict[str, str] = {}
        self._limits_s: dict[str, float] = {}
        self._since_s: dict[str, float] = {}
        # Of each device: the newest sample, and what waits for its counter.
        self._newest_s: dict[str, float] = {}
        self._fills: dict[str, CounterFill] = {}
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._process: SamplerProcess | None = None
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ what the run calls

    def start(self, timeout_s: float = 10.0) -> None:
        """Start sampling and wait for the first answer.

        A machine that cannot be read is no error here: see `reports` and ``on_fault``. If no
        answer comes in time the wait ends and the process goes on; its devices appear in
        `devices` when it answers.

        Raises:
            UserError: an option is not acceptable or a replay file is malformed.
        """
        if self._thread is not None:
            raise RuntimeError("the sampler was started before")
        for i, spec in enumerate(self._specs):
            self._specs[i] = replace(spec, started_s=time.monotonic())
            for config in spec.candidates:
                build(config, spec)
        self._thread = threading.Thread(target=self._run, name="ecorl-sampler", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout_s):
            logger.warning("no answer from the power sampler within %.0f s; going on", timeout_s)
            return
        for report in self.reports:
            if report.user_error is not None:
                self.stop()
                kind = DataError if report.error == DataError.__name__ else UserError
                raise kind(report.user_error)

    def stop(self) -> None:
        """End sampling; safe to call twice.

        The receiving thread alone ends the process, and a forked child has no such thread: there
        this call has no effect.
        """
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def unread(self) -> tuple[str, ...]:
        """What could not be read from the start, and why, one sentence each."""
        found = [pair for report in self.reports for pair in report.unread]
        refusals = [pair for report in self.reports for pair in report.refusals]
        found += [(kind, f"cannot be read ({why})") for kind, why in refusals]
        return tuple(dict.fromkeys(f"{what} {why}" for what, why in found))

    @property
    def faults(self) -> dict[str, str]:
        """Devices (or types of sources that did not open) with a fault now, and its name."""
        with self._lock:
            return dict(self._faults)

    @property
    def pid(self) -> int | None:
        """Process id of the sampling process, None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def smoothed(self, device_id: str) -> SmoothedPower:
        """Smoothed power of a device now; None figures for a device that is not known."""
        now_s = time.monotonic()
        with self._lock:
            smoother = self._smoothers.get(device_id)
            if smoother is None:
                return SmoothedPower(device_id, now_s, None, None, None, Provenance.MODELLED)
            return smoother.at(now_s)

    def watermark_s(self, device_id: str) -> float | None:
        """Time up to which the energy of a device is final, s: windows that end before it are.

        That is its newest sample or, where its counter is slow to read, the newest of the counter.
        """
        return self.history.watermark_s(device_id)

    def mark_edge(self) -> None:
        """Ask for readings now, because a stage begins or ends; never waits and never raises."""
        process = self._process
        if process is not None:
            process.mark_edge()

    # ------------------------------------------------------------ the receiving thread

    def _run(self) -> None:
        n_restarts = 0
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self._receive()
            if self._stopping.is_set() or not self.devices:
                break
            n_restarts = 0 if time.monotonic() - started_s > STABLE_AFTER_S else n_restarts
            if n_restarts == MAX_RESTARTS:
                logger.warning("the power sampler ended %d times; power stays missing", n_restarts)
                self._idle(float("inf"))
                break
            self._idle(RESTART_PAUSE_S * 2**n_restarts)
            n_restarts += 1
        for fill in self._fills.values():
            self._keep(fill.release())
        self._ready.set()

    def _receive(self) -> None:
        """Start a process and read its lines until it ends or the sampler stops."""
        try:
            process = SamplerProcess(self._specs)
        except OSError as error:
            logger.warning("the power sampler cannot be started: %s", error)
            self._note("sampler", SAMPLER_LOST, time.monotonic())
            return
        self._process = process
        try:
            while not self._stopping.is_set():
                lines = process.lines(_TICK_S)
                if lines is None:
                    self._lose(process)
                    return
                for line in lines:
                    self._receive_line(line)
                self._mark_silent(time.monotonic())
        finally:
            self._process = None
            process.end()

    def _receive_line(self, line: bytes) -> None:
        try:
            items = decode(line)
        except ValueError as error:
            logger.warning("%s", error)
            return
        reports = tuple(item for item in items if isinstance(item, SourceReport))
        if reports:
            self._receive_reports(reports)
        else:
            self._add(tuple(item for item in items if isinstance(item, PowerSample)))

    def _receive_reports(self, reports: tuple[SourceReport, ...]) -> None:
        first = not self.reports
        now_s = time.monotonic()
        for i, report in enumerate(reports):
            # Devices are those of the first answer, also when a restart finds fewer of them.
            known = report if first else self.reports[i]
            for device in known.devices:
                self.history.register(device.device_id, device.provenance)
                self._limits_s[device.device_id] = max(self._stale_after_s, 2.5 * known.interval_s)
                self._reasons[device.device_id] = report.error or SILENT
                self._since_s.setdefault(device.device_id, now_s)
                # Other sources give a counter with each reading, or have none to tell.
                is_foreign = device.device_id in self.history.foreign_counters
                if known.chosen == NvmlSource.name and not is_foreign:
                    wait_s = SLOWEST_COUNTER_S + 2 * known.interval_s
                    self._fills.setdefault(device.device_id, CounterFill(wait_s))
                with self._lock:
                    self._smoothers.setdefault(device.device_id, self._smoother(device))
            if first:
                self._logged |= {report.asked, *(device_id for device_id, _ in report.unread)}
            if first and report.error is not None:
                self._note(report.asked, report.error, now_s)
            if first and report.error is None:
                # A restart must not switch to another kind of source in the middle of a run.
                self._specs[i] = self._specs[i].only(report.chosen)
        if first:
            self.reports = reports
            # Asked for several times a stage.
            self.devices = tuple(device for report in reports for device in report.devices)
            for line in self.unread:
                logger.warning("%s", line)
        self._ready.set()

    def _smoother(self, device: DeviceInfo) -> Smoother:
        return Smoother(device.device_id, device.provenance, self._tau_s, self._stale_after_s)

    def _add(self, samples: tuple[PowerSample, ...]) -> None:
        complete: list[PowerSample] = []
        for sample in samples:
            device_id = sample.device_id
            if device_id not in self._limits_s:
                continue  # a restart found more of them
            if sample.t_s <= self._newest_s.get(device_id, -math.inf):
                continue
            self._newest_s[device_id] = sample.t_s
            with self._lock:
                smoother = self._smoothers.get(device_id)
                if smoother is not None:
                    smoother.add(sample)
            is_foreign = sample.error == FOREIGN_COUNTER
            self._note(device_id, None if is_foreign else sample.error, sample.t_s)
            if is_foreign and self.history.disown_counter(device_id):
                logger.warning(
                    "%s: its energy counter is not its own; its power readings count", device_id
                )
                # Nothing waits for it, and no reading is shaped by it.
                waiting = self._fills.pop(device_id, None)
                complete += () if waiting is None else waiting.release()
            fill = self._fills.get(device_id)
            complete += (sample,) if fill is None else fill.add(sample)
        self._keep(complete)

    def _keep(self, complete: Sequence[PowerSample]) -> None:
        """Take over samples that are complete, and hand them on."""
        kept = self.history.add(complete)
        if kept and self._sink is not None:
            try:
                self._sink(kept)
            except (EcorlError, OSError) as error:
                logger.warning("power samples are no longer recorded: %s", error)
                self._sink = None

    def _note(self, device_id: str, error: str | None, t_s: float) -> None:
        """Tell of a fault that starts, changes or ends."""
        with self._lock:
            if self._faults.get(device_id) == error:
                return
            if error is None:
                del self._faults[device_id]
            else:
                self._faults[device_id] = error
        if error not in (None, SAMPLER_LOST) and device_id not in self._logged:
            self._logged.add(device_id)
            logger.warning("%s: power readings are missing from here on (%s)", device_id, error)
        if self._on_fault is not None:
            try:
                self._on_fault(device_id, error, t_s)
            except (EcorlError, OSError) as fault:
                logger.warning("power faults are no longer recorded: %s", fault)
                self._on_fault = None

    def _mark_silent(self, now_s: float) -> None:
        """Missing readings for devices whose source says nothing, so that time still advances."""
        for device in self.devices:
            # Its very first read may hang.
            newest_s = self._newest_s.get(device.device_id, self._since_s[device.device_id])
            silent = self._faults.get(device.device_id) in (SILENT, SAMPLER_LOST)
            limit_s = _TICK_S if silent else self._limits_s[device.device_id]
            if now_s - newest_s > limit_s:
                self._add((_missing(device, now_s, self._reasons[device.device_id]),))

    def _lose(self, process: SamplerProcess) -> None:
        """The process ended by itself: every device is missing from now on."""
        if self.devices:
            logger.warning("the power sampler ended (%s)", process.last_words())
        elif not self._ready.is_set():
            logger.warning("the power sampler did not start (%s)", process.last_words())
            self._note("sampler", SAMPLER_LOST, time.monotonic())
        self._mark_lost()

    def _mark_lost(self) -> None:
        now_s = time.monotonic()
        self._add(tuple(_missing(device, now_s, SAMPLER_LOST) for device in self.devices))

    def _idle(self, duration_s: float) -> None:
        """Wait without a process, with missing readings all the while."""
        until_s = time.monotonic() + duration_s
        while time.monotonic() < until_s and not self._stopping.wait(_TICK_S):
            self._mark_lost()


def _missing(device: DeviceInfo, now_s: float, error: str) -> PowerSample:
    return PowerSample(
        device.device_id, now_s, None, None, None, device.provenance, device.source, error
    )
