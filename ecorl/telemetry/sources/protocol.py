"""One protocol for every source of power readings."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ecorl.records import PowerSample, Provenance


@runtime_checkable
class PowerSource(Protocol):
    """Reads the power of one or more devices.

    `read` never raises for a device fault: a failed reading is a `PowerSample` whose figures are
    None and whose ``error`` names the fault. `open` raises `ecorl.errors.DriverError` when the
    source cannot work at all on this machine.
    """

    name: str
    provenance: Provenance
    interval_s: float

    def open(self) -> None:
        """Initialise the driver; called once, in the process that will read."""
        ...

    def device_ids(self) -> tuple[str, ...]:
        """Devices that `read` reports, in order; stable after `open`."""
        ...

    def read(self) -> tuple[PowerSample, ...]:
        """One sample a device, now."""
        ...

    def close(self) -> None:
        """Release the driver; safe to call twice."""
        ...


@runtime_checkable
class PartialSource(Protocol):
    """A source that can be open while some of its devices give no readings."""

    def unread(self) -> tuple[tuple[str, str], ...]:
        """Devices that gave none when it was opened, each with the reason in words."""
        ...


@runtime_checkable
class EdgeSource(Protocol):
    """A source that gains by a reading right where a stage begins or ends."""

    def read_edge(self) -> tuple[PowerSample, ...]:
        """One sample a device, now; none for a device that was read a moment ago."""
        ...
