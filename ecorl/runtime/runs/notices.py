"""What the user of a script is told on standard error: one line at the start, one at the end.

Lines of their own and not log records: a script that configures no logging would not see those.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

from ecorl.config import AutoSourceConfig, Config
from ecorl.engines.validate import EngineBoundary
from ecorl.ledger import DeviceRow, LedgerReader, RunEnding
from ecorl.records import DeviceKind, Provenance, Role
from ecorl.runtime.energy.run_energy import recorded_totals
from ecorl.runtime.protocol import RecordWriter
from ecorl.runtime.runs.found import FoundRun

_KINDS = {DeviceKind.GPU: "GPU", DeviceKind.CPU: "processor", DeviceKind.FPGA: "card"}


ALREADY_ATTACHED = (
    "ecorl is attached to this trainer already: call detach() on what attach returned then "
    "(attachment.detach()), or make a new trainer"
)
"""What a user reads who attaches twice: each step would be recorded twice."""


def tell(line: str) -> None:
    """Write a line on standard error; a stream that is closed or gone costs the line alone.

    Args:
        line: without its end.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"ecorl: {line}", file=sys.stderr, flush=True)


def tell_start(
    folder: Path,
    config: Config,
    record: RecordWriter,
    offloaded: Iterable[Role] = (),
    *,
    goes_on: bool = False,
) -> None:
    """Say where the record lies, by what is measured, and what may be offloaded.

    Args:
        folder: of the run.
        config: the run's.
        record: the open record, which names its devices already.
        offloaded: roles that have an engine.
        goes_on: whether the record is one that was there already.
    """
    parts = [f"the record in {folder} goes on" if goes_on else f"the record lies in {folder}"]
    with EngineBoundary():
        record.flush()
        parts.append(_instruments(folder, config))
    roles = ", ".join(sorted(offloaded))
    if roles:
        parts.append(f"may be offloaded: {roles}")
    tell("; ".join(parts))


def tell_end(folder: Path, error: BaseException | None = None) -> None:
    """Say what was recorded, and how a training that was cut short is gone on with.

    Args:
        folder: of the run, whose record is closed.
        error: that has ended the training; None when it ended by itself.
    """
    ended = "" if error is None else f"training ended with {type(error).__name__}; "
    told = f"{ended}the record lies in {folder}"
    with EngineBoundary():
        found = FoundRun.of(folder)
        steps = "1 step" if found.step == 1 else f"{found.step or 'no'} steps"
        told = f"{ended}recorded {steps}, {_energy(folder)}"
        if found.ending is not RunEnding.FINISHED:
            told += f"; to go on: {found.how_to_go_on}"
    tell(f"{told}; see: ecorl report {folder}")


def _energy(folder: Path) -> str:
    totals = recorded_totals(folder)
    if totals is None or totals.drawn_j is None:
        return "energy unknown"
    joules = totals.drawn_j
    number = f"{joules:,.0f}" if joules >= 100 else f"{joules:.3g}"
    return f"{number} J by the readings of its devices ({totals.provenance})"


def _instruments(folder: Path, config: Config) -> str:
    """Which device's energy is found by which instrument, as the newest attempt has recorded it."""
    with LedgerReader(folder) as reader:
        newest = max((row.attempt for row in reader.attempts()), default=0)
        devices = [row for row in reader.devices() if row.attempt == newest]
    return ", ".join(dict.fromkeys(_instrument(row, config) for row in devices)) or (
        "no device's power is read so far"
    )


def _instrument(device: DeviceRow, config: Config) -> str:
    name = _KINDS[device.kind]
    family = device.source.partition(" ")[0].partition(":")[0]
    if device.provenance is Provenance.REPLAYED:
        return f"{name} power replayed from a recording"
    if family == "modelled":
        is_auto = isinstance(config.telemetry.gpu, AutoSourceConfig)
        return f"{name} power modelled" + (": no counter can be read" if is_auto else "")
    if device.kind is DeviceKind.FPGA and device.provenance is not Provenance.MEASURED:
        return f"simulated {name}: energy {device.provenance}"
    if family == "null":
        return f"{name} energy unknown: telemetry asks for no power source"
    by = {"nvml": "NVML", "rapl": "RAPL", "xrt": "XRT"}.get(family, family)
    return f"{name} energy by {by}"
